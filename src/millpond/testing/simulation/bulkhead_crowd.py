"""A simulated crowd at a gate: the bulkhead's decisions, one verb at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.gate import Gate, Ticket, TicketState
from millpond.testing.simulation.invariants import Violated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.testing.simulation.world import World


class Crowd:
    """Tickets at a gate: the bulkhead's decisions, one verb at a time."""

    def __init__(self, world: World) -> None:
        dice = world.dice
        self.world = world
        self.gate: Gate[Ticket] = Gate(
            dice.randint(1, 3),
            max_queue=dice.choice((0, 2, 5)),
            max_weight=dice.choice((None, 4)),
        )
        self.waiting: list[Ticket] = []
        self.granted: list[Ticket] = []
        self.inside: list[Ticket] = []

    async def act(self) -> None:
        """Let a few callers come, wake up, go, give up, and the limits change."""
        for _ in range(self.world.dice.randint(1, 6)):
            limit = self.gate.max_concurrent
            before = len(self.inside) + len(self.granted)
            self.one()
            self.judge(before, limit)

    def one(self) -> None:
        """Let one thing happen at the gate."""
        dice = self.world.dice
        draw = dice.random()
        if draw < 0.35:
            self.come()
        elif draw < 0.55 and self.granted:
            self.wake(self.granted.pop(dice.randrange(len(self.granted))))
        elif draw < 0.80 and self.inside:
            caller = self.inside.pop(dice.randrange(len(self.inside)))
            self.cancel_requested(self.gate.leave(caller.weight))
        elif draw < 0.90 and (self.waiting or self.granted):
            self.give_up()
        elif draw < 0.95:
            self.cancel_requested(self.gate.resize(max_concurrent=dice.randint(1, 4)))

    def come(self) -> None:
        """Let a caller come, to wait or not."""
        caller = Ticket(self.world.dice.randint(1, 3))
        if self.world.chance(0.4):
            if self.gate.try_enter(caller.weight) is None:
                self.inside.append(caller)
            return
        outcome = self.gate.enter(caller)
        if outcome is TicketState.ADMITTED:
            self.inside.append(caller)
        elif outcome is TicketState.WAITING:
            self.waiting.append(caller)

    def wake(self, caller: Ticket) -> None:
        """Let a caller notice that it was admitted."""
        self.inside.append(caller)

    def give_up(self) -> None:
        """Let a caller go away that waits, or was admitted and has not noticed."""
        callers = self.waiting + self.granted
        caller = callers[self.world.dice.randrange(len(callers))]
        (self.waiting if caller in self.waiting else self.granted).remove(caller)
        self.cancel_requested(self.gate.cancel(caller))

    def cancel_requested(self, settled: Sequence[Ticket]) -> None:
        """Take in who was admitted."""
        for caller in settled:
            if self.waiting[0] is not caller and caller.outcome is TicketState.ADMITTED:
                raise Violated("I1", "a caller overtook the one in front")
            self.waiting.remove(caller)
            if caller.outcome is TicketState.ADMITTED:
                self.granted.append(caller)

    def judge(self, before: int, limit: int) -> None:
        """I1 for permits: none above a limit, no slot lost, the counts are right."""
        gate = self.gate
        held = len(self.inside) + len(self.granted)
        weight = sum(caller.weight for caller in self.inside + self.granted)
        if held > before and held > max(limit, gate.max_concurrent):
            raise Violated("I1", f"{held} callers inside, of {gate.max_concurrent}")
        if held > before and gate.max_weight is not None and weight > gate.max_weight:
            raise Violated("I1", f"{weight} inside, of {gate.max_weight}")
        self.no_caller_waits_in_vain(held, weight)
        self.count_is_true(held)

    def no_caller_waits_in_vain(self, held: int, weight: int) -> None:
        """Object if the first in line waits before room that is free."""
        gate = self.gate
        if not self.waiting or held >= gate.max_concurrent:
            return
        if gate.max_weight is None or weight + self.waiting[0].weight <= gate.max_weight:
            raise Violated("I1", "a caller waits before a free slot")

    def count_is_true(self, held: int) -> None:
        """Object if the gate counts more or fewer callers inside than there are."""
        if self.gate.in_flight != held:
            raise Violated("I1", f"the gate counts {self.gate.in_flight} inside, not {held}")
