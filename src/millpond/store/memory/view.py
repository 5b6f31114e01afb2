"""The reading side of the memory store: copies, and nothing that decides."""

from __future__ import annotations

from heapq import merge, nsmallest
from itertools import chain, groupby, islice
from math import inf, isinf, nextafter
from typing import TYPE_CHECKING

import msgspec

from millpond.core import validation as check
from millpond.core.audit import matching
from millpond.core.lifecycle import Status, Transition
from millpond.core.quantiles import quantiles
from millpond.core.run import RunView
from millpond.core.run import view as run_view
from millpond.core.spec import OrderKind
from millpond.core.task import CALLBACKS
from millpond.core.ticks import rounded
from millpond.store import search
from millpond.store.protocol import (
    MOST_HELD_UNITS,
    MOST_HOLDING,
    AuditPage,
    LaneState,
    LaneView,
    PoolInFull,
    PoolView,
    RunPage,
    StoredResult,
    StoredResults,
    Story,
    TaskPage,
    UnitView,
)
from millpond.store.story import MOST_RECORDS, History, follow_ups
from millpond.store.verbs import budgets
from millpond.store.verbs.control import pool_named
from millpond.store.verbs.endings import processed
from millpond.store.verbs.lease import could_lease
from millpond.store.verbs.submit import still_answers
from millpond.store.verbs.tables import DictRuns, by_pool_and_place
from millpond.store.verbs.why import facts_about
from millpond.store.verbs.worker_views import worker_view

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millpond.core.lease import RegisteredWorker
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Dedupe, Task
    from millpond.core.task_filter import TaskFilter
    from millpond.core.why import Facts
    from millpond.store.protocol import BudgetView, Cursor, Place, SearchPage, WorkerView
    from millpond.store.verbs.tables import PoolTable, Tables


_RECORDS_OF_TASK = 5
"""Records of the audit that are searched for each record of one task that is asked for."""


class MemoryView:
    """The view of the memory store; it returns copies."""

    def __init__(self, tables: Tables, clock: Callable[[], float]) -> None:
        self._tables = tables
        self._clock = clock

    async def task(self, task: int) -> Task | None:
        """Return a copy of a task, or None if it is unknown or forgotten."""
        found = self._tables.tasks.get(task)
        return None if found is None else copied(found)

    async def story(self, task: int) -> Story | None:
        """Return a task, its audit records as far as a short search finds them, its follow-ups."""
        found = self._tables.tasks.get(task)
        if found is None:
            return None
        tables, history = self._tables, History(found)

        def read(since: float, until: float, most: int) -> bool:
            start = tables.records_before(since)
            upto = start + most if isinf(until) else tables.records_before(nextafter(until, inf))
            history.found.update(tables.records_of(task, start, upto - start))
            return upto >= tables.records_kept

        history.search(read)
        return Story(
            task=copied(found),
            records=history.records,
            complete=history.complete,
            follow_ups=tuple(map(copied, self._follow_ups(history))),
        )

    def _follow_ups(self, history: History) -> list[Task]:
        """Return the tasks that the end of a task submitted."""
        tables, ended = self._tables, history.task.finished_at
        if ended is None:
            return []
        start = tables.records_before(ended)
        together = enumerate(tables.records(start, MOST_RECORDS), start)
        submitted = [
            (index, one.task)
            for index, one in together
            if one.at == ended and one.event is Transition.SUBMIT and one.task is not None
        ]
        named = history.nearest(submitted)
        known = [one for name in named if (one := tables.tasks.get(name)) is not None]
        return follow_ups(history.task, known)

    async def holder(self, pool: str, key: str, *, run: int | None, dedupe: Dedupe) -> int | None:
        """Return the task that answers for an idempotency key under `dedupe`, or None."""
        table = self._tables.pools.get(pool)
        known = None if table is None else table.keys.get((key, run))
        return known.task if known and still_answers(self._tables, known, dedupe) else None

    async def status(self, tasks: Sequence[int]) -> tuple[str, ...]:
        """Return where each task is: its status, or "expired", or "unknown"."""
        return tuple(self._status(identifier) for identifier in tasks)

    def _status(self, identifier: int) -> str:
        task = self._tables.tasks.get(identifier)
        if task is not None:
            return task.status
        return "expired" if self._tables.was_removed(identifier) else "unknown"

    async def results(self, tasks: Sequence[int]) -> StoredResults:
        """Return how tasks ended, all in one read."""
        ended: dict[int, StoredResult] = {}
        missing: dict[int, str] = {}
        for identifier in tasks:
            task = self._tables.tasks.get(identifier)
            if task is None:
                missing[identifier] = self._status(identifier)
            elif task.status.terminal:
                ended[identifier] = StoredResult(
                    task.status, task.attempt, task.result, task.error, task.reason
                )
        return StoredResults(ended, missing)

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

    async def search(
        self,
        pools: Sequence[str],
        wanted: TaskFilter,
        *,
        after: Cursor | None = None,
        limit: int = 50,
        scan: int = 2000,
        now: float | None = None,
    ) -> SearchPage:
        """Return tasks of pools that meet conditions, at most `limit` of them."""
        check.integer("limit", limit, least=1)
        check.integer("scan", scan, least=1)

        def candidates(pool: str, behind: Place | None) -> Iterator[search.Candidate]:
            table = pool_named(self._tables, pool)
            order = search.order_of(wanted, strict=table.spec.strict)
            found = _searched(self._tables, table, wanted, order, behind)
            return ((order(task), task) for task in found)

        return search.over_pools(
            pools,
            after,
            candidates,
            wanted,
            limit=limit,
            scan=scan,
            now=rounded(self._clock() if now is None else now),
            copy=copied,
        )

    async def pools(self, *, now: float | None = None) -> tuple[PoolView, ...]:
        """Return every pool by name, without what takes time to find out."""
        moment = rounded(self._clock() if now is None else now)
        named = sorted(self._tables.pools.all(), key=lambda pool: pool.name)
        return tuple(
            msgspec.structs.replace(
                self._pool(pool, moment, measured=True),
                held_units=(),
                waits=quantiles(()),
                run_times=quantiles(()),
            )
            for pool in named
            if not pool.internal
        )

    async def worker_list(self, *, after: int = 0, limit: int = 100) -> tuple[WorkerView, ...]:
        """Return workers in the order of joining, behind the worker with number `after`."""
        check.integer("limit", limit, least=1)
        workers = sorted(self._tables.workers.all(), key=lambda worker: worker.number)
        behind = (worker for worker in workers if worker.number > after)
        return tuple(self._worker(worker) for worker in islice(behind, limit))

    def _worker(self, worker: RegisteredWorker) -> WorkerView:
        tasks = [self._tables.tasks.require(i) for i in worker.holding.ids()]
        return worker_view(worker, len(tasks), sorted(tasks, key=by_pool_and_place)[:MOST_HOLDING])

    async def units(self, pool: str, *, limit: int = 100) -> tuple[UnitView, ...]:
        """Return the first keys or lanes of a pool by name, with their tasks that are ready."""
        check.integer("limit", limit, least=1)
        table = pool_named(self._tables, pool)
        found = table.backlog.units_in_use() if table.backlog.grouped else ()
        return tuple(
            UnitView(
                unit=unit or None,
                share=share if table.spec.order.kind is OrderKind.FAIR else None,
                queued=queued,
                running=running,
                paused=unit in table.paused_units(),
                held_until=held_until,
            )
            for unit, share, queued, running, held_until in islice(found, limit)
        )

    async def pool_in_full(self, name: str, *, now: float | None = None) -> PoolInFull | None:
        """Return a pool with its units, revisions and budgets; None if it was never declared."""
        view = await self.pool(name, now=now)
        if view is None:
            return None
        return PoolInFull(
            view=view,
            units=await self.units(name),
            revisions=await self.revisions(name),
            budgets=budgets.views(self._tables, view.spec.budgets),
            callbacks=await self.pool(name + CALLBACKS, now=now, measured=False),
        )

    async def runs(
        self, pool: str, *, finished: bool, after: Place | None = None, limit: int = 50
    ) -> RunPage:
        """Return runs of a pool: the open ones by id, the finished ones with the latest first."""
        check.integer("limit", limit, least=1)
        pool_named(self._tables, pool)
        runs = self._tables.runs
        assert isinstance(runs, DictRuns)  # noqa: S101 - of tables in memory they are
        of_pool = runs.of_pool(pool)
        if finished:
            ended = [((run.finished_at or 0.0), run.new.id, run) for run in of_pool if run.finished]
            behind = [one for one in ended if one[:2] < (after or search.FIRST)]
            behind.sort(key=lambda one: one[:2], reverse=True)
        else:
            behind = [(0.0, run.new.id, run) for run in of_pool if not run.finished]
            behind = sorted(one for one in behind if after is None or one[1] > after[1])
        following = behind[limit - 1][:2] if len(behind) > limit else None
        return RunPage(runs=tuple(run_view(one[2]) for one in behind[:limit]), next=following)

    async def revisions(self, pool: str, *, limit: int = 20) -> tuple[tuple[int, PoolSpec], ...]:
        """Return the latest settings that a pool had, each with its revision, latest first."""
        table = pool_named(self._tables, pool)
        known = {**table.revisions, table.revision: table.spec}
        return tuple(sorted(known.items(), key=lambda one: one[0], reverse=True)[:limit])

    async def pool(
        self, name: str, *, now: float | None = None, measured: bool = True
    ) -> PoolView | None:
        """Return a pool's counts and settings, or None if it was never declared."""
        pool = self._tables.pools.get(name)
        if pool is None:
            return None
        moment = rounded(self._clock() if now is None else now)
        return self._pool(pool, moment, measured=measured)

    def _pool(self, pool: PoolTable, moment: float, *, measured: bool) -> PoolView:
        return PoolView(
            spec=pool.spec,
            declared=pool.declared,
            revision=pool.revision,
            created_at=pool.created_at,
            paused=pool.paused,
            paused_units=tuple(sorted(pool.paused_units())),
            closed=pool.closed,
            queued=pool.queued,
            fresh=len(pool.fresh),
            scheduled=pool.backlog.scheduled(moment) if measured else 0,
            claimed=pool.claimed,
            running=pool.running,
            parked=pool.parked.count,
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
        run = self._tables.runs.named(pool, name)
        return None if run is None else await self.run(run)

    async def run_tasks(self, run: int, *, limit: int = 100) -> tuple[Task, ...]:
        """Return queued and running tasks of a run, callbacks too, by pool and place."""
        check.integer("limit", limit, least=1)
        return tuple(map(copied, nsmallest(limit, self._tables.of_run(run), key=by_pool_and_place)))

    async def workers(self) -> frozenset[str]:
        """Return the workers that may hold leases."""
        return frozenset(worker.id for worker in self._tables.workers.all())

    async def ready(self, pool: str, worker: str, *, now: float) -> bool:
        """Return whether a lease at `now` would give this worker something."""
        table, row = pool_named(self._tables, pool), self._tables.workers.get(worker)
        if row is None:
            return False
        return could_lease(self._tables, table, row, rounded(now))

    async def names(self, begins: str = "") -> tuple[str, ...]:
        """Return the pools that were ever declared, of those whose name begins so, by name."""
        pools = self._tables.pools.all()
        return tuple(sorted(p.name for p in pools if not p.internal and p.name.startswith(begins)))

    async def due(self, *, now: float) -> tuple[str, ...]:
        """Return the pools in which something due waits and starts are allowed at all."""
        moment = rounded(now)
        return tuple(
            pool.name
            for pool in self._tables.pools.all()
            if not pool.paused
            and pool.spec.max_concurrent
            and pool.not_before <= moment
            and pool.queued > pool.backlog.scheduled(moment)
        )

    async def why(self, task: int, *, now: float, most: int | None = None) -> Facts | None:
        """Return what decides when a task starts, or None if it is unknown or forgotten."""
        found = self._tables.tasks.get(task)
        return None if found is None else facts_about(self._tables, found, rounded(now), most)

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
        if since is not None:
            start = max(start, self._tables.records_before(since))
        # To find what is said of one task takes looking at what is said of others.
        records = self._tables.records(start, limit if task is None else _RECORDS_OF_TASK * limit)
        return AuditPage(matching(records, since, task), dropped + start + len(records))

    async def audit_end(self) -> int:
        """Return the position of the latest audit record."""
        return self._tables.records_dropped + self._tables.records_kept


def _searched(
    tables: Tables,
    pool: PoolTable,
    wanted: TaskFilter,
    order: Callable[[Task], Place],
    after: Place | None,
) -> Iterable[Task]:
    """Return the tasks among which a search looks, in its order, behind a place."""
    status = wanted.status
    if order is search.by_end:
        last = after or search.FIRST
        return (task for task in _latest_first(tables, pool, status) if order(task) < last)
    if order is search.by_due:
        first = after or search.START
        waiting = (task for task in pool.arrivals if task.status is Status.QUEUED)
        return sorted((task for task in waiting if order(task) > first), key=order)
    seq = 0 if after is None else after[1]
    if status is Status.RUNNING:
        running = _candidates(tables, pool, status, seq)
        return (task for task in running if task.seq > seq)
    return (task for task in pool.arrivals.behind(seq) if task.status is Status.QUEUED)


def _latest_first(tables: Tables, pool: PoolTable, status: Status | None) -> Iterator[Task]:
    """Yield tasks of a status with the latest end first; of any status the live ones first."""
    if status is None:
        yield from reversed(list(pool.arrivals))
    succeeded = _ends(tables, pool.succeeded) if status in (None, Status.COMPLETED) else ()
    others = _ends(tables, pool.unsuccessful) if status is not Status.COMPLETED else ()
    yield from merge(succeeded, others, key=search.by_end, reverse=True)


def _ends(tables: Tables, ended: deque[Task] | None) -> Iterator[Task]:
    """Yield ended tasks, the latest end first, and of one moment the latest place first."""
    kept = (task for task in reversed(ended or ()) if tables.tasks.get(task.new.id) is task)
    for _, together in groupby(kept, key=lambda task: task.finished_at):
        yield from sorted(together, key=_by_seq, reverse=True)


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
            holders = (tables.workers.require(worker).holding for worker in pool.holding)
            held = (tables.tasks.require(i) for holding in holders for i in holding.ids())
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
    return sorted({*live, *pool.paused_units()}) if pool.spec.ordered else []


def _lane(pool: PoolTable, lane: str, live: list[Task]) -> LaneView:
    # A lane starts in sequence, so what runs is the first of it.
    current = next((task.sequence for task in live if task.status is Status.RUNNING), None)
    paused = lane in pool.paused_units()
    busy: LaneState = "idle" if current is None else "processing"
    return LaneView(
        lane=lane,
        state="paused" if paused or pool.paused else busy,
        pending=len(live) - (current is not None),
        processed=processed(pool, lane),
        current_sequence=current,
        paused=paused,
    )
