"""Callers in the queue, and how each is told: through its own loop, or as a sleeping thread."""

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

from millpond.core.gate import RejectReason, Ticket, TicketState

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextvars import Context
    from typing import Any, Literal

    from millpond.bulkhead.reports import Capacity
    from millpond.bulkhead.shared_state import Door

    Batches = dict[asyncio.AbstractEventLoop, list["LoopWaiter"]]

WAITING = TicketState.WAITING

_running_loop = asyncio._get_running_loop  # noqa: SLF001 - listed in asyncio.__all__


class Waiter(Ticket):
    """A ticket whose caller can be told. `capacity` is that of the moment it was refused."""

    __slots__ = ("capacity",)

    capacity: Capacity

    def wake(self) -> bool:
        """Tell the caller that its outcome is known; False if there is nobody left to tell."""
        raise NotImplementedError


class LoopWaiter(Waiter):
    """A task that waits; it is woken on its own loop, whichever thread decided.

    It is what asyncio calls future-compatible: a task that awaits it hands over its wake-up by
    `add_done_callback`. A real future would ask the loop for a callback of its own for each
    wake-up; these are collected, and one callback wakes all that were told in one turn.
    """

    __slots__ = ("_asyncio_future_blocking", "_batches", "_cancelled", "_context", "_loop",
                 "_thread", "_wakeup")  # fmt: skip

    _context: Context

    def __init__(self, weight: int, batches: Batches) -> None:
        # All fields in one place, not by `super`: this is what a wait costs.
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
                # A finalizer may have come in between and opened the batch: join it.
                self._batches.setdefault(loop, []).append(self)
            elif loop.is_closed():
                del self._batches[loop]
                return False
            else:
                batch.append(self)
        except RuntimeError:
            # That loop was closed under its waiting task.
            return False
        return True

    def resume(self) -> None:
        """Let the task go on, if it has not been woken yet."""
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
        # Given to the task once; on the second request the wait is over. Any iterator will do.
        return repeat(self, 1)  # type: ignore[return-value]


def wake_batch(batches: Batches, loop: asyncio.AbstractEventLoop) -> None:
    """Wake everyone who was told during the last turn of `loop`, in order."""
    told = iter(batches.pop(loop, ()))
    try:
        for waiter in told:
            waiter.resume()
    except BaseException:
        # SystemExit and KeyboardInterrupt leave through a task and end the loop's run; those
        # behind it must still find their wake-up if the loop is run again.
        for waiter in told:
            loop.call_soon(waiter.resume)
        raise


class ThreadWaiter(Waiter):
    """A thread that sleeps until it is told."""

    __slots__ = ("_told",)

    def __init__(self, weight: int = 1) -> None:
        super().__init__(weight)
        self._told = threading.Lock()
        self._told.acquire()

    def wake(self) -> Literal[True]:
        self._told.release()
        return True

    def sleep(self, seconds: float | None) -> bool:
        """Wait to be told, at most `seconds`; whether that happened."""
        if seconds is None:
            return self._told.acquire()
        return self._told.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class Idler:
    """A task in `drain`: it holds no place and takes no slot."""

    __slots__ = ("_loop", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        # On a loop that was closed under it there is nobody to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Abort:
    """Calls `then` once if `signal` is set while someone waits; `close` leaves no trace on it."""

    __slots__ = ("_wait",)

    def __init__(self, signal: asyncio.Event, then: Callable[[], object]) -> None:
        # The event's own coroutine is driven by hand as far as its future: a task for every
        # waiter would cost more than the wait, and would outlive it by a turn of the loop.
        self._wait: Coroutine[Any, Any, object] = signal.wait()
        try:
            future: asyncio.Future[object] = self._wait.send(None)
        except StopIteration:
            # Set by another thread since it was looked at.
            then()
            return
        future.add_done_callback(lambda done: None if done.cancelled() else then())

    def close(self) -> None:
        self._wait.close()


async def wait_on_loop(
    door: Door,
    waiter: LoopWaiter,
    timeout: float | timedelta | None = None,  # noqa: ASYNC109 - ends in a refusal, not an error
    signal: asyncio.Event | None = None,
) -> None:
    """Bring a queued `waiter` to its outcome; being cancelled gives back all it was given."""
    timer = abort = None
    try:
        if timeout is not None and (seconds := seconds_of(timeout)) is not None:
            timer = asyncio.get_running_loop().call_later(
                seconds, door.apply, door.gate.withdraw, waiter, RejectReason.TIMEOUT
            )
        if signal is not None:
            abort = Abort(
                signal, lambda: door.apply(door.gate.withdraw, waiter, RejectReason.ABORTED)
            )
        await waiter
    except BaseException:
        door.apply(door.gate.cancel, waiter)
        raise
    finally:
        if timer is not None:
            timer.cancel()
        if abort is not None:
            abort.close()


def wait_in_thread(door: Door, waiter: ThreadWaiter, timeout: float | timedelta | None) -> None:
    """Bring a queued `waiter` to its outcome, asleep."""
    try:
        if not waiter.sleep(seconds_of(timeout)):
            # Whoever admitted it in the meantime was first; then this changes nothing.
            door.apply(door.gate.withdraw, waiter, RejectReason.TIMEOUT)
    except BaseException:
        door.apply(door.gate.cancel, waiter)
        raise


def seconds_of(timeout: float | timedelta | None) -> float | None:
    """The timeout in seconds; None if it never comes, and 0 for what is no time at all."""
    if timeout is None or timeout == math.inf:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    # NaN is neither more nor less than anything, so it is no time either.
    return seconds if seconds > 0 else 0  # noqa: FURB136 - max() would let NaN through
