"""The queued tasks of one pool over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.order.backlog import Backlog, needs_groups
from millpond.core.order.groups import Unit, UnitState
from millpond.core.order.ring import Owner, Share
from millpond.store.sql.backlog.groups import SqlGroup, SqlShelves, SqlUnit
from millpond.store.sql.backlog.line import FIRST_PLACE, Place, SqlLine, SqlLines
from millpond.store.sql.backlog.ring import SqlRing, seat_row
from millpond.store.sql.backlog.units import NO_TIMES, SqlUnits
from millpond.store.sql.codec import SEQ_BITS, TaskRow, place_of, seq_at
from millpond.store.sql.paged import Paged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    from millpond.core.order.groups import Group
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task
    from millpond.store.sql.codec import Row
    from millpond.store.sql.paged import Key
    from millpond.store.sql.unit_of_work import SqlTables

    Address: TypeAlias = tuple[Share, Owner]

_ALL = (1 << 63) - 1
"""A limit without effect."""

_FIRST_PAGE, _LARGEST_PAGE = 20, 1000
"""How many tasks an iteration over all reads at once; more each time."""


class SqlDelayed:
    """Delayed tasks: their own rows say so, and the first ones are read page by page."""

    def __init__(self, backlog: SqlBacklog, count: int) -> None:
        self._tables = backlog.tables
        self._pool = backlog.pool
        self._timers: Paged[int] = Paged(self._page)
        self.count = count

    def add(self, task: Task) -> None:
        """Add a task that is not due."""
        assert isinstance(task, TaskRow)  # noqa: S101 - of these tables they all are
        task.grp = 0
        self._timers.set(task.new.id, (task.due, task.seq))
        self.count += 1

    def discard(self, task: Task) -> bool:
        """Remove a task; return whether it was here."""
        assert isinstance(task, TaskRow)  # noqa: S101 - of these tables they all are
        if task.grp != 0:
            return False
        self._timers.discard(task.new.id)
        self._leave(task)
        return True

    def _leave(self, task: TaskRow) -> None:
        self._tables.tasks.mark_dirty(task)
        task.grp = None
        self.count -= 1

    def next_due(self) -> float | None:
        """Return when the first is due, or None; perhaps a query."""
        first = self._timers.lowest()
        return None if first is None else first[0]

    def pop_due(self, now: float) -> Task | None:
        """Remove and return the first task that is due, or None; perhaps a query."""
        first = self._timers.lowest()
        if first is None or first[0] > now:
            return None
        task = self._tables.tasks.require(self._timers.pop())
        self._leave(task)
        return task

    def all(self) -> list[TaskRow]:
        """Return every delayed task; always a query."""
        self._tables.write_rows()
        found = self._tables.read_live("next_due", (self._pool, _ALL))
        return [task for task in found if task.grp == 0]

    @property
    def in_memory(self) -> int:
        """How many are in memory, or known to be removed."""
        return self._timers.known_items

    def _page(self, behind: Key | None, size: int) -> list[tuple[Key, int]]:
        name = "next_due" if behind is None else "next_due_after"
        after = () if behind is None else (behind[0], place_of(self._pool, int(behind[1])))
        tasks = self._tables.look_at_live(name, (self._pool, *after, size))
        return [((task.due, task.seq), task.new.id) for task in tasks]


class SqlBacklog(Backlog):
    """The queued tasks of one pool, read as needed."""

    __slots__ = (
        *("_delayed_rows", "_groups", "dirty", "expected", "fading", "lines", "pool", "ring"),
        *("shelves", "tables", "timers", "units"),
    )

    def __init__(self, spec: PoolSpec, tables: SqlTables, pool: int, row: dict[str, int]) -> None:
        super().__init__(spec)
        self.tables = tables
        self.pool = pool
        self.grouped = bool(row["grouped"])
        self.expected = 1
        self._ready = row["ready"]
        self._groups: dict[int, SqlGroup] = {}
        self.dirty: dict[SqlGroup, None] = {}
        """Groups that may have changed since they were written."""
        self._delayed = self._delayed_rows = SqlDelayed(self, row["later"])
        self._take_places(row)

    def _take_places(self, row: dict[str, int]) -> None:
        """Begin with what the row of the pool says; lines, units and seats are read later."""
        self.lines = SqlLines(self)
        self._line = self.lines.get
        self._units = self.units = SqlUnits(self)
        self.shelves = SqlShelves(self)
        self._shelf = self.shelves.get
        self.timers: Paged[Unit] = Paged(self._timers_page, count=row["unit_timers"])
        self._unit_timers = self.timers
        self.fading: Paged[Unit] = Paged(self._fading_page, count=row["fading"])
        self._fading = self.fading
        self._ring = self.ring = SqlRing(
            self.spec.order,
            self.tables,
            self.pool,
            joins=row["joins"],
            passed=(row["passed_turn"], row["passed_join"]),
            resting=row["resting"],
            for_all=self._turns_ahead if self._fair else None,
        )

    # What the rows say

    def counts(self) -> dict[str, int]:
        """Return its counts for the pool's row."""
        ring = self.ring
        return {
            "grouped": int(self.grouped),
            "ready": self._ready,
            "later": self._delayed.count,
            "unit_timers": len(self.timers),
            "fading": len(self.fading),
            "joins": ring.joins,
            "passed_turn": ring.passed[0],
            "passed_join": ring.passed[1],
            "resting": len(ring.resting),
        }

    @property
    def is_fair(self) -> bool:
        """Whether shares take turns."""
        return self._fair

    def write(self) -> None:
        """Write what has changed."""
        if self.dirty:
            self._write_groups([group for group in self.dirty if group.row() != group.stored])
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
        state.take_in(group)
        return group

    def has_line(self, owner: str) -> bool:
        """Return whether an owner has a line in a pool without groups."""
        return self._row_of_line(owner) is not None

    def _row_of_line(self, owner: str) -> Row | None:
        row: Row | None = self.tables.ask("group", (self.pool, "", "", owner)).fetchone()
        return row

    def _new_line(self, owner: Owner) -> SqlLine:
        return self.lines.make(owner)

    def line_of(self, owner: Owner) -> SqlLine:
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
            # Its place is not kept up to date: the line is read from before all others.
            line = group.tasks = SqlLine(self, group, 0 if row is None else row[4], None)
        line.expect(self.expected)
        return line

    def trimmed(self) -> int:
        """Drop removed groups; return how many rows stay in memory."""
        for group in self.dirty:
            if group.stored is None:
                self._groups.pop(group.id, None)
            group.tasks.trim()
        self.dirty = {}
        self.units.let_go()
        self.ring.seats.let_go()
        return (
            self.lines.trimmed(self._groups)
            + len(self._groups)
            + self.units.known_rows
            + self.ring.seats.known_rows
            + self._delayed_rows.in_memory
            + self.timers.known_items
            + self.fading.known_items
        )

    def expect(self, count: int) -> None:
        """Prepare to start `count` tasks: they are read at once."""
        self.expected = count
        if self.grouped:
            if self.is_fair:
                self.ring.expect(count)
            return
        for line in self.lines.in_memory():
            line.expect(count)

    def unit_of(self, unit: Unit, row: Row) -> SqlUnit:
        """Return the unit of a row."""
        running, paused, blocked, held_until, tat, groups, *times = row
        state = SqlUnit(self, unit, groups)
        state.running, state.held_until, state.tat = running, held_until, tat
        state.paused, state.blocked = bool(paused), bool(blocked)
        timer_at, timer_rank, timer_seq, fades_at = times
        if timer_at is not None:
            self.timers.known(unit, (timer_at, timer_rank, timer_seq))
        if fades_at is not None:
            self.fading.known(unit, (fades_at,))
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
            state.count_groups(),
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
        self.units.load(dict.fromkeys(units))
        if self._fair:
            self.ring.seats.load(dict.fromkeys(shares))

    def _turns_ahead(self, behind: Key | None, size: int) -> list[tuple[Key, Share]]:
        """Return the next shares, and read everything that starting their tasks needs."""
        arguments = (self.pool, *(behind or FIRST_PLACE), size)
        turns: list[tuple[Key, Share]] = []
        for row in self.tables.ask("turns_ahead", arguments).fetchall():
            turn, joined, share, owners, more = row[:5]
            turns.append(((turn, joined), share or None))
            if owners == 1:
                self.ring.seats.known(share or None, seat_row(turn, joined, resting=0))
            if row[5] is not None:
                group = self._taken_ahead(row[5:])
                if not more:
                    self.shelves.known_alone(group)
        return turns

    def shelf_ahead(self, behind: Key | None, size: int) -> list[tuple[Key, Group]]:
        """Return the next groups, and read everything that starting their tasks needs."""
        arguments = (self.pool, *(behind or FIRST_PLACE), size)
        rows = self.tables.ask("shelf_ahead", arguments).fetchall()
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
            group.tasks.begin_with(first, second)
        return group

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

    # Questions that rows answer better

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

    @property
    def delayed(self) -> int:
        """How many tasks wait for their time; some may be due that no verb has moved yet."""
        return self._delayed.count

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
        others = queued - self._delayed.count
        if others and not self.lanes:
            return True
        self.tables.write_rows()
        ask = self.tables.ask
        first = ask("first_due", (self.pool,)).fetchone() if self._delayed.count else None
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
        arguments = (self.pool, unit)
        held: int = self.tables.ask("held_of_unit", arguments).fetchone()[0]
        return held

    def live_in(self, unit: str) -> int:
        """Return how many tasks of a lane or key are queued, delayed or running."""
        state = self._units.get(unit)
        ready = 0 if state is None else sum(len(group.tasks) for group in state.all_groups())
        if not self.lanes and self._delayed.count:
            self.tables.write_rows()
            arguments = (self.pool, unit)
            ask = self.tables.ask
            ready += ask("count_later_of_unit", arguments).fetchone()[0]
        return ready + self.running_in(unit)

    # What happens, where rows need less or more to be noted

    def start(self, task: Task, now: float) -> None:
        """Move the task that `peek` named from queued to running."""
        if self.grouped:
            super().start(task, now)
            return
        # Running tasks of a key are counted on demand.
        self._ready -= 1
        self._take_out(task)

    def _count_running(self, tasks: list[Task]) -> None:
        pass

    def finish(self, unit: Unit) -> None:
        """Count one running task of a lane or key less."""
        if self.grouped:
            super().finish(unit)

    def _take_out(self, task: Task) -> None:
        self.lines.require(task.new.owner).remove(task)

    def _new_group(self, address: Address, unit: Unit) -> Group:
        group = SqlGroup(self, address, unit, None)
        self._groups[group.id] = group
        return group

    def _unit(self, unit: Unit) -> SqlUnit:
        state = self.units.get(unit)
        if state is None:
            state = SqlUnit(self, unit, 0)
            self.units.add(unit, state)
        return state

    def _place(self, group: Group, now: float) -> None:
        super()._place(group, now)
        assert isinstance(group, SqlGroup)  # noqa: S101
        self.dirty[group] = None
        head = group.tasks.head()
        if head is not None:
            group.due = head.due

    def _enlist(self, group: Group, *, ready: bool) -> None:
        assert isinstance(group, SqlGroup)  # noqa: S101
        was_ready, group.ready = group.ready, ready
        if ready:
            if not was_ready or group.shelved != group.place:
                self.shelves.require(group.address).put(group)
            if not was_ready:
                self.ring.enter(*group.address)
        elif was_ready:
            shelf = self.shelves.require(group.address)
            shelf.take(group)
            if not shelf:
                self.ring.leave(*group.address)

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
        self._groups, self.dirty = {}, {}
        self._touched, self._touched_units = {}, {}
        self._take_places(dict.fromkeys(self.counts(), 0))

    def _forget(self, unit: Unit) -> None:
        super()._forget(unit)
        if not self.grouped:
            # The ring starts again with the next group, as it would have.
            self._empty()

    def emptied(self, held: Mapping[str, int]) -> SqlBacklog:
        """Return an empty backlog with the pauses, rates and running counts of this one."""
        tats = {unit: state.tat for unit, state in self._units.items() if state.tat}
        other = self.rebuilt(self.spec)
        if other.grouped:
            for unit, count in held.items():
                other._unit(unit).running = count  # noqa: SLF001 - one of its kind
            for name, tat in tats.items() if self.spec.rate_per_key is not None else ():
                state = other._unit(name)  # noqa: SLF001 - one of its kind
                state.tat = tat
                other._touch(name, state)  # noqa: SLF001 - so that it fades
        return other

    def rebuilt(self, spec: PoolSpec) -> SqlBacklog:
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
