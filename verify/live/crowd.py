"""A crowd of real callers in front of a real bulkhead."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from millpond.bulkhead import Bulkhead, Permit
from millpond.testing.simulation.invariants import Violated

if TYPE_CHECKING:
    from verify.live.world import LiveWorld


class Crowd:
    """Callers that come, wait, give up and go, and limits that change under them."""

    def __init__(self, world: LiveWorld) -> None:
        self.world = world
        self.dice = random.Random(f"{world.seed}/crowd")
        self.limit = self.dice.randint(1, 3)
        self.bulkhead = Bulkhead("crowd", self.limit, max_queue=self.dice.choice((0, 2, 5)))
        self.inside = 0
        self._limits = (world.now, self.limit)
        """A moment, and the highest limit in force at it: a caller wakes where it was let in."""

    async def live(self) -> None:
        """Let callers come until the faults are over; then all permits must be released."""
        async with asyncio.TaskGroup() as callers:
            while not self.world.calm:
                await asyncio.sleep(self.dice.choice((0.0, 0.1, 0.5)))
                caller = callers.create_task(self.call())
                if self.dice.random() < 0.2:
                    self.world.later(self.dice.choice((0.0, 0.1, 0.5)), caller.cancel)
                if self.dice.random() < 0.1:
                    self.resize()
        self.all_permits_are_released()

    async def call(self) -> None:
        """Come in, stay for a while, go."""
        dice, bulkhead = self.dice, self.bulkhead
        if dice.random() < 0.4:
            admitted = bulkhead.try_acquire()
        else:
            admitted = await bulkhead.acquire(timeout=dice.choice((None, 0.0, 0.3, 2.0)))
        if not isinstance(admitted, Permit):
            return
        self.inside += 1
        try:
            self.judge()
            await asyncio.sleep(dice.choice((0.0, 0.1, 0.3, 0.3, 1.0)))
        finally:
            self.inside -= 1
            admitted.release()

    def resize(self) -> None:
        """Change the limit."""
        before, self.limit = self._highest(), self.dice.randint(1, 4)
        self.bulkhead.resize(max_concurrent=self.limit)
        self._limits = (self.world.now, max(before, self.limit))

    def _highest(self) -> int:
        moment, highest = self._limits
        return highest if moment == self.world.now else self.limit

    def judge(self) -> None:
        """I1: no caller is admitted above the limit in force."""
        if self.inside > max(self._highest(), self.limit):
            self.world.broke(Violated("I1", f"{self.inside} callers inside, of {self.limit}"))

    def all_permits_are_released(self) -> None:
        """Report a slot that was lost, or that is counted but not held."""
        stats = self.bulkhead.stats()
        if stats.in_flight or stats.pending or stats.leaked or stats.underflow:
            self.world.broke(Violated("I1", f"all permits are released, but: {stats}"))
