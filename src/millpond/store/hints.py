"""Hints on their way from one process to another: gathered, and looked at before they are told."""

from __future__ import annotations

from math import isfinite

import msgspec

from millpond.core.plan import Wake
from millpond.store.protocol import Hint

MANY = 20
"""So many tasks do not end because somebody waits for each of them."""


class PendingHint:
    """Hints that became one: the earliest wake of each pool, and whom it concerns."""

    def __init__(self) -> None:
        self._wakes: dict[str, float] = {}
        # Dicts for sets that keep their order.
        self._ended: dict[int, None] = {}
        self._finished_runs: dict[int, None] = {}
        self._cancelled: dict[int, None] = {}
        self._interrupted: dict[int, None] = {}
        self._more = False

    def add(self, hint: Hint) -> None:
        """Take in one more."""
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
        """Whether it only tells of the ends of many tasks."""
        return len(self._ended) >= MANY and not (
            self._more or self._wakes or self._finished_runs or self._cancelled
        )

    def hint(self) -> Hint:
        """Return all of it as one."""
        return Hint(
            wakes=tuple([Wake(pool, at) for pool, at in self._wakes.items()]),
            ended=tuple(self._ended),
            finished_runs=tuple(self._finished_runs),
            cancelled=tuple(self._cancelled),
            interrupted=tuple(self._interrupted),
            more=self._more,
        )


def without_bad_moments(hint: Hint) -> Hint:
    """Return a hint without moments that are none: a timer for one would stop all others."""
    if all(isfinite(wake.at) for wake in hint.wakes):
        return hint
    wakes = tuple(wake for wake in hint.wakes if isfinite(wake.at))
    return msgspec.structs.replace(hint, wakes=wakes)
