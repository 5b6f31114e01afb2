"""The progress bar of a map: of rich or tqdm where one is installed, else a plain line.

Both also draw in notebooks. All write to stderr.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

DRAW_EVERY = 0.1
"""Seconds between two drawings: a map may have a hundred thousand results a second."""


class Bar(Protocol):
    """A progress bar."""

    def draw(self, done: int) -> None:
        """Draw the number of results so far."""
        ...

    def close(self) -> None:
        """Leave the last drawing on the screen."""
        ...


class MapProgress:
    """Counts results, and draws the count now and then."""

    def __init__(self, bar: Bar, clock: Callable[[], float] = time.monotonic) -> None:
        self._bar = bar
        self._clock = clock
        self._done = 0
        self._drawn_at = float("-inf")

    def advance(self) -> None:
        """Count one result."""
        self._done += 1
        now = self._clock()
        if now - self._drawn_at >= DRAW_EVERY:
            self._drawn_at = now
            self._bar.draw(self._done)

    def close(self) -> None:
        """Draw the final count."""
        self._bar.draw(self._done)
        self._bar.close()


def map_progress(total: int | None, label: str) -> MapProgress:
    """Return the bar of a map; `total` is None where the number of items is not known."""
    return MapProgress(_bar(total, label))


def _bar(total: int | None, label: str) -> Bar:
    for module, make in (("rich.progress", RichBar), ("tqdm.auto", TqdmBar)):
        try:
            return make(importlib.import_module(module), total, label)
        except ImportError:
            continue
    return PlainBar(total, label)


class RichBar:
    """A bar of rich."""

    def __init__(self, progress: Any, total: int | None, label: str) -> None:  # noqa: ANN401 - a module
        console = importlib.import_module("rich.console").Console(stderr=True)
        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        self._progress = progress.Progress(*columns, console=console)
        self._task = self._progress.add_task(label, total=total)
        self._progress.start()

    def draw(self, done: int) -> None:
        """Draw the count."""
        self._progress.update(self._task, completed=done)

    def close(self) -> None:
        """Stop drawing."""
        self._progress.stop()


class TqdmBar:
    """A bar of tqdm."""

    def __init__(self, tqdm: Any, total: int | None, label: str) -> None:  # noqa: ANN401 - a module
        self._tqdm = tqdm.tqdm(total=total, desc=label, file=sys.stderr)

    def draw(self, done: int) -> None:
        """Draw the count."""
        self._tqdm.update(done - self._tqdm.n)

    def close(self) -> None:
        """Stop drawing."""
        self._tqdm.close()


class PlainBar:
    """One line; where stderr is no terminal, only the last count is written."""

    def __init__(self, total: int | None, label: str) -> None:
        self._total = "" if total is None else f"/{total}"
        self._label = label
        self._live = sys.stderr.isatty()
        self._line = ""

    def draw(self, done: int) -> None:
        """Draw the count."""
        self._line = f"{self._label} {done}{self._total}"
        if self._live:
            sys.stderr.write(f"\r{self._line}")
            sys.stderr.flush()

    def close(self) -> None:
        """End the line."""
        sys.stderr.write("\n" if self._live else f"{self._line}\n")
        sys.stderr.flush()
