"""The live world: several real Millponds over one store, and everything that goes wrong.

Everything is drawn from one number: what is submitted, how handlers behave, which verbs are late
or lost, who dies and when. The processes share one virtual loop, so one number gives one history,
byte for byte.
"""

from __future__ import annotations

import asyncio
import random
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from millpond.core import control as orders
from millpond.core.task import CALLBACKS
from millpond.testing.simulation.invariants import Violated, nothing_lost
from verify.live.crowd import Crowd
from verify.live.events import pools_of_events
from verify.live.operator import Chaos, Operator
from verify.live.process import Process
from verify.live.store import LiveStage
from verify.live.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.lifecycle import Status
    from millpond.core.spec import BudgetSpec, PoolSpec
    from verify.live.loop import ProcessLoop

FAULTS = (
    "crash",
    "freeze",
    "cut off",
    "failed verb",
    "lost answer",
    "slow verb",
    "lease lost",
    "leave",
    "buried",
    "parked submitter",
    "cancelled caller",
    "deaf handler",
    "pause",
    "resize",
    "cancel",
    "interrupt",
    "purge",
    "hold",
    "throttled",
    "day passes",
    "event",
)
"""Every kind of trouble a live history can hold, and events."""

TROUBLE = 30.0
"""Seconds of trouble, of virtual time."""

KEPT = ("forever", "success", "inflight")
"""How keys deduplicate in most worlds; in some, waiting tasks are joined and replaced, too."""

IDLE = 60.0
"""Seconds for which the fleet is watched when there is nothing to do."""


class LiveWorld:
    """One seeded fleet around one store."""

    def __init__(
        self,
        seed: int,
        store: Any,  # noqa: ANN401
        specs: list[PoolSpec],
        budgets: Sequence[BudgetSpec] = (),
    ) -> None:
        self.seed = seed
        self.budgets = budgets
        self.dice = random.Random(f"{seed}/world")
        self.loop: ProcessLoop = asyncio.get_running_loop()  # type: ignore[assignment]
        self.context = copy_context()
        self.specs = {spec.name: spec for spec in specs}
        self.stage = LiveStage(self, store, random.Random(f"{seed}/entropy"))
        self.solo = self.dice.random() < 0.25
        self.rare_is_known = self.dice.random() < 0.6
        self.keyed = self.dice.choice((0.1, 0.25, 0.6))
        self.closures = 0.15 if self.dice.random() < 0.6 else 0.0
        self.eventful = random.Random(f"{seed}/happenings").random() < 0.3
        """Whether its processes have triggers and emit events."""
        self.recovers = random.Random(f"{seed}/recovers").choice((1, 2, 1000, 1000))
        """How much one recovery moves at most: a worker may come back meanwhile."""
        rates = [spec.rates for spec in specs] + [budget.rates for budget in budgets]
        by_weight = any(rate.of == "weight" for some in rates for rate in some)
        self.heavy = by_weight and random.Random(f"{seed}/heavy").random() < 0.6
        """Whether its tasks have weights, which turn out to be others."""
        self.runs_call_back = random.Random(f"{seed}/runs call back").random() < 0.4
        """Whether its runs have callbacks."""
        waiting = random.Random(f"{seed}/waiting keys").random() < 0.3
        self.dedupe = ("waiting", "replace", "success") if waiting else KEPT
        self.made_of_events: dict[tuple[str, str], int] = {}
        self.faults: set[str] = set()
        self.calm = self.over = False
        self.jumped_at = -1.0
        self.broken: asyncio.Future[None] = self.loop.create_future()
        self.watch = Watch(self)
        self._serial = 0
        self._numbers = 0
        self.processes: list[Process] = []
        self.most_processes = 0

    @property
    def now(self) -> float:
        """The time, everywhere."""
        return self.loop.time()

    def serial(self) -> int:
        """Return a number never used before in this world."""
        self._serial += 1
        return self._serial

    def fault(self, kind: str) -> None:
        """Note that a kind of fault happened in this history."""
        self.faults.add(kind)

    def broke(self, error: BaseException) -> None:
        """Note the first broken promise: the history ends here."""
        if not self.broken.done() and not self.over:
            self.broken.set_exception(error)
            self.broken.exception()

    def later(self, seconds: float, do: Callable[..., object], *args: Any) -> None:  # noqa: ANN401
        """Do something after a while, whatever happens to whom."""
        self.loop.call_later(seconds, do, *args, context=self.context.copy())

    def jump(self, seconds: float) -> None:
        """Let the whole fleet sleep like a closed laptop."""
        self.loop.clock.advance(seconds)
        self.jumped_at = self.now

    async def order(self, order: orders.Command) -> Any:  # noqa: ANN401 - the answer of control
        """Give an order straight to the store."""
        return await self.stage.carry_out("control", order)

    def another(self, *, calm: bool = False) -> Process | None:
        """Start a process, unless the trouble is over."""
        if self.calm and not calm:
            return None
        self._numbers += 1
        process = Process(self, self._numbers, calm=calm)
        self.processes.append(process)
        process.start()
        return process

    def succeed(self, process: Process) -> None:
        """Start another process when one has ended: there is only ever one."""

        async def then() -> None:
            await process.wait_for_its_end()
            self.another()

        self.loop.create_task(then(), context=self.context.copy())

    # The story

    async def live(self) -> None:
        """Live through the trouble and what comes after it."""
        for _ in range(1 if self.solo else self.dice.randint(2, 4)):
            self.another()
        actors = (Operator(self).live(), Chaos(self).live(), Crowd(self).live())
        acting = [self.loop.create_task(one) for one in actors]
        await asyncio.sleep(TROUBLE)
        self.calm = True
        await asyncio.gather(*acting)
        await asyncio.sleep(30.0)
        await self.settle_down()

    async def settle_down(self) -> None:
        """End all faults; every accepted task must end, and every waiter must get an answer."""
        self.heal()
        for name, spec in self.specs.items():
            await self.order(orders.Resume(name))
            for unit in ("acme", "bolt", "cord", *map(str, range(spec.lanes or 0))):
                await self.order(orders.Resume(name, unit))
            await self.order(orders.Resize(name, None))
        if self.solo:
            await self.replace_all()
        else:
            self.another(calm=True)
        await self.until_nothing_is_left()
        await asyncio.sleep(20.0)
        self.all_waiters_got_an_answer()
        await self.idle()
        await self.stop_all()
        await self.compare_with_the_audit()

    def heal(self) -> None:
        """Let all live processes continue, without further faults."""
        for process in self.processes:
            process.calm = True
            process.line.mend()
            process.line.slow = min(process.line.slow, 0.05)
            if process.frozen and not process.dead:
                process.thawed_at = self.now
                process.thaw(self.loop)

    async def replace_all(self) -> None:
        """Stop the one process and start one that knows everything."""
        for process in self.processes:
            process.stop()
            await process.wait_for_its_end()
        await asyncio.sleep(1.0)
        self.another(calm=True)

    async def until_nothing_is_left(self, most: float = 400.0) -> None:
        """Wait until nothing is queued or running."""
        until = self.now + most
        while await self.anything_left():
            if self.now > until:
                raise Violated("I2", f"accepted work did not come to its end: {self.left()}")
            await asyncio.sleep(2.0)

    def left(self) -> list[str]:
        """Return what has not ended, in words."""
        facts = [fact for pool in self.watch.witness.tasks.values() for fact in [pool]]
        return [f"{f.id} {f.pool} {f.status}" for f in facts if not f.status.terminal][:5]

    async def anything_left(self) -> bool:
        """Return whether a pool has anything queued or running."""
        system = await pools_of_events(self)
        for name in (*self.specs, *(name + CALLBACKS for name in self.specs), *system):
            pool = await self.stage.store.view.pool(name, now=self.now)
            if pool is not None and pool.queued + pool.running:
                return True
        return False

    def all_waiters_got_an_answer(self) -> None:
        """Report a waiter that still waits though all tasks have ended."""
        for process in self.processes:
            for producer in process.producers if not process.dead else ():
                waiting = producer.waiting()
                if waiting:
                    raise Violated("I8", f"{producer.name} still waits: {waiting}")

    async def idle(self) -> None:
        """I11: with nothing to do a process asks the store seldom."""
        before = {process: (process.verbs, process.views) for process in self.processes}
        await asyncio.sleep(IDLE)
        for process, (verbs, views) in before.items():
            verbs_sent, views_read = process.verbs - verbs, process.views - views
            # One look per floor; renewals, recovery and retention are a few more.
            if verbs_sent > IDLE * 1.2 or views_read > IDLE * 3.5:
                raise Violated("I11", f"{process.name}: {verbs_sent} verbs, {views_read} views")

    async def stop_all(self) -> None:
        """Stop all processes cleanly; none may leave anything behind."""
        for process in self.processes:
            if process.dead:
                continue
            process.stop()
            await process.wait_for_its_end()
        await asyncio.sleep(1.0)
        for process in self.processes:
            left = process.alive()
            if left and not process.dead:
                raise Violated("leak", f"{process.name} left {[t.get_name() for t in left]}")

    async def compare_with_the_audit(self) -> None:
        """I2: every task that was ever accepted is kept as its records say."""
        witness, view = self.stage.judge.witness, self.stage.store.view
        kept: dict[int, Status | None] = {}
        for identifier in witness.tasks:
            task = await view.task(identifier)
            kept[identifier] = None if task is None else task.status
        nothing_lost(witness, kept)

    async def end(self) -> None:
        """Stop all processes that are left, so that none outlives the history."""
        self.over = True
        for process in self.processes:
            process.line.over = True
            process.line.mend()
            if process.frozen:
                process.thaw(self.loop)
        this = asyncio.current_task()
        for _ in range(50):
            left = [task for task in asyncio.all_tasks() if task is not this]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1.0)
