"""Hints between processes: merged before they are sent, checked when they arrive."""

from __future__ import annotations

from math import isfinite

import msgspec

from millpond.core.plan import Wake
from millpond.store.protocol import Hint

MANY = 20
"""From so many ended tasks on a hint is sent with less urgency."""


class PendingHint:
    """Merged hints: the earliest wake of each pool, and all tasks and runs."""

    def __init__(self) -> None:
        self._wakes: dict[str, float] = {}
        # Dicts for sets that keep their order.
        self._ended: dict[int, None] = {}
        self._finished_runs: dict[int, None] = {}
        self._cancelled: dict[int, None] = {}
        self._interrupted: dict[int, None] = {}
        self._more = False

    def add(self, hint: Hint) -> None:
        """Merge one more hint."""
        for wake in hint.wakes:
            self._wakes[wake.pool] = min(wake.at, self._wakes.get(wake.pool, wake.at))
        self._ended.update(dict.fromkeys(hint.ended))
        self._finished_runs.update(dict.fromkeys(hint.finished_runs))
        self._cancelled.update(dict.fromkeys(hint.cancelled))
        self._interrupted.update(dict.fromkeys(hint.interrupted))
        self._more |= hint.more

    def __bool__(self) -> bool:
        return bool(
            self._more or self._wakes or self._ended or self._finished_runs or self._cancelled
        )

    @property
    def in_bulk(self) -> bool:
        """Whether it has nothing but the ends of many tasks."""
        return len(self._ended) >= MANY and not (
            self._more or self._wakes or self._finished_runs or self._cancelled
        )

    def hint(self) -> Hint:
        """Return the merged hint."""
        return Hint(
            wakes=tuple([Wake(pool, at) for pool, at in self._wakes.items()]),
            ended=tuple(self._ended),
            finished_runs=tuple(self._finished_runs),
            cancelled=tuple(self._cancelled),
            interrupted=tuple(self._interrupted),
            more=self._more,
        )


def without_bad_moments(hint: Hint) -> Hint:
    """Return a hint without nan and inf: a timer for such a moment would stop all others."""
    if all(isfinite(wake.at) for wake in hint.wakes):
        return hint
    wakes = tuple(wake for wake in hint.wakes if isfinite(wake.at))
    return msgspec.structs.replace(hint, wakes=wakes)
