"""Groups of tasks that share a limit, and the shelves they stand on, over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.order.groups import Group, Shelf, Unit, UnitState
from millpond.store.sql.backlog.line import Place, SqlLine
from millpond.store.sql.backlog.ring import AHEAD
from millpond.store.sql.paged import Paged

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import TypeAlias

    from millpond.core.order.ring import Owner, Share
    from millpond.store.sql.backlog.backlog import SqlBacklog
    from millpond.store.sql.codec import Row
    from millpond.store.sql.paged import Key

    Address: TypeAlias = tuple[Share, Owner]


class SqlGroup(Group):
    """A group, and its row as stored."""

    __slots__ = ("due", "id", "ready", "shelved", "stored")

    tasks: SqlLine

    def __init__(self, backlog: SqlBacklog, address: Address, unit: Unit, row: Row | None) -> None:
        super().__init__(address, unit)
        self.stored = row
        if row is None:
            self.id = backlog.tables.next_group()
            self.ready = False
            self.due = 0.0
            self.tasks = SqlLine(backlog, self, 0, None)
        else:
            self.id, _, _, _, count, rank, seq, self.due, ready = row
            self.place = (rank, seq)
            self.ready = bool(ready)
            self.tasks = SqlLine(backlog, self, count, Place(rank, seq, self.due))
        self.shelved = self.place
        """Its place on its shelf."""

    def row(self) -> Row:
        """Return its row."""
        (share, owner), (rank, seq) = self.address, self.place
        return (
            self.id,
            self.unit or "",
            share or "",
            owner or "",
            len(self.tasks),
            rank,
            seq,
            self.due,
            int(self.ready),
        )


class SqlUnit(UnitState):
    """A lane or key, and those of its groups that were read."""

    __slots__ = ("_absent", "_all_read", "_backlog", "_count", "_read", "_unit")

    def __init__(self, backlog: SqlBacklog, unit: Unit, groups: int) -> None:
        super().__init__()
        self._backlog = backlog
        self._unit = unit
        self._count = groups
        self._read: dict[Address, SqlGroup] = {}
        self._absent: tuple[Address, ...] = ()
        self._all_read = not groups

    def find_group(self, address: Address) -> SqlGroup | None:
        """Return the group at an address, or None; a query if it is not in memory."""
        found = self._read.get(address)
        if found is not None or self._all_read or address in self._absent:
            return found
        share, owner = address
        backlog = self._backlog
        row = backlog.tables.ask(
            "group", (backlog.pool, self._unit or "", share or "", owner or "")
        ).fetchone()
        if row is None:
            self._absent += (address,)
            return None
        return backlog.group_of(row)

    def group_at(self, address: Address) -> SqlGroup:
        """Return the group at an address, which must be there."""
        found = self.find_group(address)
        if found is None:
            raise KeyError(address)
        return found

    def add_group(self, group: Group) -> None:
        """Add a group that has its first task."""
        self._count += 1
        self.take_in(group)

    def remove_group(self, group: Group) -> None:
        """Remove a group that ran empty."""
        self._count -= 1
        if not self._all_read:
            self._absent += (group.address,)
        del self._read[group.address]

    def count_groups(self) -> int:
        """Return how many groups the unit has."""
        return self._count

    def take_in(self, group: Group) -> None:
        """Add a group that was read."""
        assert isinstance(group, SqlGroup)  # noqa: S101 - every group of ours is
        self._read[group.address] = group

    def has_read_all(self) -> None:
        """Note that every group was read."""
        self._all_read = True

    def all_groups(self) -> Collection[SqlGroup]:
        """Return every group, in any order; perhaps a query."""
        if not self._all_read and len(self._read) < self._count:
            self._load()
        self._all_read = True
        return self._read.values()

    def _load(self) -> None:
        self._all_read = True
        backlog = self._backlog
        for row in backlog.tables.ask(
            "groups_of_unit", (backlog.pool, self._unit or "")
        ).fetchall():
            address = (row[2] or None, row[3] or None)
            if address not in self._read and address not in self._absent:
                backlog.group_of(row)


class SqlShelf(Shelf):
    """The groups of one share and owner that could start a task.

    Nearly always there is one, and that is known: then nothing needs to be read for it.
    """

    __slots__ = ("_address", "_backlog", "_paged")

    def __init__(self, backlog: SqlBacklog, address: Address, *, empty: bool) -> None:
        self._backlog = backlog
        self._address = address
        self._only: Group | None = None
        self._paged = None if empty else self._from_the_file()
        """None = there is at most one, which is in memory."""

    def _from_the_file(self) -> Paged[Group]:
        backlog = self._backlog
        if self._address != (None, None) or backlog.is_fair:
            return Paged(self._page, size=2)
        paged: Paged[Group] = Paged(backlog.shelf_ahead, most=AHEAD)
        paged.expect(min(backlog.expected, AHEAD))
        return paged

    def _page(self, behind: Key | None, size: int) -> list[tuple[Key, Group]]:
        backlog, (share, owner) = self._backlog, self._address
        name = "shelf" if behind is None else "shelf_after"
        arguments = (backlog.pool, share or "", owner or "", *(behind or ()), size)
        rows = backlog.tables.ask(name, arguments).fetchall()
        return [((row[5], row[6]), backlog.group_of(row)) for row in rows]

    def __bool__(self) -> bool:
        return self._only is not None if self._paged is None else bool(self._paged)

    def first(self) -> Group | None:
        """Return the group with the lowest place."""
        return self._only if self._paged is None else self._paged.peek()

    def put(self, group: Group) -> None:
        """Put a group at its place."""
        assert isinstance(group, SqlGroup)  # noqa: S101
        group.shelved = group.place
        if self._paged is None:
            if self._only is None or self._only is group:
                self._only = group
                return
            self._paged = Paged(self._page, count=0)
            self._paged.set(self._only, self._only.place)
            self._only = None
        self._paged.set(group, group.place)

    def take(self, group: Group) -> None:
        """Remove a group."""
        if self._paged is not None:
            self._paged.discard(group)
        elif self._only is group:
            self._only = None


class SqlShelves:
    """Shelves, each made at first use."""

    def __init__(self, backlog: SqlBacklog) -> None:
        self._backlog = backlog
        self._shelves: dict[Address, SqlShelf] = {}

    def get(self, address: Address) -> SqlShelf | None:
        """Return a shelf, or None if it is empty; perhaps a query."""
        found = self._shelves.get(address)
        if found is not None:
            return found
        return None if self._is_empty(address) else self._make(address, empty=False)

    def require(self, address: Address) -> SqlShelf:
        """Return a shelf, though it may be empty; perhaps a query."""
        found = self._shelves.get(address)
        return self._make(address, empty=self._is_empty(address)) if found is None else found

    def _make(self, address: Address, *, empty: bool) -> SqlShelf:
        made = self._shelves[address] = SqlShelf(self._backlog, address, empty=empty)
        return made

    def _is_empty(self, address: Address) -> bool:
        """Return whether an unread shelf is empty: then its share has no seat."""
        share, owner = address
        seat = self._backlog.ring.seats.look_at(share)
        return seat is None or owner not in seat.owners

    def known_alone(self, group: SqlGroup) -> None:
        """Add a shelf with one group that was read with others."""
        if group.address not in self._shelves:
            self._make(group.address, empty=True).put(group)
