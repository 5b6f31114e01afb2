"""Executors: run handlers off the loop, in a thread or in a process."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.core.service import Service
from millpond.runtime.executors.threads import Threads
from millpond.runtime.jobs.job import CancelReason, Closure, Job, Where
from millpond.runtime.jobs.stepping import as_coroutine, stepped

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.executors.processes.parent import Processes
    from millpond.runtime.observe.hooks import Hooks

T = TypeVar("T")


class Executors(Service):
    """The threads and processes of one worker; each is made when it is first needed."""

    _loop: asyncio.AbstractEventLoop
    _concurrency: int | None
    _hooks: Hooks
    _report_progress: Callable[[Job, float, str], None]
    _threads: Threads | None = None
    _processes: Processes | None = None
    busy: int = 0
    """How many handlers run off the loop."""

    async def run(self, job: Job) -> Any:  # noqa: ANN401 - what the handler returns
        """Run a job in a thread or in a process, as its handler says."""
        if job.body.where is Where.PROCESS:
            return await self._in_process(job)
        return await self._in_thread(job)

    async def close(self) -> None:
        """Let threads end and kill processes."""
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            await self._processes.close()

    def call(self, fn: Callable[[], T]) -> asyncio.Future[T]:
        """Call something that blocks in a thread; cancelling the future does not stop it."""
        if self._threads is None:
            self._threads = Threads(self._loop)
        return self._threads.run(fn)

    async def _in_thread(self, job: Job) -> Any:  # noqa: ANN401
        body, context = job.body, job.context
        call = body.fn if isinstance(body, Closure) else partial(body.invoke, job)
        done = self.call(partial(context.run, call))
        self.busy += 1
        try:
            result = await self._until_done(job, done)
        finally:
            self.busy -= 1
        if asyncio.iscoroutine(result) or hasattr(result, "__await__"):
            # A plain function that returns an awaitable, such as a lambda around a coroutine.
            if job.slot is not None and job.slot.task.cancelling():
                # The thread could not be interrupted; the awaitable it returned need not begin.
                if asyncio.iscoroutine(result):
                    result.close()
                raise asyncio.CancelledError
            return await stepped(as_coroutine(result), context)
        return result

    async def _until_done(self, job: Job, done: asyncio.Future[Any]) -> Any:  # noqa: ANN401
        """Wait for a thread, which nothing can stop: its task runs until it ends.

        It does not wait after a lost lease, nor for a task that its worker has settled and left.
        """
        while True:
            try:
                return await asyncio.shield(done)
            except asyncio.CancelledError:
                if done.done():
                    # It ended as it was interrupted, or raised this itself.
                    return done.result()
                if job.why is CancelReason.LEASE_LOST or job.settled or not job.worker.joined:
                    # A daemon thread does not keep its process.
                    done.add_done_callback(_retrieve_exception)
                    raise

    async def _in_process(self, job: Job) -> Any:  # noqa: ANN401
        if self._processes is None:
            from millpond.runtime.executors.processes.parent import Processes  # noqa: PLC0415 - only where used

            self._processes = Processes(self._concurrency, self._hooks, self._report_progress)
        self.busy += 1
        try:
            return await self._processes.run(job)
        finally:
            self.busy -= 1


def _retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Mark an exception as seen that no task waits for any more."""
    if not done.cancelled():
        done.exception()
