"""The reading side of the memory store: copies, and nothing that decides."""

from __future__ import annotations

import time
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from millpond.core import check
from millpond.core.admit import answers_for
from millpond.core.lifecycle import Status
from millpond.core.moment import rounded
from millpond.core.quantiles import quantiles
from millpond.core.run import RunView
from millpond.core.run import view as run_view
from millpond.store.memory.control import pool_named
from millpond.store.memory.endings import processed
from millpond.store.memory.lease import could_lease
from millpond.store.memory.tables import in_order
from millpond.store.memory.why import facts_about
from millpond.store.protocol import AuditPage, LaneState, LaneView, PoolView, TaskPage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millpond.core.task import Dedupe, Task
    from millpond.core.why import Facts
    from millpond.store.memory.tables import PoolTable, Tables


class MemoryView:
    """Reads of the memory store: copies, so that nobody can change a task by reading it."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def task(self, task: int) -> Task | None:
        """Return a copy of a task, or None if it is unknown or forgotten."""
        found = self._tables.tasks.get(task)
        return None if found is None else copied(found)

    async def holder(self, pool: str, key: str, *, run: int | None, dedupe: Dedupe) -> int | None:
        """Return the task that answers for an idempotency key under `dedupe`, or None."""
        table = self._tables.pools.get(pool)
        known = None if table is None else table.keys.get((key, run))
        return known.task if known is not None and answers_for(dedupe, known.status) else None

    async def status(self, tasks: Sequence[int]) -> tuple[str, ...]:
        """Return where each task is: its status, or "expired", or "unknown"."""
        return tuple(self._status(identifier) for identifier in tasks)

    def _status(self, identifier: int) -> str:
        task = self._tables.tasks.get(identifier)
        if task is not None:
            return task.status
        return "expired" if identifier in self._tables.removed else "unknown"

    async def tasks(
        self,
        pool: str,
        *,
        status: Status | None = None,
        key: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> TaskPage:
        """Return tasks of a pool behind place `after`, in the order of their places."""
        check.whole("limit", limit, least=1)
        table = pool_named(self._tables, pool)
        behind = (
            task
            for task in _candidates(self._tables, table, status, key, after, limit)
            if task.seq > after
            and (status is None or task.status is status)
            and (key is None or task.new.key == key)
        )
        page = list(islice(behind, limit + 1))
        following = page[limit - 1].seq if len(page) > limit else None
        return TaskPage(tuple(map(copied, page[:limit])), following)

    async def pool(self, name: str, *, now: float | None = None) -> PoolView | None:
        """Return a pool's counts and settings, or None if it was never declared."""
        pool = self._tables.pools.get(name)
        if pool is None:
            return None
        moment = rounded(time.time() if now is None else now)
        return PoolView(
            spec=pool.spec,
            declared=pool.declared,
            revision=pool.revision,
            created_at=pool.created_at,
            paused=pool.paused,
            paused_units=tuple(sorted(pool.paused_units)),
            closed=pool.closed,
            queued=pool.queued,
            fresh=len(pool.fresh),
            scheduled=_scheduled(pool, moment, self._tables.latest),
            running=pool.running,
            parked=sum(map(len, pool.parked.values())),
            kept=len(pool.succeeded) + len(pool.unsuccessful),
            oldest_queued_at=_oldest_queued_at(self._tables, pool),
            totals=dict(pool.totals),
            stale_settles=pool.stale_settles,
            waits=quantiles(pool.waits),
            run_times=quantiles(pool.run_times),
        )

    async def lanes(self, pool: str) -> tuple[LaneView, ...]:
        """Return the lanes of a pool in order; of an ordered pool those with work or a pause."""
        table = pool_named(self._tables, pool)
        return tuple(_lane(self._tables, table, lane) for lane in _lanes(table))

    async def run(self, run: int) -> RunView | None:
        """Return a run, or None."""
        found = self._tables.runs.get(run)
        return None if found is None else run_view(found)

    async def run_named(self, pool: str, name: str) -> RunView | None:
        """Return the run of a pool that has this name, or None."""
        run = self._tables.runs_by_name.get((pool, name))
        return None if run is None else await self.run(run)

    async def run_tasks(self, run: int, *, limit: int = 100) -> tuple[Task, ...]:
        """Return queued and running tasks of a run, callbacks too, by pool and place."""
        check.whole("limit", limit, least=1)
        live = (self._tables.tasks[i] for i in self._tables.run_live.get(run, ()))
        return tuple(map(copied, nsmallest(limit, live, key=in_order)))

    async def workers(self) -> frozenset[str]:
        """Return the workers that may hold leases."""
        return frozenset(self._tables.workers)

    async def ready(self, pool: str, worker: str, *, now: float) -> bool:
        """Return whether a lease at `now` would give this worker something."""
        table, row = pool_named(self._tables, pool), self._tables.workers.get(worker)
        if row is None:
            return False
        return could_lease(self._tables, table, row, rounded(now))

    async def why(self, task: int, *, now: float) -> Facts | None:
        """Return what decides when a task starts, or None if it is unknown or forgotten."""
        found = self._tables.tasks.get(task)
        return None if found is None else facts_about(self._tables, found, rounded(now))

    async def audit(self, *, after: int = 0, limit: int = 1000) -> AuditPage:
        """Return audit records from position `after` on, oldest first."""
        dropped = self._tables.records_dropped
        start = max(after - dropped, 0)
        records = tuple(self._tables.records[start : start + limit])
        return AuditPage(records, max(after, dropped) + len(records))


def copied(task: Task) -> Task:
    """Return a copy of a task: whoever changes it changes nothing that is kept."""
    steps = None if task.steps is None else dict(task.steps)
    return msgspec.structs.replace(task, steps=steps)


def _candidates(
    tables: Tables, pool: PoolTable, status: Status | None, key: str | None, after: int, limit: int
) -> Iterable[Task]:
    """Return the tasks among which a page is to be found, in order: as few as can be told."""
    match status:
        case Status.RUNNING:
            holders = (tables.workers[worker].holding for worker in pool.holding)
            held = (tables.tasks[i] for holding in holders for i in holding)
            return sorted((t for t in held if t.new.pool == pool.spec.name), key=_by_seq)
        case Status.QUEUED if key is not None and pool.spec.lanes is None:
            return (tables.tasks[i] for i in pool.live.get(key, ()))
        case Status.QUEUED:
            return pool.live_shelf.after(after, tables.tasks)
        case Status.FAILED | Status.CANCELLED | Status.REJECTED:
            ended = (tables.tasks[i] for i in pool.unsuccessful)
            wanted = (
                task
                for task in ended
                if task.seq > after
                and task.status is status
                and (key is None or task.new.key == key)
            )
            return nsmallest(limit + 1, wanted, key=_by_seq)
        case _:
            return pool.shelf.after(after, tables.tasks)


def _by_seq(task: Task) -> int:
    return task.seq


def _oldest_queued_at(tables: Tables, pool: PoolTable) -> float | None:
    """Return when the first of the queued tasks was submitted; only running ones stand before."""
    waiting = pool.live_shelf.after(0, tables.tasks)
    return next((t.submitted_at for t in waiting if t.status is Status.QUEUED), None)


def _scheduled(pool: PoolTable, now: float, latest: float) -> int:
    """Count the queued tasks that are not due; each that has become due is looked at once."""
    timers = pool.scheduled
    while (soonest := timers.lowest()) is not None and soonest[0] <= min(now, latest):
        timers.discard(timers.peek() or 0)
    # Asked about a moment that no verb has reached: what is due by then is set aside for the count.
    due_by_now: list[tuple[int, tuple[float, ...]]] = []
    while (soonest := timers.lowest()) is not None and soonest[0] <= now:
        identifier = timers.peek() or 0
        due_by_now.append((identifier, soonest))
        timers.discard(identifier)
    count = len(timers)
    for identifier, place in due_by_now:
        timers.set(identifier, place)
    return count


def _lanes(pool: PoolTable) -> list[str]:
    if pool.spec.lanes is not None:
        return [str(lane) for lane in range(pool.spec.lanes)]
    if not pool.spec.ordered:
        return []
    return sorted({lane for lane in pool.live if lane is not None} | pool.paused_units)


def _lane(tables: Tables, pool: PoolTable, lane: str) -> LaneView:
    live = pool.live.get(lane, ())
    # A lane starts in sequence, so what runs is the first of it.
    first = tables.tasks[next(iter(live))] if live else None
    current = first.sequence if first and first.status is Status.RUNNING else None
    paused = lane in pool.paused_units
    busy: LaneState = "idle" if current is None else "processing"
    return LaneView(
        lane=lane,
        state="paused" if paused or pool.paused else busy,
        pending=len(live) - (current is not None),
        processed=processed(pool, lane),
        current_sequence=current,
        paused=paused,
    )
