"""The progress bar of a drain."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status

if TYPE_CHECKING:
    from millpond.core.run import RunView


class ProgressBar:
    """A line on the terminal with the progress of a run; where stderr is a file, only the last."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""

    def draw(self, view: RunView) -> None:
        """Draw the run as it is now."""
        ended = sum(view.ended.values())
        width = 30
        filled = width * ended // max(view.total, 1)
        failed = view.ended.get(Status.FAILED, 0)
        line = f"{'█' * filled}{'░' * (width - filled)} {ended}/{view.total}"
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
