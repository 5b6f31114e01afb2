"""Commands: what operators, workers and maintenance ask of a store besides moving tasks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.spec import BudgetSpec, PoolSpec
from millpond.core.task import Call, Fence, NewTask, check_labels
from millpond.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# An order of a person says who gave it (`by`), such as `cli:ada`: the audit shows it.

_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    "unit": partial(check.storable, most=bounds.MAX_KEY),
    "max_concurrent": check.integer,
    "revision": partial(check.integer, most=bounds.MAX_NUMBER),
    "seconds": check.seconds,
    "before": check.moment,
    "priority": partial(check.integer, least=bounds.MIN_PRIORITY),
    "labels": check_labels,
    "delay": check.seconds,
    "run_at": check.moment,
    "expires_in": partial(check.seconds, above=0.0),
    "timeout": partial(check.seconds, above=0.0),
    "lease": partial(check.seconds, above=0.0),
}


_REQUIRED = ("seconds", "lease")
"""Fields that every command which has them needs; None is right for the others."""


class _Checked(msgspec.Struct, frozen=True):
    """A command whose fields have bounds, each the same in every command."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name not in _CHECKS:
                continue
            value = getattr(self, name)
            if value is not None or name in _REQUIRED:
                _CHECKS[name](name, value)


class Declare(msgspec.Struct, frozen=True, tag=True):
    """Declare a pool; a declaration that differs from the last makes a new revision."""

    spec: PoolSpec


class Pause(_Checked, frozen=True, tag=True):
    """Start no further tasks of the pool, or of one lane or key; running tasks go on."""

    pool: str
    unit: str | None = None
    by: str | None = None


class Resume(_Checked, frozen=True, tag=True):
    """Start work again."""

    pool: str
    unit: str | None = None
    by: str | None = None


class Resize(_Checked, frozen=True, tag=True):
    """Change the limit; running tasks above a lower one finish. 0 = pause, None = as declared."""

    pool: str
    max_concurrent: int | None = None
    revision: int | None = None
    """The number of this change; refused unless it is above the one in force."""
    by: str | None = None


class DeclareBudget(msgspec.Struct, frozen=True, tag=True):
    """Declare a budget; the last declaration is in force."""

    spec: BudgetSpec


class ResizeBudget(_Checked, frozen=True, tag=True):
    """Change how many tasks may run in the pools of a budget; None = as declared."""

    budget: str
    max_concurrent: int | None = None
    by: str | None = None


class Hold(_Checked, frozen=True, tag=True):
    """Start no task of the pool, or of one lane or key, for `seconds`: a peer said slow down."""

    pool: str
    seconds: float
    unit: str | None = None


CommandPage: TypeAlias = tuple[int, int]
"""Where the next page of a command begins and ends: behind one place, up to another."""


class Purge(_Checked, frozen=True, tag=True):
    """Cancel one page of the waiting tasks of a pool, or of one lane or key."""

    pool: str
    unit: str | None = None
    page: CommandPage | None = None
    """The answer to the last page; None = the first. Tasks submitted later are in no page."""
    limit: int = 1000
    """How many live tasks one page reads at most."""
    by: str | None = None


class CancelAll(_Checked, frozen=True, tag=True):
    """Cancel one page of the tasks submitted before a moment, waiting or running."""

    pool: str
    before: float | None = None
    unit: str | None = None
    page: CommandPage | None = None
    limit: int = 1000
    interrupt: bool = False
    """Whether the handlers of those that run are interrupted too, and not only asked to stop."""
    by: str | None = None


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Cancel tasks: a waiting one at once; a running one is asked to stop and not retried.

    A second request changes nothing, except that an interrupt may follow a plain cancel.
    """

    tasks: tuple[int, ...]
    interrupt: bool = False
    """Whether the handlers of those that run are interrupted too, and not only asked to stop."""
    of: str | None = None
    """Only tasks of this pool; None = of any."""
    by: str | None = None


class Redrive(msgspec.Struct, frozen=True, tag=True):
    """Queue failed or cancelled tasks again, at the tail, with a new budget of attempts.

    A parked task returns to its place in the queue, and every worker may try it again.
    """

    tasks: tuple[int, ...]
    of: str | None = None
    """Only tasks of this pool; None = of any."""
    by: str | None = None


class Update(_Checked, frozen=True, tag=True, kw_only=True):
    """Change a task that waits; it keeps its sequence. What is None stays as it is.

    Other arguments make it new work: it gets a new budget of attempts.
    """

    task: int
    call: Call | None = None
    """The same function with other arguments; only then the next three fields are read."""
    fingerprint: int = 0
    key: str | None = None
    share: str | None = None
    """What the arguments say of key and share: those of the task, or the update is refused."""
    priority: int | None = None
    labels: dict[str, str] | None = None
    delay: float | None = None
    run_at: float | None = None
    """Not before this moment of the store's clock; overrides delay."""
    expires_in: float | None = None
    timeout: float | None = None
    revision: int | None = None
    """The revision that the caller has seen; refused if it is not the current one."""
    of: str | None = None
    """Only a task of this pool; None = of any."""
    by: str | None = None

    @property
    def moves(self) -> bool:
        """Whether it changes when the task is due."""
        return self.run_at is not None or self.delay is not None

    @property
    def changes(self) -> str:
        """What it changes, in words."""
        named = {
            "arguments": self.call,
            "priority": self.priority,
            "labels": self.labels,
            "due": True if self.moves else None,
            "expires_in": self.expires_in,
            "timeout": self.timeout,
        }
        return " ".join(name for name, value in named.items() if value is not None)

    def applied_to(self, new: NewTask) -> NewTask:
        """Return the task with these changes, as its next revision."""
        given: dict[str, object] = {"revision": new.revision + 1}
        for name in ("call", "priority", "labels", "expires_in", "timeout"):
            if (value := getattr(self, name)) is not None:
                given[name] = value
        if self.moves:
            given |= {"delay": self.delay or 0.0, "run_at": self.run_at}
        if self.call is not None:
            given["fingerprint"] = self.fingerprint
        return msgspec.structs.replace(new, **given)


class Progress(msgspec.Struct, frozen=True, tag=True):
    """A handler reports its progress; it stands until the next report, or a redrive."""

    fence: Fence
    fraction: float
    text: str = ""

    def __post_init__(self) -> None:
        check.number("fraction", self.fraction, most=1.0)
        if len(check.encodable("text", self.text).encode()) > bounds.MAX_PROGRESS:
            raise ConfigError("text", self.text, f"has more than {bounds.MAX_PROGRESS} bytes")


class SaveStep(msgspec.Struct, frozen=True, tag=True):
    """Save the result of a handler's step for later attempts; the first result stands."""

    fence: Fence
    name: str
    value: bytes

    def __post_init__(self) -> None:
        check.storable("name", self.name, bounds.MAX_STEP_NAME)


class Close(msgspec.Struct, frozen=True, tag=True):
    """Close a pool for good: it takes no more tasks from outside."""

    pool: str
    by: str | None = None


class Register(_Checked, frozen=True, tag=True):
    """Register a worker; it may hold leases as long as it renews.

    A registered worker may register again with more functions.
    """

    worker: str
    lease: float
    owner: str | None = None
    functions: tuple[str, ...] | None = None
    """The functions it knows; None = all; none at all = it runs closures of its owner only."""
    signatures: dict[str, str] = {}
    """A digest of the parameters of each function: a task may fit one worker and not another."""


class Deregister(msgspec.Struct, frozen=True, tag=True):
    """Deregister a worker; the tasks it holds are released uncharged."""

    worker: str


class Disown(msgspec.Struct, frozen=True, tag=True):
    """A worker holds only `tasks`: other leases never reached it.

    Sent after an answer was lost; the other tasks go back to the queue uncharged.
    """

    worker: str
    tasks: tuple[int, ...]


class DeclareDead(msgspec.Struct, frozen=True, tag=True):
    """Declare a worker dead: its leases are lost now, not when they expire."""

    worker: str
    expires_at: float | None = None
    """Only if its lease ends then: a worker that has renewed since is alive."""


class ClaimLeadership(_Checked, frozen=True, tag=True):
    """Claim or renew maintenance leadership for `lease` seconds.

    The answer is 1 if the process leads, and the generation, which grows with each new leader.
    """

    owner: str
    lease: float


class Seal(msgspec.Struct, frozen=True, tag=True):
    """Seal a run for one holder: it adds no more tasks."""

    run: int
    holder: str


class CallWhenOver(msgspec.Struct, frozen=True, tag=True):
    """Submit a call once when a run has ended; the last one that was set before counts."""

    run: int
    call: Call

    def __post_init__(self) -> None:
        check.storable("on_complete", self.call.function, bounds.MAX_FUNCTION)


class CancelRun(msgspec.Struct, frozen=True, tag=True):
    """Cancel a run: waiting tasks end, running ones are asked to stop, follow-ups do not start."""

    run: int
    by: str | None = None


class Prune(msgspec.Struct, frozen=True, tag=True):
    """Remove tasks that ended before these moments; their keys stay until keys_before."""

    pool: str
    completed_before: float
    failed_before: float
    limit: int = 1000
    keys_before: float | None = None
    audit_before: float | None = None
    """Remove older audit records too, where a store keeps them that long."""


PoolCommand: TypeAlias = Declare | Pause | Resume | Resize | Hold | Close | Prune
BudgetCommand: TypeAlias = DeclareBudget | ResizeBudget
PagedCommand: TypeAlias = Purge | CancelAll
"""Commands about any number of tasks: each page is a transaction, so no writer waits long."""
TaskCommand: TypeAlias = Cancel | Redrive | Update
AttemptCommand: TypeAlias = Progress | SaveStep
"""Reports of a running attempt: they count only with the current fence."""
WorkerCommand: TypeAlias = Register | Deregister | DeclareDead | Disown
LeaderCommand: TypeAlias = ClaimLeadership
RunCommand: TypeAlias = Seal | CallWhenOver | CancelRun
UnpagedCommand: TypeAlias = (
    PoolCommand
    | BudgetCommand
    | TaskCommand
    | AttemptCommand
    | WorkerCommand
    | LeaderCommand
    | RunCommand
)
Command: TypeAlias = UnpagedCommand | PagedCommand
