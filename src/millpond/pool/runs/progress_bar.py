"""The progress bar of a drain."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from millpond.core.lifecycle import Status


class ProgressBar:
    """A line on the terminal: how far a drain is; where stderr is a file, only the last state."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""

    def draw(self, by_status: Mapping[str, int], total: int) -> None:
        """Draw how many of all tasks have ended, by status."""
        ended = sum(by_status.values())
        width = 30
        filled = width * ended // max(total, 1)
        failed = by_status.get(Status.FAILED, 0)
        line = f"{'█' * filled}{'░' * (width - filled)} {ended}/{total}"
        if failed:
            line += f"  {failed} failed"
        if line != self._last:
            self._last = line
            if self._live:
                sys.stderr.write(f"\r{line}")
                sys.stderr.flush()

    def done(self) -> None:
        """End the line."""
        if self._last:
            sys.stderr.write("\n" if self._live else f"{self._last}\n")
            sys.stderr.flush()
