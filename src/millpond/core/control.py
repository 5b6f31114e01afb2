"""Orders: what operators, workers and the clock ask of a store besides moving tasks."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.spec import BudgetSpec, PoolSpec
from millpond.core.task import Fence
from millpond.errors import ConfigError

# An order of a person says who gave it (`by`), such as `cli:ada`: the audit tells it.


def _check_unit(unit: str | None) -> None:
    if unit is not None:
        check.storable("unit", unit, bounds.MAX_KEY)


class Declare(msgspec.Struct, frozen=True, tag=True):
    """This is the pool; a declaration that differs from the last makes a new revision."""

    spec: PoolSpec


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Start nothing more, of the pool or of one lane or key; running work goes on."""

    pool: str
    unit: str | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        _check_unit(self.unit)


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Start work again."""

    pool: str
    unit: str | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        _check_unit(self.unit)


class Resize(msgspec.Struct, frozen=True, tag=True):
    """Change the limit; a lower one is reached by attrition. 0 = pause, None = as declared."""

    pool: str
    max_concurrent: int | None = None
    revision: int | None = None
    """The number of this change; refused unless it is above the one in force."""
    by: str | None = None

    def __post_init__(self) -> None:
        if self.max_concurrent is not None:
            check.whole("max_concurrent", self.max_concurrent)
        if self.revision is not None:
            check.whole("revision", self.revision, most=bounds.MAX_NUMBER)


class DeclareBudget(msgspec.Struct, frozen=True, tag=True):
    """This is the budget; the last declaration that differs is in force."""

    spec: BudgetSpec


class ResizeBudget(msgspec.Struct, frozen=True, tag=True):
    """Change how many may run in the pools of a budget; None = as declared."""

    budget: str
    max_concurrent: int | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        if self.max_concurrent is not None:
            check.whole("max_concurrent", self.max_concurrent)


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Start nothing of the pool, or of one lane or key, for `seconds`: a peer said slow down."""

    pool: str
    seconds: float
    unit: str | None = None

    def __post_init__(self) -> None:
        check.seconds("seconds", self.seconds)
        _check_unit(self.unit)


Page: TypeAlias = tuple[int, int]
"""Where an order that is carried out in pages goes on: behind a place, up to another."""


class Purge(msgspec.Struct, frozen=True, tag=True):
    """Cancel what waits, of the pool or of one lane or key: a page of it."""

    pool: str
    unit: str | None = None
    page: Page | None = None
    """What the last page was answered with; None = the first. Later tasks are not in any."""
    limit: int = 1000
    """How many live tasks are looked at, at most."""
    by: str | None = None

    def __post_init__(self) -> None:
        _check_unit(self.unit)


class CancelAll(msgspec.Struct, frozen=True, tag=True):
    """Cancel every task submitted before a moment, waiting or running: a page of them."""

    pool: str
    before: float | None = None
    unit: str | None = None
    page: Page | None = None
    limit: int = 1000
    interrupt: bool = False
    """Whether the handlers of those that run are to be interrupted, and not only told."""
    by: str | None = None

    def __post_init__(self) -> None:
        _check_unit(self.unit)
        if self.before is not None:
            check.moment("before", self.before)


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Cancel tasks: a waiting one at once, a running one is told and not retried.

    Asking twice changes nothing, but to interrupt is more than to tell, and may follow it.
    """

    tasks: tuple[int, ...]
    interrupt: bool = False
    """Whether the handlers of those that run are to be interrupted, and not only told."""
    of: str | None = None
    """Only those of this pool; None = of any."""
    by: str | None = None


class Redrive(msgspec.Struct, frozen=True, tag=True):
    """Queue failed or cancelled tasks again: a new budget of attempts, at the tail.

    A parked task goes back to its place in the queue, and is tried by any worker again.
    """

    tasks: tuple[int, ...]
    of: str | None = None
    """Only those of this pool; None = of any."""
    by: str | None = None


class Progress(msgspec.Struct, frozen=True, tag=True):
    """A handler says how far it is; the last word stands until the next one, or a redrive."""

    fence: Fence
    fraction: float
    text: str = ""

    def __post_init__(self) -> None:
        check.number("fraction", self.fraction, most=1.0)
        if len(check.encodable("text", self.text).encode()) > bounds.MAX_PROGRESS:
            raise ConfigError("text", self.text, f"has more than {bounds.MAX_PROGRESS} bytes")


class Remember(msgspec.Struct, frozen=True, tag=True):
    """A handler's step is done: later attempts are given its result. The first word stands."""

    fence: Fence
    name: str
    value: bytes

    def __post_init__(self) -> None:
        check.storable("name", self.name, bounds.MAX_STEP_NAME)


class Close(msgspec.Struct, frozen=True, tag=True):
    """Take no more work from outside, for good."""

    pool: str
    by: str | None = None


class Join(msgspec.Struct, frozen=True, tag=True):
    """A worker presents itself; it may hold leases as long as it renews.

    One that is known already may say that it knows more functions by now.
    """

    worker: str
    lease: float
    owner: str | None = None
    functions: tuple[str, ...] | None = None
    """The functions it knows; None = all; none at all = it runs closures of its owner only."""
    signatures: dict[str, str] = {}
    """A digest of the parameters of each of them: tasks that one does not fit, another may."""

    def __post_init__(self) -> None:
        check.seconds("lease", self.lease, above=0.0)


class Leave(msgspec.Struct, frozen=True, tag=True):
    """A worker goes; what it still holds is given back uncharged."""

    worker: str


class Disown(msgspec.Struct, frozen=True, tag=True):
    """A worker holds only `tasks`: whatever else was leased to it never reached it.

    Sent after an answer was lost; the rest goes back to the queue uncharged.
    """

    worker: str
    tasks: tuple[int, ...]


class Bury(msgspec.Struct, frozen=True, tag=True):
    """A worker is known to be dead: its leases are lost now, not when they expire."""

    worker: str


class Lead(msgspec.Struct, frozen=True, tag=True):
    """A process would lead maintenance for `lease` seconds, or goes on leading.

    Answered with 1 if it leads, and with the generation in force, which grows with each new leader.
    """

    owner: str
    lease: float

    def __post_init__(self) -> None:
        check.seconds("lease", self.lease, above=0.0)


class Seal(msgspec.Struct, frozen=True, tag=True):
    """A holder adds nothing more to a run."""

    run: int
    holder: str


class CancelRun(msgspec.Struct, frozen=True, tag=True):
    """Stop a run: what waits of it is cancelled, what runs is told, what follows is not started."""

    run: int
    by: str | None = None


class Prune(msgspec.Struct, frozen=True, tag=True):
    """Forget tasks that ended before these moments; their keys stay known until keys_before."""

    pool: str
    completed_before: float
    failed_before: float
    limit: int = 1000
    keys_before: float | None = None
    audit_before: float | None = None
    """Records of the audit that are older may go, too, where a store keeps them that long."""


PoolOrder: TypeAlias = Declare | Pause | Resume | Resize | Hold | Close | Prune
BudgetOrder: TypeAlias = DeclareBudget | ResizeBudget
PageOrder: TypeAlias = Purge | CancelAll
"""Orders about as many tasks as there are: each is one step of many, so that nobody waits long."""
TaskOrder: TypeAlias = Cancel | Redrive
AttemptOrder: TypeAlias = Progress | Remember
"""What a running attempt says of itself: it counts only with the current fence."""
WorkerOrder: TypeAlias = Join | Leave | Bury | Disown
LeaderOrder: TypeAlias = Lead
RunOrder: TypeAlias = Seal | CancelRun
WholeOrder: TypeAlias = (
    PoolOrder | BudgetOrder | TaskOrder | AttemptOrder | WorkerOrder | LeaderOrder | RunOrder
)
Order: TypeAlias = WholeOrder | PageOrder
