"""The fair ring: who is served next when keys share a pool.

Every share (the partition of a fair pool) with something to start has a turn number. Served is
the lowest (turn, join order); then its turn moves on by its stride, 2**20 / weight. V is the turn
last served. A share that joins, or comes back, starts at max(V, its own last turn): a newcomer is
served in the round under way, and one that was out has saved up nothing. One that comes back
before it was passed keeps its join order too: it is where it would have been. This is start-time
fair queueing (Goyal, Vin and Cheng, 1996) with unit costs, so every step is O(log shares).

A task may be reserved for one owner (a closure runs only where its code is). Each audience, an
owner or everybody (None), has its own heap of shares; the turns are common to all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from millpond.core.heap import LazyHeap
from millpond.core.spec import ONE_TURN

if TYPE_CHECKING:
    from millpond.core.spec import Order

Share: TypeAlias = str | None
Owner: TypeAlias = str | None


_EVERYBODY: tuple[Owner, ...] = (None,)

PLACES_KEPT = 10_000
"""How many shares that are out keep their place; beyond it the lowest are forgotten."""


class Ring:
    """The shares that have something to start, in the order of their turns."""

    __slots__ = ("_audiences", "_in", "_joined", "_joins", "_order", "_resting", "_turns", "passed")

    def __init__(self, order: Order) -> None:
        self._order = order
        self._audiences: dict[Owner, LazyHeap[Share]] = {}
        self._in: dict[Share, tuple[Owner, ...]] = {}
        self._turns: dict[Share, int] = {}
        self._joined: dict[Share, int] = {}
        self._joins = 0
        self._resting: LazyHeap[Share] = LazyHeap()
        self.passed = (0, 0)
        """The place last served, (V, join order): every share in reach stands behind it."""

    def __contains__(self, share: Share) -> bool:
        return share in self._in

    def enter(self, share: Share, owner: Owner) -> None:
        """Let `share` take part for `owner`'s claims; joining the ring if it was out of it."""
        present = self._in.get(share)
        if present is None:
            self._in[share] = _EVERYBODY if owner is None else (owner,)
            self._join(share)
        elif owner in present:
            return
        else:
            self._in[share] = (*present, owner)
        self._audience(owner).set(share, self._place(share))

    def leave(self, share: Share, owner: Owner) -> None:
        """Take `share` out of `owner`'s claims; out of the ring once no audience is left."""
        present = self._in.get(share)
        if present is None or owner not in present:
            return
        self._drop(share, owner)
        if len(present) > 1:
            self._in[share] = tuple([one for one in present if one != owner])
        else:
            del self._in[share]
            self._rest(share)

    def reorder(self, order: Order) -> None:
        """Take over new weights; they count from the next start on."""
        self._order = order

    def next_for(self, owner: Owner) -> tuple[tuple[float, ...], int, Share] | None:
        """Return (place, serial, share) of whose turn it is for a worker of `owner`, or None."""
        first = None if (all_ := self._audiences.get(None)) is None else all_.top()
        mine = None if owner is None else self._audiences.get(owner)
        own = None if mine is None else mine.top()
        if own is None or (first is not None and first[0] <= own[0]):
            return first
        return own

    def peek(self, owner: Owner) -> Share | None:
        """Return the share whose turn it is for `owner`; `turn_of` tells None from nobody."""
        audience = self._audiences.get(owner)
        return None if audience is None else audience.peek()

    def turn_of(self, owner: Owner) -> tuple[float, ...] | None:
        """Return the lowest (turn, join order) of an audience, or None if it has no share."""
        audience = self._audiences.get(owner)
        return None if audience is None else audience.lowest()

    def serve(self, share: Share) -> None:
        """Count one start for `share`: its next turn comes one stride later."""
        turn, joined = self._turns[share], self._joined[share]
        if (turn, joined) > self.passed:
            self.passed = (turn, joined)
        else:
            # Reserved for an owner who did not ask, it lags behind V; it saves up nothing.
            turn = self.passed[0]
        turn += self._order.stride(share) if self._order.weights else ONE_TURN
        self._turns[share] = turn
        place = (turn, joined)
        for owner in self._in[share]:
            self._audiences[owner].set(share, place)
        lowest = self._resting.top()
        if lowest is not None and lowest[0] <= self.passed:
            self._forget_passed()

    def _join(self, share: Share) -> None:
        if share in self._turns:
            self._resting.discard(share)
            return
        self._turns[share] = self.passed[0]
        self._joins += 1
        self._joined[share] = self._joins

    def _rest(self, share: Share) -> None:
        """Remember the place of a share that is out only until it is passed."""
        self._resting.set(share, self._place(share))
        self._forget_passed()

    def _forget_passed(self) -> None:
        resting = self._resting
        while (lowest := resting.top()) is not None and (
            lowest[0] <= self.passed or len(resting.entries) > PLACES_KEPT
        ):
            share = resting.pop()
            del self._turns[share], self._joined[share]

    def _place(self, share: Share) -> tuple[int, int]:
        return (self._turns[share], self._joined[share])

    def _audience(self, owner: Owner) -> LazyHeap[Share]:
        audience = self._audiences.get(owner)
        if audience is None:
            audience = self._audiences[owner] = LazyHeap()
        return audience

    def _drop(self, share: Share, owner: Owner) -> None:
        audience = self._audiences[owner]
        audience.discard(share)
        if not audience:
            del self._audiences[owner]
