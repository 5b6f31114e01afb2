"""The reading side: each question is one read transaction."""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING, TypeVar

from millpond.core.audit import matching
from millpond.core.lifecycle import Status
from millpond.core.quantiles import quantiles
from millpond.core.spec import OrderKind
from millpond.core.ticks import rounded
from millpond.store import search
from millpond.store.protocol import (
    MOST_HELD_UNITS,
    MOST_HOLDING,
    AuditPage,
    PoolView,
    StoredResult,
    StoredResults,
    UnitView,
)
from millpond.store.sql.audit_reader import page_from, page_of_task, position_before, story_of
from millpond.store.sql.codec import SEQ_BITS, SEQS
from millpond.store.sql.pool import SqlPool
from millpond.store.sql.task_search import TaskSearch
from millpond.store.sql.unit_of_work import SqlTables
from millpond.store.verbs.worker_views import worker_view
from millpond.store.view import TablesView, by_seq, pool_view, question

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from millpond.core.lease import RegisteredWorker
    from millpond.core.run import Run
    from millpond.core.task import Task
    from millpond.core.task_filter import TaskFilter
    from millpond.store.protocol import Place, Story, WorkerView
    from millpond.store.view import Revisions

T = TypeVar("T")

_PAGE = 200

MOST_DUE = 1000
"""Tasks of a pool that became due and were not moved yet: no more are counted."""

MOST_PAUSED = 1000
"""Lanes and keys that an overview names as paused."""

_TERMINAL = tuple(status for status in Status if status.terminal)


class SqlView(TablesView[SqlTables, SqlPool]):
    """The view of a store over rows."""

    def __init__(
        self,
        read: Callable[[Callable[[SqlTables], object]], Awaitable[object]],
        clock: Callable[[], float],
        log_newer: Callable[[SqlTables], None],
    ) -> None:
        super().__init__(clock)
        self._read_ = read
        self._log_newer = log_newer

    async def _read(self, ask: Callable[[SqlTables], T]) -> T:
        return await self._read_(ask)  # type: ignore[return-value]

    def _all_pools(self, tables: SqlTables) -> Sequence[SqlPool]:
        pools = super()._all_pools(tables)
        self._log_newer(tables)
        return pools

    # Tasks

    @question
    def story(self, tables: SqlTables, task: int) -> Story | None:
        """Return a task, its audit records as far as a short search finds them, its follow-ups."""
        found = tables.tasks.get(task)
        return None if found is None else story_of(tables, found)

    @question
    def status(self, tables: SqlTables, tasks: Sequence[int]) -> tuple[str, ...]:
        """Return the status of each task, or "expired", or "unknown"."""
        ids = (tables.listed_ids(tasks),)
        known: dict[int, str] = dict(tables.ask("status_of", ids).fetchall())
        if len(known) < len(tasks):
            gone = [row[0] for row in tables.ask("was_removed", ids)]
            known = {**dict.fromkeys(gone, "expired"), **known}
        return tuple(known.get(task, "unknown") for task in tasks)

    @question
    def results(self, tables: SqlTables, tasks: Sequence[int]) -> StoredResults:
        """Return how tasks ended, all in one read."""
        ids = (tables.listed_ids(tasks),)
        missing = dict.fromkeys(tasks, "unknown")
        found: dict[int, StoredResult] = {}
        for task, status, *result in tables.ask("results_of", ids).fetchall():
            missing.pop(task, None)
            if status is not None:
                found[task] = StoredResult(Status(status), *result)
        if missing:
            missing |= {row[0]: "expired" for row in tables.ask("was_removed", ids)}
        # Those who wait hear of several ends in the order in which they asked.
        ended = {task: found[task] for task in tasks if task in found}
        return StoredResults(ended, missing)

    def _candidates(
        self, tables: SqlTables, pool: SqlPool, status: Status | None, after: int
    ) -> Iterable[Task]:
        if status is Status.RUNNING:
            return tables.read_live("held_in_pool", (pool.number,))
        if status is Status.QUEUED:
            return _pages(tables, pool, after, ended=False)
        if status in _TERMINAL:
            return _pages(tables, pool, after, ended=True)
        both = (_pages(tables, pool, after, ended=ended) for ended in (False, True))
        return merge(*both, key=by_seq)

    def _searched(
        self,
        tables: SqlTables,
        pool: SqlPool,
        wanted: TaskFilter,
        behind: Place | None,
        size: int,
    ) -> Iterable[search.Candidate]:
        return TaskSearch(tables, pool, wanted, size).behind(behind)

    # Pools

    def _overview(
        self, tables: SqlTables, pools: Sequence[SqlPool], now: float
    ) -> tuple[PoolView, ...]:
        """Return pools by a few statements for all of them."""
        waiting = tables.listed([pool.number for pool in pools if pool.queued])
        later = tables.listed([pool.number for pool in pools if pool.backlog.delayed])
        oldest = dict(tables.ask("oldest_queued_of", (waiting,)).fetchall())
        due = dict(tables.ask("due_of_later", (now, MOST_DUE, later)).fetchall())
        paused: dict[int, list[str]] = {}
        for pool, unit in tables.ask("all_paused_units", (MOST_PAUSED,)):
            paused.setdefault(pool, []).append(unit)
        return tuple(
            pool_view(
                pool,
                now,
                kept=pool.kept,
                paused_units=paused.get(pool.number, ()),
                scheduled=max(pool.backlog.delayed - due.get(pool.number, 0), 0),
                dead=pool.dead,
                oldest_queued_at=oldest.get(pool.number),
            )
            for pool in pools
        )

    def _pool_view(
        self, tables: SqlTables, pool: SqlPool, now: float, *, measured: bool
    ) -> PoolView:
        waits, run_times = pool.times() if measured else ([], [])
        return pool_view(
            pool,
            now,
            kept=pool.kept,
            paused_units=pool.paused_units(),
            scheduled=pool.backlog.scheduled(now) if measured else 0,
            dead=pool.dead if measured else 0,
            held_units=_held_units(tables, pool, now) if measured else (),
            oldest_queued_at=_oldest_queued_at(tables, pool) if measured else None,
            waits=quantiles(waits),
            run_times=quantiles(run_times),
        )

    def _revisions(self, tables: SqlTables, pool: SqlPool, limit: int) -> Revisions:
        rows = tables.ask("latest_revisions", (pool.number, limit)).fetchall()
        return tuple((number, pool.spec_at(number)) for (number,) in rows)

    def _units(self, tables: SqlTables, pool: SqlPool, limit: int) -> tuple[UnitView, ...]:
        if not pool.backlog.grouped:
            return ()
        rows = tables.ask("first_units", (pool.number, limit)).fetchall()
        names = tables.listed([row[0] for row in rows])
        ready: dict[str, dict[str, int]] = {}
        for unit, share, tasks in tables.ask("ready_of_units", (pool.number, names)):
            ready.setdefault(unit, {})[share] = tasks
        fair = pool.spec.order.kind is OrderKind.FAIR
        found = [
            UnitView(
                unit=unit or None,
                share=share or None if fair else None,
                queued=queued,
                running=running,
                paused=bool(paused),
                held_until=held_until,
            )
            for unit, running, paused, held_until in rows
            for share, queued in _shares(ready.get(unit, {}), running or paused or held_until)
        ]
        return tuple(found[:limit])

    def _live_lanes(self, tables: SqlTables, pool: SqlPool) -> dict[str, tuple[int, int | None]]:
        rows = tables.ask("lanes_with_work", _places(pool))
        return {lane: (waiting, current) for lane, waiting, current in rows}

    @question
    def due(self, tables: SqlTables, *, now: float) -> tuple[str, ...]:
        """Return the pools in which a due task waits and starts are allowed."""
        moment = rounded(now)
        return tuple(
            pool.name
            for pool in tables.pools.with_queued()
            if not pool.paused
            and pool.spec.max_concurrent
            and pool.not_before <= moment
            and pool.backlog.has_due(pool.queued, moment)
        )

    # Runs, workers, audit

    def _runs(
        self, tables: SqlTables, pool: str, after: Place | None, limit: int, *, finished: bool
    ) -> list[Run]:
        if finished:
            rows = tables.ask("runs_over", (pool, *(after or search.FIRST), limit))
        else:
            rows = tables.ask("runs_open", (pool, (after or search.START)[1], limit))
        return [tables.runs.take_in(*row) for row in rows.fetchall()]

    def _workers(
        self, tables: SqlTables, workers: Sequence[RegisteredWorker]
    ) -> tuple[WorkerView, ...]:
        running = dict(tables.ask("running_by_worker").fetchall())
        return tuple(
            worker_view(
                worker,
                running.get(worker.id, 0),
                tables.look_at_live("held_first", (worker.id, MOST_HOLDING))
                if running.get(worker.id)
                else (),
            )
            for worker in workers
        )

    @question
    def workers(self, tables: SqlTables) -> frozenset[str]:
        """Return the workers that may hold leases."""
        return frozenset(row[0] for row in tables.ask("worker_names"))

    @question
    def audit(
        self,
        tables: SqlTables,
        *,
        after: int = 0,
        limit: int = 1000,
        since: float | None = None,
        task: int | None = None,
    ) -> AuditPage:
        """Return audit records from position `after` on, oldest first."""
        start = after if since is None else max(after, position_before(tables, since))
        if task is not None:
            return page_of_task(tables, task, start, since, limit)
        page = page_from(tables, start, limit)
        return AuditPage(matching(page.records, since, None), page.next)

    @question
    def audit_end(self, tables: SqlTables) -> int:
        """Return the position of the latest audit record."""
        return tables.read_record_count()


def _shares(ready: dict[str, int], in_use: float) -> list[tuple[str, int]]:
    """Return what is ready of each share; a unit that only runs, or is stopped, has one."""
    return sorted(ready.items()) or ([("", 0)] if in_use else [])


def _places(pool: SqlPool, after: int = 0) -> tuple[int, int]:
    """Return the range of the places of a pool, behind a seq that a caller may have made up."""
    behind = min(max(after, 0), SEQS)
    return pool.number << SEQ_BITS | behind, (pool.number + 1) << SEQ_BITS


def _pages(tables: SqlTables, pool: SqlPool, after: int, *, ended: bool) -> Iterator[Task]:
    name = "ended_of_pool" if ended else "live_of_pool"
    read = tables.read_ended if ended else tables.read_live
    while page := read(name, (*_places(pool, after), _PAGE)):
        yield from page
        after = page[-1].seq


def _held_units(tables: SqlTables, pool: SqlPool, now: float) -> tuple[tuple[str, float], ...]:
    """Return the lanes or keys that are held back on their own, and until when."""
    rows = tables.ask("held_units", (pool.number, now, MOST_HELD_UNITS)).fetchall()
    return tuple((str(unit), float(until)) for unit, until in rows)


def _oldest_queued_at(tables: SqlTables, pool: SqlPool) -> float | None:
    if not pool.queued:
        return None
    row = tables.ask("oldest_queued", _places(pool)).fetchone()
    return None if row is None else row[0]
