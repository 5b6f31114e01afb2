"""Outcomes: what a handler's exception means, by its type and by the policy of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core import validation as check
from millpond.core.backoff import Retry, tries_again
from millpond.core.bounds import MAX_THROTTLE
from millpond.core.handler_signals import Cancelled, GiveUp, RetryLater, Throttled
from millpond.core.settle import Raised, Stopped
from millpond.core.task import CALLBACKS
from millpond.core.type_names import qualified_name
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.error_info import ErrorInfo, describe
from millpond.runtime.jobs.policy import DEFAULT_RETRY, Policy, carried

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.jobs.job import Job


class BadResult(Exception):
    """What a handler returned cannot be stored."""


class Unreadable(Exception):
    """A stored payload cannot be decoded: its bytes are damaged."""


class Misfit(Unreadable):
    """Stored arguments are intact, and do not fit the function of this process."""

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
            # Printed below the message: the frames of another process are not in this traceback.
            self.add_note(f"in another process:\n{info.traceback}")


class Encoded:
    """A result that was encoded where it was made."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


def policy_of(job: Job) -> Policy:
    """Return the retry policy of a task: its own, else that of its function, else of its pool."""
    leased = job.leased
    if leased.options and not leased.pool.endswith(CALLBACKS):
        own = carried(leased.options).retry
        if own is not None:
            return own
    return job.body.retry or job.worker.retries.get(leased.pool) or DEFAULT_RETRY


def formula_of(job: Job) -> Retry:
    """Return the formula for the delay; a function has returned its own delay already."""
    policy = policy_of(job)
    return policy if isinstance(policy, Retry) else DEFAULT_RETRY


def raised(error: BaseException, job: Job) -> Raised | Stopped:
    """Return what an exception means for its attempt; one whose own code raises is final."""
    try:
        return _meaning(error, job)
    except BaseException as broken:
        # A user's exception or policy may do anything, exit included.
        if is_ctrl_c(broken):
            raise
        broken.__cause__ = error
        return Raised(describe(broken), final=True)


def _meaning(error: BaseException, job: Job) -> Raised | Stopped:
    if isinstance(error, Cancelled):
        return Stopped(describe(error))
    if isinstance(error, GiveUp):
        return Raised(describe(error.__cause__ or error), final=True)
    if isinstance(error, RetryLater):
        seconds = check.seconds("seconds", error.seconds)
        return Raised(describe(error), retry_in=seconds, spend=bool(error.spend))
    if isinstance(error, Throttled):
        # The handler may have changed its fields since it made it.
        seconds = min(check.capped_seconds("retry_after", error.retry_after), MAX_THROTTLE)
        check.one_of("scope", error.scope, ("key", "pool"))
        return Raised(describe(error), retry_in=seconds, spend=False, hold=error.scope)
    policy = policy_of(job)
    if isinstance(policy, Retry):
        return Raised(describe(error), final=not tries_again(policy, _kinds(error)))
    return _by_function(policy, job, error)


def may_retry(policy: Retry, error: BaseException) -> bool:
    """Return whether an error is one that a policy tries again after."""
    return tries_again(policy, _kinds(error))


def _kinds(error: BaseException) -> tuple[str, ...]:
    if isinstance(error, RemoteError):
        return error.kinds
    return tuple(qualified_name(kind) for kind in type(error).__mro__)


def _by_function(
    policy: Callable[[int, BaseException], float | None], job: Job, error: BaseException
) -> Raised:
    """Return the outcome that a policy function of the user decides."""
    delay = policy(job.leased.fence.attempt, error)
    if delay is None:
        return Raised(describe(error), final=True)
    return Raised(describe(error), retry_in=check.seconds("retry", delay))
