"""Simulated producers: they submit, park when a pool is full, and repeat what went unanswered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.admit import Reason
from millpond.core.run import NewRun, OnError
from millpond.core.task import Call
from millpond.store.protocol import Batch, BatchAnswer
from millpond.testing.simulation.history import Raised

if TYPE_CHECKING:
    from millpond.testing.simulation.world import World


class Producer:
    """Submits batches; parks when a pool is full; sends again the batches without an answer."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"producer-{number}"
        self.pending: Batch | None = None

    async def act(self) -> None:
        """Submit the pending batch, or a new one."""
        world = self.world
        batch = self.pending or self.new_batch()
        self.pending = None
        answer = await world.do("submit", (batch,))
        if isinstance(answer, Raised):
            return
        if world.chance(0.04):
            world.fault("lost answer")
            self.pending = msgspec.structs.replace(batch, again=True)
        self.take_in(batch, answer.batches[0])

    def take_in(self, batch: Batch, answer: BatchAnswer) -> None:
        """Record the accepted tasks; wait where the pool asks for it."""
        world = self.world
        world.known.extend(admission.task for admission in answer.admissions)
        if answer.run is not None:
            world.runs[answer.run.id] = batch.run.holder if batch.run else None
        if answer.refusal is not None and answer.refusal.may_wait and world.chance(0.8):
            world.fault("parked submitter")
            self.pending = batch
        if answer.refusal is not None and answer.refusal.reason is Reason.OVER_BUDGET:
            world.runs.pop(batch.tasks[0].run or 0, None)

    def new_batch(self) -> Batch:
        """Make up a batch, now and then with a run."""
        world = self.world
        pool = world.dice.choice(list(world.specs))
        size = world.dice.choice((1, 1, 1, 2, 3))
        if world.chance(0.06):
            return self.seed_of_run(pool, size)
        held = [run for run, holder in world.runs.items() if holder is not None]
        run = world.dice.choice(held) if held and world.chance(0.2) else None
        return Batch(tasks=tuple(world.new_task(pool, run) for _ in range(size)))

    def seed_of_run(self, pool: str, size: int) -> Batch:
        """Make up a run with its seed, sometimes one that was there before."""
        world = self.world
        identifier = world.serial() + (1 << 50)
        run = NewRun(
            id=identifier,
            pool=pool,
            name=f"run-{world.dice.randint(0, 3)}" if world.chance(0.3) else None,
            on_error=OnError.FAIL if world.chance(0.3) else OnError.SKIP,
            max_tasks=world.dice.choice((3, 8)) if world.chance(0.3) else None,
            holder=world.some_owner(0.4),
            # Without a draw: the histories of known seeds stay as they are.
            on_complete=Call("notify") if identifier % 2 else None,
        )
        return Batch(tasks=tuple(world.new_task(pool, run.id) for _ in range(size)), run=run)
