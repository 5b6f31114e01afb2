"""Retention: how long ended tasks, keys and records are kept, stored with each pool."""

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
    """Whether the pool's own declaration sets it; otherwise it is its Millpond's default."""
    shorten: bool = False
    """Whether this declaration may shorten what is stored; never stored itself."""

    def shorter(self, other: Retention) -> bool:
        """Return whether any of the times is shorter than in `other`."""
        return any(getattr(self, name) < getattr(other, name) for name in TIMES)

    def __str__(self) -> str:
        return f"Keep({', '.join(f'{name}={getattr(self, name):g}' for name in TIMES)})"


TIMES = ("completed", "failed", "keys", "events", "audit")
"""The fields that are times."""

DEFAULT = Retention(given=False)
"""For a pool stored without retention: the same in every process."""


def in_force(stored: Retention | None) -> Retention:
    """Return how long a pool's records are kept."""
    return DEFAULT if stored is None else stored


def taken_over(stored: Retention | None, declared: Retention | None) -> Retention | None:
    """Return the retention to store when a pool is declared again: the declared one, if given."""
    if declared is None or not declared.given:
        return stored
    return msgspec.structs.replace(declared, shorten=False)
