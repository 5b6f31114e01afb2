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
    pool: str
    lane: str | None = None
    depth: int | None = None
    bound: int | None = None
    policy: str | None = None
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
