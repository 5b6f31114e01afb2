"""Waiting in the queue: until admitted, refused, timed out, aborted or cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millpond.bulkhead.waiters import LoopWaiter, ThreadWaiter, seconds_of
from millpond.core.gate import RejectReason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import timedelta
    from typing import Any

    from millpond.bulkhead.shared_state import SharedState


class Abort:
    """Calls `then` once if `signal` is set during a wait; `close` removes it from the signal."""

    __slots__ = ("_wait",)

    def __init__(self, signal: asyncio.Event, then: Callable[[], object]) -> None:
        # The event's own coroutine is driven by hand as far as its future: a task for every
        # waiter would cost more than the wait, and would outlive it by a turn of the loop.
        self._wait: Coroutine[Any, Any, object] = signal.wait()
        try:
            future: asyncio.Future[object] = self._wait.send(None)
        except StopIteration:
            # Another thread set it after the check.
            then()
            return
        future.add_done_callback(lambda done: None if done.cancelled() else then())

    def close(self) -> None:
        self._wait.close()


async def wait_on_loop(
    state: SharedState,
    waiter: LoopWaiter,
    timeout: float | timedelta | None = None,  # noqa: ASYNC109 - ends in a refusal, not an error
    signal: asyncio.Event | None = None,
) -> None:
    """Wait until `waiter` has an outcome; a cancelled wait gives back a slot it was granted."""
    timer = abort = None
    try:
        if timeout is not None and (seconds := seconds_of(timeout)) is not None:
            timer = asyncio.get_running_loop().call_later(
                seconds, state.apply, state.gate.withdraw, waiter, RejectReason.TIMEOUT
            )
        if signal is not None:
            abort = Abort(
                signal, lambda: state.apply(state.gate.withdraw, waiter, RejectReason.ABORTED)
            )
        await waiter
    except BaseException:
        state.apply(state.gate.cancel, waiter)
        raise
    finally:
        if timer is not None:
            timer.cancel()
        if abort is not None:
            abort.close()


def wait_in_thread(
    state: SharedState, waiter: ThreadWaiter, timeout: float | timedelta | None
) -> None:
    """Block this thread until `waiter` has an outcome."""
    try:
        if not waiter.sleep(seconds_of(timeout)):
            # If it was admitted in the meantime, this changes nothing.
            state.apply(state.gate.withdraw, waiter, RejectReason.TIMEOUT)
    except BaseException:
        state.apply(state.gate.cancel, waiter)
        raise
