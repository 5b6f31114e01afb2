"""Rejections: a refusal as a value, for callers that branch instead of catching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from enum import StrEnum


class Rejection:
    """A refusal as a value: falsy, with its reason.

    A bulkhead returns a `PermitRejection`, a pool a `SubmitRejection`; `case Rejection(reason=...)`
    matches both. Pyright then narrows the other cases only if you name one of the two.
    """

    __slots__ = ()

    reason: StrEnum
    """Why it was refused."""

    def __bool__(self) -> Literal[False]:
        return False
