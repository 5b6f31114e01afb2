"""Streams: the outcomes of a run as its tasks end, on the loop and for threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millpond.core.lifecycle import Status
from millpond.pool.outcome import Outcome, decoded
from millpond.pool.runs.ended_tasks import EndedTasks
from millpond.pool.runs.opening import new_run, open_run
from millpond.pool.runs.report import RunReport, report_of
from millpond.pool.runs.watch import concluded, finish
from millpond.pool.temporary_worker import serving
from millpond.runtime.error_info import read

if TYPE_CHECKING:
    from typing import Self

    from millpond.core.run import NewRun, RunView
    from millpond.core.task import Task
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.loop_bridge import LoopBridge
    from millpond.pool.outcome import DecoderOf
    from millpond.pool.task import BoundCall
    from millpond.runtime.waiting.task_result import TaskResult


class Stream:
    """The outcomes of a run as its tasks end.

    `async with pool.stream(calls) as outcomes:` submits the calls. Leaving the block before the
    end of the run cancels its other tasks.
    """

    def __init__(
        self,
        pool: DeclaredPool,
        decoder_of: DecoderOf,
        seed: Sequence[BoundCall[Any]],
        *,
        name: str | None,
        on_error: str,
        max_tasks: int | None,
    ) -> None:
        self._pool = pool
        self._decoder_of = decoder_of
        self._seed = seed
        self._name = name
        self._on_error = on_error
        self._max_tasks = max_tasks
        self._opened: RunView | None = None
        self._served = contextlib.AsyncExitStack()
        self._ends: asyncio.Queue[int | None] = asyncio.Queue()
        self._reader: EndedTasks | None = None
        """Reads the ends of tasks from the audit, where other processes end tasks too."""
        self._watch: asyncio.Task[None] | None = None
        self._view: RunView | None = None
        self.report: RunReport | None = None
        """The report of the run, once the last outcome was yielded."""

    async def __aenter__(self) -> Self:
        await self._pool.ready()
        runtime = self._pool.runtime
        new = new_run(self._pool, self._name, self._on_error, self._max_tasks)
        runtime.waiting.listen(self, self._on_end)
        try:
            await self._served.enter_async_context(serving(self._pool))
            if runtime.shared:
                await self._begin_reading(new)
            view = await open_run(self._pool, new, self._seed)
            if self._reader is not None:
                self._reader.run = view.id
        except BaseException:
            runtime.waiting.listen(self, None)
            await self._served.aclose()
            raise
        self._opened = view
        self._watch = runtime.spawn(self._watch_run(view.id))
        return self

    async def _begin_reading(self, new: NewRun) -> None:
        """Begin to read at the end of the audit; a run of that name may be under way."""
        runtime = self._pool.runtime
        known = None if new.name is None else await runtime.view.run_named(new.pool, new.name)
        self._reader = EndedTasks(runtime, new.id if known is None else known.id)
        await self._reader.begin()

    def _on_end(self, task: int, _end: TaskResult | None) -> None:
        if self._reader is None or self._ends.empty():
            # One entry is enough to make it read all new ends.
            self._ends.put_nowait(task)

    async def _watch_run(self, run: int) -> None:
        try:
            self._view = await finish(self._pool, run)
        finally:
            self._ends.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[Outcome]:
        """Yield the outcome of each task of the run when it has ended."""
        return self._outcomes()

    async def _outcomes(self) -> AsyncIterator[Outcome]:
        runtime, opened = self._pool.runtime, self._opened
        assert opened is not None  # noqa: S101 - the block was entered
        over = False
        while not over or not self._ends.empty():
            task = await self._ends.get()
            over = over or task is None
            if self._reader is not None:
                runtime.must_be_open()
                async for ended in self._reader.more():
                    yield self._outcome(ended)
                continue
            record = None if task is None else await runtime.view.task(task)
            if record is None or record.new.run != opened.id or record.new.is_callback:
                continue
            if record.status.terminal:
                yield self._outcome(record)
        assert self._watch is not None  # noqa: S101
        await asyncio.wait((self._watch,))
        if self._watch.cancelled():
            # The Millpond was closed; the caller was not cancelled.
            runtime.must_be_open()
        self._watch.result()
        assert self._view is not None  # noqa: S101
        if opened.finished and opened.resumed:
            self.report = report_of(opened)
            return
        self.report = await concluded(
            self._pool, self._view, self._max_tasks, resumed=opened.resumed
        )

    def _outcome(self, task: Task) -> Outcome:
        end = self._pool.runtime.waiting.read(task)
        result = end.value
        if result is None and end.result is not None:
            function = task.new.call.function
            result = decoded(task.new.id, task.new.pool, function, end.result, self._decoder_of)
        return Outcome(
            task_id=task.new.id,
            pool=task.new.pool,
            function=task.new.call.function,
            status=str(task.status),
            key=task.new.key,
            labels=task.new.labels,
            result=result,
            result_stored=end.value is not None
            or task.result is not None
            or task.status is not Status.COMPLETED,
            error=read(task.error),
            reason=task.reason,
            attempts=task.attempt,
        )

    async def __aexit__(self, *_: object) -> None:
        runtime = self._pool.runtime
        runtime.waiting.listen(self, None)
        try:
            if self._watch is not None and not self._watch.done():
                await runtime.control.cancel_run(self._opened.id if self._opened is not None else 0)
                self._watch.cancel()
            if self._watch is not None:
                await asyncio.gather(self._watch, return_exceptions=True)
        finally:
            await self._served.aclose()


class SyncStream:
    """The outcomes of a run as its tasks end, for threads; leaving early cancels the rest."""

    def __init__(self, bridge: LoopBridge, stream: Stream) -> None:
        self._bridge = bridge
        self._stream = stream

    @property
    def report(self) -> RunReport | None:
        """The report of the run, once it has ended."""
        return self._stream.report

    def __enter__(self) -> Self:
        self._bridge.write(self._stream.__aenter__)
        return self

    def __iter__(self) -> Iterator[Outcome]:
        return self._bridge.iterate(self._stream.__aiter__)

    def __exit__(self, *_: object) -> None:
        self._bridge.call(self._stream.__aexit__)
