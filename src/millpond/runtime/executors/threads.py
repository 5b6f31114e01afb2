"""Threads for plain functions: made on demand, reused, and never in the way of leaving.

The standard executor joins its threads when the interpreter ends; a handler that hangs would keep
the process for ever. These are daemon threads: a stuck one ends with its process.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.runtime.fork_safety import must_not_be_child

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

T = TypeVar("T")
Work = "tuple[asyncio.Future[Any], Callable[[], Any]] | None"

KEPT = 32
"""How many idle threads are kept for later."""


class Threads:
    """Runs functions in threads and gives their results back to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._idle: list[_Thread] = []
        self._closed = False

    def run(self, fn: Callable[[], T]) -> asyncio.Future[T]:
        """Start `fn` in a thread; the future has its result. Cancelling it does not stop `fn`."""
        done: asyncio.Future[T] = self._loop.create_future()
        thread = self._idle.pop() if self._idle else _Thread(self)
        thread.work.put((done, fn))
        return done

    def close(self) -> None:
        """Let idle threads go; those at work go when they are done."""
        self._closed = True
        while self._idle:
            self._idle.pop().work.put(None)

    def report(
        self,
        thread: _Thread,
        done: asyncio.Future[Any],
        result: Any,  # noqa: ANN401 - whatever the function returned
        error: BaseException | None,
    ) -> None:
        """Report to the loop how a function ended, unless the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, thread, done, result, error)
        except RuntimeError:
            thread.work.put(None)

    def _deliver(
        self,
        thread: _Thread,
        done: asyncio.Future[Any],
        result: Any,  # noqa: ANN401
        error: BaseException | None,
    ) -> None:
        if self._closed or len(self._idle) >= KEPT:
            thread.work.put(None)
        else:
            self._idle.append(thread)
        if done.done():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, (StopIteration, GeneratorExit)):
            # A future cannot carry one: it would end the coroutine that waits for it.
            done.set_exception(RuntimeError(f"handler raised {error!r}"))
        else:
            done.set_exception(error)


class _Thread:
    """One daemon thread that calls functions from a queue until it is stopped."""

    def __init__(self, owner: Threads) -> None:
        self.work: SimpleQueue[Any] = SimpleQueue()
        self._owner = owner
        self._process = os.getpid()
        threading.Thread(target=self._main, daemon=True, name="millpond handler").start()

    def _main(self) -> None:
        while (given := self.work.get()) is not None:
            done, fn = given
            try:
                result, error = fn(), None
            except BaseException as raised:  # noqa: BLE001 - it goes to the waiting caller
                result, error = None, raised
            must_not_be_child(self._process)
            self._owner.report(self, done, result, error)
            del given, done, fn, result, error
