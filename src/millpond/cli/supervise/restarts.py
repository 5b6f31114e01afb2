"""When to start a worker process again after it ended."""

from __future__ import annotations

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds before a process that ended early is started again: first and longest, doubling."""

STEADY_AFTER = 10.0
"""Seconds after which the end of a process counts as a single event: it is started at once."""


class Restarts:
    """The delays of one place in a fleet of processes."""

    def __init__(self) -> None:
        self._early_ends = 0

    def delay_after(self, lived: float) -> float:
        """Return the seconds to wait after a process that lived so long."""
        if lived >= STEADY_AFTER:
            self._early_ends = 0
            return 0.0
        self._early_ends += 1
        # The exponent is bounded: a process may fail for weeks.
        delay: float = FIRST_DELAY * 2 ** min(self._early_ends - 1, 16)
        return min(delay, LONGEST_DELAY)

    def reset(self) -> None:
        """Forget early ends: the code has changed."""
        self._early_ends = 0
