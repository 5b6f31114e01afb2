"""Rejections: a refusal as a value, for those who branch instead of catching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from enum import StrEnum


class Rejection:
    """A refusal as a value: falsy, and it says why.

    What a bulkhead refuses is a `PermitRejection`, what a pool refuses a `SubmitRejection`;
    `case Rejection(reason=reason)` is either.
    """

    __slots__ = ()

    reason: StrEnum
    """Why, by name."""

    def __bool__(self) -> Literal[False]:
        return False
