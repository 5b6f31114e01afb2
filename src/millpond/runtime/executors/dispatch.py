"""Elsewhere: handlers that do not run on the loop, but in a thread or in a process of their own."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.runtime.executors.threads import Threads
from millpond.runtime.worker.job import CancelReason, Closure, Job, Where
from millpond.runtime.worker.slot import as_coroutine, stepped

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.worker.worker import Worker

T = TypeVar("T")


class Elsewhere:
    """The threads and processes of one worker; none are made before they are needed."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._threads: Threads | None = None
        self._processes: Any = None
        self.busy = 0
        """How many handlers are at work off the loop."""

    async def run(self, job: Job) -> Any:  # noqa: ANN401 - whatever the handler returns
        """Run a job where it wants to run."""
        if job.body.where is Where.PROCESS:
            return await self._in_process(job)
        return await self._in_thread(job)

    async def close(self) -> None:
        """Let threads go and kill processes."""
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            await self._processes.close()

    def call(self, fn: Callable[[], T]) -> asyncio.Future[T]:
        """Call something that blocks in a thread, which goes on if nobody waits for it any more."""
        if self._threads is None:
            self._threads = Threads(self._worker.loop)
        return self._threads.run(fn)

    async def _in_thread(self, job: Job) -> Any:  # noqa: ANN401
        body, context = job.body, job.context
        call = body.fn if isinstance(body, Closure) else partial(body.invoke, job)
        done = self.call(partial(context.run, call))
        self.busy += 1
        try:
            result = await self._whatever_happens(job, done)
        finally:
            self.busy -= 1
        if asyncio.iscoroutine(result) or hasattr(result, "__await__"):
            # A plain function that returns an awaitable, such as a lambda around a coroutine.
            if job.slot is not None and job.slot.task.cancelling():
                # The thread could not be interrupted; what it gave need not begin.
                if asyncio.iscoroutine(result):
                    result.close()
                raise asyncio.CancelledError
            return await stepped(as_coroutine(result), context)
        return result

    async def _whatever_happens(self, job: Job, done: asyncio.Future[Any]) -> Any:  # noqa: ANN401
        """Wait for a thread, which nothing can stop: its task runs until it ends.

        A lost lease is not worth the wait, nor is a task that its worker has settled and left.
        """
        while True:
            try:
                return await asyncio.shield(done)
            except asyncio.CancelledError:
                if done.done():
                    # It ended as it was interrupted, or raised this itself.
                    return done.result()
                if job.why is CancelReason.LEASE_LOST or job.settled or not self._worker.joined:
                    # A daemon thread does not keep its process.
                    done.add_done_callback(_forget)
                    raise

    async def _in_process(self, job: Job) -> Any:  # noqa: ANN401
        if self._processes is None:
            from millpond.runtime.executors.processes.parent import Processes  # noqa: PLC0415 - only where used

            self._processes = Processes(self._worker)
        self.busy += 1
        try:
            return await self._processes.run(job)
        finally:
            self.busy -= 1


def _forget(done: asyncio.Future[Any]) -> None:
    """Take note of an exception nobody waits for any more."""
    if not done.cancelled():
        done.exception()
