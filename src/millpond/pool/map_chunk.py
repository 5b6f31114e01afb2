"""Chunks: how a map of a plain coroutine function goes through a pool.

For an item that ends at once, a task of its own would cost more than the work. So a map of a plain
`async def` sends *chunks* through the pool: tasks like any other, ordered, limited and recorded,
each of which runs item after item for one slice of time. An item that takes longer than a slice is
a chunk of its own; between two chunks all other waiting tasks have a turn. An item that fails
leaves its chunk and is tried again as a task of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context, copy_context
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any

from millpond.core.backoff import Retry
from millpond.core.backoff import delay as backoff
from millpond.core.control import Hold
from millpond.core.handler_signals import Cancelled, GiveUp, RetryLater, Throttled
from millpond.core.lifecycle import Status
from millpond.core.spec import OnFull, OrderKind
from millpond.pool.pool_submitter import PoolSubmitter
from millpond.pool.registered import is_async
from millpond.pool.task import TaskFunction
from millpond.runtime.jobs.job import current_job
from millpond.runtime.jobs.outcome import may_retry
from millpond.runtime.jobs.policy import DEFAULT_RETRY
from millpond.runtime.jobs.stepping import as_coroutine, stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.submitted_task import SubmittedTask
    from millpond.runtime.waiting.task_result import TaskResult

SLICE = 0.05
"""Seconds for which a chunk takes new items: then all other waiting tasks have a turn."""

STRETCH = 0.005
"""Seconds for which items that never wait may keep the loop busy."""

MOST_AHEAD = 10_000
"""How many results may wait for the caller before the map takes no more items."""

SHARED_OPTIONS = frozenset({"priority", "labels", "submitted_by"})


def fits(pool: DeclaredPool, fn: Any, items: Any, options: Mapping[str, Any]) -> bool:  # noqa: ANN401
    """Return whether a map may run in chunks: where nothing depends on each item being a task."""
    spec, bound = pool.spec, pool.spec.backpressure
    return (
        not isinstance(fn, TaskFunction)
        and is_async(fn)
        and hasattr(items, "__iter__")
        and options.keys() <= SHARED_OPTIONS
        and isinstance(pool.retry or DEFAULT_RETRY, Retry)
        and not spec.strict
        and not spec.has_flow_control
        and spec.order.kind is not OrderKind.FAIR
        and (bound is None or bound.on_full is OnFull.BLOCK_SUBMITTER)
    )


class ChunkedMap:
    """One map under way: its items, the chunks that run them, the results in order."""

    def __init__(
        self,
        pool: DeclaredPool,
        fn: Callable[[Any], Any],
        items: Iterable[Any],
        options: Mapping[str, Any],
    ) -> None:
        self._pool = pool
        self._submitter = PoolSubmitter(pool)
        self._runtime = pool.runtime
        self._fn = fn
        self._items: Iterator[Any] = iter(items)
        self._expected = length_hint(items, -1)
        self._options = options
        self._most = _most_under_way(pool)
        self._policy = pool.retry if isinstance(pool.retry, Retry) else DEFAULT_RETRY
        self._context = copy_context()
        self._again: deque[tuple[int, Any]] = deque()
        """Items whose chunk was interrupted: they go first."""
        self._results: dict[int, Any] = {}
        self._errors: dict[int, BaseException] = {}
        self._taken = 0
        self._given = 0
        self._exhausted = False
        self._under_way: dict[int, SubmittedTask] = {}
        self._alone: dict[int, SubmittedTask] = {}
        self._sending: dict[asyncio.Task[Any], None] = {}
        """Submits of items that are tried again."""
        self._changed: asyncio.Future[None] | None = None
        self._chunk_error: BaseException | None = None

    async def next(self) -> tuple[bool, Any]:
        """Return (True, the next result in order), or (False, None) after the last."""
        while True:
            if self._given in self._results:
                result = self._results.pop(self._given)
                self._given += 1
                return True, result
            if self._given in self._errors:
                raise self._errors.pop(self._given)
            if self._chunk_error is not None:
                raise self._chunk_error
            if self._exhausted and not self._again and self._given == self._taken:
                return False, None
            if self._wants_chunks():
                await self._start_chunks()
            else:
                await self._wait_for_change()

    def _wants_chunks(self) -> bool:
        waits = bool(self._again) or self._may_take()
        return waits and len(self._under_way) < self._most

    async def _start_chunks(self) -> None:
        """Submit as many chunks as may run beside those under way, at most one per item."""
        if not self._again:
            # Take one item first: an empty source needs no task.
            first = self._take()
            if first is None:
                return
            self._again.append(first)
        count = self._most - len(self._under_way)
        if self._expected >= 0:
            count = min(count, max(self._expected - self._taken + len(self._again), 1))
        tasks = await self._submitter.submit_batch([self._run_chunk] * count, self._options)
        waiting = self._runtime.waiting
        for task in tasks:
            self._under_way[task.id] = task
            waiting.on_end(task.id, partial(self._on_chunk_end, task.id))

    def _on_chunk_end(self, task: int, end: TaskResult | None) -> None:
        chunk = self._under_way.pop(task, None)
        if chunk is not None and (end is None or end.status is not Status.COMPLETED):
            self._runtime.spawn(self._read_chunk_error(chunk, end))
        self._wake()

    async def _read_chunk_error(self, task: SubmittedTask, end: TaskResult | None) -> None:
        try:
            await task.result_of(end)
        except Exception as error:  # noqa: BLE001 - raised where the results are taken
            self._chunk_error = error
        self._wake()

    async def _run_chunk(self) -> None:
        """Run items one after another until the slice is over."""
        now = self._pool.loop.time
        begun = now()
        over, pause = begun + SLICE, begun + STRETCH
        fn, results, base = self._fn, self._results, self._context.copy()
        # An item submits and waits as part of this chunk's job.
        base.run(current_job.set, current_job.get())
        while (found := self._take()) is not None:
            index, item = found
            context = base.copy()
            try:
                results[index] = await stepped(as_coroutine(context.run(fn, item)), context)
            except Exception as error:  # noqa: BLE001 - it fails this item alone
                self._failed(index, item, error)
            except BaseException:
                # It may have done part of its work: an item with one attempt is not begun again.
                if self._policy.attempts > 1:
                    self._again.append(found)
                raise
            if index == self._given:
                self._wake()
            moment = now()
            if moment > over:
                return
            if moment > pause:
                await asyncio.sleep(0)
                pause = now() + STRETCH

    def _may_take(self) -> bool:
        """Return whether to take items at all: not behind one that failed, nor too far ahead."""
        ahead = self._taken - self._given
        return not self._exhausted and not self._errors and ahead < MOST_AHEAD

    def _take(self) -> tuple[int, Any] | None:
        """Return the next item and its number, or None if there is none now."""
        if self._again:
            return self._again.popleft()
        if not self._may_take():
            return None
        try:
            item = next(self._items)
        except StopIteration:
            self._exhausted = True
            self._wake()
            return None
        except Exception as error:  # noqa: BLE001 - the source of the items failed
            self._exhausted = True
            self._errors[self._taken] = error
            self._taken += 1
            self._wake()
            return None
        index = self._taken
        self._taken += 1
        return index, item

    def _failed(self, index: int, item: Any, error: Exception) -> None:  # noqa: ANN401
        """Submit an item that failed as a task of its own, with its pool's retry policy.

        In the background: a full pool has room only when a task starts, and this chunk has a slot.
        """
        policy = self._policy
        attempts, pause = policy.attempts - 1, 0.0
        if isinstance(error, RetryLater):
            attempts, pause = attempts + (not error.spend), error.seconds
        elif isinstance(error, Throttled):
            attempts, pause = attempts + 1, error.retry_after
            if error.scope == "pool":
                self._runtime.spawn(self._hold_pool(error.retry_after))
        elif isinstance(error, (GiveUp, Cancelled)) or not may_retry(policy, error):
            attempts = 0
        else:
            pause = backoff(policy, 1, jitter=self._runtime.random())
        options = {**self._options, "delay": pause, "retry": policy.once_less()}
        if attempts < 1:
            options["retry"], options["delay"] = Retry.never(), 0.0
            fn = _raising(error)
        else:
            fn = _calling(self._fn, item, self._context)
        sending = self._runtime.spawn(self._send_alone(index, fn, options, error))
        self._sending[sending] = None
        sending.add_done_callback(self._sending.pop)

    async def _hold_pool(self, seconds: float) -> None:
        """Hold the pool back for the fleet, as the settlement of a throttled task does."""
        order = Hold(self._pool.spec.name, seconds)
        self._runtime.answers.apply(await self._runtime.store.control(order))

    async def _send_alone(
        self, index: int, fn: Callable[[], Any], options: Mapping[str, Any], error: Exception
    ) -> None:
        try:
            (task,) = await self._submitter.submit_batch([fn], options)
        except Exception as refusal:  # noqa: BLE001 - raised where the result would have been
            refusal.__cause__ = error
            self._errors[index] = refusal
            self._wake()
            return
        self._alone[index] = task
        self._runtime.waiting.on_end(task.id, lambda end: self._alone_ended(index, end))

    def _alone_ended(self, index: int, end: TaskResult | None) -> None:
        task = self._alone.pop(index, None)
        if task is not None:
            self._runtime.spawn(self._take_outcome(index, task, end))
        self._wake()

    async def _take_outcome(self, index: int, task: SubmittedTask, end: TaskResult | None) -> None:
        try:
            self._results[index] = await task.result_of(end)
        except Exception as error:  # noqa: BLE001 - raised where the result would have been
            self._errors[index] = error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def _wait_for_change(self) -> None:
        self._runtime.must_be_open()
        changed = self._changed = self._pool.loop.create_future()
        async with self._runtime.waits.waiting_for(next(iter(self._under_way), None)):
            await changed

    async def stop(self) -> None:
        """Cancel the chunks and the single items that have not ended."""
        self._exhausted = True
        self._again.clear()
        for sending in self._sending:
            sending.cancel()
        left = (*self._under_way, *(task.id for task in self._alone.values()))
        self._under_way.clear()
        self._alone.clear()
        if left and not self._runtime.closed:
            await self._runtime.control.cancel(left, interrupt=True)


def _most_under_way(pool: DeclaredPool) -> int:
    """Return how many chunks there may be: as many as may run, and as may wait."""
    most = max(pool.spec.max_concurrent, 1)
    bound = pool.spec.backpressure
    return most if bound is None or bound.depth is None else min(most, bound.depth)


def _raising(error: Exception) -> Callable[[], Any]:
    async def fail() -> None:
        raise error

    return fail


def _calling(fn: Callable[[Any], Any], item: Any, context: Context) -> Callable[[], Any]:  # noqa: ANN401
    async def call() -> Any:  # noqa: ANN401 - what the function returns
        own = context.copy()
        return await stepped(as_coroutine(own.run(fn, item)), own)

    return call
