"""Show progress: one line on stderr if it is a terminal, and a summary at the end."""

from __future__ import annotations

import os
import sys
import time
from collections import deque

import msgspec

DRAW_EVERY = 0.1
"""Seconds between two drawings."""

LOOKS_BACK = 30.0
"""Seconds over which the rate is measured."""

WIDTH = 20


class Tally(msgspec.Struct):
    """Counts of a run."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    retried: int = 0
    before: int = 0
    """How many had ended before this process resumed the run."""
    reading: bool = True
    """Whether items are still being read."""

    @property
    def ended(self) -> int:
        """How many items have ended."""
        return self.completed + self.failed + self.cancelled

    @property
    def left(self) -> int:
        """How many items have not ended."""
        return self.total - self.ended


class ProgressLine:
    """The progress line; drawn only if stderr is a terminal."""

    def __init__(self, tally: Tally, *, shown: bool) -> None:
        self._tally = tally
        self.shown = shown
        self._drawn = False
        self._marks: deque[tuple[float, int]] = deque()
        encoding = (sys.stderr.encoding or "").lower() if sys.stderr else ""
        self._full, self._empty = ("█", "░") if encoding.startswith("utf") else ("#", ".")

    def draw(self) -> None:
        """Redraw the line."""
        if self.shown:
            _say(f"\r{self.text(time.monotonic())}\x1b[K")
            self._drawn = True

    def clear(self) -> None:
        """Clear the line, so that other output can be written."""
        if self._drawn:
            _say("\r\x1b[K")
            self._drawn = False

    def text(self, now: float) -> str:
        """Return the line."""
        tally = self._tally
        share = tally.ended / tally.total if tally.total else 0.0
        filled = int(share * WIDTH)
        bar = self._full * filled + self._empty * (WIDTH - filled)
        rate = self._rate(now)
        parts = [
            f"{bar} {tally.ended:,}/{tally.total:,}{'+' if tally.reading else ''}",
            f"{tally.running} running",
            f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s",
        ]
        if rate and tally.left and not tally.reading:
            parts.append(f"{clock(tally.left / rate)} left")
        if tally.failed:
            parts.append(f"{tally.failed:,} failed")
        return cut("  ".join(parts))

    def _rate(self, now: float) -> float:
        """Return how many items ended per second, lately."""
        marks = self._marks
        marks.append((now, self._tally.ended))
        while len(marks) > 2 and marks[0][0] < now - LOOKS_BACK:
            marks.popleft()
        passed = now - marks[0][0]
        return (self._tally.ended - marks[0][1]) / passed if passed else 0.0


def cut(text: str) -> str:
    """Return the text, cut to the width of the terminal."""
    try:
        columns = os.get_terminal_size(2).columns
    except OSError:
        columns = 80
    return text[: max(columns - 1, 1)]


def clock(seconds: float) -> str:
    """Return a time as 1:05 or 2:03:09."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        return


def summary(tally: Tally, seconds: float) -> str:
    """Return the result of a run in one line."""
    parts = [f"{tally.completed:,} of {tally.total:,} done"]
    if tally.failed:
        parts.append(f"{tally.failed:,} failed")
    if tally.cancelled:
        parts.append(f"{tally.cancelled:,} cancelled")
    if tally.left:
        parts.append(f"{tally.left:,} left")
    if tally.retried:
        parts.append(f"{tally.retried:,} retried")
    if tally.before:
        parts.append(f"{tally.before:,} ended earlier")
    return f"{', '.join(parts)}, in {clock(seconds) if seconds >= 60 else f'{seconds:.1f} s'}"
