"""Map: a function over many items, within the pool's limits, with the results in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Mapping,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.core.spec import OnFull
from millpond.pool.map_chunk import Strands, fits
from millpond.pool.task import BoundCall, Optioned, TaskFunction
from millpond.pool.temporary_worker import serving
from millpond.runtime.waiting.deadlock import waiting_for

if TYPE_CHECKING:
    from millpond.pool.handle import Handle
    from millpond.pool.pool import Pool
    from millpond.runtime.waiting.task_result import TaskResult

R_co = TypeVar("R_co", covariant=True)

FEWEST_AHEAD, MOST_AHEAD = 64, 2_000
"""How many items are submitted ahead of those that run: enough to keep every slot busy."""


class Mapped(Generic[R_co]):
    """The results of a map: await it for the list, or iterate over them as they come, in order.

    The first failure stops it: nothing more is taken, what waits is cancelled, what runs is
    interrupted, and its error is raised.
    """

    def __init__(
        self,
        pool: Pool,
        fn: Callable[[Any], Any] | TaskFunction[..., R_co, Any],
        items: Iterable[Any] | AsyncIterable[Any],
        options: Mapping[str, Any],
    ) -> None:
        self._pool = pool
        self._fn = fn
        self._items = items
        self._options = options

    def __await__(self) -> Generator[Any, None, list[R_co]]:
        return self._all().__await__()

    async def _all(self) -> list[R_co]:
        results: list[R_co] = []
        async with self._flow() as flow:
            while True:
                found, result = await flow.next()
                if not found:
                    return results
                results.append(result)

    async def __aiter__(self) -> AsyncGenerator[R_co, None]:
        async with self._flow() as flow:
            while True:
                found, result = await flow.next()
                if not found:
                    return
                yield result

    @contextlib.asynccontextmanager
    async def _flow(self) -> AsyncIterator[Strands | _Flow]:
        """Yield the items on their way; nothing of them is left behind."""
        async with serving(self._pool):
            flow: Strands | _Flow
            if fits(self._pool, self._fn, self._items, self._options):
                flow = Strands(self._pool, self._fn, self._items, self._options)  # type: ignore[arg-type]
            else:
                flow = _Flow(self._pool, self._work, self._items, self._options)
            try:
                yield flow
            finally:
                await flow.stop()

    def _work(self, item: Any) -> Any:  # noqa: ANN401 - an item of any type
        fn: Any = self._fn
        if isinstance(fn, TaskFunction):
            return BoundCall(fn, (item,), {})
        if isinstance(fn, Optioned):
            return fn.bind(item)
        return partial(fn, item)


class _Item:
    """One item under way."""

    __slots__ = ("_flow", "end", "ended", "handle")

    def __init__(self, flow: _Flow, handle: Handle[Any]) -> None:
        self._flow = flow
        self.handle = handle
        self.ended = False
        self.end: TaskResult | None = None

    def heard(self, end: TaskResult | None) -> None:
        """Take in its end."""
        self.ended = True
        self.end = end
        self._flow.heard(self)

    def asked(self, _asked: asyncio.Task[Any]) -> None:
        """Take in that nobody need be asked any more: its handle knows how it ended, or why not."""
        self.heard(None)

    async def value(self) -> Any:  # noqa: ANN401 - what the function returned
        """Return its result or raise its error."""
        return await self.handle.value_of(self.end)


class _Flow:
    """Items on their way through the pool: taken, submitted, awaited, in order."""

    def __init__(
        self,
        pool: Pool,
        work: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        options: Mapping[str, Any],
    ) -> None:
        self._pool = pool
        self._runtime = pool.runtime
        self._work = work
        self._sync = iter(items) if isinstance(items, Iterable) else None
        self._async = aiter(items) if isinstance(items, AsyncIterable) else None
        if self._sync is None and self._async is None:
            raise TypeError(f"map() takes an iterable or an async iterable, not {items!r}")
        self._options = options
        self._line: deque[_Item] = deque()
        self._under_way = 0
        self._window = _window(pool)
        self._more = True
        self._pulling: asyncio.Task[Any] | None = None
        self._changed: asyncio.Future[None] | None = None

    async def next(self) -> tuple[bool, Any]:
        """Return (True, the next result in order), or (False, None) after the last."""
        while True:
            if self._line and self._line[0].ended:
                return True, await self._line.popleft().value()
            if self._more and self._has_room():
                await self._take_more()
            elif self._line:
                await self._until_something_ends()
            elif not self._more:
                return False, None

    def _has_room(self) -> bool:
        """Return whether to take more: when half of those under way have ended."""
        return 2 * self._under_way <= self._window and len(self._line) < 4 * self._window

    async def _take_more(self) -> None:
        room = self._window - self._under_way
        if self._sync is not None:
            batch = [item for _, item in zip(range(room), self._sync, strict=False)]
            self._more = len(batch) == room
            await self._submit(batch)
        else:
            await self._take_from_async()

    async def _take_from_async(self) -> None:
        """Take one item, or see one end, whichever comes first: a slow source holds nobody up."""
        assert self._async is not None  # noqa: S101
        if self._pulling is None:
            self._pulling = asyncio.ensure_future(_pull(self._async))
        if self._line:
            # A new one each time: what changed before was seen before.
            self._changed = self._pool.loop.create_future()
            await asyncio.wait((self._pulling, self._changed), return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.wait((self._pulling,))
        if not self._pulling.done():
            return
        pulled, self._pulling = self._pulling, None
        found, item = pulled.result()
        if found:
            await self._submit([item])
        else:
            self._more = False

    async def _submit(self, batch: list[Any]) -> None:
        if not batch:
            return
        handles = await self._pool.submit_works([self._work(item) for item in batch], self._options)
        waiting = self._runtime.waiting
        for handle in handles:
            item = _Item(self, handle)
            self._line.append(item)
            self._under_way += 1
            if handle.status.terminal or handle.duplicate:
                # Rejected at once, or known before: it may have ended already.
                asked = self._runtime.spawn(item.handle.wait())
                asked.add_done_callback(item.asked)
            else:
                waiting.on_end(handle.id, item.heard)

    def heard(self, item: _Item) -> None:
        """An item ended; if it is the one waited for, go on."""
        self._under_way -= 1
        changed = self._changed
        if changed is not None and not changed.done() and self._worth_waking(item):
            changed.set_result(None)

    def _worth_waking(self, item: _Item) -> bool:
        return (bool(self._line) and item is self._line[0]) or (self._more and self._has_room())

    async def _until_something_ends(self) -> None:
        self._runtime.must_be_open()
        changed = self._changed = self._pool.loop.create_future()
        first = next((item.handle.id for item in self._line if not item.ended), None)
        try:
            async with waiting_for(self._runtime, first):
                await changed
        finally:
            self._changed = None

    async def stop(self) -> None:
        """Leave nothing behind: what was submitted and is not wanted any more is cancelled."""
        if self._pulling is not None:
            self._pulling.cancel()
            await asyncio.gather(self._pulling, return_exceptions=True)
        # A duplicate is somebody else's task, and goes on.
        left = tuple(
            item.handle.id for item in self._line if not item.ended and not item.handle.duplicate
        )
        runtime = self._runtime
        for item in self._line:
            runtime.waiting.forget(item.handle.id, item.heard)
        if left and not runtime.closed:
            await runtime.control.cancel(left, interrupt=True)


async def _pull(source: AsyncIterator[Any]) -> tuple[bool, Any]:
    """Return the next item, and whether there was one: a future cannot carry StopAsyncIteration."""
    try:
        return True, await anext(source)
    except StopAsyncIteration:
        return False, None


def _window(pool: Pool) -> int:
    """Return how many items may be under way: no more than a bounded pool has room for."""
    spec = pool.spec
    window = min(max(4 * spec.most_concurrent, FEWEST_AHEAD), MOST_AHEAD)
    bound = spec.backpressure
    if bound is None:
        return window
    if bound.on_full is OnFull.FAIL_FAST:
        return max(spec.most_concurrent, 1)
    return max(min(window, bound.per_key or window, bound.depth or window), 1)
