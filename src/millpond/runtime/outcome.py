"""Outcomes: what a handler's exception means, by its type and by the policy of its task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from millpond.core.backoff import Retry, qualified_name, tries_again
from millpond.core.settle import Raised
from millpond.core.task import CALLBACKS
from millpond.core.wish import GiveUp, RetryLater
from millpond.runtime.error import ErrorInfo, describe

if TYPE_CHECKING:
    from millpond.runtime.job import Job


class BadResult(Exception):
    """What a handler returned cannot be stored."""


class Unreadable(Exception):
    """A stored payload cannot be decoded for the function it names."""


class RemoteError(Exception):
    """An exception that was raised in another process: its name, message and traceback."""

    def __init__(self, info: ErrorInfo, kinds: tuple[str, ...]) -> None:
        super().__init__(info.message)
        self.info = info
        self.kinds = kinds
        """The names of its type and of that type's bases."""


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


def policy_of(job: Job) -> Policy:
    """Return how the task is tried again: as submitted, else as its function or pool says."""
    leased = job.leased
    if leased.options and not leased.pool.endswith(CALLBACKS):
        carried = msgspec.msgpack.decode(leased.options, type=Carried)
        if carried.retry is not None:
            return carried.retry
    return job.body.retry or job.runtime.retries.get(leased.pool) or DEFAULT_RETRY


def formula_of(job: Job) -> Retry:
    """Return the formula for the delay; a function has said its own already."""
    policy = policy_of(job)
    return policy if isinstance(policy, Retry) else DEFAULT_RETRY


def raised(error: BaseException, job: Job) -> Raised:
    """Return what an exception means for its attempt."""
    if isinstance(error, GiveUp):
        return Raised(describe(error.__cause__ or error), final=True)
    if isinstance(error, RetryLater):
        return Raised(describe(error), retry_in=error.seconds, spend=error.spend)
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
    """Return what a policy of the user's own says; one that raises gives up, loudly."""
    try:
        delay = policy(job.leased.fence.attempt, error)
    except Exception as broken:  # noqa: BLE001 - it is told in place of the handler's error
        broken.__cause__ = error
        return Raised(describe(broken), final=True)
    if delay is None:
        return Raised(describe(error), final=True)
    return Raised(describe(error), retry_in=max(float(delay), 0.0))
