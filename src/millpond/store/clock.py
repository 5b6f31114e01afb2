"""The clocks of durable stores: the store's time as last read, plus a steady clock since.

Every transaction decides the store's time (core/store_time.py) from a wall clock and from the
steady clock of this process. In between, the steady clock goes on, which cannot be set.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond.core.store_time import Timeline

WRONG = 60.0
"""Seconds by which a process's clock may differ from the kernel's."""


def steady() -> float:
    """Return a clock that cannot be set and that goes on while the machine is suspended."""
    return time.clock_gettime(_STEADY) if _STEADY is not None else time.monotonic()


_STEADY: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class ServerClock:
    """The store's time: as last read, plus the steady time since.

    All processes use the server's clock, so their own clocks need not agree.
    """

    __slots__ = ("_ahead", "_steady", "_steps")

    def __init__(self, steady: Callable[[], float] = steady) -> None:
        self._steady = steady
        # Until the first reading of the store's time this machine's clock serves.
        self._ahead = time.time() - steady()
        self._steps: int | None = None

    def __call__(self) -> float:
        """Return the time."""
        return self._steady() + self._ahead

    def set_to(self, moment: float, steps: int | None = None) -> None:
        """Set the clock to the store's time; `steps` counts its moves (None = as before)."""
        self._ahead = moment - self._steady()
        if steps is not None:
            self._steps = steps

    def vouched(self, known: Timeline | None = None) -> float | None:
        """Return the store's time by this process's steady clock; None before the first reading.

        If the store's time was moved since, only the time of the last write is certain.
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
        """`evidence` returns the time by other clocks, such as the kernel's; None = no others."""
        super().__init__(steady)
        self._wall = wall
        self._evidence = evidence
        self._off = 0.0
        """How far the wall clock is ahead of all other evidence."""
        self._ahead = wall() - steady()

    def wall(self) -> float:
        """Return the time of day."""
        return self._wall() - self._off

    def is_doubtful(self) -> bool:
        """Compare the wall clock with other evidence; return whether the evidence disagrees.

        A wall clock that all evidence contradicts is corrected: only this process has it.
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
    """Return the time by evidence that a faked clock of one process cannot change."""
    found = (_by_a_new_file(folder), _by_the_boot())
    return [moment for moment in found if moment is not None]


def _by_a_new_file(folder: Path | None) -> float | None:
    """Return the time stamp that the kernel gives a new file."""
    import tempfile  # noqa: PLC0415 - slow to import, and hardly ever needed

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
    """Return the boot time plus the uptime, from /proc on Linux."""
    try:
        stat = Path("/proc/stat").read_text("ascii", "replace")
        uptime = Path("/proc/uptime").read_text("ascii").split()[0]
        booted = next(line for line in stat.splitlines() if line.startswith("btime ")).split()[1]
        return float(booted) + float(uptime)
    except (OSError, ValueError, StopIteration, IndexError):
        return None
