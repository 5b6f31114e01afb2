"""Simulated leaders: processes that recover tasks, of which one at a time may."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from millpond.core import control as orders
from millpond.testing.simulation.history import Verb
from millpond.testing.simulation.invariants import Violated

if TYPE_CHECKING:
    from millpond.testing.simulation.world import World


class Leaders:
    """Asks for the lead in the name of one process or another, and recovers with what it got.

    It has dice of its own, so that it changes nothing about who acts when.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = random.Random(repr(world.specs))
        self.generation = 0
        """The highest that was ever given."""
        self.owner = ""

    async def recover(self, limit: int) -> None:
        """Recover: without a generation, as the leader, or as a former leader."""
        world, dice = self.world, self.dice
        owners = [worker.owner for worker in world.workers if worker.joined]
        if not owners or dice.random() < 0.3:
            await world.do("recover", limit)
            return
        owner = dice.choice(owners)
        order = orders.ClaimLeadership(owner, dice.choice((0.5, 5.0, 30.0)))
        claim = Verb("control", order, world.now, dice.getrandbits(64))
        answer = await world.stage.do(claim)
        self.judge(owner, leads=bool(answer.count), generation=answer.revision)
        generation = self.generation - (dice.random() < 0.2)
        recovered = await world.do("recover", (limit, generation))
        stale = generation < self.generation
        if recovered.deposed and recovered.moved:
            raise Violated("lead", f"generation {generation} is deposed, and moved something")
        if stale and not recovered.deposed:
            raise Violated("lead", f"generation {generation} acted, {self.generation} leads")
        if answer.count and not stale and recovered.deposed:
            raise Violated("lead", f"generation {generation} has just been given, and is refused")

    def judge(self, owner: str, *, leads: bool, generation: int) -> None:
        """Object if a generation goes back, or passes to another without growing."""
        grown = generation > self.generation
        if generation < self.generation or (grown and not leads):
            raise Violated("lead", f"generation {generation} after {self.generation}")
        if leads and not grown and owner != self.owner:
            raise Violated("lead", f"{owner} and {self.owner} lead with generation {generation}")
        if leads:
            self.owner, self.generation = owner, generation
