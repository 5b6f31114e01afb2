"""Lanes and keys over rows: how many of each run, its pauses, its rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.store.sql.backlog.groups import SqlUnit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.order.groups import Unit, UnitState
    from millpond.store.sql.backlog.backlog import SqlBacklog
    from millpond.store.sql.codec import Row

NO_TIMES = (None, None, None, None)


class SqlUnits:
    """The lanes and keys that were read, and which of them may have changed."""

    def __init__(self, backlog: SqlBacklog) -> None:
        self._backlog = backlog
        self._read: dict[Unit, SqlUnit] = {}
        self._stored: dict[Unit, Row | None] = {}
        self._dirty: set[Unit] = set()

    def get(self, unit: Unit) -> SqlUnit | None:
        """Return a unit for change, or None; a query if it is not in memory."""
        self._dirty.add(unit)
        return self.look_at(unit)

    def require(self, unit: Unit) -> SqlUnit:
        """Return a unit for change; it must be there."""
        found = self.get(unit)
        if found is None:
            raise KeyError(unit)
        return found

    def look_at(self, unit: Unit) -> SqlUnit | None:
        """Return a unit for reading only, or None; a query if it is not in memory."""
        found = self._read.get(unit)
        if found is not None or unit in self._stored:
            return found
        backlog = self._backlog
        row = backlog.tables.ask("unit", (backlog.pool, unit or "")).fetchone()
        return self._take_in(unit, row)

    def add(self, unit: Unit, state: UnitState) -> None:
        """Add a new unit; its row is written with the others."""
        assert isinstance(state, SqlUnit)  # noqa: S101 - every unit of ours is
        self._read[unit] = state

    def remove(self, unit: Unit) -> None:
        """Remove a unit; its row is deleted with the other changes."""
        self.require(unit)
        del self._read[unit]

    def is_empty(self) -> bool:
        """Return whether there is none; a query if none is in memory."""
        if self._read:
            return False
        # Only these: a task may be in the middle of an arrow.
        self.write()
        pool = (self._backlog.pool,)
        return not self._backlog.tables.ask("any_unit", pool).fetchone()[0]

    def load(self, units: Iterable[Unit]) -> None:
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
                self._read[unit].has_read_all()

    def items(self) -> Iterable[tuple[Unit, SqlUnit]]:
        """Return every unit of the pool for change; always a query."""
        backlog = self._backlog
        for unit, *row in backlog.tables.ask("units", (backlog.pool,)).fetchall():
            if (unit or None) not in self._stored:
                self._take_in(unit or None, tuple(row))
        self._dirty.update(self._read)
        return self._read.items()

    def _take_in(self, unit: Unit, row: Row | None) -> SqlUnit | None:
        self._stored[unit] = row
        if row is None:
            return None
        state = self._read[unit] = self._backlog.unit_of(unit, row)
        return state

    def write(self) -> None:
        """Write what has changed."""
        backlog = self._backlog
        saved, untimed, dropped = [], [], []
        for unit in self._dirty:
            state, stored = self._read.get(unit), self._stored.get(unit)
            row = None if state is None else backlog.row_of_unit(unit, state)
            if row == stored:
                continue
            if row is None:
                dropped.append((backlog.pool, unit or ""))
            elif row[6:] == NO_TIMES:
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
        """How many units were read, absent ones too."""
        return len(self._stored)

    def known(self, unit: Unit, row: Row) -> None:
        """Add a unit that was read with others."""
        if unit not in self._stored and unit not in self._read:
            self._take_in(unit, row)

    def let_go(self) -> None:
        """Forget which units may have changed: all are written."""
        self._dirty = set()
