"""A job: one attempt of one task, from its lease to its settlement."""

from __future__ import annotations

import asyncio
import contextvars
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from millpond.core.lease import Leased
    from millpond.core.task import NewTask
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.outcome import Policy
    from millpond.runtime.worker.slot import Slot
    from millpond.runtime.worker.worker import Worker
    from millpond.store.protocol import Admission

current_job: ContextVar[Job | None] = ContextVar("millpond_job", default=None)
"""The job whose handler is running here, if any."""


class Where(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


class CancelReason(StrEnum):
    """Why a running attempt is to end, the weaker reasons first."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    STOP = "stop"
    LEASE_LOST = "lease_lost"


_STRENGTH = {why: strength for strength, why in enumerate(CancelReason)}


class Takes(Protocol):
    """What a function takes, as its worker tells it to the store and to people."""

    @property
    def digest(self) -> str:
        """The same for functions that can read the same arguments."""
        ...

    @property
    def text(self) -> str:
        """The function with its parameters, as its author wrote them."""
        ...


class Handler:
    """A registered function as a worker sees it."""

    __slots__ = (
        "arguments",
        "batch",
        "encode_result",
        "invoke",
        "name",
        "process",
        "retry",
        "takes",
        "where",
    )

    def __init__(
        self,
        name: str,
        where: Where,
        invoke: Callable[[Job], Any],
        encode_result: Callable[[Any], bytes],
        retry: Policy | None = None,
        batch: BatchShape | None = None,
        process: tuple[str, str] | None = None,
        arguments: Callable[[bytes], tuple[list[Any], dict[str, Any]]] | None = None,
        takes: Takes | None = None,
    ) -> None:
        self.name = name
        self.where = where
        self.invoke = invoke
        self.encode_result = encode_result
        self.retry = retry
        self.batch = batch
        self.process = process
        self.arguments = arguments
        """Reads a stored payload into positional and named arguments."""
        self.takes = takes


class BatchShape:
    """How many tasks of a function go into one call, and how long the first waits for more."""

    __slots__ = ("call", "linger", "read", "size")

    def __init__(
        self,
        size: int,
        linger: float,
        read: Callable[[Job], Any],
        call: Callable[[list[Job], list[Any]], Any],
    ) -> None:
        self.size = size
        self.linger = linger
        self.read = read
        self.call = call


class Closure:
    """Code that lives as long as its process, and the context it was submitted in."""

    __slots__ = ("context", "encode_result", "fn", "retry", "where")

    def __init__(
        self,
        fn: Callable[[], Any],
        context: Context,
        where: Where,
        retry: Policy | None,
        encode_result: Callable[[Any], bytes] | None = None,
    ) -> None:
        self.fn = fn
        self.context = context
        self.where = where
        self.retry = retry
        self.encode_result = encode_result
        """How its result is stored; None = it stays in this process, as in a store in memory."""


_NO_CONTEXT = contextvars.Context()


class Signal(asyncio.Event):
    """An event that is true once it is set, so that `if ctx.cancelled:` reads as it is meant."""

    def __bool__(self) -> bool:
        return self.is_set()


class Job:
    """One attempt: what was leased, who runs it, and what it has asked for so far.

    What most jobs never set is an attribute of the class: making one is on the hot path.
    """

    context: Context = _NO_CONTEXT
    slot: Slot | None = None
    why: CancelReason | None = None
    cancel_asked = False
    interrupted = False
    """Whether it was interrupted by a cancel, which other processes may tell of again and again."""
    timed_out = False
    """Whether its time ran out before anything stronger ended it: then that is how it ends."""
    stopped_early = False
    """Whether it was to be interrupted before its handler began."""
    began = False
    """Whether its handler was called, or is about to be."""
    settled = False
    left_slot = False
    """Whether it has ended and something else may be started in its place with its settlement."""
    committed = False
    """Whether its handler has stored its completion itself; what it does after that is its own."""
    unsure = False
    """Whether it was settled by a verb whose answer was lost."""
    refusals = 0
    """How often the store refused its end alone, for a reason that need not be the store's."""
    began_at = 0.0
    """When its handler was called, by the steady clock; kept for telemetry only."""
    timer: asyncio.TimerHandle | None = None
    deadline: float | None = None
    follow_ups: list[NewTask] | None = None
    on_stored: list[Callable[[Admission, float], None]] | None = None
    """Whom to tell what became of each follow-up, in order, and when."""
    weight: int | None = None
    """What its handler said it really used."""
    steps: dict[str, bytes] | None = None
    """What this attempt itself has done so far, by the name of the step."""
    awaits: dict[int, tuple[tuple[str, str | None], ...]] | None = None
    _cancelled: asyncio.Event | None = None
    _lease_lost: asyncio.Event | None = None

    def __init__(
        self, leased: Leased, worker: Worker, body: Handler | Closure, started_at: float
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
    def runtime(self) -> Runtime:
        """The runtime it runs in."""
        return self.worker.runtime

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

    def tell(self, why: CancelReason) -> None:
        """Note why the job is to stop (a weaker reason gives way), and tell who listens."""
        if self.why is None or _STRENGTH[why] > _STRENGTH[self.why]:
            self.why = why
            self.timed_out = self.timed_out or why is CancelReason.TIMEOUT
        if why is CancelReason.CANCEL:
            self.cancel_asked = True
        if self._cancelled is not None:
            self._cancelled.set()
        if why is CancelReason.LEASE_LOST and self._lease_lost is not None:
            self._lease_lost.set()
