"""Rejections: a refusal as a value, for those who branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from millpond.core.admit import Refusal
    from millpond.pool.handle import Handle


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A submit that was refused: falsy, with the reason and how full the pool was."""

    reason: str
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
    """The policy that dropped it."""
    handle: Any = None
    """The rejected handle, where a drop policy gave one."""

    def __bool__(self) -> Literal[False]:
        return False


def rejection(refusal: Refusal, handle: Handle[Any] | None = None) -> Rejected:
    """Return a refusal of the store as a value."""
    return Rejected(
        reason=str(refusal.reason),
        pool=refusal.pool,
        lane=refusal.lane,
        depth=refusal.depth,
        bound=refusal.bound,
        handle=handle,
    )
