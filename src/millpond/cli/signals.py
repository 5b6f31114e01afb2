"""Signals: the first drains, the second stops now, the third exits at once.

A signal handler of the interpreter counts them, not one of the event loop. It also runs while a
task's handler blocks the loop, so `kill -9` is never needed to end a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING

from millpond.cli.exit_process import exit_at_once, exit_within
from millpond.cli.exits import Exit

if TYPE_CHECKING:
    from types import FrameType

ECHO = 0.25
"""Seconds within which signals count as one: Ctrl-C reaches a worker and its parent process, which
may forward it; a terminal that closes sends SIGHUP more than once."""

GIVE_BACK_WITHIN = 10.0
"""Seconds after a second signal to give back tasks; then the process exits."""


class StopSignals:
    """The signals received so far."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counted = 0
        self._last = float("-inf")
        self.drain = asyncio.Event()
        """Set by the first signal."""
        self.now = asyncio.Event()
        """Set by the second signal."""
        self.name = ""
        """The first signal, by name."""

    def listen(self) -> None:
        """Handle signals from now on, to the end of the process.

        A signal that is ignored stays ignored, for `nohup`.
        """
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.receive(signal.Signals(number).name, time.monotonic())

    def receive(self, name: str, moment: float) -> None:
        """Count a signal and act on it."""
        is_hang_up = name == "SIGHUP"
        if self._counted and (is_hang_up or moment - self._last < ECHO):
            return
        self._counted, self._last = self._counted + 1, moment
        if self._counted > 2:
            exit_at_once(Exit.LOST, f"{name}, the third signal: exiting at once")
        # The loop may be closed by now, and the process about to end.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ask, name)

    def _ask(self, name: str) -> None:
        if self.drain.is_set():
            self.now.set()
            exit_within(GIVE_BACK_WITHIN, Exit.LOST, "tasks could not be given back in time")
        else:
            self.name = name
            self.drain.set()
