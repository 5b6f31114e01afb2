"""The reading side of a store: questions about its tables. It changes nothing.

It may lag a moment behind other processes. A store says in which tables a question is answered
(`_read`). What its tables find out in a way of their own is an abstract method here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import wraps
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast

from millpond.core import validation as check
from millpond.core.quantiles import quantiles
from millpond.core.run import view as run_view
from millpond.core.task import CALLBACKS, copied
from millpond.core.ticks import rounded
from millpond.store import search
from millpond.store.protocol import (
    LaneView,
    PoolInFull,
    PoolView,
    RunPage,
    TaskPage,
)
from millpond.store.verbs import budgets
from millpond.store.verbs.control import pool_named
from millpond.store.verbs.endings import processed
from millpond.store.verbs.lease import could_lease
from millpond.store.verbs.submit import still_answers
from millpond.store.verbs.tables import PoolTable, Tables, by_pool_and_place
from millpond.store.verbs.why import facts_about

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from millpond.core.lease import RegisteredWorker
    from millpond.core.lifecycle import Status
    from millpond.core.quantiles import Quantiles
    from millpond.core.run import Run, RunView
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Dedupe, Task
    from millpond.core.task_filter import TaskFilter
    from millpond.core.why import Facts
    from millpond.store.protocol import (
        AuditPage,
        BudgetView,
        Cursor,
        LaneState,
        Place,
        SearchPage,
        StoredResults,
        Story,
        UnitView,
        WorkerView,
    )

    Revisions: TypeAlias = tuple[tuple[int, PoolSpec], ...]

P = ParamSpec("P")
T = TypeVar("T")
Tb = TypeVar("Tb", bound=Tables)
Pl = TypeVar("Pl", bound=PoolTable)
V = TypeVar("V", bound="TablesView[Any, Any]")

_PAGE = 200
"""Rows that a search reads at once where many may not fit."""


def question(
    answer: Callable[Concatenate[V, Tb, P], T],
) -> Callable[Concatenate[V, P], Coroutine[Any, Any, T]]:
    """Make a method that asks `answer` about the tables that the view reads."""

    @wraps(answer)
    async def ask(self: V, *given: P.args, **named: P.kwargs) -> T:
        return await self._read(lambda tables: answer(self, tables, *given, **named))

    return ask  # type: ignore[return-value]


class TablesView(ABC, Generic[Tb, Pl]):
    """The questions that all stores answer alike; they return copies."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def _moment(self, now: float | None) -> float:
        return rounded(self._clock() if now is None else now)

    # What each store does its own way

    @abstractmethod
    async def _read(self, ask: Callable[[Tb], T]) -> T:
        """Return what is answered about the tables of one moment."""

    @abstractmethod
    def _candidates(
        self, tables: Tb, pool: Pl, status: Status | None, after: int
    ) -> Iterable[Task]:
        """Return the tasks among which a page is to be found, in order."""

    @abstractmethod
    def _searched(
        self, tables: Tb, pool: Pl, wanted: TaskFilter, behind: Place | None, size: int
    ) -> Iterable[search.Candidate]:
        """Return the tasks among which a search looks, in its order; `size` may be read at once."""

    @abstractmethod
    def _overview(self, tables: Tb, pools: Sequence[Pl], now: float) -> tuple[PoolView, ...]:
        """Return pools without what takes time to find out."""

    @abstractmethod
    def _pool_view(self, tables: Tb, pool: Pl, now: float, *, measured: bool) -> PoolView:
        """Return a pool."""

    @abstractmethod
    def _workers(self, tables: Tb, workers: Sequence[RegisteredWorker]) -> tuple[WorkerView, ...]:
        """Return workers with what they hold."""

    @abstractmethod
    def _units(self, tables: Tb, pool: Pl, limit: int) -> tuple[UnitView, ...]:
        """Return the first keys or lanes of a pool by name."""

    @abstractmethod
    def _runs(
        self, tables: Tb, pool: str, after: Place | None, limit: int, *, finished: bool
    ) -> Sequence[Run]:
        """Return the first runs of a pool behind a place."""

    @abstractmethod
    def _revisions(self, tables: Tb, pool: Pl, limit: int) -> Revisions:
        """Return the latest settings of a pool, latest first."""

    @abstractmethod
    def _live_lanes(self, tables: Tb, pool: Pl) -> Mapping[str, tuple[int, int | None]]:
        """Return the lanes with tasks: how many wait, and the sequence number of what runs."""

    # Tasks

    @abstractmethod
    async def story(self, task: int) -> Story | None:
        """Return a task, its audit records and its follow-ups; None if it is unknown or forgotten.

        It reads a bounded part of the audit: what stands near its submit, its latest start and its
        end.
        """

    @abstractmethod
    async def status(self, tasks: Sequence[int]) -> tuple[str, ...]:
        """Return the status of each task, or "expired", or "unknown".

        Expired: retention removed the task; a store may forget that in the end.
        """

    @abstractmethod
    async def results(self, tasks: Sequence[int]) -> StoredResults:
        """Return how tasks ended, all in one read."""

    @question
    def task(self, tables: Tb, task: int) -> Task | None:
        """Return a copy of a task, or None if it is unknown or forgotten."""
        found = tables.tasks.get(task)
        return None if found is None else copied(found)

    @question
    def holder(
        self, tables: Tb, pool: str, key: str, *, run: int | None, dedupe: Dedupe
    ) -> int | None:
        """Return the task that answers for an idempotency key under `dedupe`, or None."""
        table = tables.pools.get(pool)
        known = None if table is None else table.keys.get((key, run))
        return known.task if known and still_answers(tables, known, dedupe) else None

    @question
    def tasks(
        self,
        tables: Tb,
        pool: str,
        *,
        status: Status | None = None,
        key: str | None = None,
        since: float | None = None,
        before: float | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> TaskPage:
        """Return copies of tasks of a pool behind place (seq) `after`, lowest first.

        Only those submitted at `since` or later, and earlier than `before`.
        """
        check.integer("limit", limit, least=1)
        behind = (
            task
            for task in self._candidates(tables, self._pool(tables, pool), status, after)
            if task.seq > after
            and (status is None or task.status is status)
            and (key is None or task.new.key == key)
            and (since is None or task.submitted_at >= since)
            and (before is None or task.submitted_at < before)
        )
        page = list(islice(behind, limit + 1))
        following = page[limit - 1].seq if len(page) > limit else None
        return TaskPage(tuple(map(copied, page[:limit])), following)

    @question
    def search(
        self,
        tables: Tb,
        pools: Sequence[str],
        wanted: TaskFilter,
        *,
        after: Cursor | None = None,
        limit: int = 50,
        scan: int = 2000,
        now: float | None = None,
    ) -> SearchPage:
        """Return copies of tasks of pools that meet conditions, at most `limit` of them.

        Pools come in the order of their names. In each, queued and running tasks come in the order
        of their places, scheduled ones by when they are due, ended ones with the latest end first;
        without a state the live ones come first, the latest place first. It reads `scan` tasks at
        most, and then returns what it found so far.
        """
        check.integer("limit", limit, least=1)
        check.integer("scan", scan, least=1)
        # Nearly every row fits a plain search, so that it reads no more than it returns. One row
        # more says that the search may go on: another page for that would cost as much again.
        size = min(limit if wanted.plain else _PAGE, scan) + 1
        return search.over_pools(
            pools,
            after,
            lambda pool, behind: self._searched(
                tables, self._pool(tables, pool), wanted, behind, size
            ),
            wanted,
            limit=limit,
            scan=scan,
            now=self._moment(now),
            copy=copied,
        )

    @question
    def why(self, tables: Tb, task: int, *, now: float, most: int | None = None) -> Facts | None:
        """Return what decides when a task starts, or None; for people, and it may be slow.

        Where more than `most` tasks wait in its pool, it does not count those that come first.
        """
        found = tables.tasks.get(task)
        return None if found is None else facts_about(tables, found, rounded(now), most)

    # Runs

    @question
    def run(self, tables: Tb, run: int) -> RunView | None:
        """Return a run, or None."""
        found = tables.runs.get(run)
        return None if found is None else run_view(found)

    @question
    def run_named(self, tables: Tb, pool: str, name: str) -> RunView | None:
        """Return the run of a pool that has this name, or None."""
        run = tables.runs.named(pool, name)
        found = None if run is None else tables.runs.get(run)
        return None if found is None else run_view(found)

    @question
    def run_tasks(self, tables: Tb, run: int, *, limit: int = 100) -> tuple[Task, ...]:
        """Return queued and running tasks of a run, callbacks too, by pool and place."""
        check.integer("limit", limit, least=1)
        first = nsmallest(limit, tables.of_run(run), key=by_pool_and_place)
        return tuple(map(copied, first))

    @question
    def runs(
        self,
        tables: Tb,
        pool: str,
        *,
        finished: bool,
        after: Place | None = None,
        limit: int = 50,
    ) -> RunPage:
        """Return runs of a pool: the open ones by id, the finished ones with the latest first."""
        check.integer("limit", limit, least=1)
        self._pool(tables, pool)
        found = self._runs(tables, pool, after, limit + 1, finished=finished)
        last = found[limit - 1] if len(found) > limit else None
        following = None if last is None else (last.finished_at or 0.0, last.new.id)
        return RunPage(runs=tuple(map(run_view, found[:limit])), next=following)

    # Pools

    def _known(self, tables: Tb, name: str) -> Pl | None:
        return cast("Pl | None", tables.pools.get(name))

    def _pool(self, tables: Tb, name: str) -> Pl:
        return cast("Pl", pool_named(tables, name))

    def _all_pools(self, tables: Tb) -> Sequence[Pl]:
        return cast("Sequence[Pl]", tables.pools.all())

    def _view_of(self, tables: Tb, name: str, now: float, *, measured: bool) -> PoolView | None:
        pool = self._known(tables, name)
        return None if pool is None else self._pool_view(tables, pool, now, measured=measured)

    @question
    def pools(self, tables: Tb, *, now: float | None = None) -> tuple[PoolView, ...]:
        """Return every pool by name, without held_units, waits and run_times.

        It costs a few rows for each pool, however many tasks there are: `scheduled` may count
        some that became due a moment ago.
        """
        found = [pool for pool in self._all_pools(tables) if not pool.internal]
        return self._overview(tables, sorted(found, key=lambda pool: pool.name), self._moment(now))

    @question
    def names(self, tables: Tb, begins: str = "") -> tuple[str, ...]:
        """Return the declared pools whose names begin so, by name."""
        pools = self._all_pools(tables)
        return tuple(sorted(p.name for p in pools if not p.internal and p.name.startswith(begins)))

    @question
    def pool(
        self, tables: Tb, name: str, *, now: float | None = None, measured: bool = True
    ) -> PoolView | None:
        """Return a pool's counts and settings, or None if it was never declared.

        measured=False leaves out what is slow to read: scheduled, dead, held_units,
        oldest_queued_at, waits and run_times.
        """
        return self._view_of(tables, name, self._moment(now), measured=measured)

    @question
    def pool_in_full(self, tables: Tb, name: str, *, now: float | None = None) -> PoolInFull | None:
        """Return a pool with its units, revisions and budgets; None if it was never declared."""
        moment, pool = self._moment(now), self._known(tables, name)
        if pool is None:
            return None
        return PoolInFull(
            view=self._pool_view(tables, pool, moment, measured=True),
            units=self._units(tables, pool, 100),
            revisions=self._revisions(tables, pool, 20),
            budgets=budgets.views(tables, pool.spec.budgets),
            callbacks=self._view_of(tables, name + CALLBACKS, moment, measured=False),
        )

    @question
    def revisions(self, tables: Tb, pool: str, *, limit: int = 20) -> Revisions:
        """Return the latest settings that a pool had, each with its revision, latest first."""
        return self._revisions(tables, self._pool(tables, pool), limit)

    @question
    def units(self, tables: Tb, pool: str, *, limit: int = 100) -> tuple[UnitView, ...]:
        """Return the first keys or lanes of a pool by name, with their tasks that are ready.

        None where nothing of the pool depends on keys or lanes: its order, limits and rates.
        """
        check.integer("limit", limit, least=1)
        return self._units(tables, self._pool(tables, pool), limit)

    @question
    def lanes(self, tables: Tb, pool: str) -> tuple[LaneView, ...]:
        """Return the lanes of a pool in order; none where there are no lanes.

        Of an ordered pool, whose lanes are not numbered: those with live tasks or a pause, by name.
        """
        table = self._pool(tables, pool)
        live = self._live_lanes(tables, table)
        return tuple(_lane(table, lane, *live.get(lane, (0, None))) for lane in _lanes(table, live))

    @abstractmethod
    async def due(self, *, now: float) -> tuple[str, ...]:
        """Return the pools in which a due task waits and starts are allowed.

        Only a lease knows whether a limit leaves room: an idle worker asks this once for all pools
        before it leases from any of them.
        """

    @question
    def budget(self, tables: Tb, name: str) -> BudgetView | None:
        """Return a budget that pools share, or None if it was never declared."""
        return budgets.view(tables, name)

    # Workers and the audit

    @abstractmethod
    async def workers(self) -> frozenset[str]:
        """Return the workers that may hold leases."""

    @question
    def worker_list(
        self, tables: Tb, *, after: int = 0, limit: int = 100
    ) -> tuple[WorkerView, ...]:
        """Return workers in the order of joining, behind the worker with number `after`."""
        check.integer("limit", limit, least=1)
        behind = [worker for worker in tables.workers.all() if worker.number > after]
        return self._workers(tables, sorted(behind, key=lambda worker: worker.number)[:limit])

    @question
    def ready(self, tables: Tb, pool: str, worker: str, *, now: float) -> bool:
        """Return whether a lease at `now` would give this worker something."""
        return _is_ready(tables, pool, worker, now)

    @question
    def first_ready(
        self, tables: Tb, queues: Sequence[tuple[str, Sequence[str]]], *, now: float
    ) -> tuple[str | None, ...]:
        """Return the first worker of each queue that a lease at `now` would give something.

        A queue is a pool's name with the workers to try; one snapshot answers for all queues.
        """
        return tuple(
            next((worker for worker in workers if _is_ready(tables, pool, worker, now)), None)
            for pool, workers in queues
        )

    @abstractmethod
    async def audit(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        since: float | None = None,
        task: int | None = None,
    ) -> AuditPage:
        """Return audit records from position `after` on, oldest first.

        Positions count every record ever written; removed ones are skipped. With `since`, only
        records of that moment or later, and with `task` only those of that task: a page may then be
        empty and not the last. The last page is the one whose `next` equals `after`.
        """

    @abstractmethod
    async def audit_end(self) -> int:
        """Return the position of the latest audit record: how many were ever written."""


def _is_ready(tables: Tables, pool: str, worker: str, now: float) -> bool:
    table, row = pool_named(tables, pool), tables.workers.get(worker)
    return row is not None and could_lease(tables, table, row, rounded(now))


View: TypeAlias = TablesView[Any, Any]
"""The view of any store."""


def pool_view(
    pool: PoolTable,
    now: float,
    *,
    kept: int,
    paused_units: Iterable[str],
    scheduled: int,
    dead: int,
    oldest_queued_at: float | None,
    held_units: tuple[tuple[str, float], ...] = (),
    waits: Quantiles = quantiles(()),  # noqa: B008 - it is frozen
    run_times: Quantiles = quantiles(()),  # noqa: B008 - it is frozen
) -> PoolView:
    """Return a pool, given what each store finds out in its own way."""
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
        kept=kept,
        dead=dead,
        held_until=pool.not_before if pool.not_before > now else 0.0,
        held_units=held_units,
        oldest_queued_at=oldest_queued_at,
        totals=dict(pool.totals),
        stale_settles=pool.stale_settles,
        waits=waits,
        run_times=run_times,
    )


def by_seq(task: Task) -> int:
    """Sort key: the tasks of a pool by place."""
    return task.seq


def _lanes(pool: PoolTable, live: Iterable[str]) -> list[str]:
    if pool.spec.lanes is not None:
        return [str(lane) for lane in range(pool.spec.lanes)]
    return sorted({*live, *pool.paused_units()}) if pool.spec.ordered else []


def _lane(pool: PoolTable, lane: str, waiting: int, current: int | None) -> LaneView:
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
