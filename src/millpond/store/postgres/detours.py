"""Detours: how often a verb left the server fast path, and why.

A detour costs several round trips under the writers' lock, which all processes wait for. So each is
counted, by verb and reason: for metrics of this process, and in `millpond_detour` for `doctor`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAVED_EVERY = 5.0
"""Seconds between two times that a process stores its counts."""


class Detours:
    """The detours of one process; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._unsaved: Counter[tuple[str, str]] = Counter()
        self._save_at = 0.0

    def add(self, verb: str, reason: str) -> None:
        """Count one detour."""
        with self._lock:
            self._counts[verb, reason] += 1
            self._unsaved[verb, reason] += 1

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return how many there were, by verb and reason."""
        with self._lock:
            return dict(self._counts)

    def to_save(self) -> list[tuple[str, str, int]]:
        """Return what is to be stored, in a fixed order; nothing if that was done just now.

        What a transaction that fails had to store is lost: these are counts for a person to read.
        """
        now = time.monotonic()
        with self._lock:
            if not self._unsaved or now < self._save_at:
                return []
            self._save_at = now + _SAVED_EVERY
            rows = [(*which, count) for which, count in sorted(self._unsaved.items())]
            self._unsaved.clear()
            return rows
