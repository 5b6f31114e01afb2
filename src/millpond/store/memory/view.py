"""The reading side of the memory store: copies, and nothing that decides."""

from __future__ import annotations

from heapq import merge
from itertools import chain, groupby, islice
from math import inf, isinf, nextafter
from typing import TYPE_CHECKING, TypeVar

import msgspec

from millpond.core.audit import matching
from millpond.core.lifecycle import Status, Transition
from millpond.core.quantiles import quantiles
from millpond.core.spec import OrderKind
from millpond.core.task import copied
from millpond.core.ticks import rounded
from millpond.store import search
from millpond.store.protocol import (
    MOST_HELD_UNITS,
    MOST_HOLDING,
    AuditPage,
    PoolView,
    StoredResult,
    StoredResults,
    Story,
    UnitView,
)
from millpond.store.story import MOST_RECORDS, History, follow_ups
from millpond.store.verbs.tables import DictRuns, PoolTable, Tables, by_pool_and_place
from millpond.store.verbs.worker_views import worker_view
from millpond.store.view import TablesView, by_seq, pool_view, question

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millpond.core.lease import RegisteredWorker
    from millpond.core.run import Run
    from millpond.core.task import Task
    from millpond.core.task_filter import TaskFilter
    from millpond.store.protocol import Place, WorkerView
    from millpond.store.view import Revisions

T = TypeVar("T")

_RECORDS_OF_TASK = 5
"""Records of the audit that are searched for each record of one task that is asked for."""


class MemoryView(TablesView[Tables, PoolTable]):
    """The view of the memory store."""

    def __init__(self, tables: Tables, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._tables = tables

    async def _read(self, ask: Callable[[Tables], T]) -> T:
        return ask(self._tables)

    # Tasks

    @question
    def story(self, tables: Tables, task: int) -> Story | None:
        """Return a task, its audit records as far as a short search finds them, its follow-ups."""
        found = tables.tasks.get(task)
        if found is None:
            return None
        history = History(found)

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
            follow_ups=tuple(map(copied, _follow_ups(tables, history))),
        )

    @question
    def status(self, tables: Tables, tasks: Sequence[int]) -> tuple[str, ...]:
        """Return where each task is: its status, or "expired", or "unknown"."""
        return tuple(_status(tables, identifier) for identifier in tasks)

    @question
    def results(self, tables: Tables, tasks: Sequence[int]) -> StoredResults:
        """Return how tasks ended, all in one read."""
        ended: dict[int, StoredResult] = {}
        missing: dict[int, str] = {}
        for identifier in tasks:
            task = tables.tasks.get(identifier)
            if task is None:
                missing[identifier] = _status(tables, identifier)
            elif task.status.terminal:
                ended[identifier] = StoredResult(
                    task.status, task.attempt, task.result, task.error, task.reason
                )
        return StoredResults(ended, missing)

    def _candidates(
        self, tables: Tables, pool: PoolTable, status: Status | None, after: int
    ) -> Iterable[Task]:
        return _candidates(tables, pool, status, after)

    def _searched(
        self,
        tables: Tables,
        pool: PoolTable,
        wanted: TaskFilter,
        behind: Place | None,
        size: int,  # noqa: ARG002 - nothing is read
    ) -> Iterator[search.Candidate]:
        order = search.order_of(wanted, strict=pool.spec.strict)
        found = _searched(tables, pool, wanted, order, behind)
        return ((order(task), task) for task in found)

    # Pools

    def _overview(
        self, tables: Tables, pools: Sequence[PoolTable], now: float
    ) -> tuple[PoolView, ...]:
        nothing = quantiles(())
        return tuple(
            msgspec.structs.replace(
                self._pool_view(tables, pool, now, measured=True),
                held_units=(),
                waits=nothing,
                run_times=nothing,
            )
            for pool in pools
        )

    def _pool_view(
        self, tables: Tables, pool: PoolTable, now: float, *, measured: bool
    ) -> PoolView:
        return pool_view(
            pool,
            now,
            kept=len(pool.succeeded or ()) + len(pool.unsuccessful or ()) - pool.redriven,
            paused_units=pool.paused_units(),
            scheduled=pool.backlog.scheduled(now) if measured else 0,
            dead=_dead(tables, pool) if measured else 0,
            oldest_queued_at=_oldest_queued_at(pool) if measured else None,
            held_units=pool.backlog.held_units(now)[:MOST_HELD_UNITS] if measured else (),
            waits=quantiles((measured and pool.waits) or ()),
            run_times=quantiles((measured and pool.run_times) or ()),
        )

    def _revisions(self, tables: Tables, pool: PoolTable, limit: int) -> Revisions:  # noqa: ARG002
        known = {**pool.revisions, pool.revision: pool.spec}
        return tuple(sorted(known.items(), key=lambda one: one[0], reverse=True)[:limit])

    def _units(
        self,
        tables: Tables,  # noqa: ARG002 - the pool has it all
        pool: PoolTable,
        limit: int,
    ) -> tuple[UnitView, ...]:
        found = pool.backlog.units_in_use() if pool.backlog.grouped else ()
        return tuple(
            UnitView(
                unit=unit or None,
                share=share if pool.spec.order.kind is OrderKind.FAIR else None,
                queued=queued,
                running=running,
                paused=unit in pool.paused_units(),
                held_until=held_until,
            )
            for unit, share, queued, running, held_until in islice(found, limit)
        )

    def _live_lanes(
        self,
        tables: Tables,  # noqa: ARG002 - the pool has it all
        pool: PoolTable,
    ) -> dict[str, tuple[int, int | None]]:
        live: dict[str, tuple[int, int | None]] = {}
        for task in pool.arrivals:
            if task.lane is not None:
                waiting, current = live.get(task.lane, (0, None))
                if task.status is Status.RUNNING:
                    live[task.lane] = waiting, task.sequence
                else:
                    live[task.lane] = waiting + 1, current
        return live

    @question
    def due(self, tables: Tables, *, now: float) -> tuple[str, ...]:
        """Return the pools in which something due waits and starts are allowed at all."""
        moment = rounded(now)
        return tuple(
            pool.name
            for pool in tables.pools.all()
            if not pool.paused
            and pool.spec.max_concurrent
            and pool.not_before <= moment
            and pool.queued > pool.backlog.scheduled(moment)
        )

    # Runs, workers, audit

    def _runs(
        self, tables: Tables, pool: str, after: Place | None, limit: int, *, finished: bool
    ) -> list[Run]:
        assert isinstance(tables.runs, DictRuns)  # noqa: S101 - of tables in memory they are
        found = [run for run in tables.runs.of_pool(pool) if run.finished is finished]
        if finished:
            behind = [run for run in found if _by_end(run) < (after or search.FIRST)]
            return sorted(behind, key=_by_end, reverse=True)[:limit]
        behind = [run for run in found if after is None or run.new.id > after[1]]
        return sorted(behind, key=lambda run: run.new.id)[:limit]

    def _workers(
        self, tables: Tables, workers: Sequence[RegisteredWorker]
    ) -> tuple[WorkerView, ...]:
        return tuple(_worker(tables, worker) for worker in workers)

    @question
    def workers(self, tables: Tables) -> frozenset[str]:
        """Return the workers that may hold leases."""
        return frozenset(worker.id for worker in tables.workers.all())

    @question
    def audit(
        self,
        tables: Tables,
        *,
        after: int = 0,
        limit: int = 1000,
        since: float | None = None,
        task: int | None = None,
    ) -> AuditPage:
        """Return audit records from position `after` on, oldest first."""
        dropped = tables.records_dropped
        start = max(after - dropped, 0)
        if since is not None:
            start = max(start, tables.records_before(since))
        # To find what is said of one task takes looking at what is said of others.
        records = tables.records(start, limit if task is None else _RECORDS_OF_TASK * limit)
        return AuditPage(matching(records, since, task), dropped + start + len(records))

    @question
    def audit_end(self, tables: Tables) -> int:
        """Return the position of the latest audit record."""
        return tables.records_dropped + tables.records_kept


def _follow_ups(tables: Tables, history: History) -> list[Task]:
    """Return the tasks that the end of a task submitted."""
    ended = history.task.finished_at
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


def _status(tables: Tables, identifier: int) -> str:
    task = tables.tasks.get(identifier)
    if task is not None:
        return task.status
    return "expired" if tables.was_removed(identifier) else "unknown"


def _worker(tables: Tables, worker: RegisteredWorker) -> WorkerView:
    tasks = [tables.tasks.require(i) for i in worker.holding.ids()]
    return worker_view(worker, len(tasks), sorted(tasks, key=by_pool_and_place)[:MOST_HOLDING])


def _by_end(run: Run) -> Place:
    return run.finished_at or 0.0, run.new.id


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
        yield from sorted(together, key=by_seq, reverse=True)


def _candidates(
    tables: Tables, pool: PoolTable, status: Status | None, after: int
) -> Iterable[Task]:
    """Return the tasks among which a page is to be found, in order."""
    match status:
        case Status.RUNNING:
            holders = (tables.workers.require(worker).holding for worker in pool.holding)
            held = (tables.tasks.require(i) for holding in holders for i in holding.ids())
            return sorted((t for t in held if t.new.pool == pool.name), key=by_seq)
        case Status.QUEUED:
            return pool.arrivals
        case Status.COMPLETED:
            return sorted(_kept(tables, pool.succeeded, after), key=by_seq)
        case None:
            ended = chain(
                _kept(tables, pool.succeeded, after), _kept(tables, pool.unsuccessful, after)
            )
            return merge(pool.arrivals, sorted(ended, key=by_seq), key=by_seq)
        case _:
            return sorted(_kept(tables, pool.unsuccessful, after), key=by_seq)


def _kept(tables: Tables, ended: Iterable[Task] | None, after: int) -> Iterator[Task]:
    """Yield the ended tasks behind a place; one that was redriven has left its old place."""
    for task in ended or ():
        if task.seq > after and tables.tasks.get(task.new.id) is task:
            yield task


def _dead(tables: Tables, pool: PoolTable) -> int:
    """Return how many failed tasks of a pool are kept."""
    return sum(task.status is Status.FAILED for task in _kept(tables, pool.unsuccessful, 0))


def _oldest_queued_at(pool: PoolTable) -> float | None:
    """Return when the first of the queued tasks was submitted; only running ones stand before."""
    if not pool.queued:
        return None
    return next((t.submitted_at for t in pool.arrivals if t.status is Status.QUEUED), None)
