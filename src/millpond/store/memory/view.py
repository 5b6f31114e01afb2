"""The reading side of the memory store: copies, and nothing that decides."""

from __future__ import annotations

from heapq import merge, nsmallest
from itertools import chain, islice
from typing import TYPE_CHECKING

import msgspec

from millpond.core import validation as check
from millpond.core.admit import answers_for
from millpond.core.lease import WorkerView, worker_view
from millpond.core.lifecycle import Status
from millpond.core.quantiles import quantiles
from millpond.core.run import RunView
from millpond.core.run import view as run_view
from millpond.core.ticks import rounded
from millpond.store.protocol import (
    MOST_HELD_UNITS,
    AuditPage,
    LaneState,
    LaneView,
    PoolView,
    TaskPage,
)
from millpond.store.verbs import budgets
from millpond.store.verbs.audit_filter import matching
from millpond.store.verbs.control import pool_named
from millpond.store.verbs.endings import processed
from millpond.store.verbs.lease import could_lease
from millpond.store.verbs.tables import by_pool_and_place
from millpond.store.verbs.why import facts_about

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millpond.core.task import Dedupe, Task
    from millpond.core.why import Facts
    from millpond.store.protocol import BudgetView
    from millpond.store.verbs.tables import PoolTable, Tables


class MemoryView:
    """The view of the memory store; it returns copies."""

    def __init__(self, tables: Tables, clock: Callable[[], float]) -> None:
        self._tables = tables
        self._clock = clock

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
        since: float | None = None,
        before: float | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> TaskPage:
        """Return tasks of a pool behind place `after`, in the order of their places."""
        check.integer("limit", limit, least=1)
        table = pool_named(self._tables, pool)
        behind = (
            task
            for task in _candidates(self._tables, table, status, after)
            if task.seq > after
            and (status is None or task.status is status)
            and (key is None or task.new.key == key)
            and (since is None or task.submitted_at >= since)
            and (before is None or task.submitted_at < before)
        )
        page = list(islice(behind, limit + 1))
        following = page[limit - 1].seq if len(page) > limit else None
        return TaskPage(tuple(map(copied, page[:limit])), following)

    async def pool(
        self, name: str, *, now: float | None = None, measured: bool = True
    ) -> PoolView | None:
        """Return a pool's counts and settings, or None if it was never declared."""
        pool = self._tables.pools.get(name)
        if pool is None:
            return None
        moment = rounded(self._clock() if now is None else now)
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
            scheduled=pool.backlog.scheduled(moment) if measured else 0,
            claimed=pool.claimed,
            running=pool.running,
            parked=sum(map(len, pool.parked.values())),
            kept=len(pool.succeeded or ()) + len(pool.unsuccessful or ()) - pool.redriven,
            dead=_dead(self._tables, pool) if measured else 0,
            held_until=pool.not_before if pool.not_before > moment else 0.0,
            held_units=pool.backlog.held_units(moment)[:MOST_HELD_UNITS] if measured else (),
            oldest_queued_at=_oldest_queued_at(pool) if measured else None,
            totals=dict(pool.totals),
            stale_settles=pool.stale_settles,
            waits=quantiles((measured and pool.waits) or ()),
            run_times=quantiles((measured and pool.run_times) or ()),
        )

    async def budget(self, name: str) -> BudgetView | None:
        """Return a budget that pools share, or None if it was never declared."""
        return budgets.view(self._tables, name)

    async def lanes(self, pool: str) -> tuple[LaneView, ...]:
        """Return the lanes of a pool in order; of an ordered pool those with work or a pause."""
        table = pool_named(self._tables, pool)
        live: dict[str, list[Task]] = {}
        for task in table.arrivals:
            if task.lane is not None:
                live.setdefault(task.lane, []).append(task)
        return tuple(_lane(table, lane, live.get(lane, [])) for lane in _lanes(table, live))

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
        check.integer("limit", limit, least=1)
        return tuple(map(copied, nsmallest(limit, self._tables.of_run(run), key=by_pool_and_place)))

    async def workers(self) -> frozenset[str]:
        """Return the workers that may hold leases."""
        return frozenset(self._tables.workers)

    async def worker_views(self) -> tuple[WorkerView, ...]:
        """Return the same workers with their leases, in order of registration."""
        return tuple(map(worker_view, self._tables.workers.values()))

    async def ready(self, pool: str, worker: str, *, now: float) -> bool:
        """Return whether a lease at `now` would give this worker something."""
        table, row = pool_named(self._tables, pool), self._tables.workers.get(worker)
        if row is None:
            return False
        return could_lease(self._tables, table, row, rounded(now))

    async def names(self, begins: str = "") -> tuple[str, ...]:
        """Return the pools that were ever declared, of those whose name begins so, by name."""
        pools = self._tables.pools.values()
        return tuple(sorted(p.name for p in pools if not p.internal and p.name.startswith(begins)))

    async def due(self, *, now: float) -> tuple[str, ...]:
        """Return the pools in which something due waits and starts are allowed at all."""
        moment = rounded(now)
        return tuple(
            name
            for name, pool in self._tables.pools.items()
            if not pool.paused
            and pool.spec.max_concurrent
            and pool.not_before <= moment
            and pool.queued > pool.backlog.scheduled(moment)
        )

    async def why(self, task: int, *, now: float) -> Facts | None:
        """Return what decides when a task starts, or None if it is unknown or forgotten."""
        found = self._tables.tasks.get(task)
        return None if found is None else facts_about(self._tables, found, rounded(now))

    async def audit(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        since: float | None = None,
        task: int | None = None,
    ) -> AuditPage:
        """Return audit records from position `after` on, oldest first."""
        dropped = self._tables.records_dropped
        start = max(after - dropped, 0)
        records = self._tables.records(start, limit)
        following = max(after, dropped) + len(records)
        return AuditPage(matching(records, since, task), following)


def copied(task: Task) -> Task:
    """Return a copy of a task."""
    steps = None if task.steps is None else dict(task.steps)
    return msgspec.structs.replace(task, steps=steps)


def _candidates(
    tables: Tables, pool: PoolTable, status: Status | None, after: int
) -> Iterable[Task]:
    """Return the tasks among which a page is to be found, in order."""
    match status:
        case Status.RUNNING:
            holders = (tables.workers[worker].holding for worker in pool.holding)
            held = (tables.tasks[i] for holding in holders for i in holding)
            return sorted((t for t in held if t.new.pool == pool.name), key=_by_seq)
        case Status.QUEUED:
            return pool.arrivals
        case Status.COMPLETED:
            return sorted(_kept(tables, pool.succeeded, after), key=_by_seq)
        case None:
            ended = chain(
                _kept(tables, pool.succeeded, after), _kept(tables, pool.unsuccessful, after)
            )
            return merge(pool.arrivals, sorted(ended, key=_by_seq), key=_by_seq)
        case _:
            return sorted(_kept(tables, pool.unsuccessful, after), key=_by_seq)


def _kept(tables: Tables, ended: Iterable[Task] | None, after: int) -> Iterator[Task]:
    """Yield the ended tasks behind a place; one that was redriven has left its old place."""
    for task in ended or ():
        if task.seq > after and tables.tasks.get(task.new.id) is task:
            yield task


def _by_seq(task: Task) -> int:
    return task.seq


def _dead(tables: Tables, pool: PoolTable) -> int:
    """Return how many failed tasks of a pool are kept."""
    return sum(task.status is Status.FAILED for task in _kept(tables, pool.unsuccessful, 0))


def _oldest_queued_at(pool: PoolTable) -> float | None:
    """Return when the first of the queued tasks was submitted; only running ones stand before."""
    if not pool.queued:
        return None
    return next((t.submitted_at for t in pool.arrivals if t.status is Status.QUEUED), None)


def _lanes(pool: PoolTable, live: dict[str, list[Task]]) -> list[str]:
    if pool.spec.lanes is not None:
        return [str(lane) for lane in range(pool.spec.lanes)]
    return sorted({*live, *pool.paused_units}) if pool.spec.ordered else []


def _lane(pool: PoolTable, lane: str, live: list[Task]) -> LaneView:
    # A lane starts in sequence, so what runs is the first of it.
    current = next((task.sequence for task in live if task.status is Status.RUNNING), None)
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
