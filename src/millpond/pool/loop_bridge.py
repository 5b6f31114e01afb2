"""The loop bridge: a thread calls a coroutine function on the loop of an open Millpond and waits.

The calling thread's contextvars go along: the coroutine knows the job that calls it, and a closure
submitted from a thread has that thread's context. A wait that is interrupted (by a timeout, or
Ctrl-C) is cancelled on the loop too; the task it waited for goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from millpond.core import validation as check
from millpond.errors import NotOpen

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from millpond.core.validation import Seconds
    from millpond.runtime.runtime import Runtime

P = ParamSpec("P")
T = TypeVar("T")

POLL = 1.0
"""Seconds after which a thread that waits checks whether the loop still runs."""

LATE = 1.0
"""Seconds that a thread waits beyond its timeout for the loop to raise TimeoutError."""


class LoopBridge:
    """Calls from threads to the loop of one Millpond."""

    __slots__ = ("_open_runtime",)

    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open_runtime = open_runtime

    @property
    def runtime(self) -> Runtime:
        """The open runtime, if this thread may wait for its loop."""
        try:
            runtime = self._open_runtime()
        except NotOpen:
            raise NotOpen(
                "this Millpond is not open; call `mp.sync.open()` or put `with mp.sync:` around "
                "the work, or `async with mp:` where its loop runs"
            ) from None
        if runtime.process != os.getpid():
            raise NotOpen(
                "this Millpond was opened before this process was forked, and its loop runs in "
                "the parent only; call `mp.sync.open()` in the child (`await mp.open()` on a "
                "loop), or open it after the fork only"
            )
        if runtime.thread == threading.get_ident():
            raise RuntimeError(
                "mp.sync would wait here for the loop that runs in this very thread: use the same "
                "method with `await` and without .sync, or call it from another thread "
                "(asyncio.to_thread)"
            )
        if not runtime.loop.is_running():
            raise RuntimeError(
                "the loop on which this Millpond is open does not run, so nothing would ever answer"
            )
        return runtime

    def check_thread(self) -> None:
        """Raise if it is not open, or if this thread may not wait for its loop."""
        _ = self.runtime

    def call(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a coroutine function on the loop; return its result."""
        loop = self.runtime.loop
        future: Future[T] = Future()
        return _outcome(loop, future, partial(_start, loop, fn(*args, **kwargs), future))

    def write(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do the same for what writes; raise if a transaction of this thread would block it."""
        self.check_transaction()
        return self.call(fn, *args, **kwargs)

    def check_transaction(self) -> None:
        """Raise if this thread has a transaction open that a write would wait for."""
        check_caller = self.runtime.shared_store.check_caller
        if check_caller is not None:
            check_caller()

    def here(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function in this thread, if this thread may wait for the loop."""
        if self.runtime.closed:
            raise _loop_ended()
        return fn(*args, **kwargs)

    def within(
        self,
        seconds: float | None,
        fn: Callable[P, Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call a coroutine function on the loop; TimeoutError after so many seconds."""
        if seconds is None:
            return self.call(fn, *args, **kwargs)
        loop = self.runtime.loop
        future: Future[T] = Future()
        work = _limited(seconds, lambda: fn(*args, **kwargs))
        return _outcome(loop, future, partial(_start, loop, work, future), seconds + LATE)

    def fed(self, feed: Feed[Any], fn: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Call a coroutine function on the loop; this thread takes the items it requests."""
        loop = self.runtime.loop
        future: Future[T] = Future()
        return _outcome(loop, future, partial(_start, loop, fn(), future), feed=feed)

    def iterate(
        self, make: Callable[[], AsyncIterator[T]], feed: Feed[Any] | None = None
    ) -> Generator[T, None, None]:
        """Iterate over an async iterator of the loop, one item per step of this iterator.

        One task of the loop takes all the steps. Leaving early ends it.
        """
        loop = self.runtime.loop
        steps = Steps(make)
        driven: Future[None] = Future()
        try:
            _start(loop, steps.drive(), driven)
            while (item := self.step(steps, feed)) is not OVER:
                yield item
        finally:
            driven.cancel()

    def step(self, steps: Steps[Any], feed: Feed[Any] | None = None) -> Any:  # noqa: ANN401 - or OVER
        """Return the next item of an iterator on the loop, or OVER."""
        loop = self.runtime.loop
        answer: Future[Any] = Future()
        return _outcome(loop, answer, partial(_call_on, loop, steps.request, answer), feed=feed)

    def hold(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> Held[T]:
        """Return an async context manager of the loop as a plain one."""
        return _HeldThere(self, make)

    def start(self, fn: Callable[[], Coroutine[Any, Any, T]], /) -> None:
        """Call a coroutine function on the loop, and do not wait for it."""
        _start(self.runtime.loop, fn(), Future())

    def outcome(self, future: Future[T]) -> T:
        """Wait for a future that the loop completes."""
        return _outcome(self._open_runtime().loop, future)


def _start(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], future: Future[T]
) -> None:
    """Run a coroutine on a loop of another thread; the future has its outcome.

    The caller makes the future: a thread that is interrupted at any point can cancel it.
    """
    try:
        _call_on(loop, _begin, loop, work, future)
    except NotOpen:
        work.close()
        raise


def _call_on(
    loop: asyncio.AbstractEventLoop, fn: Callable[P, object], *args: P.args, **_: P.kwargs
) -> None:
    """Call a function on a loop; NotOpen if the loop was closed in the meantime."""
    try:
        loop.call_soon_threadsafe(partial(fn, *args))
    except RuntimeError as error:
        raise _loop_ended() from error


def _begin(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], future: Future[T]
) -> None:
    if future.cancelled():
        work.close()
        return
    task = loop.create_task(_run_for(work, future))

    def pass_on_cancel(future: Future[T]) -> None:
        if future.cancelled():
            with contextlib.suppress(NotOpen):
                _call_on(loop, task.cancel)

    future.add_done_callback(pass_on_cancel)


async def _run_for(work: Coroutine[Any, Any, T], future: Future[T]) -> None:
    """Set the outcome of a coroutine on a future that another thread waits for."""
    try:
        result = await work
    except asyncio.CancelledError:
        future.cancel()
        raise
    except BaseException as error:
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(result)
    finally:
        del future  # it holds the error, whose traceback holds this frame


def _outcome(
    loop: asyncio.AbstractEventLoop,
    future: Future[T],
    begin: Callable[[], None] | None = None,
    seconds: float | None = None,
    feed: Feed[Any] | None = None,
) -> T:
    """Call `begin`, then wait for the future; an early end of the wait cancels it on the loop."""
    until = None if seconds is None else time.monotonic() + seconds
    try:
        if feed is not None:
            future.add_done_callback(feed.over)
        if begin is not None:
            begin()
        return _awaited(loop, future, until, feed)
    except CancelledError:
        raise _loop_ended() from None
    except BaseException:
        future.cancel()  # once it has ended this does nothing
        raise
    finally:
        del future


def _awaited(
    loop: asyncio.AbstractEventLoop,
    future: Future[T],
    until: float | None,
    feed: Feed[Any] | None,
) -> T:
    """Return a future's result; check regularly whether there is still a loop to wait for."""
    while not future.done():
        left = POLL if until is None else min(POLL, max(until - time.monotonic(), 0.0))
        if feed is not None:
            feed.serve(left)
        else:
            with contextlib.suppress(TimeoutError):
                return future.result(left)
        if future.done():
            break
        if until is not None and time.monotonic() >= until:
            raise TimeoutError
        if loop.is_closed():
            raise _loop_ended()
    return future.result()


def _loop_ended() -> NotOpen:
    return NotOpen("the loop of this Millpond ended while a thread waited for it")


async def _limited(seconds: float, fn: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async with asyncio.timeout(seconds):
        return await fn()


OVER = object()
"""The answer in place of an item when there are none left."""


class Steps(Generic[T]):
    """An async iterator on the loop; a thread requests one item at a time.

    An item whose request was cancelled meanwhile answers the next request.
    """

    def __init__(self, make: Callable[[], AsyncIterator[T]]) -> None:
        self._make = make
        self._requests: deque[Future[Any]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._ended = False

    def request(self, answer: Future[Any]) -> None:
        """Request the next item; on the loop."""
        if self._ended:
            answer.cancel()
            return
        self._requests.append(answer)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def drive(self) -> None:
        """Answer requests until there are no more items."""
        try:
            source = self._make()
            try:
                while await self._step(source):
                    pass
            finally:
                close = getattr(source, "aclose", None)
                if close is not None:
                    await close()
        finally:
            self._ended = True
            for request in self._requests:
                request.cancel()

    async def _step(self, source: AsyncIterator[T]) -> bool:
        """Answer one request; return whether more items may come."""
        while not self._requests:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        try:
            item: Any = await anext(source)
        except StopAsyncIteration:
            item = OVER
        except Exception as error:  # noqa: BLE001 - raised in the thread that requested it
            (await self._next_request()).set_exception(error)
            return False
        (await self._next_request()).set_result(item)
        return item is not OVER

    async def _next_request(self) -> Future[Any]:
        """Return the first request that was not cancelled; wait for one if there is none."""
        while True:
            while not self._requests:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
            request = self._requests.popleft()
            if request.set_running_or_notify_cancel():
                return request


class Feed(AsyncIterator[T]):
    """An iterable that stays in its thread: the loop requests items, the thread takes them.

    The thread does so while it waits for the loop, so an iterable that blocks (a cursor, a file,
    a generator) does not block the loop.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._messages: SimpleQueue[Future[Any] | None] = SimpleQueue()

    def __aiter__(self) -> Feed[T]:
        return self

    async def __anext__(self) -> T:
        answer: Future[tuple[bool, T | None]] = Future()
        self._messages.put(answer)
        found, item = await asyncio.wrap_future(answer)
        if not found:
            raise StopAsyncIteration
        return item  # type: ignore[return-value]

    def over(self, _future: Future[Any]) -> None:
        """Wake the thread: the future it waits for is done."""
        self._messages.put(None)

    def serve(self, seconds: float) -> None:
        """Take an item if the loop requests one within so many seconds."""
        try:
            answer = self._messages.get(timeout=seconds)
        except Empty:
            return
        if answer is not None and answer.set_running_or_notify_cancel():
            self._take(answer)

    def _take(self, answer: Future[Any]) -> None:
        try:
            item = next(self._items)
        except StopIteration:
            answer.set_result((False, None))
        except Exception as error:  # noqa: BLE001 - the loop raises it in this thread
            answer.set_exception(error)
        except BaseException as error:
            # Ctrl-C: the loop must not wait for this item, and must not raise the interrupt.
            answer.set_exception(RuntimeError(f"taking an item was interrupted: {error!r}"))
            raise
        else:
            answer.set_result((True, item))


class Held(Generic[T]):
    """An async context manager that one task enters, and leaves when a thread says so."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._entered: Future[T] = Future()
        self._ended: Future[bool] = Future()
        self._left: asyncio.Future[BaseException | None] | None = None
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def hold(self) -> None:
        """Enter, wait until the thread leaves its block, leave."""
        self._loop = asyncio.get_running_loop()
        self._left = self._loop.create_future()
        try:
            swallowed = await self._between()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            waited_for = self._ended if self._entered.done() else self._entered
            if not waited_for.cancelled():
                waited_for.set_exception(_for_thread(error))
        else:
            self._ended.set_result(swallowed)

    async def _between(self) -> bool:
        """Return whether the context manager swallowed the error that the block raised."""
        assert self._left is not None  # noqa: S101 - made before
        error = None
        async with self._make() as value:
            if not self._entered.set_running_or_notify_cancel():
                return True
            self._entered.set_result(value)
            error = await self._left
            if error is not None:
                # KeyboardInterrupt would end the loop; for a task it is a cancellation.
                raise error if isinstance(error, Exception) else asyncio.CancelledError
        return error is not None

    def _give_up(self) -> None:
        """Leave as soon as possible: an error or an interrupt ended the wait for it."""
        if not self._entered.cancel() and self._entered.exception() is None:
            self.leave(None)

    def leave(self, error: BaseException | None) -> Future[bool]:
        """Leave; the future is done when that has happened."""
        assert self._loop is not None  # noqa: S101 - it was entered
        with contextlib.suppress(RuntimeError):  # the loop is gone, and this with it
            self._loop.call_soon_threadsafe(self._let_go, error)
        return self._ended

    def _let_go(self, error: BaseException | None) -> None:
        if self._left is not None and not self._left.done():
            self._left.set_result(error)

    def __enter__(self) -> T:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._process != os.getpid():
            # A forked child leaves the block: the loop and its thread are the parent's.
            return False
        try:
            return self._wait_for_end(self.leave(error))
        except BaseException as raised:
            if raised is error or (error is not None and isinstance(raised, _LOOP_ENDED)):
                return False
            raise
        finally:
            if error is not None:
                # The loop raised it too, and added its own frames to the traceback.
                error.__traceback__ = trace

    def _wait_for_end(self, ended: Future[bool]) -> bool:
        raise NotImplementedError


_LOOP_ENDED = (CancelledError, NotOpen)
"""Errors of the loop's end: they must not replace the error that the block raised."""


def _for_thread(error: BaseException) -> BaseException:
    """Return an error as a thread raises it: asyncio's CancelledError means nothing there."""
    return CancelledError() if isinstance(error, asyncio.CancelledError) else error


class _HeldThere(Held[T]):
    """Held on the loop of an open Millpond."""

    def __init__(
        self, bridge: LoopBridge, make: Callable[[], AbstractAsyncContextManager[T]]
    ) -> None:
        super().__init__(make)
        self._bridge = bridge

    def __enter__(self) -> T:
        self._bridge.start(self.hold)
        try:
            return self._bridge.outcome(self._entered)
        except BaseException:
            self._give_up()
            raise

    def _wait_for_end(self, ended: Future[bool]) -> bool:
        return self._bridge.outcome(ended)


class OwnedLoop(Held[T]):
    """Held on a loop and a thread of its own, which end with it.

    The thread is a daemon: a process that ends inside the block does not wait for it.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        super().__init__(make)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> T:
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._main,), daemon=True, name="millpond loop"
        )
        self._thread.start()
        try:
            return self._entered.result()
        except BaseException:
            self._give_up()
            self._thread.join()
            raise

    def _main(self) -> None:
        try:
            asyncio.run(self.hold())
        except RuntimeError:
            # Python 3.12 starts no thread at the end of a process, where asyncio wants one.
            if not self._ended.done():
                raise

    def end(self, patience: float) -> None:
        """Leave; TimeoutError if that takes more than so many seconds."""
        try:
            self.leave(None).result(patience)
        except TimeoutError:
            raise TimeoutError(f"it was not over after {patience:g} seconds") from None
        if self._thread is not None:
            self._thread.join(patience)

    def _wait_for_end(self, ended: Future[bool]) -> bool:
        try:
            return ended.result()
        finally:
            if self._thread is not None and ended.done():
                self._thread.join()


def limit_of(timeout: Seconds | None) -> float | None:
    """Return a timeout in seconds, checked; None = wait as long as it takes."""
    return None if timeout is None else check.seconds("timeout", timeout)
