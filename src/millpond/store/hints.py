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
        self._ids: dict[str, dict[int, None]] = {}
        """Those of which there are some; dicts for sets that keep their order."""
        self._more = False

    def add(self, given: Any) -> None:  # noqa: ANN401 - a hint, or the answer of any verb
        """Merge one more hint, or what an answer has for one."""
        for wake in getattr(given, "wakes", ()):
            self._wakes[wake.pool] = min(wake.at, self._wakes.get(wake.pool, wake.at))
        for name in _IDS:
            if ids := getattr(given, name, ()):
                self._ids.setdefault(name, {}).update(dict.fromkeys(ids))
        # An answer has a `more` of its own: that its caller must call again.
        self._more |= isinstance(given, Hint) and given.more

    def __bool__(self) -> bool:
        return bool(self._more or self._wakes or self._ids)

    @property
    def in_bulk(self) -> bool:
        """Whether it has nothing but the ends of many tasks."""
        ended = self._ids.get("ended", ())
        return len(ended) >= MANY and not (self._more or self._wakes or len(self._ids) > 1)

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
