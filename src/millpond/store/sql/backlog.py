"""The backlog over rows: the core's order of things, with only what is in reach in memory.

Every decision is the core's. What is different here is where its lines, groups, units and timers
come from: a unit is read when it is mentioned, a line page by page, and what changed is written
when the verbs of the transaction are done.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import islice, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from millpond.core.order.backlog import Backlog, Group, Shelf, Unit, UnitState, needs_groups
from millpond.core.order.line import Head, Line
from millpond.core.order.ring import Owner, Share
from millpond.store.sql.codec import SEQ_BITS, TaskRow, place_of, seq_at
from millpond.store.sql.paged import Paged
from millpond.store.sql.ring import AHEAD, SqlRing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeAlias

    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task
    from millpond.store.sql.codec import Row
    from millpond.store.sql.paged import Key
    from millpond.store.sql.unit_of_work import SqlTables

    Address: TypeAlias = tuple[Share, Owner]


_TRIM_AT = 256
_NO_TIMES = (None, None, None, None)
_new_state = object.__new__
_FIRST = (-(1 << 63), -1)
"""A place before every other."""
_ALL = (1 << 63) - 1
"""A limit that leaves nothing out."""

_FIRST_PAGE, _LARGEST_PAGE = 20, 1000
"""How many tasks are read at once by who goes through all of them; more each time."""

_by_place = attrgetter("rank", "seq")
_NO_TASKS: list[Task] = []
_NOTHING: set[int] = set()
"""What a line begins with: few come to have more, and there are many lines."""


class Place(NamedTuple):
    """Where the first task of a line stands, and from when on."""

    rank: int
    seq: int
    due: float


class SqlLine(Line):
    """The queued tasks of one group, lowest (rank, seq) first, read page by page.

    What was read stands in a row, as it came. What was put in or taken out since, other than the
    first, is `mine`: whatever the file says of it, in a page that is read later, does not count.
    """

    __slots__ = ("_backlog", "_behind", "_count", "_front", "_group", "_mine", "_size", "grp")

    def __init__(
        self,
        backlog: SqlBacklog,
        group: SqlGroup | None,
        count: int | None,
        front: Place | None,
    ) -> None:
        self._row = _NO_TASKS
        self._head = 0
        self._heap = None
        self._backlog = backlog
        self._group = group
        """None = it is the one line of its pool and has the number of its pool."""
        self.grp = backlog.pool if group is None else group.id
        self._count = count
        """How many there are; None = that is known elsewhere, and there may be any number."""
        self._front = front
        """The first of those that are not read, as long as that is known."""
        self._behind: tuple[int, int] | None = _FIRST if count != 0 else None
        """Where the next page begins; None = all is read."""
        self._mine = _NOTHING
        self._size = 2

    def __len__(self) -> int:
        return self._count or 0

    def __iter__(self) -> Iterator[Task]:
        row = self._row[self._head :]
        while self._behind is not None:
            self._read()
            row += self._row
        self._row, self._head = row, 0
        mine = self._mine
        read = [task for task in row if task.seq not in mine]
        added = {task.seq: task for _, _, task in self._heap or () if _grp(task) == self.grp}
        return iter([*read, *added.values()])

    def trim(self) -> None:
        """Let go of what has left, and leave to the file what it knows by now."""
        if len(self._mine) > _TRIM_AT:
            self._leave_to_the_file()
        elif self._head > _TRIM_AT:
            del self._row[: self._head]
            self._head = 0

    def _leave_to_the_file(self) -> None:
        """Have nothing of one's own any more: whatever was put in or taken out is written."""
        mine, behind, pool = self._mine, self._behind, self._backlog.pool
        read = {task.seq: task for task in self._row[self._head :] if task.seq not in mine}
        added = {
            seq: task
            for rank, seq, task in self._heap or ()
            if _grp(task) == self.grp and (behind is None or (rank, place_of(pool, seq)) <= behind)
        }
        self._row, self._head = sorted({**read, **added}.values(), key=_by_place), 0
        self._heap = self._front = None
        self._mine = _NOTHING

    def begin_with(self, first: TaskRow, second: Place | None) -> None:
        """Take in the first task of the file and the place of the next, if nothing was read yet."""
        if self._behind == _FIRST:
            self._row = [first]
            self._behind = self._front = None
            if second is not None:
                self._behind = (first.rank, place_of(self._backlog.pool, first.seq))
                self._front = None if second.seq in self._mine else second

    def expect(self, count: int) -> None:
        """Read as many as will be taken, and the one behind."""
        self._size = max(self._size, count + 1)

    def add(self, task: Task) -> None:
        """Put a task at its place."""
        task.grp = self.grp  # type: ignore[attr-defined]
        if self._count is not None:
            self._count += 1
        self._own(task.seq)
        if self._group is not None:
            self._backlog.handed[self._group] = None
        if self._heap is None:
            self._heap = []
        heappush(self._heap, (task.rank, task.seq, task))

    def first(self) -> Task | None:
        """Return the task that is next, or None."""
        added = self._first_added()
        found = self._first_read()
        front = self._front
        if found is None and (added is None or front is None or _behind(added, front)):
            while found is None and self._behind is not None:
                self._read()
                found = self._first_read()
        if found is None or (added is not None and not _behind(added, found)):
            found = added
        if found is not None:
            # Whoever asks for the first is about to start it.
            self._backlog.tables.tasks.handed[found.new.id] = found  # type: ignore[assignment]
        return found

    def _first_read(self) -> Task | None:
        row, mine = self._row, self._mine
        while self._head < len(row):
            task = row[self._head]
            if task.seq not in mine:
                return task
            self._head += 1
        return None

    def _first_added(self) -> Task | None:
        heap = self._heap
        while heap:
            task = heap[0][2]
            if _grp(task) == self.grp:
                return task
            heappop(heap)
        return None

    def head(self) -> Head | None:
        """Return the place of the task that is next, or None."""
        known = self._first_read() or self._front
        if known is None:
            return self.first()
        added = self._first_added()
        return known if added is None or _behind(added, known) else added

    def remove(self, task: Task) -> None:
        """Take out a task that is here."""
        task.grp = None  # type: ignore[attr-defined]
        if self._count is not None:
            self._count -= 1
        if self._group is not None:
            self._backlog.handed[self._group] = None
        row, head = self._row, self._head
        if head < len(row) and row[head] is task:
            self._head = head + 1
        else:
            self._own(task.seq)
        if self._front is not None and task.seq == self._front.seq:
            self._front = None

    def take(self, most: int, fits: Callable[[Task], bool]) -> list[Task]:
        """Take out the first tasks as long as each fits, of those that were read."""
        taken: list[Task] = []
        if self._group is not None:
            return taken
        added = self._first_added()
        while len(taken) < most and self._has_read():
            if added is not None and not _behind(added, self._row[-1]):
                break
            taken += self._taken_of_page(most - len(taken), fits)
            if self._head < len(self._row):
                break
        return taken

    def _has_read(self) -> bool:
        """Return whether there is something in the row, if need be of the next page."""
        if self._first_read() is None and self._behind is not None:
            self._read()
        return self._first_read() is not None

    def _taken_of_page(self, most: int, fits: Callable[[Task], bool]) -> list[Task]:
        mine, head = self._mine, self._head
        taken = list(takewhile(fits, islice(self._row, head, head + most)))
        self._head = head + len(taken)
        if mine:
            taken = [task for task in taken if task.seq not in mine]
        for task in taken:
            task.grp = None  # type: ignore[attr-defined]
        if self._count is not None:
            self._count -= len(taken)
        self._front = None
        return taken

    def _own(self, seq: int) -> None:
        if self._mine is _NOTHING:
            self._mine = set()
        self._mine.add(seq)

    def _read(self) -> None:
        """Read the next page, when there is nothing left of the one before."""
        backlog, size = self._backlog, self._size
        behind = self._behind or _FIRST
        name = "next_of_group" if behind == _FIRST else "next_of_group_after"
        after = () if behind == _FIRST else behind
        page = backlog.tables.look_at_live(name, (self.grp, *after, size))
        self._row = page  # type: ignore[assignment]
        self._head = 0
        self._front = None
        self._size = min(size * 2, 512)
        last = page[-1] if page else None
        full = last is not None and len(page) == size
        self._behind = (last.rank, place_of(backlog.pool, last.seq)) if full and last else None


def _known_items(paged: object) -> int:
    return paged.known_items if isinstance(paged, Paged) else 0


def _behind(task: Head, other: Head) -> bool:
    return (task.rank, task.seq) > (other.rank, other.seq)


def _grp(task: Task) -> int | None:
    return task.grp  # type: ignore[attr-defined,no-any-return]


class SqlGroup(Group):
    """A group, and how it stands in the file."""

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
        """Where it stands on its shelf."""

    @property
    def line(self) -> SqlLine:
        """Its tasks."""
        assert isinstance(self.tasks, SqlLine)  # noqa: S101
        return self.tasks

    def row(self) -> Row:
        """Return it as it should stand in the file."""
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
    """The groups of one unit; those nobody mentions stay in the file."""

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
        """Know a group that was read."""
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


class SqlUnits(dict[Unit, UnitState]):
    """The lanes and keys that were mentioned."""

    def __init__(self, backlog: SqlBacklog) -> None:
        super().__init__()
        self._backlog = backlog
        self._stored: dict[Unit, Row | None] = {}
        self._handed: set[Unit] = set()
        """Those that somebody has in his hands, and may have changed."""

    def get(self, unit: Unit, default: UnitState | None = None) -> UnitState | None:  # type: ignore[override]
        """Return what is known of a unit, or None."""
        self._handed.add(unit)
        return self.look_at(unit) or default

    def look_at(self, unit: Unit) -> UnitState | None:
        """Return what is known of a unit, or None; to be read and not changed."""
        found = super().get(unit)
        if found is not None or unit in self._stored:
            return found
        backlog = self._backlog
        row = backlog.tables.ask("unit", (backlog.pool, unit or "")).fetchone()
        return self._take_in(unit, row)

    def __getitem__(self, unit: Unit) -> UnitState:
        found = self.get(unit)
        if found is None:
            raise KeyError(unit)
        return found

    def __contains__(self, unit: object) -> bool:
        return self.look_at(unit) is not None  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        if super().__len__():
            return True
        # Only these: a task may be in the middle of an arrow.
        self.write()
        pool = (self._backlog.pool,)
        return bool(self._backlog.tables.ask("any_unit", pool).fetchone()[0])

    def __delitem__(self, unit: Unit) -> None:
        self.get(unit)
        super().__delitem__(unit)

    def read(self, units: Iterable[Unit]) -> None:
        """Read several units, and the groups of those that have a name, at once."""
        backlog = self._backlog
        wanted = [unit for unit in units if unit and unit not in self._stored]
        if len(wanted) < 2:
            return
        names = backlog.tables.listed(wanted)
        tables = backlog.tables
        found = {row[0]: row[1:] for row in tables.ask("some_units", (backlog.pool, names))}
        for unit in wanted:
            self._take_in(unit, found.get(unit))
        if found:
            rows = list(tables.ask("groups_of_units", (backlog.pool, names)))
            for row in rows:
                backlog.group_of(row)
            for unit in found:
                groups = super().__getitem__(unit).groups
                assert isinstance(groups, SqlGroups)  # noqa: S101 - every unit of ours has such
                groups.all_read = True

    def items(self) -> Any:  # noqa: ANN401 - as dict's
        """Return every unit of the pool."""
        backlog = self._backlog
        rows = backlog.tables.ask("units", (backlog.pool,))
        for unit, *row in list(rows):
            if (unit or None) not in self._stored:
                self._take_in(unit or None, tuple(row))
        self._handed.update(super().keys())
        return super().items()

    def values(self) -> Any:  # noqa: ANN401 - as dict's
        """Return what is known of every unit."""
        self.items()
        return super().values()

    def _take_in(self, unit: Unit, row: Row | None) -> UnitState | None:
        self._stored[unit] = row
        if row is None:
            return None
        state = self._backlog.unit_of(unit, row)
        super().__setitem__(unit, state)
        return state

    def write(self) -> None:
        """Send what has changed to the file."""
        backlog = self._backlog
        saved, untimed, dropped = [], [], []
        for unit in self._handed:
            state, stored = super().get(unit), self._stored.get(unit)
            row = None if state is None else backlog.row_of_unit(unit, state)
            if row == stored:
                continue
            if row is None:
                dropped.append((backlog.pool, unit or ""))
            elif row[6:] == _NO_TIMES:
                untimed.append((backlog.pool, unit or "", *row[:6]))
            else:
                saved.append((backlog.pool, unit or "", *row))
            self._stored[unit] = row
        tables = backlog.tables
        if dropped:
            tables.send("drop_unit", dropped)
        if untimed:
            tables.send("save_untimed_unit", untimed)
        if saved:
            tables.send("save_unit", saved)

    @property
    def known_units(self) -> int:
        """How many units were mentioned, those of which there is nothing to know too."""
        return len(self._stored)

    def known(self, unit: Unit, row: Row) -> None:
        """Take in a unit that was read with others."""
        if unit not in self._stored and not super().__contains__(unit):
            self._take_in(unit, row)

    def let_go(self) -> None:
        """Have nothing in hand any more: everything is written, and the transaction is over."""
        self._handed = set()


class SqlShelf(Shelf):
    """The groups of one share and owner that could start something.

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
        """Let a group stand at its place."""
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
        """Take a group out."""
        if self._paged is not None:
            self._paged.discard(group)
        elif self._only is group:
            self._only = None


class SqlShelves(dict["Address", Shelf]):
    """Shelves, each made when it is first asked for."""

    def __init__(self, backlog: SqlBacklog) -> None:
        super().__init__()
        self._backlog = backlog

    def __missing__(self, address: Address) -> Shelf:
        made = self[address] = SqlShelf(self._backlog, address, empty=self._is_empty(address))
        return made

    def get(self, address: Address, default: Shelf | None = None) -> Shelf | None:  # type: ignore[override]
        """Return a shelf, if there is anything on it."""
        found = super().get(address)
        if found is None and self._is_empty(address):
            return default
        return found or self[address]

    def _is_empty(self, address: Address) -> bool:
        """Return whether a shelf that nobody mentioned is empty: then its share is not seated."""
        share, owner = address
        seat = self._backlog.ring.seats.look_at(share)
        return seat is None or owner not in seat.owners

    def known_alone(self, group: SqlGroup) -> None:
        """Take in a shelf that was read with others: there is one group on it."""
        if group.address not in self:
            shelf = self[group.address] = SqlShelf(self._backlog, group.address, empty=True)
            shelf.put(group)


class SqlLater(dict[int, "Task"]):
    """Tasks that are not due: which they are is written on each of them."""

    def __init__(self, backlog: SqlBacklog, count: int) -> None:
        super().__init__()
        self._backlog = backlog
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return self.count > 0

    def __setitem__(self, identifier: int, task: Task) -> None:
        assert isinstance(task, TaskRow)  # noqa: S101
        task.grp = 0
        self.count += 1

    def pop(self, identifier: int, default: Task | None = None) -> Task | None:  # type: ignore[override]
        """Take out a task that is not due."""
        task = self._backlog.tables.tasks.get(identifier)
        if not isinstance(task, TaskRow) or task.grp != 0:
            return default
        task.grp = None
        self.count -= 1
        return task

    def values(self) -> Any:  # noqa: ANN401 - as dict's
        """Return every task that is not due."""
        tables = self._backlog.tables
        tables.write_rows()
        return [
            task
            for task in tables.read_live("next_due", (self._backlog.pool, _ALL))
            if task.grp == 0
        ]


class SqlLines(dict[Owner, Line]):
    """The lines of a pool in which nothing looks at lanes and keys."""

    def __init__(self, backlog: SqlBacklog) -> None:
        super().__init__()
        self._backlog = backlog
        self.absent: set[Owner] = set()
        """Owners that have no line, so that nobody looks for it again."""

    def __missing__(self, owner: Owner) -> Line:
        made = self[owner] = self._backlog.line_of(owner)
        return made

    def __setitem__(self, owner: Owner, line: Line) -> None:
        self.absent.discard(owner)
        super().__setitem__(owner, line)

    def get(self, owner: Owner, default: Line | None = None) -> Line | None:  # type: ignore[override]
        """Return the line of an owner; one of an owner without tasks is not made by a look."""
        found = super().get(owner)
        if found is not None:
            return found  # a line of unknown length counts as empty, so `or` would lose it
        if owner in self.absent:
            return default
        if owner is not None and not self._backlog.has_line(owner):
            self.absent.add(owner)
            return default
        return self[owner]


class SqlBacklog(Backlog):
    """The queued tasks of one pool, read as they are asked for."""

    __slots__ = ("_groups", "_plain", "expected", "handed", "pool", "tables")

    def __init__(self, spec: PoolSpec, tables: SqlTables, pool: int, row: dict[str, int]) -> None:
        super().__init__(spec)
        self.tables = tables
        self.pool = pool
        self.grouped = bool(row["grouped"])
        self.expected = 1
        self._ready = row["ready"]
        self._groups: dict[int, SqlGroup] = {}
        self.handed: dict[SqlGroup, None] = {}
        """Groups that may have changed since they were written."""
        self._plain: dict[Owner, SqlGroup] = {}
        """The one group for each owner, where nothing looks at lanes and keys."""
        self._lines = SqlLines(self)
        self._units = SqlUnits(self)
        self._shares = SqlShelves(self)
        self._delayed = SqlLater(self, row["later"])
        self._task_timers: Paged[int] = Paged(self._due_page)
        self._unit_timers: Paged[Unit] = Paged(self._timers_page, count=row["unit_timers"])
        self._fading: Paged[Unit] = Paged(self._fading_page, count=row["fading"])
        passed = (row["passed_turn"], row["passed_join"])
        self._ring = self._new_ring(row["joins"], passed, row["resting"])

    def _new_ring(self, joins: int, passed: tuple[int, int], resting: int) -> SqlRing:
        for_all = self._turns_ahead if self._fair else None
        return SqlRing(
            self.spec.order,
            self.tables,
            self.pool,
            joins=joins,
            passed=passed,
            resting=resting,
            for_all=for_all,
        )

    # What the rows say

    def counts(self) -> dict[str, int]:
        """Return what is kept of it in the row of its pool."""
        ring = self.ring
        return {
            "grouped": int(self.grouped),
            "ready": self._ready,
            "later": len(self._delayed),
            "unit_timers": len(self._unit_timers),
            "fading": len(self._fading),
            "joins": ring.joins,
            "passed_turn": ring.passed[0],
            "passed_join": ring.passed[1],
            "resting": len(ring.resting),
        }

    @property
    def ring(self) -> SqlRing:
        """Whose turn it is."""
        assert isinstance(self._ring, SqlRing)  # noqa: S101
        return self._ring

    @property
    def shelves(self) -> SqlShelves:
        """The shelves that were mentioned."""
        assert isinstance(self._shares, SqlShelves)  # noqa: S101
        return self._shares

    @property
    def is_fair(self) -> bool:
        """Whether shares take turns."""
        return self._fair

    @property
    def units(self) -> SqlUnits:
        """The lanes and keys that were mentioned."""
        assert isinstance(self._units, SqlUnits)  # noqa: S101
        return self._units

    def write(self) -> None:
        """Send what has changed to the file."""
        if self.handed:
            self._write_groups([group for group in self.handed if group.row() != group.stored])
        self.units.write()
        self.ring.seats.write()

    def _write_groups(self, groups: list[SqlGroup]) -> None:
        saved, changed, dropped = [], [], []
        for group in groups:
            row = group.row()
            identifier, unit, share, owner, count, *rest = row
            if not count and not group.ready:
                if group.stored is not None:
                    dropped.append((identifier,))
                group.stored = None
                continue
            # One that ran empty keeps its row until `flush` takes it from its shelf: a shelf that
            # is read before that must hold what memory believes to stand there.
            if group.stored is None:
                saved.append((identifier, self.pool, unit, share, owner, count, *rest))
            else:
                changed.append((count, *rest, identifier))
            group.stored = row
        tables = self.tables
        if dropped:
            tables.send("drop_group", dropped)
        if saved:
            tables.send("save_group", saved)
        if changed:
            tables.send("change_group", changed)

    def group_of(self, row: Row) -> SqlGroup:
        """Return the group of a row, the same one each time."""
        known = self._groups.get(row[0])
        if known is not None:
            return known
        identifier, unit, share, owner = row[:4]
        group = SqlGroup(self, (share or None, owner or None), unit or None, row)
        self._groups[identifier] = group
        state = self.units.look_at(group.unit) or self._unit(group.unit)
        assert isinstance(state.groups, SqlGroups)  # noqa: S101
        state.groups.take_in(group)
        return group

    def has_line(self, owner: str) -> bool:
        """Return whether an owner has a line in a pool without groups."""
        return self._row_of_line(owner) is not None

    def _row_of_line(self, owner: str) -> Row | None:
        row: Row | None = self.tables.ask("group", (self.pool, "", "", owner)).fetchone()
        return row

    def _new_line(self, owner: Owner) -> Line:
        return self.line_of(owner)

    def line_of(self, owner: Owner) -> Line:
        """Return the line of an owner in a pool without groups: a group without a unit.

        Of an owner without one it makes one, with a number that is written: to put a task in.
        """
        if owner is None:
            # It has the number of its pool and needs no row: what it holds is the queue.
            line = SqlLine(self, None, None if self._ready else 0, None)
        else:
            row = self._row_of_line(owner)
            group = SqlGroup(self, (None, owner), None, row)
            self._groups[group.id] = group
            # Its place is not kept up to date, so nobody may rely on it.
            line = group.tasks = SqlLine(self, group, 0 if row is None else row[4], None)
        line.expect(self.expected)
        return line

    def trimmed(self) -> int:
        """Let go of groups that are no more; return how much is kept in memory."""
        for group in self.handed:
            if group.stored is None:
                self._groups.pop(group.id, None)
            group.line.trim()
        self.handed = {}
        self.units.let_go()
        self.ring.seats.let_go()
        for owner, line in list(dict.items(self._lines)):
            assert isinstance(line, SqlLine)  # noqa: S101 - every line of ours is
            line.trim()
            if owner is not None and line.grp not in self._groups:
                # What would be put in it later would stand in a group that nobody writes.
                del self._lines[owner]
        assert isinstance(self._lines, SqlLines)  # noqa: S101 - made above
        return (
            len(self._groups)
            + len(self._lines.absent)
            + self.units.known_units
            + self.ring.seats.known_shares
            + _known_items(self._task_timers)
            + _known_items(self._unit_timers)
            + _known_items(self._fading)
        )

    def expect(self, count: int) -> None:
        """Be ready to give `count` tasks: they are read at once."""
        self.expected = count
        if self.grouped:
            if self.is_fair:
                self.ring.expect(count)
            return
        for line in dict.values(self._lines):
            if isinstance(line, SqlLine):
                line.expect(count)

    def unit_of(self, unit: Unit, row: Row) -> UnitState:
        """Return what a row says of a unit."""
        state = _new_state(UnitState)
        state.running, paused, blocked, state.held_until, state.tat, groups, *times = row
        state.paused, state.blocked = bool(paused), bool(blocked)
        state.groups = SqlGroups(self, unit, groups)
        timer_at, timer_rank, timer_seq, fades_at = times
        if timer_at is not None:
            self._unit_timers.known(unit, (timer_at, timer_rank, timer_seq))
        if fades_at is not None:
            self._fading.known(unit, (fades_at,))
        return state

    def row_of_unit(self, unit: Unit, state: UnitState) -> Row:
        """Return a unit as it should stand in the file."""
        timers, fading = self._unit_timers, self._fading
        times: tuple[float | None, ...] = _NO_TIMES
        if unit in timers or unit in fading:
            timer = timers.key_of(unit) if unit in timers else _NO_TIMES[:3]
            times = (*timer, fading.key_of(unit)[0] if unit in fading else None)
        return (
            state.running,
            1 if state.paused else 0,
            1 if state.blocked else 0,
            state.held_until,
            state.tat,
            len(state.groups),
            *times,
        )

    def expect_ends(self, tasks: Iterable[Task]) -> None:
        """Read at once what the end of several running tasks will ask for."""
        if self.grouped:
            self.read_units([(task.unit, self._share(task)) for task in tasks])

    def read_units(self, tasks: Iterable[tuple[Unit, Share]]) -> None:
        """Read at once what the placing of several tasks will ask for."""
        if not self.grouped:
            return
        units, shares = zip(*tasks, strict=True)
        self.units.read(dict.fromkeys(units))
        if self._fair:
            self.ring.seats.read(dict.fromkeys(shares))

    def _turns_ahead(self, behind: Key | None, size: int) -> list[tuple[Key, Share]]:
        """Return whose turn it is, and take in everything that starting their tasks asks for."""
        asked = (self.pool, *(behind or _FIRST), size)
        turns: list[tuple[Key, Share]] = []
        for row in self.tables.ask("turns_ahead", asked).fetchall():
            turn, joined, share, owners, more = row[:5]
            turns.append(((turn, joined), share or None))
            if owners == 1:
                self.ring.seats.seated_for_all(share or None, turn, joined)
            if row[5] is not None:
                group = self._taken_ahead(row[5:])
                if not more:
                    self.shelves.known_alone(group)
        return turns

    def shelf_ahead(self, behind: Key | None, size: int) -> list[tuple[Key, Group]]:
        """Return the groups that are next, and take in what starting their tasks asks for."""
        asked = (self.pool, *(behind or _FIRST), size)
        rows = self.tables.ask("shelf_ahead", asked).fetchall()
        return [((row[5], row[6]), self._taken_ahead(row)) for row in rows]

    def _taken_ahead(self, row: Row) -> SqlGroup:
        """Take in a group, its unit, its first task and the place of its second."""
        if row[9] is not None:
            self.units.known(row[1] or None, row[9:19])
        group = self.group_of(row[:9])
        if row[22] is not None:
            rank, place, due = row[19:22]
            second = None if place is None else Place(rank, seq_at(place), due)
            first = self.tables.tasks.taken_in(row[22:], self.spec.name)
            group.line.begin_with(first, second)
        return group

    def _due_page(self, behind: Key | None, size: int) -> list[tuple[Key, int]]:
        name = "next_due" if behind is None else "next_due_after"
        after = () if behind is None else (behind[0], place_of(self.pool, int(behind[1])))
        tasks = self.tables.look_at_live(name, (self.pool, *after, size))
        return [((task.due, task.seq), task.new.id) for task in tasks]

    def _timers_page(self, behind: Key | None, size: int) -> list[tuple[Key, Unit]]:
        name = "unit_timers" if behind is None else "unit_timers_after"
        rows = self.tables.ask(name, (self.pool, *(behind or ()), size))
        return [(tuple(key), unit or None) for *key, unit in rows]

    def _fading_page(self, behind: Key | None, size: int) -> list[tuple[Key, Unit]]:
        # Units that fade at one moment may go in any order, so the whole of them is read.
        del size
        if behind is not None:
            return []
        rows = self.tables.ask("fading_units", (self.pool, _ALL))
        return [((fades_at,), unit or None) for fades_at, unit in rows]

    # What is asked, where rows answer better

    def __iter__(self) -> Iterator[Task]:
        self.tables.write_rows()
        found = self.tables.read_live("queued_of_pool", self._places)
        return iter([task for task in found if task.grp is not None])

    @property
    def _places(self) -> tuple[int, int]:
        """Between which places the tasks of this pool are, the first left out."""
        return self.pool << SEQ_BITS, (self.pool + 1) << SEQ_BITS

    def gone_through(self) -> Iterator[Task]:
        """Yield every task, by its place; who looks at the first few reads no more of them."""
        self.tables.write_rows()
        (after, last), size = self._places, _FIRST_PAGE
        while True:
            page = self.tables.look_at_live("queued_page", (after, last, size))
            yield from (task for task in page if task.grp is not None)
            if len(page) < size:
                return
            after, size = place_of(self.pool, page[-1].seq), min(2 * size, _LARGEST_PAGE)

    def next_moment(self) -> float | None:
        """Return when time alone will make something ready, or None."""
        moment = self._unit_timers.lowest() if self._unit_timers else None
        soonest = None if moment is None else moment[0]
        due = self._task_timers.lowest() if self._delayed else None
        if due is None or (soonest is not None and soonest < due[0]):
            return soonest
        return due[0]

    @property
    def delayed(self) -> int:
        """How many tasks wait for their time, as far as those that became due were moved."""
        return len(self._delayed)

    def scheduled(self, now: float) -> int:
        """Return how many tasks are not due at `now`."""
        self.tables.write_rows()
        ask = self.tables.ask
        later: int = ask("count_later", (self.pool, now)).fetchone()[0]
        if not self.lanes:
            return later
        in_lanes: int = ask("count_undue_in_lanes", (self.pool, now)).fetchone()[0]
        return later + in_lanes

    def has_due(self, queued: int, now: float) -> bool:
        """Return whether any of the `queued` tasks of the pool is due at `now`; reads one or two.

        Of those in lanes that are not due it may read more.
        """
        others = queued - len(self._delayed)
        if others and not self.lanes:
            return True
        self.tables.write_rows()
        ask = self.tables.ask
        first = ask("first_due", (self.pool,)).fetchone() if self._delayed else None
        if first is not None and first[0] <= now:
            return True
        # In lanes what is not due stands among the others; what is parked or held ahead is due.
        if not others or others > self._ready:
            return others > 0
        return ask("due_in_lanes", (*self._places, now)).fetchone() is not None

    def running_in(self, unit: str) -> int:
        """Return how many tasks of a lane or key run now."""
        if self.grouped:
            return super().running_in(unit)
        self.tables.write_rows()
        asked = (self.pool, unit)
        held: int = self.tables.ask("held_of_unit", asked).fetchone()[0]
        return held

    def live_in(self, unit: str) -> int:
        """Return how many tasks of a lane or key wait, for their time too, or run."""
        state = self._units.get(unit)
        ready = 0 if state is None else sum(len(group.tasks) for group in state.groups.values())
        if not self.lanes and self._delayed:
            self.tables.write_rows()
            asked = (self.pool, unit)
            ask = self.tables.ask
            ready += ask("count_later_of_unit", asked).fetchone()[0]
        return ready + self.running_in(unit)

    # What happens, where rows need less or more to be noted

    def start(self, task: Task, now: float) -> None:
        """Move the task that `peek` named from queued to running."""
        if self.grouped:
            super().start(task, now)
            return
        # How many of each key run is counted when somebody asks.
        self._ready -= 1
        self._take_out(task)

    def _count_running(self, tasks: list[Task]) -> None:
        pass

    def finish(self, unit: Unit) -> None:
        """Count one running task of a lane or key less."""
        if self.grouped:
            super().finish(unit)

    def _take_out(self, task: Task) -> None:
        self._lines[task.new.owner].remove(task)

    def _new_group(self, address: Address, unit: Unit) -> Group:
        group = SqlGroup(self, address, unit, None)
        self._groups[group.id] = group
        return group

    def _new_unit(self, unit: Unit) -> UnitState:
        state = UnitState()
        state.groups = SqlGroups(self, unit, 0)
        return state

    def _place(self, group: Group, now: float) -> None:
        super()._place(group, now)
        assert isinstance(group, SqlGroup)  # noqa: S101
        self.handed[group] = None
        head = group.tasks.head()
        if head is not None:
            group.due = head.due

    def _enlist(self, group: Group, *, ready: bool) -> None:
        assert isinstance(group, SqlGroup)  # noqa: S101
        was_ready, group.ready = group.ready, ready
        if ready:
            if not was_ready or group.shelved != group.place:
                self._shares[group.address].put(group)
            if not was_ready:
                self._ring.enter(*group.address)
        elif was_ready:
            shelf = self._shares[group.address]
            shelf.take(group)
            if not shelf:
                self._ring.leave(*group.address)

    # When keys begin to matter, and when the order changes

    def _group(self) -> None:
        """Look at lanes and keys from now on, although some tasks wait and run already."""
        self.tables.write_rows()
        tables, pool = self.tables, (self.pool,)
        running = list(tables.ask("held_per_unit", pool))
        waiting = [task for task in self if isinstance(task, TaskRow) and task.grp]
        self._empty()
        self.grouped = True
        for unit, count in running:
            self._unit(unit).running = count
        self._ready = 0
        for task in waiting:
            self._insert(task)

    def _empty(self) -> None:
        """Forget how everything stands; what waits is to be put in anew."""
        tables, pool = self.tables, (self.pool,)
        for name in ("forget_units", "forget_groups", "forget_seats"):
            tables.ask(name, pool)
        self._groups, self.handed = {}, {}
        self._lines, self._units, self._shares = SqlLines(self), SqlUnits(self), SqlShelves(self)
        self._unit_timers = Paged(self._timers_page, count=0)
        self._fading = Paged(self._fading_page, count=0)
        self._touched, self._touched_units = {}, {}
        self._ring = self._new_ring(0, (0, 0), 0)

    def _forget(self, unit: Unit) -> None:
        super()._forget(unit)
        if not self.grouped:
            # The ring begins anew with the next group, as it would have.
            self._empty()

    def emptied(self, held: Mapping[str, int]) -> SqlBacklog:
        """Return a backlog in which nothing waits, with pauses, rates and what is held per unit."""
        tats = {unit: state.tat for unit, state in self._units.items() if state.tat}
        other = self.rebuilt(self.spec)
        assert isinstance(other, SqlBacklog)  # noqa: S101
        if other.grouped:
            for unit, count in held.items():
                other._unit(unit).running = count  # noqa: SLF001 - one of its kind
            for name, tat in tats.items() if self.spec.rate_per_key is not None else ():
                state = other._unit(name)  # noqa: SLF001 - one of its kind
                state.tat = tat
                other._touch(name, state)  # noqa: SLF001 - so that it fades
        return other

    def rebuilt(self, spec: PoolSpec) -> Backlog:
        """Return an empty backlog for another order, with the pauses and holds of this one."""
        kept = [
            (unit, state.paused, state.held_until)
            for unit, state in (self._units.items() if spec.lanes == self.spec.lanes else ())
            if state.paused or state.held_until
        ]
        self._empty()
        row = dict.fromkeys(self.counts(), 0)
        other = SqlBacklog(spec, self.tables, self.pool, row)
        other.grouped = needs_groups(spec)
        for unit, paused, held_until in kept:
            state = other._unit_to_stop(unit)
            state.paused, state.held_until = paused, held_until
        return other
