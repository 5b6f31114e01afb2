"""The state of one verb: it begins, wakes pools, ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import msgspec

from millpond.core.lease import tokens
from millpond.core.order.heap import LazyHeap
from millpond.core.plan import Wake
from millpond.core.rows import DictRows
from millpond.store.verbs.endings import Endings
from millpond.store.verbs.tables.audit import AuditTable
from millpond.store.verbs.tables.rows import DictRuns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.core.rows import ListedRows, Rows
    from millpond.core.run import Run
    from millpond.core.task import Task
    from millpond.store.verbs.budgets import BudgetTable
    from millpond.store.verbs.tables.pools import PoolTable
    from millpond.store.verbs.tables.rows import Deadlines, RunRows, TaskRows, WorkerRows


class Leader(msgspec.Struct):
    """Who leads maintenance: the generation only grows."""

    owner: str = ""
    until: float = 0.0
    generation: int = 0


class VerbTables(AuditTable, ABC):
    """Every table of a store, and what the current verb has changed so far."""

    def __init__(self, *, audit_limit: int | None, entropy: int) -> None:
        super().__init__(audit_limit=audit_limit)
        self.pools: ListedRows[str, PoolTable] = DictRows()
        self.budgets: Rows[str, BudgetTable] = DictRows()
        self.tasks: TaskRows = DictRows()
        self._removed: dict[int, None] = {}
        """Ids of the latest removed tasks."""
        self.latest = float("-inf")
        """The latest moment of a verb; time does not go back behind it."""
        self.leader = Leader()
        self.workers: WorkerRows = DictRows()
        self.workers_joined = 0
        self._expiring: LazyHeap[int] = LazyHeap()
        self.expiring_tasks: Deadlines = self._expiring
        self._parked_since: LazyHeap[int] = LazyHeap()
        self.parked_since: Deadlines = self._parked_since
        self.owned: dict[str, int] = {}
        """How many queued and running closures each process has."""
        self.runs: RunRows = DictRuns()
        self._run_queued: dict[int, dict[int, None]] = {}
        self._wakes: dict[str, float] = {}
        self._finished_runs: list[int] = []
        self._touched_runs: dict[int, Run] = {}
        self._touched_pools: dict[str, PoolTable] = {}
        self._own_tokens = tokens(entropy)
        self._tokens: Iterator[int] = self._own_tokens
        self.endings = Endings()
        self._stop_requests: dict[int, bool] = {}
        """Tasks that this verb asked to stop -> whether by an interrupt."""
        self.begun: set[int] = set()
        """Prefetched tasks whose start this verb reported: their actual start is unknown."""

    def begin(self, entropy: int | None) -> None:
        """Begin a verb with the caller's entropy, or our own."""
        if self._wakes:
            self._wakes = {}
        if self._finished_runs:
            self._finished_runs = []
        if self._touched_runs:
            self._touched_runs = {}
        if self._touched_pools:
            self._touched_pools = {}
        self._tokens = self._own_tokens if entropy is None else tokens(entropy)
        self.endings.begin()
        if self.begun:
            self.begun = set()
        if self._stop_requests:
            self._stop_requests = {}

    def end(self, now: float) -> None:
        """End a verb: apply its changes to queues and runs."""
        if self._touched_runs:
            self._close_runs(now)
        if self._touched_pools:
            for pool in self._touched_pools.values():
                pool.backlog.flush(now)
        if self._audit_limit is not None and len(self._records) > 2 * self._audit_limit:
            self._cut_audit(self._audit_limit)

    @abstractmethod
    def _close_runs(self, now: float) -> None:
        """End the runs that this verb completed."""

    def token(self) -> int:
        """Draw the next number of this verb's entropy."""
        return next(self._tokens)

    @property
    def has_news(self) -> bool:
        """Whether this verb woke a pool or ended anything."""
        return bool(self._wakes or self._finished_runs or self.endings)

    def wakes(self) -> tuple[Wake, ...]:
        """Return which pools this verb gave something to start, and when."""
        if not self._wakes:
            return ()
        return tuple([Wake(pool, at) for pool, at in self._wakes.items() if self._has_room(pool)])

    def _has_room(self, name: str) -> bool:
        """Return whether a worker could start or prefetch a task; a freed slot wakes again."""
        pool = self.pools.require(name)
        spec = pool.spec
        return pool.running < spec.max_concurrent or pool.claimed < spec.prefetch

    def finished_runs(self) -> tuple[int, ...]:
        """Return the runs that ended with this verb."""
        return tuple(self._finished_runs) if self._finished_runs else ()

    def touch(self, pool: PoolTable) -> None:
        """Note that this verb changed the queue of a pool."""
        self._touched_pools[pool.name] = pool

    def wake(self, pool: str, at: float) -> None:
        """Note that a pool may have something to start at `at`."""
        before = self._wakes.get(pool)
        if before is None or at < before:
            self._wakes[pool] = at

    def touch_run(self, run: Run) -> None:
        """Note that a run may be over at the end of this verb."""
        self._touched_runs[run.new.id] = run

    def known(self, identifier: int) -> Task | None:
        """Return a task, or None if it is unknown or of a pool of a newer version."""
        return self.tasks.get(identifier)

    def all_known(self, identifiers: Sequence[int]) -> list[Task]:
        """Return those of these tasks that are known, in this order."""
        return [task for one in identifiers if (task := self.known(one)) is not None]

    def running_in(self, pool: str) -> int:
        """Return how many tasks of a pool run, also of a newer version."""
        return self.pools.require(pool).running
