"""Producers of the simulated fleet: they use the public API, all of it, and change their minds."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from millpond.core.backoff import Retry
from millpond.pool.internals import internals_of
from millpond.testing.simulation.invariants import Violated
from verify.live.events import Happenings
from verify.live.handlers import DEEPEST, EXPECTED, closure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from millpond.pool.handle import Handle
    from millpond.pool.pool import Pool
    from millpond.pool.task import BoundCall, TaskFunction
    from verify.live.process import Process

KEYS = (None, "acme", "bolt", "cord")

WAITING = ("waiting", "replace")
"""Modes of keys that only a waiting task answers for."""


class Producer:
    """Does one thing after another, each in a task of its own that it may cancel."""

    def __init__(self, process: Process, number: int) -> None:
        self.process = process
        self.world = process.world
        self.name = f"{process.name}/producer-{number}"
        self.dice = random.Random(f"{self.world.seed}/{self.name}")
        self.errands: dict[asyncio.Task[None], str] = {}
        self.happenings = Happenings(self)
        self.choices = ERRANDS
        if self.world.runs_call_back:
            self.choices += (Producer.when_all,) * 4
        if set(WAITING) & set(self.world.dedupe):
            self.choices += (Producer.again,) * 6

    async def live(self) -> None:
        """Submit and wait until stopped, or until the faults are over."""
        loop = asyncio.get_running_loop()
        while not self.world.calm:
            await asyncio.sleep(self.dice.choice((0.0, 0.1, 0.4, 1.5, 3.0)))
            what = self.dice.choice(self.choices)
            if self.happenings.due():
                what = Producer.emit
            errand = loop.create_task(self._guarded(what))
            self.errands[errand] = what.__name__
            if self.dice.random() < 0.12:
                loop.call_later(self.dice.choice((0.0, 0.1, 1.0, 5.0)), errand.cancel)
                self.world.fault("cancelled caller")

    async def _guarded(self, what: Callable[[Producer], Coroutine[Any, Any, None]]) -> None:
        try:
            await what(self)
        except EXPECTED:
            pass
        except Exception as error:  # noqa: BLE001 - an unexpected error breaks the world
            self.world.broke(error)

    async def let_go(self) -> None:
        """Cancel what is under way and wait for it."""
        for errand in self.errands:
            errand.cancel()
        await asyncio.gather(*self.errands, return_exceptions=True)

    def waiting(self) -> list[str]:
        """Return what it still waits for."""
        return [what for errand, what in self.errands.items() if not errand.done()]

    # Making things up

    def pool(self) -> Pool:
        """Choose a pool."""
        return self.process.mp.get_pool(self.dice.choice(list(self.world.specs)))

    def options(self, *, keyed: bool = True) -> dict[str, Any]:
        """Make up options."""
        dice = self.dice
        made: dict[str, Any] = {}
        if (key := dice.choice(KEYS)) is not None:
            made["key"] = key
        if dice.random() < 0.5:
            made["priority"] = dice.randint(-2, 2)
        if dice.random() < 0.2:
            made["weight"] = dice.randint(1, 3)
        if self.world.heavy:
            made["weight"] = dice.randint(1, 5)
        if dice.random() < 0.2:
            made["labels"] = {"key": dice.choice(KEYS[1:])}
        if dice.random() < 0.2:
            made["delay"] = dice.choice((0.3, 2.0))
        if dice.random() < 0.12:
            made["expires_in"] = dice.choice((0.5, 2.0))
        if dice.random() < 0.2:
            made["timeout"] = dice.choice((0.5, 4.0))
        if dice.random() < 0.3:
            made["retry"] = Retry(attempts=dice.randint(1, 4), initial=0.3, max_delay=2.0)
        if dice.random() < 0.15:
            made["on_complete"] = self.process.functions.notify.bind(dice.getrandbits(16))
        if keyed and dice.random() < self.world.keyed:
            # New names every few seconds, and few of them: submitters race for each.
            made["idempotency_key"] = f"k{self.world.now // 4:g}-{dice.randint(0, 2)}"
            made["dedupe"] = dice.choice(self.world.dedupe)
            if made["dedupe"] in WAITING:
                self._name(made)
        return made

    def _name(self, made: dict[str, Any]) -> None:
        """Name work that is due again and again; what replaces it must have the same key."""
        made["key"] = self.dice.choice(KEYS[1:])
        made["idempotency_key"] = f"{made['dedupe']}-{made['key']}"
        made.pop("labels", None)

    def call_for(self, made: dict[str, Any]) -> BoundCall[Any]:
        """Make up a call that goes with options."""
        if made.get("dedupe") == "replace":
            return self.process.functions.work.bind(self.dice.getrandbits(32), DEEPEST)
        return self.call(keyed="idempotency_key" in made)

    def call(self, *, keyed: bool = False) -> BoundCall[Any]:
        """Make up a call."""
        functions, dice = self.process.functions, self.dice
        if keyed:
            # One key stands for one call.
            return functions.work.bind(1, DEEPEST)
        draw = dice.random()
        if draw < (0.3 if self.process.client else 0.08) and functions.rare is not None:
            return functions.rare.bind(dice.getrandbits(32), 0)
        if draw > 0.96:
            return (
                functions.odd.bind(1) if _kind(functions.odd) == "int" else functions.odd.bind([1])
            )
        return functions.work.bind(dice.getrandbits(32), 0)

    def work(self) -> tuple[Any, dict[str, Any]]:
        """Make up a call or a closure, and its options."""
        made = self.options()
        if "idempotency_key" not in made and self.dice.random() < self.world.closures:
            return closure(self.process, self.dice.getrandbits(32)), made
        return self.call_for(made), made

    # Errands

    async def submit(self) -> None:
        """Submit one, perhaps wait for its end."""
        work, made = self.work()
        made["wait"] = self.dice.choice((None, None, 0.0, 0.5, 3.0))
        handle = await self.pool().submit(work, **made)
        await self.follow(handle)

    async def submit_many(self) -> None:
        """Submit a few as one batch."""
        calls = []
        for _ in range(self.dice.randint(1, 4)):
            made = self.options()
            calls.append(self.call_for(made).options(**made))
        wait = self.dice.choice((None, 1.0))
        handles = await self.pool().submit_many(calls, wait=wait)
        for handle in handles:
            await self.follow(handle)

    async def try_submit(self) -> None:
        """Submit one without waiting."""
        work, made = self.work()
        handle = await self.pool().try_submit(work, **made)
        if handle:
            await self.follow(handle)

    async def race(self) -> None:
        """Submit the same thing several times at once: one of them is enough."""
        pool, call = self.pool(), self.call(keyed=True)
        named = call.options(idempotency_key=f"race-{self.world.now // 2:g}")
        asking = [pool.submit(named, wait=10.0) for _ in range(self.dice.randint(2, 4))]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        tasks = {handle.id for handle in answers if not isinstance(handle, BaseException)}
        if len(tasks) > 1 and all(self.world.watch.knows(task) for task in tasks):
            raise Violated("I7", f"one key stands for {len(tasks)} tasks")

    async def again(self) -> None:
        """Submit work that is due again and again, a moment after the last time."""
        pool, handles = self.pool(), []
        made = {**self.options(keyed=False), "dedupe": self.dice.choice(WAITING)}
        self._name(made)
        for _ in range(self.dice.randint(2, 5)):
            handles.append(await pool.submit(self.call_for(made), **made))
            await asyncio.sleep(self.dice.choice((0.0, 0.05, 0.3)))
        for handle in handles:
            await self.follow(handle)

    async def bulk(self) -> None:
        """Submit some for a batch function."""
        bulk = self.process.functions.bulk
        if bulk is None:
            return
        pool = bulk.pool
        calls = [bulk.bind(self.dice.randint(0, 99)) for _ in range(self.dice.randint(1, 4))]
        for handle in await pool.submit_many(calls, wait=2.0):
            await self.follow(handle)

    async def follow(self, handle: Handle[Any]) -> None:
        """Wait for an end now and then, and compare it with what happened."""
        draw = self.dice.random()
        watch = self.world.watch
        if draw < 0.5:
            await watch.awaited(handle)
        elif draw < 0.6:
            with suppress(TimeoutError):
                await handle.wait(timeout=self.dice.choice((0.1, 2.0)))
                watch.compare(handle)
        elif draw < 0.65:
            async for _ in handle.progress():
                pass
        elif draw < 0.7:
            await handle.cancel(self.dice.choice(("cooperative", "interrupt")))
            await watch.awaited(handle)

    async def drain(self) -> None:
        """Drain a seed."""
        seed = [self.call() for _ in range(self.dice.randint(1, 3))]
        name = f"run-{self.dice.randint(0, 3)}" if self.dice.random() < 0.3 else None
        name = name or f"run-of-{self.name}-{self.world.serial()}"
        pool = self.pool()
        on_error: Literal["skip", "fail"] = "fail" if self.dice.random() < 0.3 else "skip"
        most = self.dice.choice((None, None, 3, 8))
        with self.world.watch.run(pool.name, name):
            await pool.drain(seed, run=name, on_error=on_error, max_tasks=most)

    async def run(self) -> None:
        """Open a run and submit into it, perhaps leave it with an error."""
        pool = self.pool()
        name = f"open-{self.name}-{self.world.serial()}"
        with self.world.watch.run(pool.name, name):
            async with pool.run(name) as run:
                if self.world.runs_call_back:
                    await run.on_complete(self.report_run())
                for _ in range(self.dice.randint(0, 3)):
                    await run.submit(self.call(), wait=3.0)
                    await asyncio.sleep(self.dice.choice((0.0, 0.5)))
                if self.dice.random() < 0.15:
                    raise TimeoutError("changed its mind")

    async def when_all(self) -> None:
        """Submit a run that calls back, now and then one that others submit and open, too."""
        pool, name = self.pool(), None
        calls = [
            self.call().options(**self.options(keyed=False)) for _ in range(self.dice.randint(1, 3))
        ]
        if self.dice.random() < 0.3:
            name = f"all-{self.dice.randint(0, 2)}"
            if self.dice.random() < 0.4:
                async with pool.run(name) as run:
                    await run.on_complete(self.report_run())
                return
        on_error: Literal["skip", "fail"] = "fail" if self.dice.random() < 0.3 else "skip"
        for handle in await pool.when_all(
            calls, then=self.report_run(), run=name, on_error=on_error
        ):
            await self.follow(handle)

    def report_run(self) -> BoundCall[Any]:
        """Make up the callback of a run."""
        return self.process.functions.report_run.bind(self.dice.getrandbits(16))

    async def stream(self) -> None:
        """Follow a run outcome by outcome, perhaps leave early."""
        seed = [self.call() for _ in range(self.dice.randint(1, 3))]
        seen = 0
        async with self.pool().stream(seed) as outcomes:
            async for outcome in outcomes:
                self.world.watch.outcome_received(outcome)
                seen += 1
                if self.dice.random() < 0.1:
                    break

    async def idle(self) -> None:
        """Wait for an idle pool, not for ever."""
        await self.pool().drain(timeout=self.dice.choice((2.0, 10.0)))

    async def map(self) -> None:
        """Map a function over a few items."""
        pool = self.pool()
        items = range(self.dice.randint(1, 6))
        process = self.process

        async def double(item: int) -> int:
            with process.world.watch.inside(process):
                await asyncio.sleep(0.1)
                return item * 2

        if pool.spec.strict:
            return
        found = await pool.map(double, items)
        if found != [item * 2 for item in items]:
            raise Violated("I2", f"map gave {found}")

    async def emit(self) -> None:
        """Emit an event."""
        await self.happenings.emit()

    async def look(self) -> None:
        """Look at everything there is to look at."""
        pool = self.pool()
        await pool.snapshot()
        await pool.size()
        await self.process.mp.unsettled()


def _kind(odd: TaskFunction[..., Any, Any]) -> str:
    return str(internals_of(odd).fn.__annotations__["number"])


ERRANDS: tuple[Callable[[Producer], Coroutine[Any, Any, None]], ...] = (
    *([Producer.submit] * 8),
    *([Producer.submit_many] * 4),
    *([Producer.try_submit] * 3),
    *([Producer.race] * 2),
    Producer.bulk,
    *([Producer.drain] * 2),
    Producer.run,
    Producer.stream,
    Producer.idle,
    Producer.map,
    Producer.look,
)
