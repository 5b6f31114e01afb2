"""Handlers of the simulated fleet: real functions that behave as well and as badly as real ones."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from millpond.core.handler_signals import GiveUp, RetryLater, Scope, Throttled
from millpond.errors import MillpondError, WouldDeadlock
from millpond.pool.context import Context
from millpond.pool.outcome import Outcome, RunOutcome
from millpond.runtime.jobs.batch_call import Failed
from millpond.runtime.jobs.job import current_job
from millpond.runtime.jobs.outcome import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from millpond.pool.pool import Pool
    from millpond.pool.task import TaskFunction
    from verify.live.process import Process

DEEPEST = 2


class Mishap(Exception):
    """What a handler raises when it fails."""


class Functions:
    """The registered functions of one process."""

    work: TaskFunction[[int, int], str, Any]
    rare: TaskFunction[[int, int], str, Any] | None
    odd: TaskFunction[..., str, Any]
    notify: TaskFunction[..., None, Any]
    report_run: TaskFunction[..., None, Any]
    bulk: TaskFunction[..., str, Any] | None


def register(process: Process) -> Functions:
    """Register the functions of a process; not every process knows all of them alike."""
    mp, world, known = process.mp, process.world, Functions()

    @mp.task(name="work")
    async def work(ctx: Context, seed: int, depth: int) -> str:
        return await Acting(process, ctx, seed, depth).act()

    known.work, known.rare = work, None
    if process.calm or process.client or (process.dice.random() < 0.4 and world.rare_is_known):

        @mp.task(name="rare")
        async def rare(ctx: Context, seed: int, depth: int) -> str:
            return await Acting(process, ctx, seed, depth).act()

        known.rare = rare
    known.odd = _odd(process)

    @mp.task(name="notify")
    async def notify(outcome: Outcome, seed: int) -> None:
        with world.watch.inside(process):
            world.watch.outcome_received(outcome)
            dice = random.Random(f"{seed}/{outcome.task_id}/{process.name}")
            await asyncio.sleep(dice.choice((0.0, 0.1)))
            if not process.calm and dice.random() < 0.3:
                raise Mishap("the message did not go out")

    known.notify = notify
    if world.runs_call_back:

        @mp.task(name="report_run")
        async def report_run(outcome: RunOutcome, seed: int) -> None:
            with world.watch.inside(process):
                world.watch.run_outcome_received(outcome)
                dice = random.Random(f"{seed}/{outcome.run_id}/{process.name}")
                await asyncio.sleep(dice.choice((0.0, 0.1)))
                if not process.calm and dice.random() < 0.3:
                    raise Mishap("the message did not go out")

        known.report_run = report_run
    known.bulk = _bulk(process)
    return known


def _odd(process: Process) -> TaskFunction[..., str, Any]:
    """Register a function that has changed between two versions of the program.

    The calm process at the end of a history has a third version, which understands the tasks of
    both: whatever the first two could not read must come to its end there.
    """
    if process.calm:

        @process.mp.task(name="odd")
        async def both(number: int | list[int]) -> str:
            with process.world.watch.inside(process):
                return process.world.watch.result(str(number))

        return both
    if process.dice.random() < 0.5:

        @process.mp.task(name="odd")
        async def new(number: list[int]) -> str:
            with process.world.watch.inside(process):
                return process.world.watch.result(str(number))

        return new

    @process.mp.task(name="odd")
    async def old(number: int) -> str:
        with process.world.watch.inside(process):
            return process.world.watch.result(str(number))

    return old


def _bulk(process: Process) -> TaskFunction[..., str, Any] | None:
    """Register a function that takes several tasks at a time, where a pool allows it."""
    world = process.world
    loose = [name for name, spec in world.specs.items() if not spec.strict]
    if not loose:
        return None
    pool = process.mp.get_pool(loose[0])

    @pool.batch_task(size=3, linger=0.2, name="bulk")
    async def bulk(items: list[int]) -> list[Any]:
        dice = random.Random(f"{items}/{world.serial()}")
        await asyncio.sleep(dice.choice((0.0, 0.1, 1.0)))
        if dice.random() < 0.1 and not process.calm:
            raise Mishap("all of them")
        return [
            Failed(Mishap("one of them"))
            if dice.random() < 0.2 and not process.calm
            else f"bulk {item}"
            for item in items
        ]

    return bulk


class Acting:
    """One attempt: it does what its seed and its number say."""

    def __init__(self, process: Process, ctx: Context | None, seed: int, depth: int) -> None:
        self.process = process
        self.world = process.world
        self.ctx = ctx
        self.depth = depth
        self.seed = seed
        attempt = 0 if ctx is None else ctx.attempt
        self.dice = random.Random(f"{seed}/{attempt}/{depth}/{self.world.serial()}")

    async def act(self) -> str:
        """Behave; return a result that no other attempt returns."""
        with self.world.watch.inside(self.process):
            if not self.process.calm:
                heavy = self.world.heavy and self.dice.random() < 0.4
                await (Acting.weigh if heavy else self.dice.choice(MOODS))(self)
            return self.world.watch.result(f"{self.seed}")

    def some_pool(self) -> Pool:
        """Choose a pool."""
        return self.process.mp.get_pool(self.dice.choice(list(self.world.specs)))

    async def quick(self) -> None:
        """Take a moment."""
        await asyncio.sleep(self.dice.choice((0.0, 0.05, 0.3)))

    async def slow(self) -> None:
        """Take a while."""
        await asyncio.sleep(self.dice.choice((1.0, 3.0)))

    async def long(self) -> None:
        """Run for longer than a lease."""
        await asyncio.sleep(self.dice.choice((8.0, 15.0)))

    async def fail(self) -> None:
        """Raise."""
        await self.quick()
        raise Mishap("no luck")

    async def give_up(self) -> None:
        """Fail for good; some as if the stored arguments were damaged."""
        await self.quick()
        if self.seed % 3 == 0:
            raise Unreadable("damaged")
        raise GiveUp("never")

    async def later(self) -> None:
        """Ask for another time."""
        await self.quick()
        spend = self.dice.random() < 0.8
        raise RetryLater(self.dice.choice((0.0, 0.2, 2.0)), spend=spend)

    async def throttled(self) -> None:
        """Raise Throttled, which holds back the pool or key."""
        await self.quick()
        self.world.fault("throttled")
        scope: Scope = "pool" if self.dice.random() < 0.3 else "key"
        raise Throttled(self.dice.choice((0.2, 1.0)), scope=scope)

    async def weigh(self) -> None:
        """Use more or less than was thought, after a while."""
        await self.dice.choice((self.quick, self.slow))()
        if self.ctx is not None:
            self.ctx.settle_weight(self.dice.randint(0, self.ctx.weight + 1))

    async def hang(self) -> None:
        """Wait for what does not come, for a long time."""
        await asyncio.sleep(20.0)

    async def deaf(self) -> None:
        """Go on whatever is asked of it, for a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.dice.choice((2.0, 9.0))
        while loop.time() < until and not self.world.over:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError:
                self.world.watch.deaf(self.process)

    async def polite(self) -> None:
        """Stop when asked to."""
        assert self.ctx is not None
        try:
            async with asyncio.timeout(5.0):
                await self.ctx.cancelled.wait()
        except TimeoutError:
            return
        raise asyncio.CancelledError

    async def follow_up(self) -> None:
        """Submit more as part of the outcome."""
        await self.quick()
        if self.ctx is None or self.depth >= DEEPEST:
            return
        for _ in range(self.dice.randint(1, 2)):
            work = self.process.functions.work
            call = work.bind(self.dice.getrandbits(32), self.depth + 1)
            if self.dice.random() < 0.3:
                name = f"f{self.dice.randint(0, 5)}"
                call = work.bind(7, DEEPEST).options(idempotency_key=name, dedupe="success")
            await self.ctx.submit(call, pool=self.some_pool())
        if self.dice.random() < 0.2:
            raise Mishap("after all that")

    async def submit_inside(self) -> None:
        """Submit at once from inside; a refusal is the handler's own failure."""
        if self.depth >= DEEPEST:
            return
        call = self.process.functions.work.bind(self.dice.getrandbits(32), DEEPEST)
        await self.some_pool().try_submit(call)
        await self.quick()

    async def wait_inside(self) -> None:
        """Wait for a task from inside another, perhaps in a circle."""
        if self.depth >= DEEPEST:
            return
        call = self.process.functions.work.bind(self.dice.getrandbits(32), DEEPEST)
        handle = await self.some_pool().try_submit(call)
        if not handle:
            return
        try:
            await handle.wait(timeout=self.dice.choice((1.0, 5.0)))
        except WouldDeadlock:
            self.world.fault("deadlock refused")
        except TimeoutError:
            pass

    async def speak(self) -> None:
        """Report progress, and do a step once."""
        if self.ctx is None:
            return
        await self.ctx.progress(0.5, "half")
        serial = self.world.serial()

        async def step() -> int:
            await asyncio.sleep(0.1)
            return serial

        await self.ctx.once("step", step)
        if self.dice.random() < 0.4:
            raise Mishap("after the step")

    async def cancel_itself(self) -> None:
        """Have itself cancelled, and return at once."""
        job = current_job.get()
        if job is not None:
            await self.process.mp.cancel(job.id, mode="interrupt")

    async def nonsense(self) -> None:
        """Time out of its own doing, inside."""
        try:
            async with asyncio.timeout(0.1):
                await asyncio.sleep(5.0)
        except TimeoutError:
            pass


MOODS: tuple[Callable[[Acting], Coroutine[Any, Any, None]], ...] = (
    *([Acting.quick] * 9),
    *([Acting.slow] * 4),
    Acting.long,
    *([Acting.fail] * 4),
    Acting.give_up,
    *([Acting.later] * 2),
    Acting.throttled,
    *([Acting.weigh] * 4),
    Acting.hang,
    Acting.deaf,
    Acting.polite,
    *([Acting.follow_up] * 4),
    Acting.submit_inside,
    Acting.wait_inside,
    *([Acting.speak] * 2),
    Acting.cancel_itself,
    Acting.nonsense,
)

CLOSURE_MOODS = (Acting.quick, Acting.quick, Acting.slow, Acting.fail, Acting.long, Acting.deaf)


def closure(process: Process, seed: int) -> Callable[[], Coroutine[Any, Any, str]]:
    """Return code that lives as long as its process."""

    async def thunk() -> str:
        acting = Acting(process, None, seed, DEEPEST)
        with process.world.watch.inside(process):
            if not process.calm:
                await acting.dice.choice(CLOSURE_MOODS)(acting)
            return process.world.watch.result(f"closure {seed}")

    return thunk


EXPECTED = (
    MillpondError,
    ConnectionError,
    TimeoutError,
    Mishap,
    GiveUp,
    RetryLater,
    Throttled,
    Unreadable,
)
"""What may come out of a pool in a world like this."""
