"""Where groups stand: on the shelves of their shares, in the ring, or behind a timer.

A group at its limit, paused or held back is on no shelf, and a share without groups is not in the
ring, so blocked tasks are never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core import rate as gcra
from millpond.core.order.groups import DictUnits, Shelf
from millpond.core.order.heap import LazyHeap
from millpond.core.order.ring import Ring
from millpond.core.spec import Order, OrderKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.core.order.groups import Group, Unit, UnitRows, UnitState
    from millpond.core.order.heap import Ordered
    from millpond.core.order.ring import Owner, Share
    from millpond.core.spec import PoolSpec

_NO_RING, _NO_UNITS = Ring(Order(kind=OrderKind.FIFO)), DictUnits()
"""The ring and the units of every backlog without groups: always empty."""


class Placement:
    """The groups of one pool, as far as they may start."""

    __slots__ = (
        "_cap",
        "_limit",
        "_limited",
        "_rate",
        "_ring",
        "_shares",
        "_shelf",
        "_unit_timers",
        "_units",
    )

    def __init__(self, spec: PoolSpec, *, grouped: bool) -> None:
        self._cache_limits(spec)
        self._units: UnitRows = DictUnits() if grouped else _NO_UNITS
        self._shares: dict[tuple[Share, Owner], Shelf] = {}
        self._shelf: Callable[[tuple[Share, Owner]], Shelf | None] = self._shares.get
        """Returns the shelf at an address."""
        self._ring = Ring(spec.order) if grouped else _NO_RING
        self._unit_timers: Ordered[Unit] = LazyHeap()

    def _cache_limits(self, spec: PoolSpec) -> None:
        """Cache the settings that every start needs."""
        self._limit, self._rate = spec.unit_limit, spec.rate_per_key
        self._limited = self._limit is not None or self._rate is not None
        self._cap = None
        if self._limit is not None and self._rate is None and not spec.strict:
            self._cap = self._limit - 1

    def _open(self, unit: Unit, state: UnitState, now: float) -> bool:
        """Return whether the limits of a unit let one more of its tasks start."""
        if state.paused or state.blocked or state.held_until > now:
            return False
        if unit is None:
            return True
        if self._limit is not None and state.running >= self._limit:
            return False
        return self._rate is None or gcra.ready_at(self._rate, state.tat, 1, now) <= now

    def _place(self, group: Group, now: float) -> None:
        """Add a group to its share or remove it, and its share to or from the ring."""
        state = self._units.require(group.unit)
        head = group.tasks.head()
        if head is None:
            state.remove_group(group)
            self._enlist(group, ready=False)
            # The timer belongs to the unit: only its last group removes it.
            if self._unit_timers.entries and not state.count_groups():
                self._unit_timers.discard(group.unit)
            return
        group.place = (head.rank, head.seq)
        ready = head.due <= now and self._open(group.unit, state, now)
        self._enlist(group, ready=ready)
        if not ready or self._unit_timers.entries:
            self._set_timer(group, state, head.due, now)

    def _set_timer(self, group: Group, state: UnitState, due: float, now: float) -> None:
        """Set the timer of a unit whose next task starts by time alone.

        Only a strict lane holds a task that is not due: it blocks the tasks behind it.
        """
        unit = group.unit
        moment = max(self._not_before(unit, state, now), due)
        if moment > now and self._open(unit, state, moment):
            self._unit_timers.set(unit, (moment, *group.place))
        elif unit in self._unit_timers and self._unit_timers.key_of(unit)[0] > now:
            # A due timer stays: `promote` still needs it for the other groups of the unit.
            self._unit_timers.discard(unit)

    def _not_before(self, unit: Unit, state: UnitState, now: float) -> float:
        """Return when the hold and the rate of a unit allow a start: now or later."""
        held_until = state.held_until
        if self._rate is None or unit is None:
            return now if now >= held_until else held_until  # noqa: FURB136 - max costs a call
        return max(held_until, gcra.ready_at(self._rate, state.tat, 1, now))

    def _enlist(self, group: Group, *, ready: bool) -> None:
        """Add a group to its share, or remove it."""
        address = group.address
        shelf = self._shelf(address)
        if shelf is None:
            if ready:
                self._shares[address] = Shelf(group)
                self._ring.enter(*address)
        elif ready:
            shelf.put(group)
        else:
            shelf.take(group)
            if not shelf:
                del self._shares[address]
                self._ring.leave(*address)

    def _next_group(self, owner: Owner) -> Group | None:
        """Return the next group: the lower turn of those for all workers and those for `owner`."""
        found = self._ring.next_for(owner)
        if found is None:
            return None
        share = found[2]
        shelf = self._shelf((share, None))
        if owner is None and shelf is not None:
            return shelf.first()
        mine = None if owner is None else self._shelf((share, owner))
        first = None if shelf is None else shelf.first()
        own = None if mine is None else mine.first()
        if own is None or (first is not None and first.place < own.place):
            return first
        return own

    def _own_group(self, owner: Owner) -> Group | None:
        """Return the next group of those for `owner` alone."""
        if self._ring.turn_of(owner) is None:
            return None
        shelf = self._shelf((self._ring.peek(owner), owner))
        return None if shelf is None else shelf.first()
