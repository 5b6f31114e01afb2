"""The simulated world: producers, workers, operators and callers, and everything that goes wrong.

All actors act one verb at a time, in an order drawn from the seed. Nothing here knows what could
be wrong with a store: it only acts, and checks after each step whether all actors that could work
is asleep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.core.task import CALLBACKS, Call, Dedupe, NewTask
from millpond.core.ticks import rounded
from millpond.testing.simulation.bulkhead_crowd import Crowd
from millpond.testing.simulation.history import Stage, Verb
from millpond.testing.simulation.invariants import Violated, nothing_lost
from millpond.testing.simulation.operator import Operator
from millpond.testing.simulation.producer import Producer
from millpond.testing.simulation.worker import FUNCTIONS, SimWorker

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from millpond.core.plan import Wake
    from millpond.core.spec import BudgetSpec, PoolSpec

FAULTS = (
    "crash",
    "freeze",
    "lost answer",
    "lease lost",
    "leave",
    "buried",
    "parked submitter",
    "pause",
    "resize",
    "cancel",
    "interrupt",
    "purge",
    "update",
    "hold",
    "throttled",
    "budget resized",
    "day passes",
)
"""Every kind of trouble a history can hold."""

KEYS = (None, "acme", "bolt", "cord")
_WITHOUT_RUN = tuple(mode for mode in Dedupe if mode is not Dedupe.RUN)


class World:
    """One seeded world around one store."""

    def __init__(
        self,
        stage: Stage,
        dice: random.Random,
        specs: list[PoolSpec],
        budgets: Sequence[BudgetSpec] = (),
    ) -> None:
        self.stage = stage
        self.budgets = budgets
        self.dice = dice
        self.specs = {spec.name: spec for spec in specs}
        self.now = 1000.0
        self.verbs = 0
        self.faults: set[str] = set()
        self.known: list[int] = []
        self.runs: dict[int, str | None] = {}
        self._serial = 0
        self.keys = KEYS[1:]
        self.rare_is_unknown = dice.random() < 0.35
        self.closures = 0.12 if dice.random() < 0.5 else 0.0
        self.workers = [SimWorker(self, number) for number in range(dice.randint(3, 5))]
        self.producers = [Producer(self, number) for number in range(dice.randint(3, 5))]
        self.crowd = Crowd(self)
        self.operator = Operator(self)

    def serial(self) -> int:
        """Return a number never used before in this world."""
        self._serial += 1
        return self._serial

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.dice.random() < probability

    def fault(self, kind: str) -> None:
        """Note that a kind of fault happened in this history."""
        self.faults.add(kind)

    async def do(self, name: str, arguments: Any) -> Any:  # noqa: ANN401 - each verb has its own answer
        """Carry out one verb and spread its wake-ups."""
        verb = Verb(name, arguments, self.now, self.dice.getrandbits(64))
        answer = await self.stage.do(verb)
        self.verbs += 1
        for wake in getattr(answer, "wakes", ()):
            self.spread(wake)
        return answer

    def spread(self, wake: Wake) -> None:
        """Wake every worker that watches the pool; a frozen one finds it when it thaws."""
        for worker in self.workers:
            watch = worker.watches.get(wake.pool)
            if watch is not None:
                watch.wake(wake)

    async def open(self) -> None:
        """Declare the pools and let the first workers join."""
        for budget in self.budgets:
            await self.do("control", orders.DeclareBudget(budget))
        for spec in self.specs.values():
            await self.do("control", orders.Declare(spec))
        for worker in self.workers:
            await worker.join()

    async def step(self) -> None:
        """Let a little time pass and one actor act; then check who sleeps."""
        self.now = rounded(self.now + self.dice.choice((0.0, 0.0, 0.05, 0.2, 1.0)))
        await self.next_actor().act()
        await self.never_asleep()

    def next_actor(self) -> Producer | SimWorker | Operator | Crowd:
        """Choose who acts next."""
        draw = self.dice.random()
        if draw < 0.28:
            return self.dice.choice(self.producers)
        if draw < 0.88:
            return self.dice.choice(self.workers)
        return self.operator if draw < 0.94 else self.crowd

    async def never_asleep(self) -> None:
        """I11: with work due, at least one actor that could start it is awake."""
        queues, asleep = [], []
        for pool in self.stage_pools():
            hearing = [worker for worker in self.workers if worker.could_hear(pool)]
            awake = [worker.id for worker in hearing if worker.watching(pool)]
            asleep.append([worker.id for worker in hearing if worker.id not in awake])
            queues.append((pool, awake + asleep[-1]))
        # One question after each step: on a server each is a transaction.
        first = await self.stage.store.view.first_ready(queues, now=self.now)
        for (pool, _), worker, sleepers in zip(queues, first, asleep, strict=True):
            if worker in sleepers:
                raise Violated("I11", f"all sleep with work due in {pool}")

    async def settle_down(self, most: int = 400) -> None:
        """Stop all trouble and let the workers finish: whatever was accepted must end."""
        for name in self.specs:
            await self.do("control", orders.Resume(name))
            for key in KEYS[1:]:
                await self.do("control", orders.Resume(name, key))
            for lane in range(self.specs[name].lanes or 0):
                await self.do("control", orders.Resume(name, str(lane)))
            await self.do("control", orders.Resize(name, self.specs[name].max_concurrent))
        for budget in self.budgets:
            await self.do("control", orders.ResizeBudget(budget.name))
        for worker in self.workers:
            await worker.calm_down()
        for run, holder in list(self.runs.items()):
            if holder is not None:
                await self.do("control", orders.Seal(run, holder))
        for _ in range(most):
            if not await self.anything_left():
                await self.compare_with_the_audit()
                return
            self.now = rounded(self.now + self.dice.choice((0.0, 0.5, 2.0, 5.0)))
            await self.do("recover", 1000)
            for worker in self.workers:
                await worker.act()
                await self.never_asleep()
        raise Violated("I2", "accepted work did not come to its end")

    async def compare_with_the_audit(self) -> None:
        """I2: every task that was ever accepted is kept as its records say."""
        witness, view = self.stage.judge.witness, self.stage.store.view
        kept: dict[int, Status | None] = {}
        for identifier in witness.tasks:
            task = await view.task(identifier)
            kept[identifier] = None if task is None else task.status
        nothing_lost(witness, kept)

    async def anything_left(self) -> bool:
        """Return whether a pool has anything queued or running."""
        for name in self.stage_pools():
            pool = await self.stage.store.view.pool(name)
            if pool is not None and pool.queued + pool.running:
                return True
        return False

    def stage_pools(self) -> list[str]:
        """Return every queue of this world: pools and their callbacks."""
        return [*self.specs, *(name + CALLBACKS for name in self.specs)]

    def new_task(self, pool: str, run: int | None = None, depth: int = 0) -> NewTask:
        """Make up a task."""
        dice, spec = self.dice, self.specs[pool]
        key = dice.choice(KEYS)
        named = self.chance(0.25)
        idempotency_key = f"k{dice.randint(0, 5)}" if named else None
        function = "rare" if self.chance(0.08) else dice.choice(FUNCTIONS[:3])
        owner = None if spec.strict or depth else self.some_owner(self.closures)
        dedupe = dice.choice(tuple(Dedupe) if run else _WITHOUT_RUN)
        payload = bytes([depth])
        if named and dedupe is Dedupe.REPLACE:
            # What replaces a task must have its key: so that of the idempotency key.
            key, owner, payload = KEYS[dice.randint(1, 3)], None, payload + dice.randbytes(1)
            idempotency_key = f"r-{key}"
        return NewTask(
            id=self.serial() + (1 << 40),
            pool=pool,
            call=Call(function if not named else "fetch", payload),
            key=key,
            share=dice.choice(KEYS) if self.chance(0.2) else key,
            priority=dice.randint(-2, 2),
            weight=dice.randint(1, 3),
            delay=dice.choice((0.0, 0.0, 0.0, 0.5, 3.0)),
            expires_in=dice.choice((0.5, 2.0)) if self.chance(0.12) else None,
            attempts=dice.randint(1, 4),
            idempotency_key=idempotency_key,
            dedupe=dedupe,
            on_complete=Call("notify") if self.chance(0.1) else None,
            owner=owner,
            run=run,
        )

    def some_owner(self, probability: float) -> str | None:
        """Return a process with a live worker to own a closure, now and then."""
        alive = [worker.owner for worker in self.workers if worker.joined]
        return self.dice.choice(alive) if alive and self.chance(probability) else None
