"""Who may pass and who must wait: slots, weights and a first-in-first-out queue, and nothing else.

The gate only decides. It has no clock, loop, thread or lock: its caller calls one method at a time
and wakes the callers of the tickets that the method settled.
"""

from __future__ import annotations

import sys
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Generic, TypeVar

from millpond.errors import StaleRevision

if TYPE_CHECKING:
    from collections.abc import Sequence


class RejectReason(StrEnum):
    """Why a bulkhead refused a caller."""

    CONCURRENCY_LIMIT = auto()
    """All slots are taken, or other callers wait; and this caller did not want to wait."""
    QUEUE_LIMIT = auto()
    """All slots are taken, and `max_queue` callers wait."""
    TIMEOUT = auto()
    """It waited for its `timeout`."""
    ABORTED = auto()
    """Its `signal` was set."""
    SHUTDOWN = auto()
    """The bulkhead is closed."""
    WEIGHT_LIMIT = auto()
    """Its weight does not fit: now, or never because it is above `max_weight`."""


class TicketState(Enum):
    """The state of a ticket that was not refused."""

    WAITING = auto()
    ADMITTED = auto()


_ADMITTED = TicketState.ADMITTED


class Ticket:
    """One caller: it waits, and is then admitted or refused, exactly once.

    `outcome` is written by the gate alone. `id` and `revision` are those of its admission.
    """

    __slots__ = ("id", "outcome", "place", "revision", "weight")

    id: int
    place: int
    revision: int

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight
        self.outcome: TicketState | RejectReason = TicketState.WAITING


TicketT = TypeVar("TicketT", bound=Ticket)


class Gate(Generic[TicketT]):
    """At most `max_concurrent` callers and `max_weight` in all are inside; `max_queue` may wait.

    | verb | what it does | what it answers |
    |---|---|---|
    | `take(weight)` | admits one caller if no caller waits and there is room | True or False |
    | `try_enter(weight)` | the same; a refusal is counted | None or the reason |
    | `enter(ticket)` | admits, queues or refuses | the ticket's outcome |
    | `wait(ticket)` | queues or refuses: `enter` after a `take` that failed | the outcome |
    | `leave(weight)` | one caller goes; its room goes to those who wait | tickets |
    | `withdraw(ticket, reason)` | refuses a ticket that still waits | tickets |
    | `cancel(ticket)` | its caller is gone: out of the queue, or its room is passed on | tickets |
    | `adjust(delta)` | a caller inside turned out heavier or lighter | tickets |
    | `resize(...)` | new limits, a new revision; no caller inside loses room | tickets |
    | `retune(max_concurrent)` | a new limit without a revision, for a limit that adapts | tickets |
    | `close()` | refuses everyone who waits and everyone to come | tickets |
    | `refusal(weight)` | why a caller would not get in; changes nothing | None or the reason |

    *Tickets* are those that the method settled, in order, each with its outcome; the caller of the
    method wakes their callers. A grant counts from that moment on, before its caller notices, so
    that no other caller gets the room in between.
    """

    def __init__(
        self,
        max_concurrent: int,
        *,
        max_queue: int = 0,
        max_weight: int | None = None,
        revision: int = 0,
    ) -> None:
        self.max_concurrent = max_concurrent
        self.max_queue = max_queue
        self.max_weight = max_weight
        self.revision = revision
        self.closed = False
        self.admitted = 0
        self.released = 0
        self.underflow = 0
        self.refused = dict.fromkeys(RejectReason, 0)
        # What those inside weigh beyond 1 each.
        self._excess = 0
        # The limits as the checks read them: 0 slots once closed, no None to ask about.
        self._ceiling = max_concurrent
        self._heaviest = sys.maxsize if max_weight is None else max_weight
        # By place, a number drawn on arrival: any ticket can leave at once wherever it stands, and
        # places are only ever skipped forwards, once each, so that the next is found in O(1).
        self._waiting: dict[int, TicketT] = {}
        self._first_place = 0
        self._next_place = 0
        # How many callers of weight 1 could enter right now; kept, so that the usual caller costs
        # one comparison. `_recount` is its definition.
        self._room = 0
        self._recount()

    @property
    def in_flight(self) -> int:
        """How many callers are inside."""
        return self.admitted - self.released

    @property
    def weight_in_flight(self) -> int:
        """The total weight of the callers inside."""
        return self.admitted - self.released + self._excess

    @property
    def pending(self) -> int:
        """How many callers wait."""
        return len(self._waiting)

    def take(self, weight: int = 1) -> bool:
        """Admit one caller now, or change nothing: the path that never waits and never counts."""
        if weight == 1:
            if self._room > 0:
                self._room -= 1
                self.admitted += 1
                return True
            return False
        if self._waiting or not self._has_room(weight):
            return False
        self.admitted += 1
        self._excess += weight - 1
        self._recount()
        return True

    def try_enter(self, weight: int = 1) -> RejectReason | None:
        """Admit one caller now or say why not; never queues, whatever `max_queue` is."""
        if self.take(weight):
            return None
        return self.refuse(self.refusal(weight) or RejectReason.CONCURRENCY_LIMIT)

    def enter(self, ticket: TicketT) -> TicketState | RejectReason:
        """Admit `ticket`, or queue it behind everyone who waits, or refuse it."""
        if self.take(ticket.weight):
            self._stamp(ticket)
            return TicketState.ADMITTED
        return self.wait(ticket)

    def wait(self, ticket: TicketT) -> TicketState | RejectReason:
        """Queue `ticket` behind everyone who waits, or refuse it; for use after `take` failed."""
        if (
            len(self._waiting) < self.max_queue
            and ticket.weight <= self._heaviest
            # Closed, or switched off: those who wait keep their place, no new caller may join them.
            and self._ceiling
        ):
            ticket.place = place = self._next_place
            self._next_place = place + 1
            self._waiting[place] = ticket
            self._room = 0
        else:
            ticket.outcome = self.refuse(self._no_place_for(ticket.weight))
        return ticket.outcome

    def leave(self, weight: int = 1) -> Sequence[TicketT]:
        """Free one caller's room and give it at once to the first who waits."""
        self.released += 1
        if self.released > self.admitted:
            self.underflow += 1
        if weight == 1 and not self._waiting:
            self._room += 1
            return ()
        self._excess -= weight - 1
        return self._grant()

    def withdraw(self, ticket: TicketT, reason: RejectReason) -> Sequence[TicketT]:
        """Refuse `ticket` if it still waits; a settled one keeps its outcome."""
        if ticket.outcome is not TicketState.WAITING:
            return ()
        del self._waiting[ticket.place]
        ticket.outcome = self.refuse(reason)
        # A heavy head may have kept lighter ones waiting although they fit.
        return [ticket, *self._grant()]

    def cancel(self, ticket: TicketT) -> Sequence[TicketT]:
        """Undo `ticket` because its caller is gone, even if it was admitted unnoticed."""
        if ticket.outcome is TicketState.ADMITTED:
            ticket.outcome = RejectReason.ABORTED
            return self.leave(ticket.weight)
        return self.withdraw(ticket, RejectReason.ABORTED)[1:]

    def adjust(self, delta: int) -> Sequence[TicketT]:
        """Charge `delta` more weight to those inside, or refund it; it may exceed the limit."""
        self._excess += delta
        return self._grant()

    def resize(
        self,
        *,
        max_concurrent: int | None = None,
        max_queue: int | None = None,
        max_weight: int | None = None,
        revision: int | None = None,
    ) -> Sequence[TicketT]:
        """Set the limits that are given; refuse a `revision` not above the one in force."""
        if revision is not None and revision <= self.revision:
            message = f"revision={revision} is not above {self.revision}, which is in force"
            raise StaleRevision(message, name="", given=revision, current=self.revision)
        self.revision = self.revision + 1 if revision is None else revision
        if max_concurrent is not None:
            self._set_slots(max_concurrent)
        if max_queue is not None:
            self.max_queue = max_queue
        if max_weight is not None:
            self.max_weight = self._heaviest = max_weight
            return [*self._expel_too_heavy(), *self._grant()]
        return self._grant()

    def retune(self, max_concurrent: int) -> Sequence[TicketT]:
        """Move the limit on slots without a revision."""
        self._set_slots(max_concurrent)
        return self._grant()

    def close(self) -> Sequence[TicketT]:
        """Refuse all who wait and all who come; those inside leave in their own time."""
        self.closed = True
        self._ceiling = 0
        turned_away = list(self._waiting.values())
        self._waiting.clear()
        self._recount()
        for ticket in turned_away:
            ticket.outcome = self.refuse(RejectReason.SHUTDOWN)
        return turned_away

    def refusal(self, weight: int = 1) -> RejectReason | None:
        """Say why `try_enter(weight)` would be refused now; changes and counts nothing."""
        if self.closed:
            return RejectReason.SHUTDOWN
        if weight > self._heaviest:
            return RejectReason.WEIGHT_LIMIT
        if self._waiting or self.in_flight >= self.max_concurrent:
            return RejectReason.CONCURRENCY_LIMIT
        return None if self._has_room(weight) else RejectReason.WEIGHT_LIMIT

    def refuse(self, reason: RejectReason) -> RejectReason:
        """Count one refusal; every caller who does not get in is counted once, by its reason."""
        self.refused[reason] += 1
        return reason

    def _set_slots(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        self._ceiling = 0 if self.closed else max_concurrent

    def _has_room(self, weight: int) -> bool:
        """Whether one more caller of `weight` fits inside the limits in force."""
        in_flight = self.admitted - self.released
        return in_flight < self._ceiling and in_flight + self._excess + weight <= self._heaviest

    def _grant(self) -> list[TicketT]:
        """Admit from the head of the queue while there is room; no caller overtakes the first."""
        granted: list[TicketT] = []
        waiting = self._waiting
        place = self._first_place
        while waiting:
            ticket = waiting.get(place)
            if ticket is not None:
                if not self._has_room(ticket.weight):
                    break
                del waiting[place]
                self.admitted += 1
                self._excess += ticket.weight - 1
                self._stamp(ticket)
                granted.append(ticket)
            place += 1
        self._first_place = place
        self._recount()
        return granted

    def _recount(self) -> None:
        """Bring `_room` up to date after anything but a plain coming or going."""
        if self._waiting:
            self._room = 0
        elif self.closed:
            # So far down that those who leave can never bring it back above zero.
            self._room = -sys.maxsize
        else:
            spare_slots = self.max_concurrent - self.in_flight
            self._room = min(spare_slots, self._heaviest - self.weight_in_flight)

    def _stamp(self, ticket: TicketT) -> None:
        """Note on `ticket` the admission just counted, and the revision it was made under."""
        ticket.outcome = _ADMITTED
        ticket.id = self.admitted
        ticket.revision = self.revision

    def _no_place_for(self, weight: int) -> RejectReason:
        """Why a caller that cannot get in at once may not wait either."""
        reason = self.refusal(weight) or RejectReason.CONCURRENCY_LIMIT
        might_wait = self._ceiling and self.max_queue and weight <= self._heaviest
        return RejectReason.QUEUE_LIMIT if might_wait else reason

    def _expel_too_heavy(self) -> list[TicketT]:
        """Refuse those whom a lowered `max_weight` can never admit: they would block the rest."""
        expelled = [t for t in self._waiting.values() if t.weight > self._heaviest]
        for ticket in expelled:
            del self._waiting[ticket.place]
            ticket.outcome = self.refuse(RejectReason.WEIGHT_LIMIT)
        return expelled
