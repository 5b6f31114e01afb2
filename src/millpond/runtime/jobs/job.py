"""A job: one attempt of one task, from its lease to its settlement."""

from __future__ import annotations

import asyncio
import contextvars
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping
    from contextvars import Context

    from millpond.core.lease import Leased
    from millpond.core.plan import Wake
    from millpond.core.settle import Settlement
    from millpond.core.task import NewTask
    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.policy import Policy
    from millpond.store.protocol import Admission, SettleAnswer

T = TypeVar("T")

current_job: ContextVar[Job | None] = ContextVar("millpond_job", default=None)
"""The job whose handler is running here, if any."""


class Where(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


class CancelReason(StrEnum):
    """Why a running attempt must end, the weaker reasons first."""

    CANCEL = "cancel"
    """A caller or an operator cancelled the task."""
    TIMEOUT = "timeout"
    """The attempt ran for longer than its `timeout`."""
    STOP = "stop"
    """The worker stops; another attempt follows, if any are left."""
    LEASE_LOST = "lease_lost"
    """The worker could not renew the lease: another worker may run the task."""


_STRENGTH = {why: strength for strength, why in enumerate(CancelReason)}


class Takes(Protocol):
    """The parameters of a function, for the store and for people."""

    @property
    def digest(self) -> str:
        """The same for functions that can read the same arguments."""

    @property
    def text(self) -> str:
        """The function with its parameters, as written in its source."""


class Handler(msgspec.Struct, eq=False):
    """A registered function as a worker sees it."""

    name: str
    where: Where
    invoke: Callable[[Job], Any]
    encode_result: Callable[[Any], bytes | None]
    retry: Policy | None = None
    batch: BatchShape | None = None
    process: tuple[str, str] | None = None
    arguments: Callable[[bytes], tuple[list[Any], dict[str, Any]]] | None = None
    """Reads a stored payload into positional and named arguments."""
    takes: Takes | None = None


class BatchShape(msgspec.Struct, eq=False):
    """How many tasks of a function go into one call, and how long the first waits for more."""

    size: int
    linger: float
    read: Callable[[Job], Any]
    call: Callable[[list[Job], list[Any]], Any]


class Closure(msgspec.Struct, eq=False):
    """Code that lives as long as its process, and the context it was submitted in."""

    fn: Callable[[], Any]
    context: Context
    where: Where
    retry: Policy | None
    encode_result: Callable[[Any], bytes] | None = None
    """How its result is stored; None = it stays in this process."""


_NO_CONTEXT = contextvars.Context()


class Signal(asyncio.Event):
    """An event that is true once it is set, so that `if ctx.cancelled:` works."""

    def __bool__(self) -> bool:
        return self.is_set()


class RunningSlot(Protocol):
    """The slot that runs a job."""

    @property
    def task(self) -> asyncio.Task[None]:
        """The task that runs the handler."""

    def interrupt(self, job: Job, /) -> None:
        """Cancel the handler of a job, if the slot still runs it."""


class WorkerProtocol(Protocol):
    """A worker as jobs and the other services of the runtime see it."""

    env: Environment
    loop: asyncio.AbstractEventLoop
    name: str
    lease: float
    own: bool
    """Whether it runs only closures of this process."""
    pools: frozenset[str] | None
    resources: Any
    retries: Mapping[str, Policy]
    jobs: dict[int, Job]
    stuck_since: dict[Job, float]
    joined: bool
    stopping: bool
    fenced: bool

    @property
    def runtime(self) -> object:
        """The runtime it belongs to, for the code of handlers."""

    @property
    def scheduled(self) -> bool:
        """Whether a turn comes soon."""

    async def turn(self) -> None:
        """Settle what has ended and lease what may start."""

    def woken(self, wake: Wake, /) -> None:
        """Note that a pool may have something to start."""

    def watch(self, pool: str, /) -> None:
        """Serve a pool from now on, if it is one of its pools."""

    def watches(self, pool: str, /) -> bool:
        """Return whether it asks a pool for work."""

    def serves(self, pool: str, /) -> bool:
        """Return whether it runs tasks of a pool that any process submitted."""

    def holders(self, pool: str, /) -> list[Job]:
        """Return the jobs that keep it from starting more of a pool; none if it could."""

    def look_everywhere(self) -> None:
        """Ask every pool again."""

    def stop_job(self, job: Job, why: CancelReason, /, *, interrupt: bool = True) -> None:
        """Ask a job to stop."""

    def prefetched(self, tasks: Container[int], /) -> list[str]:
        """Return the pools of which it has prefetched one of these tasks."""

    def give_back_prefetched(self, pool: str | None = None, /) -> None:
        """Give back what it has prefetched of a pool, or of all pools."""

    def safe_since(self, sent: float, /) -> None:
        """Note that its leases hold from `sent` on; any thread may call this."""

    def renewed(self, sent: float, /) -> None:
        """Note that its leases hold from `sent` on, on the loop."""

    def registered_as(self, name: str, /) -> None:
        """Go on under a new name, after the store had lost the old one."""

    def lost_registration(self) -> None:
        """Stop its jobs and register again: the store no longer knows it."""

    def in_thread(self, fn: Callable[[], T], /) -> asyncio.Future[T]:
        """Call something that blocks in a thread."""

    def committed(
        self,
        job: Job,
        decided: Settlement,
        value: Any,  # noqa: ANN401 - what the task returns
        answer: SettleAnswer,
        /,
    ) -> bool:
        """Note that a handler settled its attempt itself; return whether that was applied."""


class Job:
    """One attempt: its lease, which worker runs it, and what its handler has asked for.

    What most jobs never set is an attribute of the class: making one is on the hot path.
    """

    context: Context = _NO_CONTEXT
    slot: RunningSlot | None = None
    why: CancelReason | None = None
    cancel_asked = False
    interrupted = False
    """Whether a cancel interrupted it; renewals repeat that of another process."""
    timed_out = False
    """Whether it timed out before a stronger reason stopped it: then it ends as timed out."""
    stopped_early = False
    """Whether it was to be interrupted before its handler began."""
    began = False
    """Whether its handler was called, or is about to be."""
    settled = False
    left_slot = False
    """Whether it has ended and its settlement may start a prefetched task in its slot."""
    committed = False
    """Whether its handler has stored its completion itself."""
    unsure = False
    """Whether the answer to its settlement was lost."""
    refusals = 0
    """How often the store refused its settlement alone, for a reason that may be its value."""
    began_at = 0.0
    """When its handler was called, by the steady clock; kept for telemetry only."""
    timer: asyncio.TimerHandle | None = None
    deadline: float | None = None
    follow_ups: list[NewTask] | None = None
    on_stored: list[Callable[[Admission, float], None]] | None = None
    """Called with the admission of each follow-up, in order, and the moment."""
    weight: int | None = None
    """The weight that its handler reported."""
    steps: dict[str, bytes] | None = None
    """The results of the steps that this attempt has done, by name."""
    awaits: dict[int, tuple[tuple[str, str | None], ...]] | None = None
    _cancelled: asyncio.Event | None = None
    _lease_lost: asyncio.Event | None = None

    def __init__(
        self, leased: Leased, worker: WorkerProtocol, body: Handler | Closure, started_at: float
    ) -> None:
        self.leased = leased
        self.worker = worker
        self.body = body
        self.started_at = started_at

    @property
    def id(self) -> int:
        """The task's id."""
        return self.leased.fence.task

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when the attempt is to end: cancel, timeout, stop or a lost lease."""
        if self._cancelled is None:
            self._cancelled = Signal()
            if self.why is not None:
                self._cancelled.set()
        return self._cancelled

    @property
    def lease_lost(self) -> asyncio.Event:
        """Set when the right to settle this attempt is gone."""
        if self._lease_lost is None:
            self._lease_lost = Signal()
            if self.why is CancelReason.LEASE_LOST:
                self._lease_lost.set()
        return self._lease_lost

    def cancel(self, why: CancelReason) -> None:
        """Note why the job is to stop (a stronger reason replaces a weaker one), and set events."""
        if self.why is None or _STRENGTH[why] > _STRENGTH[self.why]:
            self.why = why
            self.timed_out = self.timed_out or why is CancelReason.TIMEOUT
        if why is CancelReason.CANCEL:
            self.cancel_asked = True
        if self._cancelled is not None:
            self._cancelled.set()
        if why is CancelReason.LEASE_LOST and self._lease_lost is not None:
            self._lease_lost.set()


def job_of(workers: Iterable[WorkerProtocol], task: int) -> Job | None:
    """Return the job that runs a task in this process, or None."""
    for worker in workers:
        job = worker.jobs.get(task)
        if job is not None:
            return job
    return None
