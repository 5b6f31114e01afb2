"""Signals: the first lets what runs end and starts nothing more, a second kills, a third leaves.

They are taken by a handler of the interpreter's and not of the loop's, which may be waiting for
somebody to read the output.
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

HEEDED = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """What was asked for from outside so far."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        processes: Processes,
        ask: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._processes = processes
        self._ask = ask
        """Called on the loop, with how often it was asked to stop."""
        self._counted = 0
        self._last = float("-inf")
        self.first: signal.Signals | None = None
        """The signal that came first."""
        self._handlers: dict[signal.Signals, Any] = {}
        """Who heeded the signals before."""
        self.killing = False
        """What runs is being killed: how it ends says nothing of its item."""

    def listen(self) -> None:
        """Heed signals from now on. One that is ignored stays so: that is what `nohup` is for."""
        for name in HEEDED:
            number = signal.Signals[name]
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._on_signal)

    def leave(self) -> None:
        """Leave signals to whom they were left before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.heard(signal.Signals(number), time.monotonic())

    def heard(self, number: signal.Signals, moment: float) -> None:
        """Count a signal, and do what it asks for."""
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
