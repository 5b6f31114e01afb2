"""The queued tasks of one pool over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.order.backlog import Backlog, needs_groups
from millpond.core.order.groups import Unit, UnitState
from millpond.core.order.ring import Owner, Share
from millpond.store.sql.backlog.groups import SqlGroup, SqlGroups, SqlShelves
from millpond.store.sql.backlog.line import FIRST_PLACE, Place, SqlLine, SqlLines
from millpond.store.sql.backlog.ring import SqlRing
from millpond.store.sql.backlog.units import NO_TIMES, SqlUnits
from millpond.store.sql.codec import SEQ_BITS, TaskRow, place_of, seq_at
from millpond.store.sql.paged import Paged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    from millpond.core.order.groups import Group
    from millpond.core.order.line import TaskLine
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task
    from millpond.store.sql.codec import Row
    from millpond.store.sql.paged import Key
    from millpond.store.sql.unit_of_work import SqlTables

    Address: TypeAlias = tuple[Share, Owner]

_new_state = object.__new__
_ALL = (1 << 63) - 1
"""A limit without effect."""

_FIRST_PAGE, _LARGEST_PAGE = 20, 1000
"""How many tasks an iteration over all reads at once; more each time."""


class SqlLater(dict[int, "Task"]):
    """Delayed tasks: their own rows have this."""

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
        """Remove a delayed task."""
        task = self._backlog.tables.tasks.get(identifier)
        if not isinstance(task, TaskRow) or task.grp != 0:
            return default
        task.grp = None
        self.count -= 1
        return task

    def values(self) -> Any:  # noqa: ANN401 - as dict's
        """Return every delayed task."""
        tables = self._backlog.tables
        tables.write_rows()
        return [
            task
            for task in tables.read_live("next_due", (self._backlog.pool, _ALL))
            if task.grp == 0
        ]


class SqlBacklog(Backlog):
    """The queued tasks of one pool, read as needed."""

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
        """The one group of each owner, where lanes and keys do not matter."""
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
        """Return its counts for the pool's row."""
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
        """The ring of shares."""
        assert isinstance(self._ring, SqlRing)  # noqa: S101
        return self._ring

    @property
    def shelves(self) -> SqlShelves:
        """The shelves that were read."""
        assert isinstance(self._shares, SqlShelves)  # noqa: S101
        return self._shares

    @property
    def is_fair(self) -> bool:
        """Whether shares take turns."""
        return self._fair

    @property
    def units(self) -> SqlUnits:
        """The lanes and keys that were read."""
        assert isinstance(self._units, SqlUnits)  # noqa: S101
        return self._units

    def write(self) -> None:
        """Write what has changed."""
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

    def _new_line(self, owner: Owner) -> TaskLine:
        return self.line_of(owner)

    def line_of(self, owner: Owner) -> TaskLine:
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
        """Drop removed groups; return how many rows stay in memory."""
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
        """Prepare to start `count` tasks: they are read at once."""
        self.expected = count
        if self.grouped:
            if self.is_fair:
                self.ring.expect(count)
            return
        for line in dict.values(self._lines):
            if isinstance(line, SqlLine):
                line.expect(count)

    def unit_of(self, unit: Unit, row: Row) -> UnitState:
        """Return the unit of a row."""
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
        """Return the row of a unit."""
        timers, fading = self._unit_timers, self._fading
        times: tuple[float | None, ...] = NO_TIMES
        if unit in timers or unit in fading:
            timer = timers.key_of(unit) if unit in timers else NO_TIMES[:3]
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
        """Read at once what the end of several running tasks needs."""
        if self.grouped:
            self.read_units([(task.unit, self._share(task)) for task in tasks])

    def read_units(self, tasks: Iterable[tuple[Unit, Share]]) -> None:
        """Read at once what queueing several tasks needs."""
        if not self.grouped:
            return
        units, shares = zip(*tasks, strict=True)
        self.units.read(dict.fromkeys(units))
        if self._fair:
            self.ring.seats.read(dict.fromkeys(shares))

    def _turns_ahead(self, behind: Key | None, size: int) -> list[tuple[Key, Share]]:
        """Return the next shares, and read everything that starting their tasks needs."""
        asked = (self.pool, *(behind or FIRST_PLACE), size)
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
        """Return the next groups, and read everything that starting their tasks needs."""
        asked = (self.pool, *(behind or FIRST_PLACE), size)
        rows = self.tables.ask("shelf_ahead", asked).fetchall()
        return [((row[5], row[6]), self._taken_ahead(row)) for row in rows]

    def _taken_ahead(self, row: Row) -> SqlGroup:
        """Add a group, its unit, its first task and the place of its second."""
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
        """The range of places of this pool, without its first."""
        return self.pool << SEQ_BITS, (self.pool + 1) << SEQ_BITS

    def all_tasks(self) -> Iterator[Task]:
        """Yield every task by its place, reading page by page."""
        self.tables.write_rows()
        (after, last), size = self._places, _FIRST_PAGE
        while True:
            page = self.tables.look_at_live("queued_page", (after, last, size))
            yield from (task for task in page if task.grp is not None)
            if len(page) < size:
                return
            after, size = place_of(self.pool, page[-1].seq), min(2 * size, _LARGEST_PAGE)

    def next_moment(self) -> float | None:
        """Return when the next task becomes ready by time alone, or None."""
        moment = self._unit_timers.lowest() if self._unit_timers else None
        soonest = None if moment is None else moment[0]
        due = self._task_timers.lowest() if self._delayed else None
        if due is None or (soonest is not None and soonest < due[0]):
            return soonest
        return due[0]

    @property
    def delayed(self) -> int:
        """How many tasks wait for their time; some may be due that no verb has moved yet."""
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
        """Return how many tasks of a lane or key are queued, delayed or running."""
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
        """Begin to group tasks by lanes and keys, including those that wait or run already."""
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
        """Remove all groups, units and seats; waiting tasks must be queued again."""
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
        """Return an empty backlog with the pauses, rates and running counts of this one."""
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


def _known_items(paged: object) -> int:
    return paged.known_items if isinstance(paged, Paged) else 0
