"""Dead letters."""

from __future__ import annotations

import msgspec


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failed tasks of one pool, function and error."""

    pool: str
    function: str
    type: str
    message: str
    """The message, with numbers and quoted parts replaced by placeholders."""
    sample: str
    """The message of the latest of them, as it is."""
    count: int
    first_at: float
    last_at: float
    tasks: list[str]
    """The latest five."""


class DeadPage(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters grouped by error, the largest group first."""

    items: list[DeadGroup]
    scanned: int
    """How many failed tasks were read, the latest first."""
    total: int
    """How many are kept."""
    partial: bool
    """Not all of them were read."""
    at: float
