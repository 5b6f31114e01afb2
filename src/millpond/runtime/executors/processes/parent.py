"""Handlers in processes: what a child gets, and what its answer means here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.handler_signals import Cancelled, GiveUp, RetryLater, Throttled
from millpond.runtime.error_info import ErrorInfo
from millpond.runtime.executors.processes.briefing import Brief, Verdict
from millpond.runtime.executors.processes.process_pool import ProcessPool
from millpond.runtime.executors.processes.protocol import Broke, Died, Done, Errand, Killed, Line
from millpond.runtime.jobs.job import Handler
from millpond.runtime.jobs.outcome import BadResult, Encoded, Misfit, RemoteError, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.jobs.job import Job
    from millpond.runtime.observe.hooks import Hooks

MOST_CHILDREN = 256


class ChildDied(Exception):
    """The process of a handler ended before the handler did."""


class Processes:
    """The child processes of one worker."""

    def __init__(
        self,
        concurrency: int | None,
        hooks: Hooks,
        report_progress: Callable[[Job, float, str], None],
    ) -> None:
        self._pool = ProcessPool(concurrency or MOST_CHILDREN)
        self._hooks = hooks
        self._report_progress = report_progress

    async def run(self, job: Job) -> Any:  # noqa: ANN401 - what the handler returned, encoded
        """Run a job in a child; cancelling this kills it."""
        body = job.body
        assert isinstance(body, Handler)  # noqa: S101
        assert body.process is not None  # noqa: S101 - closures never run in processes
        module, qualname = body.process
        probes = self._hooks.probes
        brief = Brief(
            leased=job.leased,
            started_at=job.started_at,
            deadline=job.deadline,
            trace={} if probes is None else probes.trace_for_process(job),
        )
        errand = Errand(
            module=module,
            qualname=qualname,
            payload=job.leased.call.payload,
            context=msgspec.msgpack.encode(brief),
        )
        line = Line()
        watch = asyncio.ensure_future(_pass_on_cancel(job, line))
        try:
            answer = await self._pool.run(
                errand, on_message=lambda message: self._received(job, message), line=line
            )
        finally:
            watch.cancel()
            # It may have waited for a child until it was stopped.
            job.began = line.reached
        match answer:
            case Done(value=value):
                return Encoded(value)
            case Broke():
                raise _error(answer)
            case Died(reason=reason):
                raise ChildDied(f"the handler's process ended: {reason}")
            case Killed(reason=reason):
                raise asyncio.CancelledError(reason)

    def _received(self, job: Job, message: bytes) -> None:
        """Take a message of a handler: its progress, or the weight it really used."""
        try:
            said = msgspec.msgpack.decode(message, type=tuple[float, str] | int)
        except msgspec.MsgspecError:
            return
        if isinstance(said, int):
            job.weight = said
            return
        self._report_progress(job, *said)

    async def close(self) -> None:
        """Kill what runs and reap every child."""
        await self._pool.close()


async def _pass_on_cancel(job: Job, line: Line) -> None:
    await job.cancelled.wait()
    line.cancel(job.why or "")


def _error(broke: Broke) -> Exception:
    """Return the exception that stands here for the one raised in the child."""
    verdict = Verdict()
    if broke.data:
        verdict = msgspec.msgpack.decode(broke.data, type=Verdict)
    if verdict.bad_result:
        return BadResult(broke.message)
    if verdict.misfit is not None:
        return Misfit(broke.message, verdict.misfit)
    if verdict.unreadable:
        return Unreadable(broke.message)
    if verdict.retry_in is not None and verdict.hold is not None:
        return Throttled(verdict.retry_in, scope=verdict.hold)
    if verdict.retry_in is not None:
        return RetryLater(verdict.retry_in, spend=verdict.spend)
    if verdict.cancelled:
        return Cancelled(broke.message)
    info = ErrorInfo(broke.kind, broke.message, broke.traceback)
    error = RemoteError(info, (*verdict.kinds, broke.kind))
    if verdict.give_up:
        given_up = GiveUp(broke.message)
        given_up.__cause__ = error
        return given_up
    return error
