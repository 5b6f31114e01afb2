"""An attempt: one command, from its item to what is stored of it."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from millpond.cli.run.output import CommandFailed, Ended, Ran, collected, failure
from millpond.cli.run.process import found
from millpond.core.backoff import LONGEST, Retry, delay
from millpond.core.handler_signals import GiveUp, RetryLater

if TYPE_CHECKING:
    from millpond.cli.run.execution import Course
    from millpond.cli.run.process import Process, Processes
    from millpond.cli.run.signals import Interrupts
    from millpond.pool.context import Context

TRY_LATER = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY}
"""Why a command could not be started that is no fault of its item."""

PAUSE = 1.0
"""Seconds until it is tried again then."""


class Attempts:
    """Runs commands for a run, and holds what they wrote until that is stored."""

    def __init__(self, course: Course, processes: Processes, interrupts: Interrupts) -> None:
        self._course = course
        self._processes = processes
        self._interrupts = interrupts
        self.ended: dict[int, tuple[str, Ended]] = {}
        """Items and how their commands ended, by task, until that is stored."""
        wanted, program = course.wanted, course.template.program
        self._program = None if program is None else found(program)
        pause = wanted.retry_delay
        self._backoff = Retry(initial=pause, max_delay=max(pause, LONGEST), jitter=0.0)

    def pause_before_retry(self, attempt: int, _error: BaseException) -> float | None:
        """Return after how many seconds to try again; None = not at all."""
        if attempt > self._course.wanted.retries:
            return None
        return delay(self._backoff, attempt, jitter=0.0)

    async def run(self, ctx: Context, item: str) -> Ran:
        """Run the command for one item."""
        course = self._course
        arguments = course.template.arguments(item, ctx.sequence)
        if course.wanted.verbose:
            course.tell(course.template.shown(item, ctx.sequence))
        course.tally.running += 1
        try:
            ended = await self._ended(ctx, arguments)
        finally:
            course.tally.running -= 1
        self.ended[ctx.task_id] = item, ended
        if ended.code or ended.timed_out:
            raise failure(ended)
        if isinstance(ended.out, bytes) and isinstance(ended.err, bytes):
            return Ran(ended.seconds, ended.out, ended.err)
        return Ran(ended.seconds, in_files=True)

    async def _ended(self, ctx: Context, arguments: list[str]) -> Ended:
        wanted, place = self._course.wanted, self._course.place
        process = self._started(arguments)
        try:
            if wanted.timeout is not None:
                process.limit(wanted.timeout)
            code = await process.exit_code()
            if self._interrupts.killing:
                # It was killed because all is to stop, which says nothing of its item: the worker
                # is about to give that back.
                await asyncio.Event().wait()
            final = ctx.attempt > wanted.retries
            return collected(process, code, place.outputs, ctx.task_id, final=final)
        finally:
            self._processes.ended(process)

    def _started(self, arguments: list[str]) -> Process:
        program = self._program or found(arguments[0])
        if program is None:
            raise GiveUp from CommandFailed("exit 127", f"there is no command {arguments[0]!r}")
        try:
            return self._processes.start(program, arguments)
        except OSError as error:
            if error.errno in TRY_LATER:
                raise RetryLater(PAUSE, spend=False) from None
            raise GiveUp from CommandFailed("exit 126", f"it cannot be run: {error.strerror}")
        except ValueError as error:
            # Such as a NUL in an item, which no argument can have.
            raise GiveUp from CommandFailed("exit 126", f"it cannot be run: {error}")
