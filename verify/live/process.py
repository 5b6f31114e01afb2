"""A simulated process: a real Millpond with real handlers, and every way for it to end."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from millpond.core.backoff import Retry
from millpond.core.control import DeclareDead
from millpond.errors import MillpondError
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from millpond.testing.simulation.invariants import Violated
from verify.live.events import triggers
from verify.live.handlers import Functions, register
from verify.live.loop import Body, body_of
from verify.live.producer import Producer
from verify.live.store import FaultyStore, Line

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from millpond.core.spec import PoolSpec
    from millpond.pool.budget import Budget
    from verify.live.world import LiveWorld

LEASE = 6.0


class Process(Body):
    """One process of the fleet, from its start to its end; a restart makes a new one."""

    def __init__(self, world: LiveWorld, number: int, *, calm: bool = False) -> None:
        super().__init__(f"process-{number}")
        self.world = world
        self.dice = random.Random(f"{world.seed}/process/{number}")
        self.calm = calm
        self.line = Line(world, self.dice, instant=world.solo)
        self.verbs = self.views = 0
        self.dead = self.stopped = False
        self.open = False
        self.thawed_at = -1.0
        self.started_at = world.now
        self.concurrency = None if calm or self.dice.random() < 0.6 else self.dice.randint(1, 4)
        often = 0.15 if world.rare_is_known else 0.4
        self.client = not world.solo and not calm and self.dice.random() < often
        """It only submits; what it drains, maps or streams brings a worker for as long."""
        if self.client:
            self.concurrency = None
        self.stopping = asyncio.Event()
        self.budgets: list[Budget] = []
        self.mp = self._make(number)
        self.functions: Functions = register(self)
        if world.eventful:
            triggers(self)
        self.producers: list[Producer] = []

    def _make(self, number: int) -> Millpond:
        mp = Millpond(work=False if self.concurrency or self.client else None, lease=LEASE)
        internals_of(mp).owner.make_store = lambda: FaultyStore(self)
        internals_of(mp).owner.shared = not self.world.solo
        internals_of(mp).owner.seed = random.Random(f"{self.world.seed}/ids/{number}").getrandbits(
            63
        )
        for budget in self.world.budgets:
            self.budgets.append(
                mp.budget(budget.name, budget.max_concurrent, rate=budget.rates or None)
            )
        for spec in self.world.specs.values():
            declare(mp, spec, self.budgets)
        return mp

    @property
    def healthy(self) -> bool:
        """Whether it is there, moves, and reaches the store."""
        line = self.line
        return self.open and not self.dead and not self.frozen and not line.cut and not self.stopped

    def start(self) -> None:
        """Begin to live, in a context of its own."""
        self._main = self.do(self._live())

    def do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something inside this process: it stops with it."""
        context = self.world.context.copy()
        context.run(body_of.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    @property
    def troubled_at(self) -> float:
        """When it was last in trouble."""
        return max(self.thawed_at, self.line.troubled_at, self.started_at)

    async def _live(self) -> None:
        while not self.stopping.is_set() and not self.stopped:
            try:
                await self._once()
            except (ConnectionError, MillpondError):
                await asyncio.sleep(0.5)
            except Exception as error:  # noqa: BLE001 - nothing else may come out of an open pool
                self.world.broke(error)
                return
        self.stopped = True

    async def _once(self) -> None:
        """Open, let the producers work, wait for the end, close in good order."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.mp)
            if self.concurrency and not self.client:
                grace = self.dice.choice((0.0, 0.5, 3.0))
                await stack.enter_async_context(
                    self.mp.worker(concurrency=self.concurrency, grace=grace)
                )
            self.open = True
            try:
                await self._work()
            finally:
                self.open = False
        self.stopped = True

    async def _work(self) -> None:
        count = 0 if self.calm else self.dice.randint(1, 2)
        self.producers = [Producer(self, number) for number in range(count)]
        loop = asyncio.get_running_loop()
        working = [loop.create_task(producer.live()) for producer in self.producers]
        await self.stopping.wait()
        for one in working:
            one.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        for producer in self.producers:
            await producer.let_go()

    # How it ends

    def stop(self) -> None:
        """Ask it to end in good order."""
        self.stopping.set()

    def crash(self) -> None:
        """End it where it stands."""
        self.frozen = self.dead = True
        self.open = False

    async def bury(self) -> None:
        """Let a process on the same host find that it is dead."""
        for worker in self.workers():
            with suppress(MillpondError):
                await self.world.order(DeclareDead(worker))

    def workers(self) -> list[str]:
        """Return the names of its workers as the store may know them."""
        if not self.mp.is_open:
            return []
        return [worker.name for worker in internals_of(self.mp).runtime.workers]

    async def wait_for_its_end(self) -> None:
        """Wait until its main task has ended; a stop in good order takes seconds."""
        done, _ = await asyncio.wait([self._main], timeout=60.0)
        if not done and not self.dead:
            raise Violated("stop", f"{self.name} does not stop: {stack(self._main)}")


def stack(task: asyncio.Task[Any]) -> str:
    """Return where a task waits, innermost last."""
    found = []
    waits: Any = task.get_coro()
    while waits is not None:
        code = getattr(waits, "cr_code", None) or getattr(waits, "ag_code", None)
        if code is not None:
            found.append(code.co_qualname)
        waits = getattr(waits, "cr_await", None) or getattr(waits, "ag_await", None)
    return " > ".join(found)


def declare(mp: Millpond, spec: PoolSpec, budgets: Sequence[Budget] = ()) -> Any:  # noqa: ANN401 - a Pool
    """Declare a pool as a spec says."""
    return mp.pool(
        spec.name,
        max_concurrent=spec.adaptive or spec.max_concurrent,
        queue=spec.order,
        backpressure=spec.backpressure,
        max_per_key=spec.max_per_key,
        rate=spec.rates or None,
        rate_per_key=spec.rate_per_key,
        lanes=spec.lanes,
        ordered=spec.ordered,
        prefetch=spec.prefetch,
        budgets=budgets if spec.budgets else (),
        retry=Retry(attempts=3, initial=0.4, max_delay=3.0),
    )
