"""Outcomes: what a handler's exception means, by its type and by the policy of its task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from millpond.core import validation as check
from millpond.core.backoff import Retry, qualified_name, tries_again
from millpond.core.bounds import MAX_THROTTLE
from millpond.core.handler_signals import GiveUp, RetryLater, Throttled
from millpond.core.settle import Raised
from millpond.core.task import CALLBACKS
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.error_info import ErrorInfo, describe

if TYPE_CHECKING:
    from millpond.runtime.worker.job import Job


class BadResult(Exception):
    """What a handler returned cannot be stored."""


class Unreadable(Exception):
    """A stored payload cannot be decoded: its bytes are damaged."""


class Misfit(Unreadable):
    """Stored arguments are whole, and do not fit the function as it is here."""

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(reason)
        self.field = field
        """The argument that does not fit, where one can be named."""


class RemoteError(Exception):
    """An exception that was raised in another process: its name, message and traceback."""

    def __init__(self, info: ErrorInfo, kinds: tuple[str, ...]) -> None:
        super().__init__(info.message)
        self.info = info
        self.kinds = kinds
        """The names of its type and of that type's bases."""
        if info.traceback:
            # Printed below the message: where it happened is not to be seen from here.
            self.add_note(f"in another process:\n{info.traceback}")


class Encoded:
    """A result that was encoded where it was made."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


Policy: TypeAlias = Retry | Callable[[int, BaseException], float | None]
"""A formula, or a function of the attempt and its error that returns seconds or None."""

DEFAULT_RETRY = Retry()


class Carried(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task carries for the runtime: nothing, unless its submitter said otherwise."""

    retry: Retry | None = None
    trace: dict[str, str] = {}
    """The trace that its submit is part of, as W3C headers; only where there is telemetry."""


def policy_of(job: Job) -> Policy:
    """Return how the task is tried again: as submitted, else as its function or pool says."""
    leased = job.leased
    if leased.options and not leased.pool.endswith(CALLBACKS):
        carried = _carried(leased.options)
        if carried.retry is not None:
            return carried.retry
    return job.body.retry or job.runtime.retries.get(leased.pool) or DEFAULT_RETRY


def _carried(options: bytes) -> Carried:
    """Return what a task carries; what cannot be read is as good as nothing."""
    try:
        return msgspec.msgpack.decode(options, type=Carried)
    except msgspec.MsgspecError:
        return Carried()


def without_trace(options: bytes) -> bytes:
    """Return what a task carries, but for the trace that one submit of it was part of."""
    retry = _carried(options).retry if options else None
    return b"" if retry is None else msgspec.msgpack.encode(Carried(retry=retry))


def formula_of(job: Job) -> Retry:
    """Return the formula for the delay; a function has said its own already."""
    policy = policy_of(job)
    return policy if isinstance(policy, Retry) else DEFAULT_RETRY


def raised(error: BaseException, job: Job) -> Raised:
    """Return what an exception means for its attempt; one that cannot be asked is final."""
    try:
        return _meaning(error, job)
    except BaseException as broken:
        # A user's exception or policy may do anything, exit included.
        if is_ctrl_c(broken):
            raise
        broken.__cause__ = error
        return Raised(describe(broken), final=True)


def _meaning(error: BaseException, job: Job) -> Raised:
    if isinstance(error, GiveUp):
        return Raised(describe(error.__cause__ or error), final=True)
    if isinstance(error, RetryLater):
        seconds = check.seconds("seconds", error.seconds)
        return Raised(describe(error), retry_in=seconds, spend=bool(error.spend))
    if isinstance(error, Throttled):
        # It may have been set anew since it was made.
        seconds = min(check.capped_seconds("retry_after", error.retry_after), MAX_THROTTLE)
        check.one_of("scope", error.scope, ("key", "pool"))
        return Raised(describe(error), retry_in=seconds, spend=False, hold=error.scope)
    policy = policy_of(job)
    if isinstance(policy, Retry):
        return Raised(describe(error), final=not tries_again(policy, _kinds(error)))
    return _asked(policy, job, error)


def may_retry(policy: Retry, error: BaseException) -> bool:
    """Return whether an error is one that a policy tries again after."""
    return tries_again(policy, _kinds(error))


def _kinds(error: BaseException) -> tuple[str, ...]:
    if isinstance(error, RemoteError):
        return error.kinds
    return tuple(qualified_name(kind) for kind in type(error).__mro__)


def _asked(
    policy: Callable[[int, BaseException], float | None], job: Job, error: BaseException
) -> Raised:
    """Return what a policy of the user's own says."""
    delay = policy(job.leased.fence.attempt, error)
    if delay is None:
        return Raised(describe(error), final=True)
    return Raised(describe(error), retry_in=check.seconds("retry", delay))
