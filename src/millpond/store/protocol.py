"""The store protocol: six write verbs and a view (`millpond.store.view`).

Every verb is atomic: it happens as a whole or not at all, and its answer says what it did. Every
verb takes the moment and the entropy it acts with; None means the store's own clock and random
numbers (a shared store's clock overrules its clients'). So a *history*, a list of verbs, gives the
same answers on every store, and a test can replay it.

    submit    batches of new tasks: admission, idempotency and the insert at once
    lease     the next tasks of a pool for a worker: order, limits and the fence at once
    renew     one small write renews all leases of a worker
    settle    how attempts ended, each only with its current fence; may lease the next at once
    recover   what only time causes: lost leases, expired and long-parked tasks
    control   commands: declare, pause, resize, cancel, redrive, register, deregister, ...

The answers of all but `renew` also have the side effects of the verb: runs that finished, tasks
that ended (`ended`, for their waiters), lanes and pools that were drained (`emptied`), and pools
that may have something to start (`wakes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, overload

import msgspec

from millpond.core.admit import Refusal
from millpond.core.audit import Record
from millpond.core.control import CommandPage
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status
from millpond.core.plan import Wake
from millpond.core.quantiles import Quantiles
from millpond.core.run import NewRun, RunView
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import BudgetSpec, PoolSpec
from millpond.core.task import NewTask, Task
from millpond.errors import ConfigError

if TYPE_CHECKING:
    from millpond.core.control import Command
    from millpond.store.view import View


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tasks for one pool that one caller submits together; they may open a run."""

    tasks: tuple[NewTask, ...]
    run: NewRun | None = None
    again: bool = False
    """It was sent before, and its outcome is unknown: tasks that have ended and been removed since
    are not accepted a second time."""
    alike: bool = False
    """Whether the tasks differ by their ids and payloads only, and by idempotency keys and
    fingerprints if all have a key. A store may then read all else from the first."""

    def __post_init__(self) -> None:
        if self.alike or len(self.tasks) < 2:
            return
        pools = {new.pool for new in self.tasks}
        if len(pools) > 1:
            raise ConfigError("tasks", sorted(pools), "of one batch must all be for one pool")


class Admission(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer for one task of a batch."""

    task: int
    """Its id, or the id of the known task if `duplicate`."""
    status: Status
    duplicate: bool = False
    lane: str | None = None
    sequence: int = 0
    position: int | None = None
    """How many tasks are before it in its lane or, in a fifo pool, in the queue."""
    depth: int | None = None
    """How many tasks of its pool waited after it was accepted or dropped; None of a duplicate."""
    reason: str | None = None


class InOrder(Sequence[Admission]):
    """Admissions of new tasks that stand one behind the other, each made when it is asked for."""

    __slots__ = ("_depth", "_position", "_sequence", "_tasks")

    def __init__(
        self, tasks: Sequence[int], *, sequence: int, position: int | None, depth: int
    ) -> None:
        """`sequence`, `position` and `depth` are those of the first of these ids."""
        self._tasks = tasks
        self._sequence = sequence
        self._position = position
        self._depth = depth

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, at: int) -> Admission: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Admission]: ...
    def __getitem__(self, at: int | slice) -> Admission | Sequence[Admission]:
        if isinstance(at, slice):
            return tuple(self)[at]
        number = range(len(self._tasks))[at]
        return Admission(
            task=self._tasks[at],
            status=Status.QUEUED,
            sequence=self._sequence + number,
            position=None if self._position is None else self._position + number,
            depth=self._depth + number,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, InOrder)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Either one admission per task, or the refusal of the whole batch."""

    admissions: Sequence[Admission] = ()
    refusal: Refusal | None = None
    run: RunView | None = None


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a strict pool, or another pool as a whole, that a verb drained.

    It had a queued or running task before the verb and has none after it.
    """

    pool: str
    lane: str | None = None
    """None = the whole pool was drained."""
    processed: int
    """How many of its tasks were ever completed or failed."""


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb has caused beside its own answer."""

    finished_runs: tuple[int, ...] = ()
    wakes: tuple[Wake, ...] = ()
    ended: tuple[int, ...] = ()
    emptied: tuple[Drained, ...] = ()


class SubmitAnswer(Effects, frozen=True, kw_only=True, gc=False):
    """One answer per batch, in order."""

    batches: tuple[BatchAnswer, ...]


class LeaseAnswer(Effects, frozen=True, kw_only=True, gc=False):
    """The tasks that a worker runs now, and when it should ask again."""

    leased: tuple[Leased, ...] = ()
    """Tasks to start now: prefetched ones with their old fences first, then queued ones."""
    claimed: tuple[Leased, ...] = ()
    """Prefetched tasks: still queued, to be started only in a slot that an attempt leaves."""
    give_back: bool = False
    """Whether the worker should return its prefetched tasks of this pool."""
    next_at: float | None = None
    """When time alone may make more tasks ready; None = only a wake-up will."""
    drained: bool = False
    """Whether no task waits, ready or not: only a new task changes that."""
    fenced: bool = False
    """The store does not know the worker (any more): it must register under a new name."""
    unknown: tuple[str, ...] = ()
    """Functions of parked tasks that the worker does not know, by name; some of them, if many."""


class SettleAnswer(Effects, frozen=True, kw_only=True, gc=False):
    """One answer per settlement, in order, and the next leases if they were asked for."""

    settled: tuple[Settled, ...]
    after: tuple[Status | None, ...] = ()
    """The status of each task after its settlement; None where it was stale."""
    started: tuple[Settled | None, ...] = ()
    """Whether the start of each settlement's successor was applied; None where it has none."""
    follow_ups: tuple[tuple[Admission, ...], ...] = ()
    """Each settlement's follow-ups: stored, or a duplicate of a known key."""
    lease: LeaseAnswer | None = None


class RenewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the worker still holds its leases, and which tasks it should cancel."""

    alive: bool
    cancelled: tuple[int, ...] = ()
    interrupted: tuple[int, ...] = ()
    """Those of them whose handlers are to be interrupted, and not only asked to stop."""
    give_back: tuple[str, ...] = ()
    """The pools whose prefetched tasks it should return."""


class LostAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that ended with its worker; the task is queued again."""

    task: int
    pool: str
    function: str
    attempt: int


class RecoverAnswer(Effects, frozen=True, kw_only=True):
    """How many tasks were moved; `more` if the limit left some for another call."""

    moved: int
    more: bool = False
    next_at: float | None = None
    """When `recover` has something to do again; None = not before another verb."""
    deposed: bool = False
    """Nothing was done: this generation does not lead (any more)."""
    lost: tuple[LostAttempt, ...] = ()


class ControlAnswer(Effects, frozen=True, kw_only=True):
    """How many tasks (or workers) a command changed, and the revision after it."""

    count: int = 0
    revision: int = 0
    more: CommandPage | None = None
    """There is more to do: send the same command with this page."""
    cancelled: tuple[int, ...] = ()
    """Tasks held by workers that this command asks to stop."""
    interrupted: tuple[int, ...] = ()
    """Those of them whose handlers are to be interrupted, and not only asked to stop."""
    lost: tuple[LostAttempt, ...] = ()


class Hint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one process sends the others after a commit: a reason to check, never the truth."""

    wakes: tuple[Wake, ...] = ()
    ended: tuple[int, ...] = ()
    finished_runs: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    """Running tasks that should stop."""
    interrupted: tuple[int, ...] = ()
    """Those of them whose handlers should be interrupted."""
    more: bool = False
    """There was more than fits into a hint: check everything."""


MOST_HELD_UNITS = 100
"""How many held lanes or keys a view names."""


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
    """All waiting tasks: ready, scheduled, parked or prefetched."""
    fresh: int
    """Never-claimed tasks from outside: what a bound counts."""
    scheduled: int
    """Queued and not due: submitted for later, or backing off."""
    claimed: int = 0
    """Queued and prefetched by a worker."""
    running: int
    parked: int
    kept: int
    """Ended tasks that retention has not removed."""
    dead: int = 0
    """Those of them that failed: a redrive would queue them again."""
    held_until: float = 0.0
    """No task of the pool starts before: a handler was throttled. 0 = not held back."""
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
    """How many tasks run in all these pools."""
    waiting: tuple[str, ...]
    """The pools that wait for it, the longest wait first."""


LaneState: TypeAlias = Literal["processing", "idle", "paused"]


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a strict pool at one moment."""

    lane: str
    state: LaneState
    """Paused alone or with its pool, also while its last task still runs."""
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
    """None = this is the last page."""


Place: TypeAlias = tuple[float, int]
"""A place in a list of tasks: a moment (0.0 where the order has none), and a seq."""

Cursor: TypeAlias = tuple[str, Place | None]
"""Where a search goes on: a pool, and a place in its list; None = at its beginning."""


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a search found, and the place to go on from."""

    tasks: tuple[Task, ...]
    next: Cursor | None = None
    """None = this is the last page."""
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


class PoolInFull(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one pool at one moment."""

    view: PoolView
    units: tuple[UnitView, ...]
    revisions: tuple[tuple[int, PoolSpec], ...]
    budgets: tuple[BudgetView, ...]
    callbacks: PoolView | None
    """The pool of its callbacks, unmeasured; None = it has none."""


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs of a pool, and the place to go on from."""

    runs: tuple[RunView, ...]
    next: Place | None = None
    """None = this is the last page."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A task and its history."""

    task: Task
    records: tuple[Record, ...]
    """Its audit records, oldest first."""
    complete: bool
    """Whether these are all; a search from its submit on finds the others."""
    follow_ups: tuple[Task, ...]
    """The tasks that its end submitted: its follow-ups and its callback."""


class AuditPage(msgspec.Struct, frozen=True):
    """Some audit records, and the position to go on from."""

    records: tuple[Record, ...]
    next: int


class StoredResult(msgspec.Struct, frozen=True):
    """How a task ended, as the store has it."""

    status: Status
    attempt: int
    result: bytes | None = None
    error: bytes | None = None
    reason: str | None = None


class StoredResults(msgspec.Struct, frozen=True):
    """What the store has of some tasks; those that wait or run are in neither."""

    ended: dict[int, StoredResult]
    missing: dict[int, str]
    """Those without a record: "expired" or "unknown"."""


class Store(Protocol):
    """The write side: six atomic verbs."""

    @property
    def view(self) -> View:
        """The reading side."""

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        """Accept batches, each as a whole or not at all where its pool's policy says so."""

    async def lease(
        self, ask: LeaseRequest, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        """Give a worker the next tasks of a pool, within every limit in force."""

    async def renew(
        self,
        worker: str,
        lease: float,
        *,
        now: float | None = None,
        entropy: int | None = None,
    ) -> RenewAnswer:
        """Renew all leases of a worker for `lease` seconds."""

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseRequest | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        """End attempts, each only with its current fence, and lease the next if asked."""

    async def recover(
        self,
        *,
        limit: int = 1000,
        generation: int | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> RecoverAnswer:
        """Apply what only time causes: lose expired leases, fail expired and long-parked tasks.

        With a `generation`, only if it leads (`ClaimLeadership`).
        """

    async def control(
        self, command: Command, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        """Carry out a command."""

    async def close(self) -> None:
        """Close the store; safe twice."""
