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
    Iterator,
    Mapping,
    Sized,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.core.spec import OnFull
from millpond.pool.loop_bridge import Feed
from millpond.pool.map_chunk import ChunkedMap, fits
from millpond.pool.map_progress import MapProgress, map_progress
from millpond.pool.pool_submitter import PoolSubmitter
from millpond.pool.task import BoundCall, Optioned, TaskFunction
from millpond.pool.temporary_worker import serving

if TYPE_CHECKING:
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.loop_bridge import LoopBridge
    from millpond.pool.submitted_task import SubmittedTask
    from millpond.runtime.waiting.task_result import TaskResult

R_co = TypeVar("R_co", covariant=True)

FEWEST_AHEAD, MOST_AHEAD = 64, 2_000
"""How many items are submitted ahead of those that run: enough to keep every slot busy."""


class Mapped(Generic[R_co]):
    """The results of a map, in order: await it for the list, or iterate over them.

    The first failure stops the map: it takes no more items, cancels tasks that wait, interrupts
    those that run, and raises the error.
    """

    def __init__(
        self,
        pool: DeclaredPool,
        fn: Callable[[Any], Any] | TaskFunction[..., R_co, Any],
        items: Iterable[Any] | AsyncIterable[Any],
        options: Mapping[str, Any],
        *,
        progress: bool = False,
        total: int | None = None,
    ) -> None:
        self._pool = pool
        self._fn = fn
        self._items = items
        self._options = options
        self._progress = progress
        self._total = len(items) if isinstance(items, Sized) else total

    def __await__(self) -> Generator[Any, None, list[R_co]]:
        """Wait for all items; return the list of their results."""
        return self._all().__await__()

    async def _all(self) -> list[R_co]:
        if self._progress:
            return [result async for result in self]
        results: list[R_co] = []
        async with self._flow() as flow:
            while True:
                found, result = await flow.next()
                if not found:
                    return results
                results.append(result)

    async def __aiter__(self) -> AsyncGenerator[R_co, None]:
        """Yield each result as soon as it and all before it are there."""
        async with self._flow() as flow:
            with self._bar() as bar:
                while True:
                    found, result = await flow.next()
                    if not found:
                        return
                    if bar is not None:
                        bar.advance()
                    yield result

    @contextlib.contextmanager
    def _bar(self) -> Iterator[MapProgress | None]:
        """Draw progress, if asked to, until the map is over."""
        if not self._progress:
            yield None
            return
        bar = map_progress(self._total, getattr(self._fn, "__name__", None) or self._pool.name)
        try:
            yield bar
        finally:
            bar.close()

    @contextlib.asynccontextmanager
    async def _flow(self) -> AsyncIterator[ChunkedMap | ItemFlow]:
        """Yield the items under way; leaving it cancels those that have not ended."""
        async with serving(self._pool):
            flow: ChunkedMap | ItemFlow
            if fits(self._pool, self._fn, self._items, self._options):
                flow = ChunkedMap(self._pool, self._fn, self._items, self._options)  # type: ignore[arg-type]
            else:
                flow = ItemFlow(self._pool, self._work, self._items, self._options)
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

    __slots__ = ("_flow", "end", "ended", "task")

    def __init__(self, flow: ItemFlow, task: SubmittedTask) -> None:
        self._flow = flow
        self.task = task
        self.ended = False
        self.end: TaskResult | None = None

    def on_end(self, end: TaskResult | None) -> None:
        """Note that it has ended, and wake the map if it waits for this."""
        self.ended = True
        self.end = end
        self._flow.on_item_end(self)

    def on_waited(self, _wait: asyncio.Task[Any]) -> None:
        """Note that a wait for its task is over: the task has its end, or the error of the wait."""
        self.on_end(None)

    async def value(self) -> Any:  # noqa: ANN401 - the result of the function
        """Return its result or raise its error."""
        return await self.task.result_of(self.end)


class ItemFlow:
    """Items on their way through the pool, each as a task, with results in order."""

    def __init__(
        self,
        pool: DeclaredPool,
        work: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        options: Mapping[str, Any],
    ) -> None:
        self._submitter = PoolSubmitter(pool)
        self._loop = pool.loop
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
        """Return whether to take more items: when half of those under way have ended."""
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
        """Wait for the next item or the end of one, so that a slow source delays no result."""
        assert self._async is not None  # noqa: S101
        if self._pulling is None:
            self._pulling = asyncio.ensure_future(_pull(self._async))
        if self._line:
            # A new future each time: earlier changes are known.
            self._changed = self._loop.create_future()
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
        works = [self._work(item) for item in batch]
        tasks = await self._submitter.submit_batch(works, self._options)
        waiting = self._runtime.waiting
        for task in tasks:
            item = _Item(self, task)
            self._line.append(item)
            self._under_way += 1
            if task.status.terminal or task.duplicate:
                # Rejected at once, or known before: it may have ended already.
                self._runtime.spawn(task.wait()).add_done_callback(item.on_waited)
            else:
                waiting.on_end(task.id, item.on_end)

    def on_item_end(self, item: _Item) -> None:
        """Wake the map if it waits for this item, or for room to take more."""
        self._under_way -= 1
        changed = self._changed
        if changed is not None and not changed.done() and self._worth_waking(item):
            changed.set_result(None)

    def _worth_waking(self, item: _Item) -> bool:
        return (bool(self._line) and item is self._line[0]) or (self._more and self._has_room())

    async def _until_something_ends(self) -> None:
        self._runtime.must_be_open()
        changed = self._changed = self._loop.create_future()
        first = next((item.task.id for item in self._line if not item.ended), None)
        try:
            async with self._runtime.waits.waiting_for(first):
                await changed
        finally:
            self._changed = None

    async def stop(self) -> None:
        """Cancel the tasks that have not ended."""
        if self._pulling is not None:
            self._pulling.cancel()
            await asyncio.gather(self._pulling, return_exceptions=True)
        # A duplicate is the task of another submitter, and goes on.
        left = tuple(
            item.task.id for item in self._line if not item.ended and not item.task.duplicate
        )
        runtime = self._runtime
        for item in self._line:
            runtime.waiting.forget(item.task.id, item.on_end)
        if left and not runtime.closed:
            await runtime.control.cancel(left, interrupt=True)


async def _pull(source: AsyncIterator[Any]) -> tuple[bool, Any]:
    """Return the next item, and whether there was one: a future cannot carry StopAsyncIteration."""
    try:
        return True, await anext(source)
    except StopAsyncIteration:
        return False, None


def _window(pool: DeclaredPool) -> int:
    """Return how many items may be under way: at most as many as a bounded pool has room for."""
    spec = pool.spec
    window = min(max(4 * spec.most_concurrent, FEWEST_AHEAD), MOST_AHEAD)
    bound = spec.backpressure
    if bound is None:
        return window
    if bound.on_full is OnFull.FAIL_FAST:
        return max(spec.most_concurrent, 1)
    return max(min(window, bound.per_key or window, bound.depth or window), 1)


class SyncMapped(Generic[R_co]):
    """The results of a map, in order, for threads: `get()` for the list, or iterate over them.

    The thread that waits for the results takes the items, one at a time, as there is room.
    """

    def __init__(
        self,
        bridge: LoopBridge,
        pool: DeclaredPool,
        fn: Callable[[Any], Any] | TaskFunction[..., R_co, Any],
        items: Iterable[Any] | AsyncIterable[Any],
        options: Mapping[str, Any],
        *,
        progress: bool = False,
    ) -> None:
        self._bridge = bridge
        total = len(items) if isinstance(items, Sized) else None
        self._feed: Feed[Any] | None = None
        if isinstance(items, Iterable) and type(items) not in _NEVER_BLOCK:
            items = self._feed = Feed(items)
        self._mapped: Mapped[R_co] = Mapped(
            pool, fn, items, options, progress=progress, total=total
        )

    def get(self) -> list[R_co]:
        """Wait for all results; the first failure stops the map and is raised."""
        self._bridge.check_transaction()
        if self._feed is None:
            return self._bridge.call(self._all)
        return self._bridge.fed(self._feed, self._all)

    async def _all(self) -> list[R_co]:
        return await self._mapped

    def __iter__(self) -> Iterator[R_co]:
        self._bridge.check_transaction()
        return self._bridge.iterate(self._mapped.__aiter__, self._feed)


_NEVER_BLOCK = frozenset({list, tuple, range, set, frozenset, dict, str, bytes})
"""Iterables that the loop may read itself; a thread reads all others."""
