"""The reading side: each question is one read transaction."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import merge, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from millpond.core import validation as check
from millpond.core.audit import matching
from millpond.core.lifecycle import Status
from millpond.core.quantiles import quantiles
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
    TaskPage,
    UnitView,
)
from millpond.store.sql.audit_reader import page_from, page_of_task, position_before, story_of
from millpond.store.sql.codec import SEQ_BITS, SEQS, plain
from millpond.store.sql.pool import SqlPool
from millpond.store.sql.task_search import TaskSearch
from millpond.store.verbs import budgets
from millpond.store.verbs.control import pool_named
from millpond.store.verbs.endings import processed
from millpond.store.verbs.lease import could_lease
from millpond.store.verbs.submit import still_answers
from millpond.store.verbs.tables import by_pool_and_place
from millpond.store.verbs.why import facts_about
from millpond.store.verbs.worker_views import worker_view

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from millpond.core.quantiles import Quantiles
    from millpond.core.run import RunView
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Dedupe, Task
    from millpond.core.task_filter import TaskFilter
    from millpond.core.why import Facts
    from millpond.store.protocol import BudgetView, Cursor, Place, SearchPage, Story, WorkerView
    from millpond.store.sql.unit_of_work import SqlTables

T = TypeVar("T")

_PAGE = 200

MOST_DUE = 1000
"""Tasks of a pool that became due and were not moved yet: no more are counted."""

MOST_PAUSED = 1000
"""Lanes and keys that an overview names as paused."""

_TERMINAL = tuple(status for status in Status if status.terminal)


@dataclass(eq=False, repr=False)
class SqlView:
    """The view of a store over rows."""

    _read_: Callable[[Callable[[SqlTables], object]], Awaitable[object]]
    _clock: Callable[[], float]
    _tell_newer: Callable[[SqlTables], None]

    async def _read(self, question: Callable[[SqlTables], T]) -> T:
        return await self._read_(question)  # type: ignore[return-value]

    async def task(self, task: int) -> Task | None:
        """Return a task, or None if it is unknown or forgotten."""

        def asked(tables: SqlTables) -> Task | None:
            found = tables.tasks.get(task)
            return None if found is None else plain(found)

        return await self._read(asked)

    async def story(self, task: int) -> Story | None:
        """Return a task, its audit records as far as a short search finds them, its follow-ups."""

        def asked(tables: SqlTables) -> Story | None:
            found = tables.tasks.get(task)
            return None if found is None else story_of(tables, found)

        return await self._read(asked)

    async def holder(self, pool: str, key: str, *, run: int | None, dedupe: Dedupe) -> int | None:
        """Return the task that answers for an idempotency key under `dedupe`, or None."""

        def asked(tables: SqlTables) -> int | None:
            table = tables.pools.get(pool)
            known = None if table is None else table.keys.get((key, run))
            return known.task if known and still_answers(tables, known, dedupe) else None

        return await self._read(asked)

    async def status(self, tasks: Sequence[int]) -> tuple[str, ...]:
        """Return the status of each task, or "expired", or "unknown"."""

        def asked(tables: SqlTables) -> tuple[str, ...]:
            ids = (tables.listed_ids(tasks),)
            ask = tables.ask
            known: dict[int, str] = dict(ask("status_of", ids).fetchall())
            if len(known) < len(tasks):
                gone = [row[0] for row in ask("was_removed", ids)]
                known = {**dict.fromkeys(gone, "expired"), **known}
            return tuple(known.get(task, "unknown") for task in tasks)

        return await self._read(asked)

    async def results(self, tasks: Sequence[int]) -> StoredResults:
        """Return how tasks ended, all in one read."""

        def question(tables: SqlTables) -> StoredResults:
            ids = (tables.listed_ids(tasks),)
            missing = dict.fromkeys(tasks, "unknown")
            ended: dict[int, StoredResult] = {}
            for task, status, *result in tables.ask("results_of", ids).fetchall():
                missing.pop(task, None)
                if status is not None:
                    ended[task] = StoredResult(Status(status), *result)
            if missing:
                missing |= {row[0]: "expired" for row in tables.ask("was_removed", ids)}
            return StoredResults(ended, missing)

        return await self._read(question)

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
        moment = rounded(self._clock() if now is None else now)
        # Nearly every row fits a plain search, so that it reads no more than it returns. One row
        # more tells that the search may go on: another page for that would cost as much again.
        size = min(limit if wanted.plain else _PAGE, scan) + 1

        def asked(tables: SqlTables) -> SearchPage:
            return search.over_pools(
                pools,
                after,
                lambda pool, behind: TaskSearch(tables, _pool(tables, pool), wanted, size).behind(
                    behind
                ),
                wanted,
                limit=limit,
                scan=scan,
                now=moment,
                copy=plain,
            )

        return await self._read(asked)

    async def pools(self, *, now: float | None = None) -> tuple[PoolView, ...]:
        """Return every pool by name, without what takes time to find out."""
        moment = rounded(self._clock() if now is None else now)

        def asked(tables: SqlTables) -> tuple[PoolView, ...]:
            found = [pool for pool in tables.pools.all() if not pool.internal]
            self._tell_newer(tables)
            return _overview(tables, sorted(found, key=lambda pool: pool.name), moment)

        return await self._read(asked)

    async def worker_list(self, *, after: int = 0, limit: int = 100) -> tuple[WorkerView, ...]:
        """Return workers in the order of joining, behind the worker with number `after`."""
        check.integer("limit", limit, least=1)

        def asked(tables: SqlTables) -> tuple[WorkerView, ...]:
            behind = [worker for worker in tables.workers.all() if worker.number > after]
            running = dict(tables.ask("running_by_worker").fetchall())
            return tuple(
                worker_view(
                    worker,
                    running.get(worker.id, 0),
                    tables.look_at_live("held_first", (worker.id, MOST_HOLDING))
                    if running.get(worker.id)
                    else (),
                )
                for worker in behind[:limit]
            )

        return await self._read(asked)

    async def units(self, pool: str, *, limit: int = 100) -> tuple[UnitView, ...]:
        """Return the first keys or lanes of a pool by name, with their tasks that are ready."""
        check.integer("limit", limit, least=1)
        return await self._read(lambda tables: _units(tables, _pool(tables, pool), limit))

    async def pool_in_full(self, name: str, *, now: float | None = None) -> PoolInFull | None:
        """Return a pool with its units, revisions and budgets; None if it was never declared."""
        moment = rounded(self._clock() if now is None else now)

        def asked(tables: SqlTables) -> PoolInFull | None:
            view = _view_of(tables, name, moment, measured=True)
            if view is None:
                return None
            table = _pool(tables, name)
            return PoolInFull(
                view=view,
                units=_units(tables, table, 100),
                revisions=_revisions(tables, table, 20),
                budgets=budgets.views(tables, view.spec.budgets),
                callbacks=_view_of(tables, name + CALLBACKS, moment, measured=False),
            )

        return await self._read(asked)

    async def runs(
        self, pool: str, *, finished: bool, after: Place | None = None, limit: int = 50
    ) -> RunPage:
        """Return runs of a pool: the open ones by id, the finished ones with the latest first."""
        check.integer("limit", limit, least=1)

        def asked(tables: SqlTables) -> RunPage:
            _pool(tables, pool)
            if finished:
                rows = tables.ask("runs_over", (pool, *(after or search.FIRST), limit + 1))
            else:
                rows = tables.ask("runs_open", (pool, (after or search.START)[1], limit + 1))
            found = [run_view(tables.runs.take_in(*row)) for row in rows.fetchall()]
            last = found[limit - 1] if len(found) > limit else None
            following = None if last is None else (last.finished_at or 0.0, last.id)
            return RunPage(runs=tuple(found[:limit]), next=following)

        return await self._read(asked)

    async def revisions(self, pool: str, *, limit: int = 20) -> tuple[tuple[int, PoolSpec], ...]:
        """Return the latest settings that a pool had, each with its revision, latest first."""
        return await self._read(lambda tables: _revisions(tables, _pool(tables, pool), limit))

    async def pool(
        self, name: str, *, now: float | None = None, measured: bool = True
    ) -> PoolView | None:
        """Return a pool's counts and settings, or None if it was never declared."""
        moment = rounded(self._clock() if now is None else now)
        return await self._read(lambda tables: _view_of(tables, name, moment, measured=measured))

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
            run = tables.runs.named(pool, name)
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

    async def ready(self, pool: str, worker: str, *, now: float) -> bool:
        """Return whether a lease at `now` would give this worker something."""

        def asked(tables: SqlTables) -> bool:
            table, row = pool_named(tables, pool), tables.workers.get(worker)
            return row is not None and could_lease(tables, table, row, rounded(now))

        return await self._read(asked)

    async def names(self, begins: str = "") -> tuple[str, ...]:
        """Return the declared pools whose names begin so, by name."""

        def asked(tables: SqlTables) -> tuple[str, ...]:
            pools = tables.pools.all()
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
                and pool.backlog.has_due(pool.queued, moment)
            )

        return await self._read(asked)

    async def why(self, task: int, *, now: float, most: int | None = None) -> Facts | None:
        """Return what decides when a task starts, or None if it is unknown or forgotten."""

        def asked(tables: SqlTables) -> Facts | None:
            found = tables.tasks.get(task)
            return None if found is None else facts_about(tables, found, rounded(now), most)

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
            start = after if since is None else max(after, position_before(tables, since))
            if task is not None:
                return page_of_task(tables, task, start, since, limit)
            page = page_from(tables, start, limit)
            return AuditPage(matching(page.records, since, None), page.next)

        return await self._read(asked)

    async def audit_end(self) -> int:
        """Return the position of the latest audit record."""
        return await self._read(lambda tables: tables.read_record_count())


def _pool_view(
    pool: SqlPool,
    now: float,
    *,
    paused_units: Iterable[str],
    scheduled: int,
    dead: int,
    oldest_queued_at: float | None,
    waits: Quantiles,
    run_times: Quantiles,
    held_units: tuple[tuple[str, float], ...] = (),
) -> PoolView:
    return PoolView(
        spec=pool.spec,
        declared=pool.declared,
        revision=pool.revision,
        created_at=pool.created_at,
        paused=pool.paused,
        paused_units=tuple(sorted(paused_units)),
        closed=pool.closed,
        queued=pool.queued,
        fresh=len(pool.fresh),
        scheduled=scheduled,
        claimed=pool.claimed,
        running=pool.running,
        parked=pool.parked.count,
        kept=pool.kept,
        dead=dead,
        held_until=pool.not_before if pool.not_before > now else 0.0,
        held_units=held_units,
        oldest_queued_at=oldest_queued_at,
        totals=dict(pool.totals),
        stale_settles=pool.stale_settles,
        waits=waits,
        run_times=run_times,
    )


def _overview(tables: SqlTables, pools: list[SqlPool], now: float) -> tuple[PoolView, ...]:
    """Return pools with what a few statements for all of them tell."""
    waiting = tables.listed([pool.number for pool in pools if pool.queued])
    later = tables.listed([pool.number for pool in pools if pool.backlog.delayed])
    oldest = dict(tables.ask("oldest_queued_of", (waiting,)).fetchall())
    due = dict(tables.ask("due_of_later", (now, MOST_DUE, later)).fetchall())
    paused: dict[int, list[str]] = {}
    for pool, unit in tables.ask("all_paused_units", (MOST_PAUSED,)):
        paused.setdefault(pool, []).append(unit)
    nothing = quantiles(())
    return tuple(
        _pool_view(
            pool,
            now,
            paused_units=paused.get(pool.number, ()),
            scheduled=max(pool.backlog.delayed - due.get(pool.number, 0), 0),
            dead=pool.dead,
            oldest_queued_at=oldest.get(pool.number),
            waits=nothing,
            run_times=nothing,
        )
        for pool in pools
    )


def _units(tables: SqlTables, pool: SqlPool, limit: int) -> tuple[UnitView, ...]:
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


def _shares(ready: dict[str, int], in_use: float) -> list[tuple[str, int]]:
    """Return what is ready of each share; a unit that only runs, or is stopped, has one."""
    return sorted(ready.items()) or ([("", 0)] if in_use else [])


def _view_of(tables: SqlTables, name: str, moment: float, *, measured: bool) -> PoolView | None:
    pool = tables.pools.get(name)
    if not isinstance(pool, SqlPool):
        return None
    waits, run_times = pool.times() if measured else ([], [])
    return _pool_view(
        pool,
        moment,
        paused_units=pool.paused_units(),
        scheduled=pool.backlog.scheduled(moment) if measured else 0,
        dead=pool.dead if measured else 0,
        held_units=_held_units(tables, pool, moment) if measured else (),
        oldest_queued_at=_oldest_queued_at(tables, pool) if measured else None,
        waits=quantiles(waits),
        run_times=quantiles(run_times),
    )


def _revisions(tables: SqlTables, pool: SqlPool, limit: int) -> tuple[tuple[int, PoolSpec], ...]:
    rows = tables.ask("latest_revisions", (pool.number, limit)).fetchall()
    return tuple((number, pool.spec_at(number)) for (number,) in rows)


def _pool(tables: SqlTables, name: str) -> SqlPool:
    pool = pool_named(tables, name)
    assert isinstance(pool, SqlPool)  # noqa: S101 - every pool of these tables is
    return pool


def _places(pool: SqlPool, after: int = 0) -> tuple[int, int]:
    """Return the range of the places of a pool, behind a seq that a caller may have made up."""
    behind = min(max(after, 0), SEQS)
    return pool.number << SEQ_BITS | behind, (pool.number + 1) << SEQ_BITS


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
    return sorted({*live, *pool.paused_units()}) if pool.spec.ordered else []


def _lane(pool: SqlPool, lane: str, waiting: int, current: int | None) -> LaneView:
    paused = lane in pool.paused_units()
    busy: LaneState = "idle" if current is None else "processing"
    return LaneView(
        lane=lane,
        state="paused" if paused or pool.paused else busy,
        pending=waiting,
        processed=processed(pool, lane),
        current_sequence=current,
        paused=paused,
    )
