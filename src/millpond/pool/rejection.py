"""Rejections: a refused submit as a value, for `try_submit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.core.admit import Reason
from millpond.core.rejection import Rejection

if TYPE_CHECKING:
    from millpond.core.admit import Refusal
    from millpond.core.spec import Backpressure
    from millpond.pool.handle import LastKnown


_OF_POLICIES = (Reason.QUEUE_FULL, Reason.NO_CAPACITY, Reason.BATCH_TOO_LARGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRejection(Rejection):
    """A submit that was refused: falsy, with the reason and how full the pool was."""

    reason: Reason
    """Why, by name."""
    pool: str
    """The pool that refused."""
    lane: str | None = None
    """The key or lane that is full, if it was not the whole pool."""
    depth: int | None = None
    """How many waited."""
    bound: int | None = None
    """How many may."""
    policy: str | None = None
    """The policy that refused or dropped it, where one did."""
    handle: Any = None
    """The rejected handle, where a drop policy gave one."""


def rejection(refusal: Refusal, policy: Backpressure | None) -> SubmitRejection:
    """Return a refusal of the store as a value; `policy` is the backpressure of the pool."""
    by_policy = policy is not None and refusal.reason in _OF_POLICIES
    return SubmitRejection(
        reason=refusal.reason,
        pool=refusal.pool,
        lane=refusal.lane,
        depth=refusal.depth,
        bound=refusal.bound,
        policy=str(policy.on_full) if by_policy and policy is not None else None,
    )


def dropped(pool: str, handle: LastKnown[Any]) -> SubmitRejection | None:
    """Return the rejection for a task that a drop policy dropped; None for any other."""
    reason = handle.rejection_reason
    if reason is None:
        return None
    policy = handle.rejection_policy
    return SubmitRejection(reason=reason, pool=pool, policy=policy, handle=handle)
