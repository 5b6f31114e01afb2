"""The clocks that durable stores go by: the store's time as last heard, and a steady clock since.

What time it is in a store is decided with every transaction (core/store_time.py), from what a
wall clock says and what this process can vouch for. In between, a clock goes on that nobody sets.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond.core.store_time import Timeline

WRONG = 60.0
"""Seconds by which a process's clock may differ from the kernel's."""


def steady() -> float:
    """Return a clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(_STEADY) if _STEADY is not None else time.monotonic()


_STEADY: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class ServerClock:
    """Tells a store's time, by what was last heard of it and what has passed since on this side.

    All that use one server go by its clock, so theirs need not agree.
    """

    __slots__ = ("_ahead", "_steady", "_steps")

    def __init__(self, steady: Callable[[], float] = steady) -> None:
        self._steady = steady
        # Until the store is heard, what this machine thinks will do.
        self._ahead = time.time() - steady()
        self._steps: int | None = None

    def __call__(self) -> float:
        """Return the time."""
        return self._steady() + self._ahead

    def set_to(self, moment: float, steps: int | None = None) -> None:
        """Hear what time it is in the store, and how often that was moved (None = as before)."""
        self._ahead = moment - self._steady()
        if steps is not None:
            self._steps = steps

    def vouched(self, known: Timeline | None = None) -> float | None:
        """Return the store's time as far as this process can vouch for it; None if it cannot.

        It can from the first word of the store on. Where the store's time was moved since, it
        knows no more than that it is as late as the last write.
        """
        if self._steps is None:
            return None
        return self() if known is None or self._steps == known.steps else known.latest


class ForwardClock(ServerClock):
    """The clock of a file: each process brings a wall clock of its own."""

    __slots__ = ("_evidence", "_off", "_wall")

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady,
        *,
        evidence: Callable[[], Iterable[float]] | None = None,
    ) -> None:
        """`evidence` tells what time others have, such as the kernel; None = there is none."""
        super().__init__(steady)
        self._wall = wall
        self._evidence = evidence
        self._off = 0.0
        """How far the wall clock is ahead of what everything else says."""
        self._ahead = wall() - steady()

    def wall(self) -> float:
        """Return the time of day."""
        return self._wall() - self._off

    def is_doubtful(self) -> bool:
        """Compare the wall clock with other evidence; return whether that does not agree.

        A clock that none agrees with is corrected from then on: it is this process's alone.
        """
        if self._evidence is None:
            return False
        found = list(self._evidence())
        wall = self._wall()
        apart = [wall - one for one in found]
        if not apart or all(abs(one) <= WRONG for one in apart):
            self._off = 0.0
            return False
        if all(abs(one) > WRONG for one in apart) and max(apart) - min(apart) <= WRONG:
            self._off = apart[0]
            return False
        return True

    @property
    def off(self) -> float:
        """How far this process's clock is ahead of the kernel's; 0.0 = they agree."""
        return self._off


def kernel_times(folder: Path | None = None) -> list[float]:
    """Return what time it is by evidence that a false clock of one process does not reach."""
    found = (_by_a_new_file(folder), _by_the_boot())
    return [moment for moment in found if moment is not None]


def _by_a_new_file(folder: Path | None) -> float | None:
    """Return when the kernel says that a file was made just now."""
    try:
        descriptor, name = tempfile.mkstemp(".clock", "millpond-", folder)
        try:
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
            Path(name).unlink()
    except OSError:
        return None


def _by_the_boot() -> float | None:
    """Return when the machine was booted plus how long ago that was, as Linux tells in /proc."""
    try:
        stat = Path("/proc/stat").read_text("ascii", "replace")
        uptime = Path("/proc/uptime").read_text("ascii").split()[0]
        booted = next(line for line in stat.splitlines() if line.startswith("btime ")).split()[1]
        return float(booted) + float(uptime)
    except (OSError, ValueError, StopIteration, IndexError):
        return None
