"""The course of a run: items go in, commands come out, and what became of each is stored.

The items are tasks of a pool in a store of their own. So limits, rates, retries and what a crash
leaves behind are the pool's business; here is only what a command needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from millpond.cli.run.attempt import Attempts
from millpond.cli.run.exits import OF_A_SIGNAL, RunExit
from millpond.cli.run.items import Known, packed, unpacked
from millpond.cli.run.orphans import Ledger
from millpond.cli.run.output import Ran
from millpond.cli.run.printer import Printer
from millpond.cli.run.process import Processes
from millpond.cli.run.progress import DRAW_EVERY, Line, Tally, summary
from millpond.cli.run.signals import Interrupts
from millpond.cli.terminal_text import plain
from millpond.core import bounds
from millpond.core import validation as check
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

    from millpond.cli.run.request import Wanted
    from millpond.cli.run.run_store import Place
    from millpond.cli.run.template import Template
    from millpond.core.task import Task
    from millpond.pool.pool import Pool
    from millpond.runtime.observe.hooks import Observed
    from millpond.runtime.worker.worker import Worker

POOL = "run"
FUNCTION = "command"

KEPT_FOR = 10 * 365 * 86_400.0
"""Seconds for which a run keeps what became of its items: until it is removed itself."""

KEEP = Keep(completed=KEPT_FOR, failed=KEPT_FOR, keys=KEPT_FOR, audit=0.0)
"""What is kept for how long; no word of what happened, of which nothing here would be read."""

LEASE = 3_600.0
"""Seconds for which its leases hold. Nobody else is at a run, and one that was killed is known by
its lock, so this is only how long a machine may sleep, or `millpond run` be stopped by Ctrl-Z."""

LOOK_EVERY = 1.0
"""Seconds between two looks at whether all is well."""

ENDLESS = 10 * 365 * 86_400.0

NAMED = 5
"""How many of the failed items a summary names."""


class Course:
    """One run, from its first item to its summary."""

    def __init__(
        self,
        place: Place,
        template: Template,
        wanted: Wanted,
        items: AsyncIterator[list[str]],
    ) -> None:
        self.place = place
        self.template = template
        self.wanted = wanted
        self.items = items
        self.tally = Tally()
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self.line = Line(self.tally, shown=terminal and not wanted.quiet)
        self.printer = Printer(in_order=wanted.in_order, tag=wanted.tag, before=self.line.clear)
        self.over = asyncio.Event()
        """There is nothing left to do."""
        self.soft = asyncio.Event()
        """Nothing more is to be started."""
        self.hard = asyncio.Event()
        """What runs is to be killed."""
        self.halted = False
        self._failed_before = 0
        self.unwritten: OSError | None = None
        """Why output cannot be written any more: nobody reads it, or the disk is full."""
        self._began = time.monotonic()
        mp = self.mp = Millpond(
            place.url,
            work=False,
            keep=KEEP,
            lease=LEASE,
            durability="normal",
        )
        self.pool: Pool = mp.pool(
            POOL,
            max_concurrent=wanted.jobs,
            queue=fifo(),
            max_per_key=wanted.per_key,
            rate=wanted.rate,
            rate_per_key=wanted.rate_per_key,
            # No more is at work in the store than commands: so a kill repeats these and no more.
            prefetch=0,
        )
        mp.observe(self._observed)

    def _registered(self, attempts: Attempts) -> TaskFunction[[str], Ran, Any]:
        @self.pool.task(name=FUNCTION, retry=attempts.pause_before_retry)
        async def command(ctx: Context, item: str) -> Ran:
            return await attempts.run(ctx, unpacked(item))

        return command

    # From its beginning to its end

    async def run(self) -> RunExit:
        """Run everything that is not done; return how that ended."""
        ledger = Ledger(self.place.ledger, self.wanted.jobs)
        processes = self.processes = Processes(self.place.folder, ledger)
        loop = asyncio.get_running_loop()
        interrupts = self.interrupts = Interrupts(loop, processes, self._asked_to_stop)
        interrupts.listen()
        self.attempts = Attempts(self, processes, interrupts)
        self.task = self._registered(self.attempts)
        try:
            async with self.mp:
                await self._prepare()
                with untold():
                    async with self.mp.worker(pools=[self.pool]) as worker:
                        await self._work(worker)
                self._print_the_rest()
                await self._sum_up()
        finally:
            self.line.clear()
            interrupts.leave()
            ledger.close()
            self.processes.close()
        return self._exit()

    async def _prepare(self) -> None:
        """Find out what there is already."""
        if self.wanted.redo_failed:
            failed = [task.new.id async for task in stored(self.mp, Status.FAILED)]
            for first in range(0, len(failed), 1_000):
                await self.pool.redrive(failed[first : first + 1_000])
        await self._count()
        self.tally.before, self._failed_before = self.tally.ended, self.tally.failed
        if self.wanted.in_order:
            await self._expect_unfinished()

    async def _count(self) -> None:
        """Count what the store has. An item that failed and was tried again counts once."""
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
        """Work until there is nothing left, or somebody asks to stop."""
        feeding = asyncio.create_task(self._feed())
        tasks = [asyncio.create_task(self.over.wait()), asyncio.create_task(self.soft.wait())]
        drawing = asyncio.create_task(self._draw()) if self.line.shown else None
        try:
            while not (self.over.is_set() or self.soft.is_set() or worker.stopping):
                await asyncio.wait(
                    {*tasks, feeding} if not feeding.done() else tasks,
                    timeout=LOOK_EVERY,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if feeding.done():
                    feeding.result()
                    await self._look()
            feeding.cancel()
            await self._stop(worker)
        finally:
            for one in (feeding, *tasks, *([drawing] if drawing else [])):
                one.cancel()
            await asyncio.gather(feeding, *tasks, return_exceptions=True)

    async def _look(self) -> None:
        """Ask the store whether something is left, where nobody may tell: others cancel, too."""
        if self.tally.running or self.over.is_set():
            return
        view = await internals_of(self.mp).runtime.view.pool(POOL, measured=False)
        if view is not None and not (view.queued + view.running):
            await self._count()
            self.over.set()

    async def _stop(self, worker: Worker) -> None:
        """Let what runs end; a second signal, or a halt that is meant so, kills it."""
        if self.interrupts.first and not self.hard.is_set() and self.tally.running:
            self.tell(f"{self.tally.running} still at work; Ctrl-C once more kills them")
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
        """Store items as they come."""
        known = Known()
        submitter = PoolSubmitter(internals_of(self.pool))
        async for items in self.items:
            works = [self._call(item, known) for item in items]
            batch, _, closures = await submitter.prepare(works, {})
            answer = await submitter.send(batch, closures, None)
            new = [one.task for one in answer.admissions if not one.duplicate]
            self.printer.expect(new)
            self.tally.total += len(new)
        self.tally.reading = False
        self._check()

    def _call(self, item: str, known: Known) -> BoundCall[Ran]:
        options: dict[str, object] = {"idempotency_key": known.name(item)}
        key = self.wanted.key_of(item)
        if key is not None:
            options["key"] = check.cut(plain(key), bounds.MAX_KEY)
        return BoundCall(self.task, (packed(item),), {}, options)

    # What became of them

    def _observed(self, happened: Observed) -> None:
        """Take in that something was stored."""
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
        """See whether that was all, or enough."""
        tally, halt = self.tally, self.wanted.halt
        if not tally.reading and tally.left <= 0:
            self.over.set()
        if halt is not None and not self.halted:
            total = None if tally.reading else tally.total
            failed = tally.failed - self._failed_before
            succeeded = tally.ended - tally.before - failed
            if halt.reached(failed=failed, succeeded=succeeded, total=total):
                self._halt(now=halt.when == "now")

    def _halt(self, *, now: bool) -> None:
        self.halted = True
        self.soft.set()
        if now:
            self.hard.set()

    def _asked_to_stop(self, count: int) -> None:
        self.soft.set()
        if count > 1:
            self.hard.set()

    def _print_the_rest(self) -> None:
        try:
            self.printer.flush()
        except OSError as error:
            self.unwritten = error

    # The end

    async def _sum_up(self) -> None:
        self.line.clear()
        if self.wanted.quiet:
            return
        tally = self.tally
        self.tell(summary(tally, time.monotonic() - self._began))
        if tally.failed:
            await self._name_failed()
        if tally.left or tally.reading:
            again = "; give it the items again, for not all were read" if tally.reading else ""
            self.tell(f"`millpond run --resume` and the same command go on with the rest{again}")

    async def _name_failed(self) -> None:
        from millpond.cli.run.show import failed_line

        count = 0
        async for task in stored(self.mp, Status.FAILED):
            if count == NAMED:
                more = self.tally.failed - count
                self.tell(f"and {more:,} more; --failed lists them, --show NUMBER tells of one")
                return
            self.tell(failed_line(task))
            count += 1

    def tell(self, text: str) -> None:
        """Say something on the standard error."""
        self.line.clear()
        with contextlib.suppress(OSError):
            sys.stderr.write(f"millpond run: {plain(text)}\n")
            sys.stderr.flush()

    def _exit(self) -> RunExit:
        """Return how it ended."""
        first = self.interrupts.first
        unfinished = self.tally.left > 0 or self.tally.reading
        if first is not None and unfinished:
            return OF_A_SIGNAL[first]
        if isinstance(self.unwritten, BrokenPipeError):
            return RunExit.PIPE
        if self.unwritten is not None:
            self.tell(f"the output cannot be written: {self.unwritten.strerror}; --show has it all")
            return RunExit.BROKE
        if unfinished and not self.halted:
            self.tell("the worker ended by itself; --resume goes on")
            return RunExit.BROKE
        return RunExit.FAILED if self.tally.failed else RunExit.DONE


@contextlib.contextmanager
def untold() -> Iterator[None]:
    """Keep the pool's own records from a user whom this command tells the same in its words.

    Dead workers: who resumes knows that a run was killed. Failures: each has its line already.
    """
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
    place: Place, template: Template, wanted: Wanted, items: AsyncIterator[list[str]]
) -> RunExit:
    """Run a command for each item; return how that ended."""
    return await Course(place, template, wanted, items).run()
