"""Run one command for one item, and return the result to store."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from millpond.cli.run.output import CommandFailed, Ended, Ran, collect, failure
from millpond.cli.run.process import found
from millpond.core.backoff import LONGEST, Retry, delay
from millpond.core.handler_signals import GiveUp, RetryLater

if TYPE_CHECKING:
    from millpond.cli.run.execution import CommandRun
    from millpond.cli.run.process import Process, Processes
    from millpond.cli.run.signals import Interrupts
    from millpond.pool.context import Context

TRY_LATER = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY}
"""Errors of starting a command that are not the fault of its item."""

PAUSE = 1.0
"""Seconds until the start is retried."""


class Attempts:
    """Runs the commands of a run, and holds their output until it is stored."""

    def __init__(self, run: CommandRun, processes: Processes, interrupts: Interrupts) -> None:
        self._run = run
        self._processes = processes
        self._interrupts = interrupts
        self.ended: dict[int, tuple[str, Ended]] = {}
        """Items and the results of their commands, by task, until they are stored."""
        options, program = run.options, run.template.program
        self._program = None if program is None else found(program)
        pause = options.retry_delay
        self._backoff = Retry(initial=pause, max_delay=max(pause, LONGEST), jitter=0.0)

    def pause_before_retry(self, attempt: int, _error: BaseException) -> float | None:
        """Return the seconds until the next retry; None = no retry."""
        if attempt > self._run.options.retries:
            return None
        return delay(self._backoff, attempt, jitter=0.0)

    async def run(self, ctx: Context, item: str) -> Ran:
        """Run the command for one item."""
        run = self._run
        arguments = run.template.arguments(item, ctx.sequence)
        if run.options.verbose:
            run.note(run.template.shown(item, ctx.sequence))
        run.tally.running += 1
        try:
            ended = await self._ended(ctx, arguments)
        finally:
            run.tally.running -= 1
        self.ended[ctx.task_id] = item, ended
        if ended.code or ended.timed_out:
            raise failure(ended)
        if isinstance(ended.out, bytes) and isinstance(ended.err, bytes):
            return Ran(ended.seconds, ended.out, ended.err)
        return Ran(ended.seconds, in_files=True)

    async def _ended(self, ctx: Context, arguments: list[str]) -> Ended:
        options, store = self._run.options, self._run.store
        process = self._start(arguments)
        try:
            if options.timeout is not None:
                process.limit(options.timeout)
            code = await process.exit_code()
            if self._interrupts.killing:
                # A second signal killed it. That is not the item's result: the worker gives the
                # task back.
                await asyncio.Event().wait()
            final = ctx.attempt > options.retries
            return collect(process, code, store.outputs, ctx.task_id, final=final)
        finally:
            self._processes.ended(process)

    def _start(self, arguments: list[str]) -> Process:
        program = self._program or found(arguments[0])
        if program is None:
            raise GiveUp from CommandFailed("exit 127", f"command not found: {arguments[0]!r}")
        try:
            return self._processes.start(program, arguments)
        except OSError as error:
            if error.errno in TRY_LATER:
                raise RetryLater(PAUSE, spend=False) from None
            raise GiveUp from CommandFailed("exit 126", f"cannot be run: {error.strerror}")
        except ValueError as error:
            # For example a NUL in an item: no argument can contain one.
            raise GiveUp from CommandFailed("exit 126", f"cannot be run: {error}")
