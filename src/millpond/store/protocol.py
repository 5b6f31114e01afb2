"""The store protocol: six write verbs and a view.

Every verb is one atomic step: it happens wholly or not at all, and its answer tells what it did.
Every verb takes the moment and the entropy it acts with; None means the store's own clock and
dice (a shared store's clock rules over its clients'). So a *history*, a list of verbs, gives the
same answers on every store, and a test can replay it.

    submit    batches of new tasks: admission, idempotency and the insert are one step
    lease     the next tasks of a pool for a worker: order, limits and the fence are one step
    renew     one small write keeps everything a worker holds
    settle    how attempts ended, each only with its current fence; may lease the next at once
    recover   what time alone does: lost leases, expired and forgotten tasks
    control   orders: declare, pause, resize, cancel, redrive, join, leave, ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from millpond.core.admit import Refusal
from millpond.core.audit import Record
from millpond.core.errors import ConfigError
from millpond.core.lease import LeaseAsk, Leased
from millpond.core.lifecycle import Status
from millpond.core.plan import Wake
from millpond.core.run import NewRun, RunView
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import PoolSpec
from millpond.core.task import NewTask, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.control import Order


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tasks for one pool that one caller submits together, perhaps opening a run with them."""

    tasks: tuple[NewTask, ...]
    run: NewRun | None = None

    def __post_init__(self) -> None:
        if len(self.tasks) < 2:
            return
        pools = {new.pool for new in self.tasks}
        if len(pools) > 1:
            raise ConfigError("tasks", sorted(pools), "of one batch must all be for one pool")


class Admission(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one task of a batch."""

    task: int
    """Its id; of the task already known where `duplicate`."""
    status: Status
    duplicate: bool = False
    lane: str | None = None
    sequence: int = 0
    position: int | None = None
    """How many are ahead of it in its lane or, in a fifo pool, in the queue."""
    reason: str | None = None


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Either one admission per task, or the refusal of the whole batch."""

    admissions: tuple[Admission, ...] = ()
    refusal: Refusal | None = None
    run: RunView | None = None


class SubmitAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer per batch, in order."""

    batches: tuple[BatchAnswer, ...]
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()


class LeaseAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a worker may run now, and when it is worth asking again."""

    leased: tuple[Leased, ...] = ()
    next_at: float | None = None
    """When time alone may make more of the pool ready; None = only a wake-up will."""
    fenced: bool = False
    """The store does not know the worker (any more): it must join under a new name."""
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()


class SettleAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer per settlement, in order, and the next leases if they were asked for."""

    settled: tuple[Settled, ...]
    follow_ups: tuple[tuple[Admission, ...], ...] = ()
    """What became of each settlement's follow-ups: stored, or a duplicate of a known key."""
    lease: LeaseAnswer | None = None
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()


class RenewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the worker still holds its leases, and which of them are to be cancelled."""

    alive: bool
    cancelled: tuple[int, ...] = ()


class RecoverAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks were moved; `more` if the limit left some for another call."""

    moved: int
    more: bool = False
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()


class ControlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks (or workers) an order touched, and the revision in force after it."""

    count: int = 0
    revision: int = 0
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment."""

    spec: PoolSpec
    revision: int
    paused: bool
    closed: bool
    queued: int
    fresh: int
    """Tasks from outside never claimed: what a bound counts."""
    running: int
    parked: int
    totals: dict[str, int]
    """Lifetime counts of terminal outcomes."""
    stale_settles: int


class AuditPage(msgspec.Struct, frozen=True):
    """Some audit records, and the position to go on from."""

    records: tuple[Record, ...]
    next: int


class View(Protocol):
    """Reading. It changes nothing and may be a moment behind other processes."""

    async def task(self, task: int) -> Task | None:
        """Return a copy of a task, or None if it is unknown or forgotten."""
        ...

    async def pool(self, name: str) -> PoolView | None:
        """Return a pool's counts and settings, or None if it was never declared."""
        ...

    async def run(self, run: int) -> RunView | None:
        """Return a run, or None."""
        ...

    async def workers(self) -> frozenset[str]:
        """Return the workers that may hold leases."""
        ...

    async def ready(self, pool: str, worker: str, *, now: float) -> bool:
        """Return whether a lease at `now` would give this worker something."""
        ...

    async def audit(self, *, after: int = 0, limit: int = 1000) -> AuditPage:
        """Return audit records from position `after` on, oldest first.

        Positions count every record ever written; those no longer kept are passed over.
        """
        ...


class Store(Protocol):
    """The write path: six verbs, each one atomic step."""

    @property
    def view(self) -> View:
        """The reading side."""
        ...

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        """Take in batches, each whole or not at all where its pool's policy says so."""
        ...

    async def lease(
        self, ask: LeaseAsk, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        """Give a worker the next tasks of a pool, within every limit in force."""
        ...

    async def renew(
        self,
        worker: str,
        lease: float,
        *,
        now: float | None = None,
        entropy: int | None = None,
    ) -> RenewAnswer:
        """Keep everything a worker holds for `lease` seconds more."""
        ...

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseAsk | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        """End attempts, each only with its current fence, and lease the next if asked."""
        ...

    async def recover(
        self, *, limit: int = 1000, now: float | None = None, entropy: int | None = None
    ) -> RecoverAnswer:
        """Do what time alone does: lose expired leases, fail expired and forgotten tasks."""
        ...

    async def control(
        self, order: Order, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        """Carry out an order."""
        ...

    async def close(self) -> None:
        """Let go of what the store holds; safe twice."""
        ...
