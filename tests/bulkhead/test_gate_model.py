"""The gate against a naive model: a list for the queue and arithmetic for the rest."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from millpond import RejectReason, StaleRevision
from millpond.core.gate import Gate, Ticket, TicketState


@dataclass
class Model:
    """What the gate promises, written as plainly as possible and as slowly as it likes."""

    slots: int
    places: int
    heaviest: int | None
    inside: list[int] = field(default_factory=list)
    queue: list[Ticket] = field(default_factory=list)
    closed: bool = False

    def fits(self, weight: int) -> bool:
        room = self.heaviest is None or sum(self.inside) + weight <= self.heaviest
        return not self.closed and len(self.inside) < self.slots and room

    def too_heavy(self, weight: int) -> bool:
        return self.heaviest is not None and weight > self.heaviest

    def try_enter(self, weight: int) -> RejectReason | None:
        if self.closed:
            return RejectReason.SHUTDOWN
        if self.too_heavy(weight):
            return RejectReason.WEIGHT_LIMIT
        if self.queue or len(self.inside) >= self.slots:
            return RejectReason.CONCURRENCY_LIMIT
        if not self.fits(weight):
            return RejectReason.WEIGHT_LIMIT
        self.inside.append(weight)
        return None

    def enter(self, ticket: Ticket) -> TicketState | RejectReason:
        reason = self.try_enter(ticket.weight)
        if reason is None:
            return TicketState.ADMITTED
        if self.closed or self.too_heavy(ticket.weight) or not self.slots or not self.places:
            return reason
        if len(self.queue) >= self.places:
            return RejectReason.QUEUE_LIMIT
        self.queue.append(ticket)
        return TicketState.WAITING

    def pump(self) -> list[Ticket]:
        granted = []
        while self.queue and self.fits(self.queue[0].weight):
            granted.append(self.queue.pop(0))
            self.inside.append(granted[-1].weight)
        return granted


class GateAgainstModel(RuleBasedStateMachine):
    """Callers come, go, wait, give up and change weight, and limits move; one verb at a time.

    An admitted ticket stays in the bundle `granted` until its caller notices, so that a cancel can
    strike between the grant and the wake-up.
    """

    waiting = Bundle("waiting")
    granted = Bundle("granted")
    inside = Bundle("inside")

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate[Ticket] = Gate(2, max_queue=3, max_weight=10)
        self.model = Model(2, 3, 10)
        self.refusals = 0
        self.overdrawn = False

    def settle(self, settled: object) -> None:
        """The gate granted exactly whom the model would have, in that order."""
        granted = self.model.pump()
        assert granted == settled
        assert all(ticket.outcome is TicketState.ADMITTED for ticket in granted)

    @rule(target=inside, weight=st.integers(1, 12))
    def try_enter(self, weight: int) -> object:
        expected = self.model.try_enter(weight)
        assert expected == self.gate.refusal(weight)
        assert expected == self.gate.try_enter(weight)
        self.refusals += expected is not None
        return multiple() if expected else weight

    @rule(target=waiting, weight=st.integers(1, 12))
    def enter(self, weight: int) -> object:
        ticket = Ticket(weight)
        expected = self.model.enter(ticket)
        assert expected == self.gate.enter(ticket) == ticket.outcome
        self.refusals += isinstance(expected, RejectReason)
        return multiple() if isinstance(expected, RejectReason) else ticket

    @rule(target=inside, ticket=consumes(waiting))
    def notice(self, ticket: Ticket) -> object:
        """A caller wakes up and finds out; if it still waits, it goes on waiting as a cancel."""
        if ticket.outcome is TicketState.ADMITTED:
            assert ticket.revision <= self.gate.revision
            return ticket.weight
        if ticket.outcome is TicketState.WAITING:
            self.cancel_one(ticket)
        return multiple()

    @rule(weight=consumes(inside))
    def leave(self, weight: int) -> None:
        self.model.inside.remove(weight)
        self.settle(list(self.gate.leave(weight)))

    @rule(ticket=consumes(waiting))
    def cancel(self, ticket: Ticket) -> None:
        """Also between the grant and the wake-up: then the room is passed on."""
        self.cancel_one(ticket)

    def cancel_one(self, ticket: Ticket) -> None:
        if ticket.outcome is TicketState.ADMITTED:
            self.model.inside.remove(ticket.weight)
        elif ticket.outcome is TicketState.WAITING:
            self.model.queue.remove(ticket)
            self.refusals += 1
        self.settle(list(self.gate.cancel(ticket)))
        assert ticket.outcome is not TicketState.WAITING

    @rule(ticket=waiting, reason=st.sampled_from([RejectReason.TIMEOUT, RejectReason.ABORTED]))
    def withdraw(self, ticket: Ticket, reason: RejectReason) -> None:
        before = ticket.outcome
        settled = list(self.gate.withdraw(ticket, reason))
        if before is TicketState.WAITING:
            self.model.queue.remove(ticket)
            self.refusals += 1
            assert (ticket, reason) == (settled.pop(0), ticket.outcome)
        else:
            assert before == ticket.outcome
        self.settle(settled)

    @rule(target=inside, weight=consumes(inside), actual=st.integers(0, 15))
    def adjust(self, weight: int, actual: int) -> int:
        self.model.inside.remove(weight)
        self.model.inside.append(actual)
        self.settle(list(self.gate.adjust(actual - weight)))
        return actual

    @rule(
        slots=st.none() | st.integers(0, 4),
        places=st.none() | st.integers(0, 4),
        heaviest=st.none() | st.integers(1, 12),
        ahead=st.none() | st.integers(-2, 3),
    )
    def resize(
        self, slots: int | None, places: int | None, heaviest: int | None, ahead: int | None
    ) -> None:
        revision = None if ahead is None else self.gate.revision + ahead
        limits = {"max_concurrent": slots, "max_queue": places, "max_weight": heaviest}
        if ahead is not None and ahead <= 0:
            with pytest.raises(StaleRevision):
                self.gate.resize(**limits, revision=revision)
            return
        settled = list(self.gate.resize(**limits, revision=revision))
        self.model.slots = self.model.slots if slots is None else slots
        self.model.places = self.model.places if places is None else places
        self.model.heaviest = self.model.heaviest if heaviest is None else heaviest
        expelled = [ticket for ticket in self.model.queue if self.model.too_heavy(ticket.weight)]
        for ticket in expelled:
            self.model.queue.remove(ticket)
            self.refusals += 1
            assert (ticket, RejectReason.WEIGHT_LIMIT) == (settled.pop(0), ticket.outcome)
        self.settle(settled)

    @rule(slots=st.integers(1, 4))
    def retune(self, slots: int) -> None:
        self.model.slots = slots
        self.settle(list(self.gate.retune(slots)))

    @precondition(lambda self: self.gate.admitted > 8)
    @rule()
    def close(self) -> None:
        turned_away = self.model.queue
        self.model.queue = []
        self.model.closed = True
        self.refusals += len(turned_away)
        assert turned_away == list(self.gate.close())
        assert all(ticket.outcome is RejectReason.SHUTDOWN for ticket in turned_away)

    @invariant()
    def the_gate_says_what_the_model_says(self) -> None:
        gate, model = self.gate, self.model
        assert len(model.inside) == gate.in_flight
        assert sum(model.inside) == gate.weight_in_flight
        assert len(model.queue) == gate.pending == len(gate._waiting)
        assert model.queue == list(gate._waiting.values())
        assert (0, self.refusals) == (gate.underflow, sum(gate.refused.values()))
        assert gate.admitted == gate.released + gate.in_flight

    @invariant()
    def what_is_kept_for_speed_is_what_it_stands_for(self) -> None:
        assert (self.gate._room > 0) == (not self.model.queue and self.model.fits(1))


TestGate = GateAgainstModel.TestCase
TestGate.settings = settings(max_examples=150, stateful_step_count=40)


def test_the_next_in_line_is_found_without_a_search() -> None:
    """Places are skipped once each: a thousand gaps cost a thousand steps in all, not each time."""
    gate: Gate[Ticket] = Gate(1, max_queue=5000)
    gate.take()
    tickets = [Ticket() for _ in range(3000)]
    for ticket in tickets:
        gate.enter(ticket)
    for ticket in tickets[:-10]:
        gate.withdraw(ticket, RejectReason.TIMEOUT)
    assert 10 == len(gate._waiting)
    for ticket in tickets[-10:]:
        assert [ticket] == list(gate.leave())
    assert gate._next_place == gate._first_place


def test_an_underflow_is_counted_and_not_hidden() -> None:
    """A bug of this library would show as a number that is not zero."""
    gate: Gate[Ticket] = Gate(1)
    gate.leave()
    assert (1, -1) == (gate.underflow, gate.in_flight)
