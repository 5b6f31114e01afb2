"""The reading side: each question is one read transaction."""

from __future__ import annotations

from heapq import merge, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from millpond.core import validation as check
from millpond.core.admit import answers_for
from millpond.core.lease import WorkerView, worker_view
from millpond.core.lifecycle import Status
from millpond.core.quantiles import quantiles
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
from millpond.store.sql.audit import decoded, may_name
from millpond.store.sql.codec import SEQ_BITS, plain
from millpond.store.sql.pool import SqlPool
from millpond.store.verbs import budgets
from millpond.store.verbs.audit_filter import matching
from millpond.store.verbs.control import pool_named
from millpond.store.verbs.endings import processed
from millpond.store.verbs.lease import could_lease
from millpond.store.verbs.tables import by_pool_and_place
from millpond.store.verbs.why import facts_about

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from millpond.core.audit import Record
    from millpond.core.run import RunView
    from millpond.core.task import Dedupe, Task
    from millpond.core.why import Facts
    from millpond.store.protocol import BudgetView
    from millpond.store.sql.unit_of_work import SqlTables

T = TypeVar("T")

_PAGE = 200
_ROWS_SEARCHED = 5000
_TERMINAL = tuple(status for status in Status if status.terminal)


class SqlView:
    """The view of a store over rows."""

    def __init__(
        self,
        read: Callable[[Callable[[SqlTables], object]], Awaitable[object]],
        clock: Callable[[], float],
        tell_newer: Callable[[SqlTables], None],
    ) -> None:
        self._read_ = read
        self._tell_newer = tell_newer
        self._clock = clock

    async def _read(self, question: Callable[[SqlTables], T]) -> T:
        return await self._read_(question)  # type: ignore[return-value]

    async def task(self, task: int) -> Task | None:
        """Return a task, or None if it is unknown or forgotten."""

        def asked(tables: SqlTables) -> Task | None:
            found = tables.tasks.get(task)
            return None if found is None else plain(found)

        return await self._read(asked)

    async def holder(self, pool: str, key: str, *, run: int | None, dedupe: Dedupe) -> int | None:
        """Return the task that answers for an idempotency key under `dedupe`, or None."""

        def asked(tables: SqlTables) -> int | None:
            table = tables.pools.get(pool)
            known = None if table is None else table.keys.get((key, run))
            return known.task if known is not None and answers_for(dedupe, known.status) else None

        return await self._read(asked)

    async def status(self, tasks: Sequence[int]) -> tuple[str, ...]:
        """Return the status of each task, or "expired", or "unknown"."""

        def asked(tables: SqlTables) -> tuple[str, ...]:
            ids = (tables.listed(list(tasks)),)
            ask = tables.ask
            known: dict[int, str] = dict(ask("status_of", ids).fetchall())
            if len(known) < len(tasks):
                gone = [row[0] for row in ask("was_removed", ids)]
                known = {**dict.fromkeys(gone, "expired"), **known}
            return tuple(known.get(task, "unknown") for task in tasks)

        return await self._read(asked)

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

        def asked(tables: SqlTables) -> TaskPage:
            table = _pool(tables, pool)
            behind = (
                task
                for task in _candidates(tables, table, status, after)
                if (status is None or task.status is status)
                and (key is None or task.new.key == key)
                and (since is None or task.submitted_at >= since)
                and (before is None or task.submitted_at < before)
            )
            page = list(islice(behind, limit + 1))
            following = page[limit - 1].seq if len(page) > limit else None
            return TaskPage(tuple(map(plain, page[:limit])), following)

        return await self._read(asked)

    async def pool(
        self, name: str, *, now: float | None = None, measured: bool = True
    ) -> PoolView | None:
        """Return a pool's counts and settings, or None if it was never declared."""
        moment = rounded(self._clock() if now is None else now)

        def asked(tables: SqlTables) -> PoolView | None:
            pool = tables.pools.get(name)
            if not isinstance(pool, SqlPool):
                return None
            waits, run_times = pool.times() if measured else ([], [])
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
                parked=pool.parked_count,
                kept=pool.kept,
                dead=pool.dead if measured else 0,
                held_until=pool.not_before if pool.not_before > moment else 0.0,
                held_units=_held_units(tables, pool, moment) if measured else (),
                oldest_queued_at=_oldest_queued_at(tables, pool) if measured else None,
                totals=dict(pool.totals),
                stale_settles=pool.stale_settles,
                waits=quantiles(waits),
                run_times=quantiles(run_times),
            )

        return await self._read(asked)

    async def budget(self, name: str) -> BudgetView | None:
        """Return a budget that pools share, or None if it was never declared."""
        return await self._read(lambda tables: budgets.view(tables, name))

    async def lanes(self, pool: str) -> tuple[LaneView, ...]:
        """Return the lanes of a pool in order; of an ordered pool those with work or a pause."""

        def asked(tables: SqlTables) -> tuple[LaneView, ...]:
            table = _pool(tables, pool)
            rows = tables.ask("lanes_with_work", _places(table))
            live = {lane: (waiting, current) for lane, waiting, current in rows}
            return tuple(
                _lane(table, lane, *live.get(lane, (0, None))) for lane in _lanes(table, live)
            )

        return await self._read(asked)

    async def run(self, run: int) -> RunView | None:
        """Return a run, or None."""

        def asked(tables: SqlTables) -> RunView | None:
            found = tables.runs.get(run)
            return None if found is None else run_view(found)

        return await self._read(asked)

    async def run_named(self, pool: str, name: str) -> RunView | None:
        """Return the run of a pool that has this name, or None."""

        def asked(tables: SqlTables) -> RunView | None:
            run = tables.runs_by_name.get((pool, name))
            found = None if run is None else tables.runs.get(run)
            return None if found is None else run_view(found)

        return await self._read(asked)

    async def run_tasks(self, run: int, *, limit: int = 100) -> tuple[Task, ...]:
        """Return queued and running tasks of a run, callbacks too, by pool and place."""
        check.integer("limit", limit, least=1)

        def asked(tables: SqlTables) -> tuple[Task, ...]:
            return tuple(map(plain, nsmallest(limit, tables.of_run(run), key=by_pool_and_place)))

        return await self._read(asked)

    async def workers(self) -> frozenset[str]:
        """Return the workers that may hold leases."""

        def asked(tables: SqlTables) -> frozenset[str]:
            return frozenset(row[0] for row in tables.ask("worker_names"))

        return await self._read(asked)

    async def worker_views(self) -> tuple[WorkerView, ...]:
        """Return the same workers with their leases, in order of registration."""

        def read(tables: SqlTables) -> tuple[WorkerView, ...]:
            return tuple(map(worker_view, tables.workers.values()))

        return await self._read(read)

    async def ready(self, pool: str, worker: str, *, now: float) -> bool:
        """Return whether a lease at `now` would give this worker something."""

        def asked(tables: SqlTables) -> bool:
            table, row = pool_named(tables, pool), tables.workers.get(worker)
            return row is not None and could_lease(tables, table, row, rounded(now))

        return await self._read(asked)

    async def names(self, begins: str = "") -> tuple[str, ...]:
        """Return the declared pools whose names begin so, by name."""

        def asked(tables: SqlTables) -> tuple[str, ...]:
            pools = tables.pools.values()
            self._tell_newer(tables)
            found = (p.name for p in pools if not p.internal and p.name.startswith(begins))
            return tuple(sorted(found))

        return await self._read(asked)

    async def due(self, *, now: float) -> tuple[str, ...]:
        """Return the pools in which a due task waits and starts are allowed."""
        moment = rounded(now)

        def asked(tables: SqlTables) -> tuple[str, ...]:
            return tuple(
                pool.name
                for pool in tables.pools.with_queued()
                if not pool.paused
                and pool.spec.max_concurrent
                and pool.not_before <= moment
                and pool.sql_backlog.has_due(pool.queued, moment)
            )

        return await self._read(asked)

    async def why(self, task: int, *, now: float) -> Facts | None:
        """Return what decides when a task starts, or None if it is unknown or forgotten."""

        def asked(tables: SqlTables) -> Facts | None:
            found = tables.tasks.get(task)
            return None if found is None else facts_about(tables, found, rounded(now))

        return await self._read(asked)

    async def audit(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        since: float | None = None,
        task: int | None = None,
    ) -> AuditPage:
        """Return audit records from position `after` on, oldest first."""

        def asked(tables: SqlTables) -> AuditPage:
            start = after if since is None else max(after, _told_before(tables, since))
            if task is not None:
                return _audit_of(tables, task, start, since)
            page = _audit(tables, start, limit)
            return AuditPage(matching(page.records, since, None), page.next)

        return await self._read(asked)


def _audit(tables: SqlTables, after: int, limit: int) -> AuditPage:
    records: list[Record] = []
    first = None
    for last, count, told in tables.ask("audit", (after, limit)):
        if first is None:
            first = max(after, last - count)
        skipped = max(first - (last - count), 0) if not records else 0
        records += decoded(told)[skipped:]
        if len(records) >= limit:
            break
    if first is None:
        return AuditPage((), max(after, tables.record_count))
    return AuditPage(tuple(records[:limit]), first + len(records[:limit]))


def _audit_of(tables: SqlTables, task: int, after: int, since: float | None) -> AuditPage:
    """Return the records of one task in some rows; rows that do not contain its id are skipped."""
    records: list[Record] = []
    last = max(after, 0)
    for position, count, told in tables.ask("audit", (after, _ROWS_SEARCHED)):
        last = position
        if may_name(told, task):
            skipped = max(after - (position - count), 0)
            records += matching(decoded(told)[skipped:], since, task)
    return AuditPage(tuple(records), last if last > after else max(after, tables.record_count))


def _told_before(tables: SqlTables, moment: float) -> int:
    """Return the position behind which all records of a moment and later are stored.

    Time does not go back from one row to the next, so that one is found by halving.
    """
    low, high = 0, tables.record_count
    while low < high:
        middle = (low + high) // 2
        row = tables.ask("audit_told_at", (middle,)).fetchone()
        if row is None or row[1] >= moment:
            high = middle
        else:
            low = row[0]
    return low


def _pool(tables: SqlTables, name: str) -> SqlPool:
    pool = pool_named(tables, name)
    assert isinstance(pool, SqlPool)  # noqa: S101 - every pool of these tables is
    return pool


def _places(pool: SqlPool, after: int = 0) -> tuple[int, int]:
    """Return the range of the places of a pool."""
    return pool.number << SEQ_BITS | after, (pool.number + 1) << SEQ_BITS


def _candidates(
    tables: SqlTables, pool: SqlPool, status: Status | None, after: int
) -> Iterable[Task]:
    """Return the candidates for a page, in order."""
    if status is Status.RUNNING:
        found = tables.read_live("held_in_pool", (pool.number,))
        return [task for task in found if task.seq > after]
    if status is Status.QUEUED:
        return _pages(tables, pool, after, ended=False)
    if status in _TERMINAL:
        return _pages(tables, pool, after, ended=True)
    both = (_pages(tables, pool, after, ended=ended) for ended in (False, True))
    return merge(*both, key=_by_seq)


def _pages(tables: SqlTables, pool: SqlPool, after: int, *, ended: bool) -> Iterator[Task]:
    name = "ended_of_pool" if ended else "live_of_pool"
    read = tables.read_ended if ended else tables.read_live
    while page := read(name, (*_places(pool, after), _PAGE)):
        yield from page
        after = page[-1].seq


def _by_seq(task: Task) -> int:
    return task.seq


def _held_units(tables: SqlTables, pool: SqlPool, now: float) -> tuple[tuple[str, float], ...]:
    """Return the lanes or keys that are held back on their own, and until when."""
    rows = tables.ask("held_units", (pool.number, now, MOST_HELD_UNITS)).fetchall()
    return tuple((str(unit), float(until)) for unit, until in rows)


def _oldest_queued_at(tables: SqlTables, pool: SqlPool) -> float | None:
    if not pool.queued:
        return None
    row = tables.ask("oldest_queued", _places(pool)).fetchone()
    return None if row is None else row[0]


def _lanes(pool: SqlPool, live: Iterable[str]) -> list[str]:
    if pool.spec.lanes is not None:
        return [str(lane) for lane in range(pool.spec.lanes)]
    return sorted({*live, *pool.paused_units}) if pool.spec.ordered else []


def _lane(pool: SqlPool, lane: str, waiting: int, current: int | None) -> LaneView:
    paused = lane in pool.paused_units
    busy: LaneState = "idle" if current is None else "processing"
    return LaneView(
        lane=lane,
        state="paused" if paused or pool.paused else busy,
        pending=waiting,
        processed=processed(pool, lane),
        current_sequence=current,
        paused=paused,
    )
