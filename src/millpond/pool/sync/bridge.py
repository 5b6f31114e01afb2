"""The bridge: how a thread has something done on the loop of an open Millpond, and waits for it.

The calling thread's contextvars go along: what runs on the loop knows for which job it is asked,
and a closure submitted from a thread sees what that thread saw. A wait that is interrupted (by a
timeout, or Ctrl-C) is given up on the loop too; what it waited for is not.
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

from millpond.errors import NotOpen

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from millpond.pool.millpond import Millpond
    from millpond.runtime.runtime import Runtime

P = ParamSpec("P")
T = TypeVar("T")

POLL = 1.0
"""Seconds between two looks at whether the loop still lives, in a wait without end."""

LATE = 1.0
"""Seconds after its timeout at which a thread no longer waits for the loop to tell it so."""


class Bridge:
    """The way from threads to the loop of one Millpond."""

    __slots__ = ("_mp",)

    def __init__(self, mp: Millpond) -> None:
        self._mp = mp

    @property
    def runtime(self) -> Runtime:
        """The open runtime, if this thread may wait for its loop."""
        try:
            runtime = self._mp.runtime
        except NotOpen:
            raise NotOpen(
                "this Millpond is not open; put `with mp.sync:` around the work, or `async with "
                "mp:` where its loop runs"
            ) from None
        if runtime.process != os.getpid():
            raise NotOpen(
                "this Millpond was opened before this process was forked, and its loop runs in "
                "the parent only; make and open one in the child, or start children by spawn"
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

    def call(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Have a coroutine function called on the loop; return what it returns."""
        loop = self.runtime.loop
        future: Future[T] = Future()
        return _outcome(loop, future, partial(_start, loop, fn(*args, **kwargs), future))

    def here(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function in this thread, if it is one that may wait for the loop."""
        if self.runtime.closed:
            raise _gone()
        return fn(*args, **kwargs)

    def within(
        self,
        seconds: float | None,
        fn: Callable[P, Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Have a coroutine function called on the loop; TimeoutError after so many seconds."""
        if seconds is None:
            return self.call(fn, *args, **kwargs)
        loop = self.runtime.loop
        future: Future[T] = Future()
        work = _limited(seconds, lambda: fn(*args, **kwargs))
        return _outcome(loop, future, partial(_start, loop, work, future), seconds + LATE)

    def fed(self, feed: Feed[Any], fn: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Have a coroutine function called on the loop; this thread takes the items it asks for."""
        loop = self.runtime.loop
        future: Future[T] = Future()
        return _outcome(loop, future, partial(_start, loop, fn(), future), feed=feed)

    def iterate(
        self, make: Callable[[], AsyncIterator[T]], feed: Feed[Any] | None = None
    ) -> Generator[T, None, None]:
        """Iterate over what an async iterator yields on the loop, one step each time it is asked.

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
        """Return the next item of what is iterated over on the loop, or OVER."""
        loop = self.runtime.loop
        asked: Future[Any] = Future()
        return _outcome(loop, asked, partial(_tell, loop, steps.ask, asked), feed=feed)

    def hold(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> Held[T]:
        """Return an async context manager of the loop as a plain one."""
        return _HeldThere(self, make)

    def start(self, fn: Callable[[], Coroutine[Any, Any, T]], /) -> None:
        """Have a coroutine function called on the loop, and do not wait for it."""
        _start(self.runtime.loop, fn(), Future())

    def outcome(self, future: Future[T]) -> T:
        """Wait for something that goes on at the loop."""
        return _outcome(self._mp.runtime.loop, future)


def _start(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], future: Future[T]
) -> None:
    """Have a coroutine run on a loop of another thread; the future has its outcome.

    The future is made before: whoever is interrupted at any point can cancel it.
    """
    try:
        _tell(loop, _begin, loop, work, future)
    except NotOpen:
        work.close()
        raise


def _tell(
    loop: asyncio.AbstractEventLoop, fn: Callable[P, object], *args: P.args, **_: P.kwargs
) -> None:
    """Have a function called on a loop; NotOpen if it was closed in the meantime."""
    try:
        loop.call_soon_threadsafe(partial(fn, *args))
    except RuntimeError as error:
        raise _gone() from error


def _begin(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], future: Future[T]
) -> None:
    if future.cancelled():
        work.close()
        return
    task = loop.create_task(_carry(work, future))

    def heard(future: Future[T]) -> None:
        if future.cancelled():
            with contextlib.suppress(NotOpen):
                _tell(loop, task.cancel)

    future.add_done_callback(heard)


async def _carry(work: Coroutine[Any, Any, T], future: Future[T]) -> None:
    """Give the outcome of a coroutine to whoever waits for it in another thread."""
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
    """Begin something and wait for it; whatever ends the wait early ends it on the loop, too."""
    until = None if seconds is None else time.monotonic() + seconds
    try:
        if feed is not None:
            future.add_done_callback(feed.over)
        if begin is not None:
            begin()
        return _awaited(loop, future, until, feed)
    except CancelledError:
        raise _gone() from None
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
    """Return what a future brings, looking up now and then: is there a loop to wait for?"""
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
            raise _gone()
    return future.result()


def _gone() -> NotOpen:
    return NotOpen("the loop of this Millpond ended while a thread waited for it")


async def _limited(seconds: float, fn: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async with asyncio.timeout(seconds):
        return await fn()


OVER = object()
"""What is given in place of an item when there are no more."""


class Steps(Generic[T]):
    """An async iterator on the loop that is asked for one item at a time from a thread.

    An item that nobody waits for any more when it comes is kept for who asks next.
    """

    def __init__(self, make: Callable[[], AsyncIterator[T]]) -> None:
        self._make = make
        self._asked: deque[Future[Any]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._ended = False

    def ask(self, asked: Future[Any]) -> None:
        """Ask for the next item; on the loop."""
        if self._ended:
            asked.cancel()
            return
        self._asked.append(asked)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def drive(self) -> None:
        """Answer those who ask until there is nothing more."""
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
            for asked in self._asked:
                asked.cancel()

    async def _step(self, source: AsyncIterator[T]) -> bool:
        """Take one item and hand it over; return whether more may come."""
        while not self._asked:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        try:
            item: Any = await anext(source)
        except StopAsyncIteration:
            item = OVER
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            (await self._who_asks()).set_exception(error)
            return False
        (await self._who_asks()).set_result(item)
        return item is not OVER

    async def _who_asks(self) -> Future[Any]:
        """Return the first who still waits; wait for one if there is none."""
        while True:
            while not self._asked:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
            asked = self._asked.popleft()
            if asked.set_running_or_notify_cancel():
                return asked


class Feed(AsyncIterator[T]):
    """An iterable that stays in its thread: the loop asks for items, that thread takes them.

    It does so while it waits for the loop. What the iterable is (a cursor, a file, a generator
    that blocks) is then no business of the loop's.
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
        """Wake the thread: what it waits for has ended."""
        self._messages.put(None)

    def serve(self, seconds: float) -> None:
        """Take an item if one is asked for within so many seconds."""
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
        except Exception as error:  # noqa: BLE001 - it comes back to this thread by way of the loop
            answer.set_exception(error)
        except BaseException as error:
            # Ctrl-C: the loop must not wait for this item, and must not be given the interrupt.
            answer.set_exception(RuntimeError(f"taking an item was interrupted: {error!r}"))
            raise
        else:
            answer.set_result((True, item))


class Held(Generic[T]):
    """An async context manager, entered and left by one task, for as long as a thread says so."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._entered: Future[T] = Future()
        self._ended: Future[bool] = Future()
        self._left: asyncio.Future[BaseException | None] | None = None
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def hold(self) -> None:
        """Enter, wait to be told to leave, leave."""
        self._loop = asyncio.get_running_loop()
        self._left = self._loop.create_future()
        try:
            swallowed = await self._between()
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            told = self._ended if self._entered.done() else self._entered
            if not told.cancelled():
                told.set_exception(_tellable(error))
        else:
            self._ended.set_result(swallowed)

    async def _between(self) -> bool:
        """Return whether the error that the block was left with was swallowed."""
        assert self._left is not None  # noqa: S101 - made before
        error = None
        async with self._make() as value:
            if not self._entered.set_running_or_notify_cancel():
                return True
            self._entered.set_result(value)
            error = await self._left
            if error is not None:
                # An interrupt of the thread's would end the loop; to a task it is a cancellation.
                raise error if isinstance(error, Exception) else asyncio.CancelledError
        return error is not None

    def _give_up(self) -> None:
        """Nobody will come for it, because of an error or an interrupt: leave as soon as may be."""
        if not self._entered.cancel() and self._entered.exception() is None:
            self.leave(None)

    def leave(self, error: BaseException | None) -> Future[bool]:
        """Tell it to leave; the future has the end of it."""
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
            # A forked child leaves: the loop and its thread are the parent's, and stay there.
            return False
        try:
            return self._wait_for_end(self.leave(error))
        except BaseException as raised:
            if raised is error or (error is not None and isinstance(raised, _LOOP_ENDED)):
                return False
            raise
        finally:
            if error is not None:
                # Raised on the loop too, it has picked up the way through there.
                error.__traceback__ = trace

    def _wait_for_end(self, ended: Future[bool]) -> bool:
        raise NotImplementedError


_LOOP_ENDED = (CancelledError, NotOpen)
"""What a thread is told in place of its own error, if the loop has ended or was told to."""


def _tellable(error: BaseException) -> BaseException:
    """Return an error as a thread may see it: to be cancelled is the loop's affair."""
    return CancelledError() if isinstance(error, asyncio.CancelledError) else error


class _HeldThere(Held[T]):
    """Held on the loop of an open Millpond."""

    def __init__(self, bridge: Bridge, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
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

    The thread does not keep the process: whoever leaves without leaving the block loses it.
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
        asyncio.run(self.hold())

    def _wait_for_end(self, ended: Future[bool]) -> bool:
        try:
            return ended.result()
        finally:
            if self._thread is not None and ended.done():
                self._thread.join()
