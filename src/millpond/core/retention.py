"""Retention: how long what has ended is kept, as it is stored with its pool."""

from __future__ import annotations

import msgspec

HOUR, DAY = 3_600.0, 86_400.0


class Retention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds for which each kind of record of one pool is kept."""

    completed: float = HOUR
    failed: float = 7 * DAY
    keys: float = 30 * DAY
    events: float = 7 * DAY
    audit: float = 7 * DAY
    given: bool = True
    """Whether the pool's own declaration said so; otherwise it is its Millpond's default."""
    shorten: bool = False
    """Whether this declaration may shorten what is stored; never stored itself."""

    def shorter(self, other: Retention) -> bool:
        """Return whether something is kept for less time than in another one."""
        return any(getattr(self, name) < getattr(other, name) for name in TIMES)

    def __str__(self) -> str:
        return f"Keep({', '.join(f'{name}={getattr(self, name):g}' for name in TIMES)})"


TIMES = ("completed", "failed", "keys", "events", "audit")
"""What is kept for a time of its own."""

DEFAULT = Retention(given=False)
"""What holds for a pool that was stored without: never what another process would keep."""


def in_force(stored: Retention | None) -> Retention:
    """Return how long a pool's records are kept."""
    return DEFAULT if stored is None else stored


def taken_over(stored: Retention | None, declared: Retention | None) -> Retention | None:
    """Return what is stored after a pool was declared again: what was given, else as before."""
    if declared is None or not declared.given:
        return stored
    return msgspec.structs.replace(declared, shorten=False)
