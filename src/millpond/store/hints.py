"""Hints between processes: merged before they are sent, checked when they arrive."""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec

from millpond.core.plan import Wake
from millpond.store.protocol import Hint

MANY = 20
"""From so many ended tasks on a hint is sent with less urgency."""


_IDS = ("ended", "finished_runs", "cancelled", "interrupted")
"""The fields of a hint with ids."""


class PendingHint:
    """Merged hints: the earliest wake of each pool, and all tasks and runs."""

    def __init__(self) -> None:
        self._wakes: dict[str, float] = {}
        # Dicts for sets that keep their order.
        self._ids: dict[str, dict[int, None]] = {name: {} for name in _IDS}
        self._more = False

    def add(self, told: Any) -> None:  # noqa: ANN401 - a hint, or the answer of any verb
        """Merge one more hint, or what an answer has for one."""
        for wake in getattr(told, "wakes", ()):
            self._wakes[wake.pool] = min(wake.at, self._wakes.get(wake.pool, wake.at))
        for name, ids in self._ids.items():
            ids.update(dict.fromkeys(getattr(told, name, ())))
        # In the answer to a command it is the next page.
        self._more |= getattr(told, "more", False) is True

    def __bool__(self) -> bool:
        return bool(self._more or self._wakes or any(self._ids.values()))

    @property
    def in_bulk(self) -> bool:
        """Whether it has nothing but the ends of many tasks."""
        others = any(self._ids[name] for name in _IDS if name != "ended")
        return len(self._ids["ended"]) >= MANY and not (self._more or self._wakes or others)

    def hint(self) -> Hint:
        """Return the merged hint."""
        wakes = tuple([Wake(pool, at) for pool, at in self._wakes.items()])
        ids = {name: tuple(ids) for name, ids in self._ids.items()}
        return Hint(wakes=wakes, more=self._more, **ids)


def without_bad_moments(hint: Hint) -> Hint:
    """Return a hint without nan and inf: a timer for such a moment would stop all others."""
    if all(isfinite(wake.at) for wake in hint.wakes):
        return hint
    wakes = tuple(wake for wake in hint.wakes if isfinite(wake.at))
    return msgspec.structs.replace(hint, wakes=wakes)
