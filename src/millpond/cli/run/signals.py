"""Signals of a run: the first starts no more commands, the second kills, the third exits.

A signal handler of the interpreter counts them, not one of the event loop, which may be blocked
while it writes output.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import FrameType

    from millpond.cli.run.process import Processes

ECHO = 0.25
"""Seconds within which signals count as one: Ctrl-C often comes twice."""

HANDLED = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """The signals received so far."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        processes: Processes,
        ask: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._processes = processes
        self._ask = ask
        """Called on the loop, with the number of signals so far."""
        self._counted = 0
        self._last = float("-inf")
        self.first: signal.Signals | None = None
        """The signal that came first."""
        self._handlers: dict[signal.Signals, Any] = {}
        """The handlers to restore."""
        self.killing = False
        """Commands are being killed, so their exit codes are not results of their items."""

    def listen(self) -> None:
        """Handle signals from now on. A signal that is ignored stays ignored, for `nohup`."""
        for name in HANDLED:
            number = signal.Signals[name]
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._on_signal)

    def leave(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.receive(signal.Signals(number), time.monotonic())

    def receive(self, number: signal.Signals, moment: float) -> None:
        """Count a signal and act on it."""
        is_hang_up = number is signal.SIGHUP
        if self._counted and (is_hang_up or moment - self._last < ECHO):
            return
        self._counted, self._last = self._counted + 1, moment
        if self._counted == 1:
            self.first = number
        else:
            self.killing = True
            hard = self._counted > 2
            self._processes.signal_all(signal.SIGKILL if hard else signal.SIGTERM)
            if hard:
                os._exit(128 + (self.first or number))
        self._loop.call_soon_threadsafe(self._ask, self._counted)
