"""Groups of tasks that share a limit, and the lanes or keys that have the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from millpond.core import rate as gcra
from millpond.core.order.heap import LazyHeap
from millpond.core.order.line import TaskLine
from millpond.core.rows import DictRows, RemovableRows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from millpond.core.order.line import Line
    from millpond.core.order.ring import Owner, Share

Unit: TypeAlias = str | None
"""A lane in a pool with lanes, else a key; None for tasks without either."""


class Group:
    """Queued tasks of one unit, one share and one owner."""

    __slots__ = ("address", "place", "tasks", "unit")

    def __init__(self, address: tuple[Share, Owner], unit: Unit) -> None:
        self.address = address
        self.unit = unit
        self.tasks: Line = TaskLine()
        self.place = (0, 0)
        """Its place in its share: (rank, seq) of its first task."""


class Shelf:
    """The groups of one share and owner that could start a task, by their places.

    Nearly always there is one: the tasks of a partition mostly have the same key.
    """

    __slots__ = ("_many", "_only")

    def __init__(self, group: Group) -> None:
        self._only: Group | None = group
        self._many: LazyHeap[Group] | None = None

    def __bool__(self) -> bool:
        return self._only is not None or bool(self._many)

    def first(self) -> Group | None:
        """Return the group with the lowest place."""
        if self._only is not None or self._many is None:
            return self._only
        return self._many.peek()

    def put(self, group: Group) -> None:
        """Put a group at its place, which may have changed."""
        if self._only is group:
            return
        if self._many is None:
            self._many = LazyHeap()
        if self._only is not None:
            self._many.set(self._only, self._only.place)
            self._only = None
        self._many.set(group, group.place)

    def take(self, group: Group) -> None:
        """Remove a group, if it is here."""
        if self._only is group:
            self._only = None
        elif self._many is not None:
            self._many.discard(group)


class UnitState:
    """What limits one lane or key: its running tasks, its pause, its rate."""

    __slots__ = ("_groups", "blocked", "held_until", "paused", "running", "tat")

    def __init__(self) -> None:
        self._groups: dict[tuple[Share, Owner], Group] = {}
        self.running = 0
        self.paused = False
        self.blocked = False
        self.held_until = 0.0
        self.tat = 0

    def find_group(self, address: tuple[Share, Owner]) -> Group | None:
        """Return the group at an address, or None."""
        return self._groups.get(address)

    def group_at(self, address: tuple[Share, Owner]) -> Group:
        """Return the group at an address, which must be there."""
        return self._groups[address]

    def add_group(self, group: Group) -> None:
        """Add a group that has its first task."""
        self._groups[group.address] = group

    def remove_group(self, group: Group) -> None:
        """Remove a group that ran empty."""
        del self._groups[group.address]

    def count_groups(self) -> int:
        """Return how many groups the unit has."""
        return len(self._groups)

    def all_groups(self) -> Collection[Group]:
        """Return every group, in any order."""
        return self._groups.values()

    @property
    def idle(self) -> bool:
        """Whether the unit may be forgotten once its rate and hold have passed."""
        return not (self.running or self.paused or self.blocked or self.count_groups())

    @property
    def matters_until(self) -> float:
        """When its rate and its hold have passed."""
        return max(self.held_until, gcra.full_at(self.tat))


class UnitRows(RemovableRows[Unit, UnitState], Protocol):
    """The lanes and keys of a pool that have tasks, or a pause, hold or rate to remember."""

    def items(self) -> Iterable[tuple[Unit, UnitState]]:
        """Return every unit with its name."""

    def is_empty(self) -> bool:
        """Return whether there is none."""


class DictUnits(DictRows[Unit, UnitState]):
    """Units in memory."""

    __slots__ = ()

    def is_empty(self) -> bool:
        """Return whether there is none."""
        return not self.all()
