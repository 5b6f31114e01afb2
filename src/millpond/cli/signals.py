"""Signals: the first asks to drain, a second to stop now, a third is not waited for.

They are counted by a handler of the interpreter's, not of the loop's: it also runs while a handler
of the user's keeps the loop busy, so that nobody needs `kill -9` to get rid of a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING

from millpond.cli.exit_process import leave_at_once, leave_within
from millpond.cli.exits import Exit

if TYPE_CHECKING:
    from types import FrameType

ECHO = 0.25
"""Seconds within which signals count as one: Ctrl-C reaches a worker and also what started it,
which may pass it on; a terminal that closes hangs up more than once."""

NOW_WITHIN = 10.0
"""Seconds after a second signal in which it gives back what it holds, and leaves anyway."""


class Stop:
    """What was asked for from outside so far."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counted = 0
        self._last = float("-inf")
        self.drain = asyncio.Event()
        """It was asked to stop."""
        self.now = asyncio.Event()
        """It was asked twice."""
        self.name = ""
        """The first signal, by name."""

    def listen(self) -> None:
        """Heed signals from now on, to the end of the process.

        One that is ignored stays so: that is what `nohup` is for.
        """
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.heard(signal.Signals(number).name, time.monotonic())

    def heard(self, name: str, moment: float) -> None:
        """Count a signal, and do what it asks for."""
        is_hang_up = name == "SIGHUP"
        if self._counted and (is_hang_up or moment - self._last < ECHO):
            return
        self._counted, self._last = self._counted + 1, moment
        if self._counted > 2:
            leave_at_once(Exit.LOST, f"{name}, for the third time: it leaves as it is")
        # The loop may be closed by now, and the process about to end.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ask, name)

    def _ask(self, name: str) -> None:
        if self.drain.is_set():
            self.now.set()
            leave_within(NOW_WITHIN, Exit.LOST, "what it holds could not be given back in time")
        else:
            self.name = name
            self.drain.set()
