"""Groups of tasks that share a limit, and the shelves they stand on, over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.order.groups import Group, Shelf, Unit
from millpond.store.sql.backlog.line import Place, SqlLine
from millpond.store.sql.backlog.ring import AHEAD
from millpond.store.sql.paged import Paged

if TYPE_CHECKING:
    from typing import TypeAlias

    from millpond.core.order.ring import Owner, Share
    from millpond.store.sql.backlog.backlog import SqlBacklog
    from millpond.store.sql.codec import Row
    from millpond.store.sql.paged import Key

    Address: TypeAlias = tuple[Share, Owner]


class SqlGroup(Group):
    """A group, and its row as stored."""

    __slots__ = ("due", "id", "ready", "shelved", "stored")

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

    @property
    def line(self) -> SqlLine:
        """Its tasks."""
        assert isinstance(self.tasks, SqlLine)  # noqa: S101
        return self.tasks

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


def _by_id(group: Group) -> int:
    assert isinstance(group, SqlGroup)  # noqa: S101 - every group of ours is
    return group.id


class SqlGroups(dict["Address", Group]):
    """The groups of one unit, read as needed."""

    __slots__ = ("_absent", "_backlog", "_count", "_unit", "all_read")

    def __init__(self, backlog: SqlBacklog, unit: Unit, count: int) -> None:
        super().__init__()
        self._backlog = backlog
        self._unit = unit
        self._count = count
        self._absent: tuple[Address, ...] = ()
        self.all_read = not count

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def get(self, address: Address, default: Group | None = None) -> Group | None:  # type: ignore[override]
        """Return the group at an address, or None."""
        found = super().get(address)
        if found is not None or self.all_read or address in self._absent:
            return found or default
        share, owner = address
        backlog = self._backlog
        row = backlog.tables.ask(
            "group", (backlog.pool, self._unit or "", share or "", owner or "")
        ).fetchone()
        if row is None:
            self._absent += (address,)
            return default
        return backlog.group_of(row)

    def __missing__(self, address: Address) -> Group:
        found = self.get(address)
        if found is None:
            raise KeyError(address)
        return found

    def __setitem__(self, address: Address, group: Group) -> None:
        self._count += 1
        super().__setitem__(address, group)

    def __delitem__(self, address: Address) -> None:
        self._count -= 1
        if not self.all_read:
            self._absent += (address,)
        super().__delitem__(address)

    def take_in(self, group: Group) -> None:
        """Add a group that was read."""
        super().__setitem__(group.address, group)

    def values(self) -> Any:  # noqa: ANN401 - as dict's
        """Return every group of the unit."""
        if not self.all_read and super().__len__() == self._count:
            self.all_read = True
        if not self.all_read:
            self.all_read = True
            backlog = self._backlog
            rows = backlog.tables.ask("groups_of_unit", (backlog.pool, self._unit or ""))
            for row in list(rows):
                address = (row[2] or None, row[3] or None)
                if not super().__contains__(address) and address not in self._absent:
                    backlog.group_of(row)
        found = super().values()
        # As they were made, whichever was mentioned first: so they take their places, too.
        return found if len(found) < 2 else sorted(found, key=_by_id)


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
        asked = (backlog.pool, share or "", owner or "", *(behind or ()), size)
        rows = backlog.tables.ask(name, asked).fetchall()
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


class SqlShelves(dict["Address", Shelf]):
    """Shelves, each made at first use."""

    def __init__(self, backlog: SqlBacklog) -> None:
        super().__init__()
        self._backlog = backlog

    def __missing__(self, address: Address) -> Shelf:
        made = self[address] = SqlShelf(self._backlog, address, empty=self._is_empty(address))
        return made

    def get(self, address: Address, default: Shelf | None = None) -> Shelf | None:  # type: ignore[override]
        """Return a shelf, if it is not empty."""
        found = super().get(address)
        if found is None and self._is_empty(address):
            return default
        return found or self[address]

    def _is_empty(self, address: Address) -> bool:
        """Return whether an unread shelf is empty: then its share has no seat."""
        share, owner = address
        seat = self._backlog.ring.seats.look_at(share)
        return seat is None or owner not in seat.owners

    def known_alone(self, group: SqlGroup) -> None:
        """Add a shelf with one group that was read with others."""
        if group.address not in self:
            shelf = self[group.address] = SqlShelf(self._backlog, group.address, empty=True)
            shelf.put(group)
