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

The answers of all but `renew` also say what happened on the way, whatever caused it: runs that
finished, tasks that ended (`ended`, for those who wait for them), lanes and pools that ran dry
(`emptied`), and pools that may have something to start (`wakes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from millpond.core.admit import Refusal
from millpond.core.audit import Record
from millpond.core.control import Page
from millpond.core.lease import LeaseAsk, Leased
from millpond.core.lifecycle import Status
from millpond.core.plan import Wake
from millpond.core.quantiles import Quantiles
from millpond.core.run import NewRun, RunView
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import BudgetSpec, PoolSpec
from millpond.core.task import Dedupe, NewTask, Task
from millpond.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.control import Order
    from millpond.core.task_filter import TaskFilter
    from millpond.core.why import Facts


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tasks for one pool that one caller submits together, perhaps opening a run with them."""

    tasks: tuple[NewTask, ...]
    run: NewRun | None = None
    again: bool = False
    """It was sent before, and whether that was stored is not known: some of its tasks may have
    ended and been removed since, and are not taken a second time."""

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
    depth: int | None = None
    """How many tasks of its pool waited once it was taken or dropped; None of a duplicate."""
    reason: str | None = None


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Either one admission per task, or the refusal of the whole batch."""

    admissions: tuple[Admission, ...] = ()
    refusal: Refusal | None = None
    run: RunView | None = None


class Emptied(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a strict pool, or a whole pool of another kind, that ran dry in a verb.

    It had a queued or running task before the verb and has none after it.
    """

    pool: str
    lane: str | None = None
    """None where the pool itself ran dry."""
    processed: int
    """How many of its tasks were ever completed or failed."""


class SubmitAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer per batch, in order."""

    batches: tuple[BatchAnswer, ...]
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()
    ended: tuple[int, ...] = ()
    emptied: tuple[Emptied, ...] = ()


class LeaseAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a worker may run now, and when it is worth asking again."""

    leased: tuple[Leased, ...] = ()
    """To start now: what the worker held ahead, under the fences it has, then from the queue."""
    claimed: tuple[Leased, ...] = ()
    """To hold ahead: queued still, and to be started only in a slot that an attempt left."""
    give_back: bool = False
    """What the worker holds ahead of this pool is wanted back."""
    next_at: float | None = None
    """When time alone may make more of the pool ready; None = only a wake-up will."""
    drained: bool = False
    """Nothing is left that waits, ready or not: only a new task will change that."""
    fenced: bool = False
    """The store does not know the worker (any more): it must join under a new name."""
    unknown: tuple[str, ...] = ()
    """Functions that the worker does not know and for which tasks of the pool are parked, by name;
    some of them, where they are many."""
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()
    ended: tuple[int, ...] = ()
    emptied: tuple[Emptied, ...] = ()


class SettleAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer per settlement, in order, and the next leases if they were asked for."""

    settled: tuple[Settled, ...]
    after: tuple[Status | None, ...] = ()
    """What each settlement made of its task; None where it was stale."""
    started: tuple[Settled | None, ...] = ()
    """What became of the start of each settlement's successor; None where it has none."""
    follow_ups: tuple[tuple[Admission, ...], ...] = ()
    """What became of each settlement's follow-ups: stored, or a duplicate of a known key."""
    lease: LeaseAnswer | None = None
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()
    ended: tuple[int, ...] = ()
    emptied: tuple[Emptied, ...] = ()


class RenewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the worker still holds its leases, and which of them are to be cancelled."""

    alive: bool
    cancelled: tuple[int, ...] = ()
    interrupted: tuple[int, ...] = ()
    """Those of them whose handlers are to be interrupted, and not only told."""
    give_back: tuple[str, ...] = ()
    """The pools of which the claims it holds ahead are wanted back."""


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that ended with its worker; the task is queued again."""

    task: int
    pool: str
    function: str
    attempt: int


class RecoverAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks were moved; `more` if the limit left some for another call."""

    moved: int
    more: bool = False
    next_at: float | None = None
    """When time alone gives `recover` something to do again; None = not before another verb."""
    deposed: bool = False
    """Nothing was done: the generation it was asked with does not lead (any more)."""
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()
    ended: tuple[int, ...] = ()
    emptied: tuple[Emptied, ...] = ()
    lost: tuple[Lost, ...] = ()


class ControlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks (or workers) an order touched, and the revision in force after it."""

    count: int = 0
    revision: int = 0
    more: Page | None = None
    """There is more to do: send the same order with this page."""
    cancelled: tuple[int, ...] = ()
    """Tasks in the hands of a worker of which the end was asked for by this order."""
    interrupted: tuple[int, ...] = ()
    """Those of them whose handlers are to be interrupted, and not only told."""
    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()
    ended: tuple[int, ...] = ()
    emptied: tuple[Emptied, ...] = ()
    lost: tuple[Lost, ...] = ()


class Hint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one process tells the others after a commit: worth a look, never the truth."""

    wakes: tuple[Wake, ...] = ()
    ended: tuple[int, ...] = ()
    finished_runs: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    """Running tasks that were asked to stop."""
    interrupted: tuple[int, ...] = ()
    """Those of them whose handlers are to be interrupted."""
    more: bool = False
    """There was more than fits: look at everything."""


MOST_HELD = 100
"""How many lanes or keys that are held back a view names."""


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment."""

    spec: PoolSpec
    """What is in force: as declared, but for the limit that an operator set."""
    declared: PoolSpec
    revision: int
    created_at: float
    """When it was first declared."""
    paused: bool
    paused_units: tuple[str, ...] = ()
    """The lanes or keys that are paused on their own, by name."""
    closed: bool
    queued: int
    """All that wait: ready, scheduled, parked or claimed ahead."""
    fresh: int
    """Tasks from outside never claimed: what a bound counts."""
    scheduled: int
    """Queued and not due: submitted for later, or backing off."""
    claimed: int = 0
    """Queued and held ahead by a worker that has not started them."""
    running: int
    parked: int
    kept: int
    """Ended tasks that retention has not removed."""
    dead: int = 0
    """Those of them that failed: what a redrive would bring back."""
    held_until: float = 0.0
    """Nothing of the pool starts before: a handler was throttled. 0 = it is not held back."""
    held_units: tuple[tuple[str, float], ...] = ()
    """Lanes or keys held back on their own, and until when; the hundred held longest."""
    oldest_queued_at: float | None
    """When the queued task with the lowest seq was submitted (a redriven one is at the tail)."""
    totals: dict[str, int]
    """Lifetime counts of terminal outcomes."""
    stale_settles: int
    waits: Quantiles
    """Seconds between being due and starting, of the latest attempts that ran to an end."""
    run_times: Quantiles
    """Seconds between starting and settling, of the same."""


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """A budget at one moment."""

    spec: BudgetSpec
    """What is in force: as declared, but for the limit that an operator set."""
    declared: BudgetSpec
    pools: tuple[str, ...]
    """The pools that share it, by name."""
    running: int
    """How many tasks run in all of them."""
    waiting: tuple[str, ...]
    """The pools that asked and got nothing because of it, who waits longest first."""


LaneState: TypeAlias = Literal["processing", "idle", "paused"]


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a strict pool at one moment."""

    lane: str
    state: LaneState
    """Paused by itself or with its pool, also while its last start is still running."""
    pending: int
    """How many of its tasks wait."""
    processed: int
    """How many of its tasks were ever completed or failed."""
    current_sequence: int | None
    """The one that runs now."""
    paused: bool
    """Whether the lane itself is paused."""


class TaskPage(msgspec.Struct, frozen=True):
    """Some tasks of a pool in the order of their places, and the place to go on from."""

    tasks: tuple[Task, ...]
    next: int | None
    """None = there are no more."""


Place: TypeAlias = tuple[float, int]
"""A place in a list of tasks: a moment (0.0 where the order has none), and a seq."""

Cursor: TypeAlias = tuple[str, Place | None]
"""Where a search goes on: a pool, and a place in its list; None = at its beginning."""


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a search found, and the place to go on from."""

    tasks: tuple[Task, ...]
    next: Cursor | None = None
    """None = there are no more."""
    partial: bool = False
    """The search read as many rows as it may and found fewer tasks than it may return."""


class Held(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task that a worker runs."""

    task: int
    pool: str
    function: str
    key: str | None
    attempt: int
    started_at: float | None


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment."""

    id: str
    owner: str | None
    """The process it belongs to."""
    number: int
    """In order of joining."""
    expires_at: float
    """When its leases expire unless it renews them."""
    lease: float
    """For how many seconds a renewal holds."""
    functions: tuple[str, ...] | None
    """The functions it knows, by name; None = all."""
    version: str | None
    """The release of the library that it runs, if it said so."""
    running: int
    """How many tasks it runs."""
    holding: tuple[Held, ...]
    """The first of them, by pool and seq."""
    ahead: int
    """How many it holds ahead."""


MOST_HOLDING = 100
"""How many tasks of a worker a view names."""


class UnitView(msgspec.Struct, frozen=True, kw_only=True):
    """A key or a lane of a pool at one moment."""

    unit: str | None
    """None stands for the tasks without a key."""
    share: str | None
    """The partition of a fair pool; None in other pools."""
    queued: int
    """Tasks that are ready, of this share; those for later are not counted."""
    running: int
    paused: bool
    held_until: float


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs of a pool, and the place to go on from."""

    runs: tuple[RunView, ...]
    next: Place | None = None
    """None = there are no more."""


class AuditPage(msgspec.Struct, frozen=True):
    """Some audit records, and the position to go on from."""

    records: tuple[Record, ...]
    next: int


class View(Protocol):
    """Reading. It changes nothing and may be a moment behind other processes."""

    async def task(self, task: int) -> Task | None:
        """Return a copy of a task, or None if it is unknown or forgotten."""
        ...

    async def holder(self, pool: str, key: str, *, run: int | None, dedupe: Dedupe) -> int | None:
        """Return the task that answers for an idempotency key under `dedupe`, or None."""
        ...

    async def status(self, tasks: Sequence[int]) -> tuple[str, ...]:
        """Return where each task is: its status, or "expired", or "unknown".

        Expired: it was kept once and retention removed it; a store may forget that in the end.
        """
        ...

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
        """Return copies of tasks of a pool behind place (seq) `after`, lowest first.

        Only those submitted at `since` or later, and earlier than `before`.
        """
        ...

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
        """Return copies of tasks of pools that meet conditions, at most `limit` of them.

        Pools come in the order of their names. In each, queued and running tasks come in the order
        of their places, scheduled ones by when they are due, ended ones with the latest end first;
        without a state the live ones come first, the latest place first. It reads `scan` tasks at
        most, and then returns what it found so far.
        """
        ...

    async def pools(self, *, now: float | None = None) -> tuple[PoolView, ...]:
        """Return every pool by name, without held_units, waits and run_times.

        It costs a few rows for each pool, however many tasks there are: `scheduled` may count
        some that became due a moment ago.
        """
        ...

    async def worker_list(self, *, after: int = 0, limit: int = 100) -> tuple[WorkerView, ...]:
        """Return workers in the order of joining, behind the worker with number `after`."""
        ...

    async def units(self, pool: str, *, limit: int = 100) -> tuple[UnitView, ...]:
        """Return the first keys or lanes of a pool by name, with their tasks that are ready.

        None where nothing of the pool depends on keys or lanes: its order, limits and rates.
        """
        ...

    async def runs(
        self, pool: str, *, finished: bool, after: Place | None = None, limit: int = 50
    ) -> RunPage:
        """Return runs of a pool: the open ones by id, the finished ones with the latest first."""
        ...

    async def revisions(self, pool: str, *, limit: int = 20) -> tuple[tuple[int, PoolSpec], ...]:
        """Return the latest settings that a pool had, each with its revision, latest first."""
        ...

    async def pool(
        self, name: str, *, now: float | None = None, measured: bool = True
    ) -> PoolView | None:
        """Return a pool's counts and settings, or None if it was never declared.

        measured=False leaves out what takes time to find out: scheduled, dead, held_units,
        oldest_queued_at, waits and run_times.
        """
        ...

    async def budget(self, name: str) -> BudgetView | None:
        """Return a budget that pools share, or None if it was never declared."""
        ...

    async def lanes(self, pool: str) -> tuple[LaneView, ...]:
        """Return the lanes of a pool in order; none where there are no lanes.

        Of an ordered pool, whose lanes are not numbered: those with live tasks or a pause, by name.
        """
        ...

    async def run(self, run: int) -> RunView | None:
        """Return a run, or None."""
        ...

    async def run_named(self, pool: str, name: str) -> RunView | None:
        """Return the run of a pool that has this name, or None."""
        ...

    async def run_tasks(self, run: int, *, limit: int = 100) -> tuple[Task, ...]:
        """Return copies of queued and running tasks of a run, callbacks too, by pool and seq."""
        ...

    async def workers(self) -> frozenset[str]:
        """Return the workers that may hold leases."""
        ...

    async def ready(self, pool: str, worker: str, *, now: float) -> bool:
        """Return whether a lease at `now` would give this worker something."""
        ...

    async def names(self, begins: str = "") -> tuple[str, ...]:
        """Return the pools that were ever declared, of those whose name begins so, by name."""
        ...

    async def due(self, *, now: float) -> tuple[str, ...]:
        """Return the pools in which something due waits and starts are allowed at all.

        Whether a limit leaves room, and for whom, is for a lease to say: this is what a worker
        that heard of nothing asks, once for all pools, before it asks any of them.
        """
        ...

    async def why(self, task: int, *, now: float) -> Facts | None:
        """Return what decides when a task starts, or None; for people, so it may look at much."""
        ...

    async def audit(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        since: float | None = None,
        task: int | None = None,
    ) -> AuditPage:
        """Return audit records from position `after` on, oldest first.

        Positions count every record ever written; those no longer kept are passed over. With
        `since`, only records of that moment or later, and with `task` only those of that task: a
        page may then be empty and not the last. That one is reached when `next` stays where it is.
        """
        ...

    async def audit_end(self) -> int:
        """Return the position of the latest audit record: how many were ever written."""
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
        self,
        *,
        limit: int = 1000,
        generation: int | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> RecoverAnswer:
        """Do what time alone does: lose expired leases, fail expired and forgotten tasks.

        With a `generation` only if it leads (`Lead`): of two who take turns, one does it.
        """
        ...

    async def control(
        self, order: Order, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        """Carry out an order."""
        ...

    async def close(self) -> None:
        """Let go of what the store holds; safe twice."""
        ...
