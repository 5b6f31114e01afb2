"""Callers in the queue, and how each is woken: on its own loop, or as a sleeping thread."""

from __future__ import annotations

import asyncio
import math
import threading
from asyncio import CancelledError
from contextlib import suppress
from datetime import timedelta
from itertools import repeat
from threading import get_ident
from typing import TYPE_CHECKING

from millpond.core.gate import Ticket, TicketState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextvars import Context
    from typing import Literal

    from millpond.bulkhead.reports import Capacity

    Batches = dict[asyncio.AbstractEventLoop, list["LoopWaiter"]]

WAITING = TicketState.WAITING

_running_loop = asyncio._get_running_loop


class Waiter(Ticket):
    """A ticket whose caller can be woken. `capacity` is that at the moment of its refusal."""

    __slots__ = ("capacity",)

    capacity: Capacity

    def wake(self) -> bool:
        """Wake the caller, whose outcome is known; False if its loop is closed."""
        raise NotImplementedError


class LoopWaiter(Waiter):
    """A task that waits; it is woken on its own loop, whichever thread decides.

    It is what asyncio calls future-compatible: a task that awaits it registers its wake-up with
    `add_done_callback`. A real future needs one loop callback per wake-up; these are collected, and
    one callback wakes all of one turn.
    """

    __slots__ = ("_asyncio_future_blocking", "_batches", "_cancelled", "_context", "_loop",
                 "_thread", "_wakeup")  # fmt: skip

    _context: Context

    def __init__(self, weight: int, batches: Batches) -> None:
        # All fields here and not by `super`: this is most of the cost of a wait.
        self.weight = weight
        self.outcome = WAITING
        self._batches = batches
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._wakeup: Callable[[LoopWaiter], object] | None = None
        self._cancelled: CancelledError | None = None

    def wake(self) -> bool:
        loop = self._loop
        try:
            if self._thread != get_ident():
                loop.call_soon_threadsafe(self.resume)
            elif (batch := self._batches.get(loop)) is None:
                # Outside a task's step (a signal handler, a finalizer) the loop may be about to
                # sleep, or asleep: only the thread-safe call is sure to rouse it.
                in_step = _running_loop() is loop and asyncio.current_task() is not None
                call = loop.call_soon if in_step else loop.call_soon_threadsafe
                call(wake_batch, self._batches, loop)
                # A finalizer may have opened the batch in between: join it.
                self._batches.setdefault(loop, []).append(self)
            elif loop.is_closed():
                del self._batches[loop]
                return False
            else:
                batch.append(self)
        except RuntimeError:
            # The loop was closed while its task waited.
            return False
        return True

    def resume(self) -> None:
        """Resume the task, if it has not been resumed yet."""
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            try:
                self._context.run(wakeup, self)
            finally:
                # A CancelledError's traceback keeps this frame: it must not keep the task.
                del wakeup, self

    def cancel(self, msg: object = None) -> bool:
        """Wake the task with CancelledError; called by `Task.cancel`."""
        if self._cancelled is not None or self._wakeup is None:
            return False
        self._cancelled = CancelledError() if msg is None else CancelledError(msg)
        self._loop.call_soon(self.resume)
        return True

    def result(self) -> None:
        """Raise if the wait was cancelled; called by the task as it wakes."""
        error, self._cancelled = self._cancelled, None
        if error is not None:
            try:
                raise error
            finally:
                del error, self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, wakeup: Callable[[LoopWaiter], object], *, context: Context
    ) -> None:
        self._wakeup = wakeup
        self._context = context

    def __await__(self) -> Generator[LoopWaiter, None, None]:
        self._asyncio_future_blocking = True
        # The task gets it once; on the second step the wait is over. Any iterator will do.
        return repeat(self, 1)  # type: ignore[return-value]


def wake_batch(batches: Batches, loop: asyncio.AbstractEventLoop) -> None:
    """Resume the tasks of one batch of `loop`, in order."""
    batch = iter(batches.pop(loop, ()))
    try:
        for waiter in batch:
            waiter.resume()
    except BaseException:
        # SystemExit and KeyboardInterrupt leave through a task and end the loop's run; the
        # others must still be resumed if the loop is run again.
        for waiter in batch:
            loop.call_soon(waiter.resume)
        raise


class ThreadWaiter(Waiter):
    """A thread that blocks until it is woken."""

    __slots__ = ("_wakeup_lock",)

    def __init__(self, weight: int = 1) -> None:
        super().__init__(weight)
        self._wakeup_lock = threading.Lock()
        self._wakeup_lock.acquire()

    def wake(self) -> Literal[True]:
        self._wakeup_lock.release()
        return True

    def sleep(self, seconds: float | None) -> bool:
        """Block until woken, at most `seconds`; return whether it was woken."""
        if seconds is None:
            return self._wakeup_lock.acquire()
        return self._wakeup_lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class DrainWaiter:
    """A task in `drain`: it has no place in the queue and takes no slot."""

    __slots__ = ("_loop", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        # If its loop is closed, there is no task left to wake.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


def seconds_of(timeout: float | timedelta | None) -> float | None:
    """Return the timeout in seconds; None if it never comes, and 0 for none at all."""
    if timeout is None or timeout == math.inf:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    # NaN compares false with everything, so it counts as 0.
    return seconds if seconds > 0 else 0  # noqa: FURB136 - max() would let NaN through
