"""The fair ring: who is served next when keys share a pool.

Every share (the partition of a fair pool) with something to start has a turn number. The share with
the lowest (turn, join order) is served; then its turn moves on by its stride, 2**20 / weight of the
share. V is the turn last served. A share that joins, or comes back, starts at max(V, its own last
turn): a new share is served in the current round, and an absent one saves up nothing. A share that
comes back before it was passed keeps its join order too. This is start-time fair queueing (Goyal,
Vin and Cheng, 1996) with unit costs, so every operation is O(log shares).

A task may be reserved for one owner (a closure runs only in its process). Each audience, an owner
or all workers (None), has its own heap of shares; all audiences have the same turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from millpond.core.order.heap import LazyHeap
from millpond.core.rows import DictRows
from millpond.core.spec import ONE_TURN

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.core.order.heap import Ordered
    from millpond.core.rows import RemovableRows
    from millpond.core.spec import Order

Share: TypeAlias = str | None
Owner: TypeAlias = str | None


_ALL_WORKERS: tuple[Owner, ...] = (None,)

PLACES_KEPT = 10_000
"""How many absent shares keep their place; beyond it the lowest are forgotten."""


class Seat:
    """The place of one share, and the audiences it takes part for; none = it rests."""

    __slots__ = ("joined", "owners", "turn")

    def __init__(self, turn: int, joined: int) -> None:
        self.turn = turn
        self.joined = joined
        self.owners: tuple[Owner, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        """Its turn, and among equal turns its order of joining."""
        return (self.turn, self.joined)


class Ring:
    """The shares that have something to start, in the order of their turns."""

    __slots__ = ("_audience_of", "_audiences", "_order", "_resting", "_seats", "joins", "passed")

    def __init__(self, order: Order) -> None:
        self._order = order
        self._audiences: dict[Owner, LazyHeap[Share]] = {}
        self._audience_of: Callable[[Owner], Ordered[Share] | None] = self._audiences.get
        self._seats: RemovableRows[Share, Seat] = DictRows()
        self.joins = 0
        self._resting: Ordered[Share] = LazyHeap()
        self.passed = (0, 0)
        """The place last served: (V, join order)."""

    def __contains__(self, share: Share) -> bool:
        seat = self._seats.get(share)
        return seat is not None and bool(seat.owners)

    def enter(self, share: Share, owner: Owner) -> None:
        """Add `share` to `owner`'s claims, and to the ring if it was not in it."""
        seat = self._seats.get(share)
        if seat is None:
            self.joins += 1
            seat = Seat(self.passed[0], self.joins)
            self._seats.add(share, seat)
        elif not seat.owners:
            self._resting.discard(share)
        elif owner in seat.owners:
            return
        seat.owners = (*seat.owners, owner) if seat.owners or owner is not None else _ALL_WORKERS
        self._audience(owner).set(share, seat.place)

    def leave(self, share: Share, owner: Owner) -> None:
        """Remove `share` from `owner`'s claims, and from the ring with its last audience."""
        seat = self._seats.get(share)
        if seat is None or owner not in seat.owners:
            return
        self._drop(share, owner)
        seat.owners = tuple([one for one in seat.owners if one != owner])
        if not seat.owners:
            # Its place is remembered only until it is passed.
            self._resting.set(share, seat.place)
            self._forget_passed()

    def reorder(self, order: Order) -> None:
        """Use new weights from the next start on."""
        self._order = order

    def next_for(self, owner: Owner) -> tuple[tuple[float, ...], int, Share] | None:
        """Return (place, serial, share) of the next share for a worker of `owner`, or None."""
        first = None if (all_ := self._audience_of(None)) is None else all_.top()
        mine = None if owner is None else self._audience_of(owner)
        own = None if mine is None else mine.top()
        if own is None or (first is not None and first[0] <= own[0]):
            return first
        return own

    def peek(self, owner: Owner) -> Share | None:
        """Return the next share of an audience; None may be a share: see `turn_of`."""
        audience = self._audience_of(owner)
        return None if audience is None else audience.peek()

    def turn_of(self, owner: Owner) -> tuple[float, ...] | None:
        """Return the lowest (turn, join order) of an audience, or None if it has no share."""
        audience = self._audience_of(owner)
        return None if audience is None else audience.lowest()

    def serve(self, share: Share) -> None:
        """Count one start for `share`: its next turn comes one stride later."""
        seat = self._seats.require(share)
        turn, joined = seat.turn, seat.joined
        if (turn, joined) > self.passed:
            self.passed = (turn, joined)
        else:
            # It lags behind V because its owner claimed nothing; it saves up nothing.
            turn = self.passed[0]
        turn += self._order.stride(share) if self._order.weights else ONE_TURN
        seat.turn = turn
        place = (turn, joined)
        for owner in seat.owners:
            self._audience(owner).set(share, place)
        lowest = self._resting.top()
        if lowest is not None and lowest[0] <= self.passed:
            self._forget_passed()

    def _forget_passed(self) -> None:
        resting = self._resting
        while (lowest := resting.top()) is not None and (
            lowest[0] <= self.passed or len(resting.entries) > PLACES_KEPT
        ):
            self._seats.remove(resting.pop())

    def _audience(self, owner: Owner) -> Ordered[Share]:
        audience = self._audiences.get(owner)
        if audience is None:
            audience = self._audiences[owner] = LazyHeap()
        return audience

    def _drop(self, share: Share, owner: Owner) -> None:
        audience = self._audiences[owner]
        audience.discard(share)
        if not audience.entries:
            del self._audiences[owner]
