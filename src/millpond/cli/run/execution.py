"""Execute a run: submit its items as tasks, run a command for each, and store the results.

The items are tasks of a pool in a store of their own. So the pool does limits, rates, retries and
recovery after a crash; this module only runs commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from millpond.cli.run.attempt import Attempts
from millpond.cli.run.exits import SIGNAL_EXITS, RunExit
from millpond.cli.run.items import ItemNames, packed, unpacked
from millpond.cli.run.orphans import Ledger
from millpond.cli.run.output import Ran
from millpond.cli.run.printer import Printer
from millpond.cli.run.process import Processes
from millpond.cli.run.progress import DRAW_EVERY, ProgressLine, Tally, summary
from millpond.cli.run.signals import Interrupts
from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.escape import plain
from millpond.core.lifecycle import Status
from millpond.core.spec import fifo
from millpond.pool.context import Context
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from millpond.pool.pool_submitter import PoolSubmitter
from millpond.pool.task import BoundCall, TaskFunction
from millpond.runtime.retention import Keep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from millpond.cli.run.request import RunOptions
    from millpond.cli.run.run_store import RunStore
    from millpond.cli.run.template import Template
    from millpond.core.task import Task
    from millpond.pool.pool import Pool
    from millpond.runtime.observe.hooks import Observed
    from millpond.runtime.worker.worker import Worker

POOL = "run"
FUNCTION = "command"

KEPT_FOR = 10 * 365 * 86_400.0
"""Seconds for which a run keeps its results: until the run itself is removed."""

KEEP = Keep(completed=KEPT_FOR, failed=KEPT_FOR, keys=KEPT_FOR, audit=0.0)
"""Retention of a run. No audit: this command does not read it."""

LEASE = 3_600.0
"""Seconds of a lease. A run has one process, and its lock shows whether that is alive. So this is
only how long the machine may sleep, or Ctrl-Z may stop `millpond run`."""

CHECK_EVERY = 1.0
"""Seconds between two checks that the worker is alive and items are left."""

ENDLESS = 10 * 365 * 86_400.0

NAMED = 5
"""How many failed items the summary names."""


class CommandRun:
    """One run, from its first item to its summary."""

    def __init__(
        self,
        store: RunStore,
        template: Template,
        options: RunOptions,
        items: AsyncIterator[list[str]],
    ) -> None:
        self.store = store
        self.template = template
        self.options = options
        self.items = items
        self.tally = Tally()
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self.line = ProgressLine(self.tally, shown=terminal and not options.quiet)
        self.printer = Printer(in_order=options.in_order, tag=options.tag, before=self.line.clear)
        self.over = asyncio.Event()
        """Set when all items have ended."""
        self.soft = asyncio.Event()
        """Set to start no more commands."""
        self.hard = asyncio.Event()
        """Set to kill the running commands."""
        self.halted = False
        self._failed_before = 0
        self.unwritten: OSError | None = None
        """Why output cannot be written: its reader has closed the pipe, or the disk is full."""
        self._began = time.monotonic()
        mp = self.mp = Millpond(
            store.url,
            work=False,
            keep=KEEP,
            lease=LEASE,
            durability="normal",
        )
        self.pool: Pool = mp.pool(
            POOL,
            max_concurrent=options.jobs,
            queue=fifo(),
            max_per_key=options.per_key,
            rate=options.rate,
            rate_per_key=options.rate_per_key,
            # Only items whose command runs are claimed, so a kill repeats only those.
            prefetch=0,
        )
        mp.observe(self._on_observed)

    def _registered(self, attempts: Attempts) -> TaskFunction[[str], Ran, Any]:
        @self.pool.task(name=FUNCTION, retry=attempts.pause_before_retry)
        async def command(ctx: Context, item: str) -> Ran:
            return await attempts.run(ctx, unpacked(item))

        return command

    # From its beginning to its end

    async def run(self) -> RunExit:
        """Run all unfinished items; return the exit code."""
        ledger = Ledger(self.store.ledger, self.options.jobs)
        processes = self.processes = Processes(self.store.folder, ledger)
        loop = asyncio.get_running_loop()
        interrupts = self.interrupts = Interrupts(loop, processes, self._on_interrupt)
        interrupts.listen()
        self.attempts = Attempts(self, processes, interrupts)
        self.task = self._registered(self.attempts)
        try:
            async with self.mp:
                await self._prepare()
                with quiet_loggers():
                    async with self.mp.worker(pools=[self.pool]) as worker:
                        await self._work(worker)
                self._print_the_rest()
                await self._print_summary()
        finally:
            self.line.clear()
            interrupts.leave()
            ledger.close()
            self.processes.close()
        return self._exit()

    async def _prepare(self) -> None:
        """Redrive failed items if requested, and count the items of an earlier run."""
        if self.options.redo_failed:
            failed = [task.new.id async for task in stored(self.mp, Status.FAILED)]
            for first in range(0, len(failed), 1_000):
                await self.pool.redrive(failed[first : first + 1_000])
        await self._count()
        self.tally.before, self._failed_before = self.tally.ended, self.tally.failed
        if self.options.in_order:
            await self._expect_unfinished()

    async def _count(self) -> None:
        """Count the items in the store. An item that failed and was retried counts once."""
        tally, view = self.tally, await self.pool.snapshot()
        tally.completed = view.completed
        tally.failed = sum([1 async for _ in stored(self.mp, Status.FAILED)])
        tally.cancelled = sum([1 async for _ in stored(self.mp, Status.CANCELLED)])
        tally.total = tally.ended + view.queued + view.running

    async def _expect_unfinished(self) -> None:
        unfinished = {
            task.sequence: task.new.id
            for status in (Status.RUNNING, Status.QUEUED)
            async for task in stored(self.mp, status)
        }
        self.printer.expect(unfinished[number] for number in sorted(unfinished))

    async def _work(self, worker: Worker) -> None:
        """Run until no item is left, or a signal or a halt stops the run."""
        feeding = asyncio.create_task(self._feed())
        tasks = [asyncio.create_task(self.over.wait()), asyncio.create_task(self.soft.wait())]
        drawing = asyncio.create_task(self._draw()) if self.line.shown else None
        try:
            while not (self.over.is_set() or self.soft.is_set() or worker.stopping):
                await asyncio.wait(
                    {*tasks, feeding} if not feeding.done() else tasks,
                    timeout=CHECK_EVERY,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if feeding.done():
                    feeding.result()
                    await self._check_store()
            feeding.cancel()
            await self._stop(worker)
        finally:
            for one in (feeding, *tasks, *([drawing] if drawing else [])):
                one.cancel()
            await asyncio.gather(feeding, *tasks, return_exceptions=True)

    async def _check_store(self) -> None:
        """Check in the store whether items are left: another process may have cancelled some."""
        if self.tally.running or self.over.is_set():
            return
        view = await internals_of(self.mp).runtime.view.pool(POOL, measured=False)
        if view is not None and not (view.queued + view.running):
            await self._count()
            self.over.set()

    async def _stop(self, worker: Worker) -> None:
        """Wait for running commands; a second signal or a `now` halt kills them."""
        if self.interrupts.first and not self.hard.is_set() and self.tally.running:
            self.note(
                f"{self.tally.running} command(s) still running; press Ctrl-C again to kill them"
            )
        stopping = asyncio.create_task(worker.stop(0.0 if self.hard.is_set() else ENDLESS))
        hurry = asyncio.create_task(self.hard.wait())
        await asyncio.wait((stopping, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stopping.done():
            worker.hurry()
        await stopping

    async def _draw(self) -> None:
        while True:
            self.line.draw()
            await asyncio.sleep(DRAW_EVERY)

    # Items

    async def _feed(self) -> None:
        """Submit items as they are read."""
        known = ItemNames()
        submitter = PoolSubmitter(internals_of(self.pool))
        async for items in self.items:
            works = [self._call(item, known) for item in items]
            answer = await submitter.send(await submitter.prepare(works, {}), None)
            new = [one.task for one in answer.admissions if not one.duplicate]
            self.printer.expect(new)
            self.tally.total += len(new)
        self.tally.reading = False
        self._check()

    def _call(self, item: str, known: ItemNames) -> BoundCall[Ran]:
        options: dict[str, object] = {"idempotency_key": known.name(item)}
        key = self.options.key_of(item)
        if key is not None:
            options["key"] = check.cut(plain(key), bounds.MAX_KEY)
        return BoundCall(self.task, (packed(item),), {}, options)

    # Results

    def _on_observed(self, happened: Observed) -> None:
        """Count a stored result, and print its output."""
        task, tally = happened.task_id, self.tally
        if task is None or happened.pool != POOL:
            return
        item, ended = self.attempts.ended.pop(task, ("", None))
        match happened.kind:
            case "completed":
                tally.completed += 1
            case "failed":
                tally.failed += 1
            case "cancelled" | "rejected":
                tally.cancelled += 1
            case "retry":
                tally.retried += 1
                return
            case _:
                return
        try:
            self.printer.ended(task, item, ended)
        except OSError as error:
            self.unwritten = error
            self.soft.set()
        self._check()

    def _check(self) -> None:
        """Set `over` if all items have ended; halt if the condition of --halt holds."""
        tally, halt = self.tally, self.options.halt
        if not tally.reading and tally.left <= 0:
            self.over.set()
        if halt is not None and not self.halted:
            total = None if tally.reading else tally.total
            failed = tally.failed - self._failed_before
            succeeded = tally.ended - tally.before - failed
            if halt.is_met(failed=failed, succeeded=succeeded, total=total):
                self._halt(now=halt.when == "now")

    def _halt(self, *, now: bool) -> None:
        self.halted = True
        self.soft.set()
        if now:
            self.hard.set()

    def _on_interrupt(self, count: int) -> None:
        self.soft.set()
        if count > 1:
            self.hard.set()

    def _print_the_rest(self) -> None:
        try:
            self.printer.flush()
        except OSError as error:
            self.unwritten = error

    # The end

    async def _print_summary(self) -> None:
        self.line.clear()
        if self.options.quiet:
            return
        tally = self.tally
        self.note(summary(tally, time.monotonic() - self._began))
        if tally.failed:
            await self._print_failed()
        if tally.left or tally.reading:
            again = "; pass the items again: not all were read" if tally.reading else ""
            self.note(f"to run the rest: `millpond run --resume` with the same command{again}")

    async def _print_failed(self) -> None:
        from millpond.cli.run.show import failed_line

        count = 0
        async for task in stored(self.mp, Status.FAILED):
            if count == NAMED:
                more = self.tally.failed - count
                self.note(f"and {more:,} more; --failed lists them, --show NUMBER prints one")
                return
            self.note(failed_line(task))
            count += 1

    def note(self, text: str) -> None:
        """Write a line to stderr."""
        self.line.clear()
        with contextlib.suppress(OSError):
            sys.stderr.write(f"millpond run: {plain(text)}\n")
            sys.stderr.flush()

    def _exit(self) -> RunExit:
        """Return the exit code."""
        first = self.interrupts.first
        unfinished = self.tally.left > 0 or self.tally.reading
        if first is not None and unfinished:
            return SIGNAL_EXITS[first.name]
        if isinstance(self.unwritten, BrokenPipeError):
            return RunExit.PIPE
        if self.unwritten is not None:
            self.note(f"cannot write the output: {self.unwritten.strerror}; --show prints it")
            return RunExit.BROKE
        if unfinished and not self.halted:
            self.note("the worker ended unexpectedly; use --resume to continue")
            return RunExit.BROKE
        return RunExit.FAILED if self.tally.failed else RunExit.DONE


@contextlib.contextmanager
def quiet_loggers() -> Iterator[None]:
    """Silence the loggers for dead workers and failed tasks: this command prints its own lines."""
    levels = {"millpond.maintenance": logging.ERROR, "millpond.tasks": logging.CRITICAL + 1}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


async def stored(mp: Millpond, status: Status | None = None) -> AsyncIterator[Task]:
    """Yield the tasks of a run, in their order."""
    after: int | None = 0
    while after is not None:
        page = await internals_of(mp).runtime.view.tasks(
            POOL, status=status, after=after, limit=1_000
        )
        for task in page.tasks:
            yield task
        after = page.next


async def run(
    store: RunStore, template: Template, options: RunOptions, items: AsyncIterator[list[str]]
) -> RunExit:
    """Run a command for each item; return the exit code."""
    return await CommandRun(store, template, options, items).run()
