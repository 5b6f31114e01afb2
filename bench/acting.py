"""What the processes of a benchmark share that act: as a submitter or a worker of one contender."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from contender import Contender

CHUNK = 1_000
GAP = (0.012, 0.015)
"""Seconds between two beats."""
TALLIED = 25
"""One of this many starts per second records its wait."""
FEEDING = 0.1
"""Seconds from one batch of a steady load to the next."""
PATIENCE = 0.05
"""Seconds without a start after which a worker asks whether anything is left."""

Answer = dict[str, Any]


class Stage:
    """What an act is given: who, where (a file, or a URL), how much."""

    def __init__(self, contender: Contender, where: str, given: dict[str, Any]) -> None:
        self.contender = contender
        self.path = Path(where)
        self.url = where if "://" in where else f"sqlite:///{where}"
        self.given = given
        self.count: int = given.get("count", 0)

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return something given by name."""
        return self.given.get(name, otherwise)


def owed(load: float, since: float, given: int) -> int:
    """Return how many tasks a steady load has yet to give, if it began at a moment."""
    return int(load * (time.monotonic() - since)) - given


def begin() -> None:
    """Report readiness, and wait for the start."""
    print("ready", flush=True)
    sys.stdin.readline()


async def streamed(seconds: float, submit: Callable[[int], Awaitable[object]]) -> Answer:
    """Store tasks one after another for some seconds; return how many, and the median wait."""
    waits = []
    start = before = time.monotonic_ns()
    while before - start < seconds * 1e9:
        await submit(before)
        now = time.monotonic_ns()
        waits.append((now - before) / 1e9)
        before = now
    return {
        "stored": len(waits),
        "seconds": (before - start) / 1e9,
        "median": statistics.median(waits),
    }


class Tally:
    """Counts how many handlers start in every second, and how long some of them had waited."""

    def __init__(self, seconds: float) -> None:
        self.start = time.monotonic_ns()
        self.counts = [0] * (int(seconds) + 2)
        self.lags: list[list[int]] = [[] for _ in self.counts]
        self._last = len(self.counts) - 1

    def hit(self, sent: int) -> None:
        """Note a start."""
        now = time.monotonic_ns()
        second = min((now - self.start) // 1_000_000_000, self._last)
        self.counts[second] += 1
        if self.counts[second] % TALLIED == 1:
            self.lags[second].append(now - sent)

    def answer(self) -> Answer:
        """Return the records: starts, and the lags of some of them in ms, by the second."""
        return {
            "counts": self.counts,
            "lags": [[round(lag / 1e6, 1) for lag in lags] for lags in self.lags],
        }


class Meter:
    """Notes when handlers start; calls `full` once as many have as are wanted."""

    def __init__(self, want: int, full: Callable[[], object]) -> None:
        self.want = want
        self.full = full
        self.starts: list[int] = []
        self.lags: list[int] = []
        self._cpu = 0.0

    def hit(self, sent: int) -> None:
        """Note a start; from any thread."""
        now = time.monotonic_ns()
        if not self.starts:
            self._cpu = time.process_time()
        self.starts.append(now)
        self.lags.append(now - sent)
        if len(self.starts) >= self.want:
            self.full()

    def answer(self, empty: int | None, *, lags: bool) -> Answer:
        """Return the records; `empty` is when no task was left, if that was seen."""
        cpu = time.process_time() - self._cpu
        starts = sorted(self.starts[: self.want])
        return {
            "executed": len(self.starts),
            "counted": len(starts),
            "first": starts[0] if starts else None,
            "last": starts[-1] if starts else None,
            "empty": empty,
            "cpu": cpu / max(len(self.starts), 1),
            "lags": [lag / 1e9 for lag in self.lags] if lags else [],
        }
