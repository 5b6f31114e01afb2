"""Lanes and keys over rows: how many of each run, its pauses, its rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.store.sql.backlog.groups import SqlUnit
from millpond.store.sql.cached_rows import CachedRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.order.groups import Unit, UnitState
    from millpond.store.sql.backlog.backlog import SqlBacklog
    from millpond.store.sql.codec import Row

NO_TIMES = (None, None, None, None)


class SqlUnits(CachedRows["Unit", SqlUnit, "Row"]):
    """The lanes and keys that were read."""

    def __init__(self, backlog: SqlBacklog) -> None:
        super().__init__()
        self._backlog = backlog

    def add(self, unit: Unit, state: UnitState, /) -> None:
        """Add a new unit; its row is written with the others."""
        assert isinstance(state, SqlUnit)  # noqa: S101 - every unit of ours is
        super().add(unit, state)

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

    def _ask(self, key: Unit) -> Row | None:
        backlog = self._backlog
        row: Row | None = backlog.tables.ask("unit", (backlog.pool, key or "")).fetchone()
        return row

    def _made(self, key: Unit, row: Row) -> SqlUnit:
        return self._backlog.unit_of(key, row)

    def _row(self, key: Unit, value: SqlUnit) -> Row:
        return self._backlog.row_of_unit(key, value)

    def write(self) -> None:
        """Write what has changed."""
        tables, pool = self._backlog.tables, self._backlog.pool
        saved, untimed, dropped = [], [], []
        for unit, _, row in self._changes():
            if row is None:
                dropped.append((pool, unit or ""))
            elif row[6:] == NO_TIMES:
                untimed.append((pool, unit or "", *row[:6]))
            else:
                saved.append((pool, unit or "", *row))
        if dropped:
            tables.send("drop_unit", dropped)
        if untimed:
            tables.send("save_untimed_unit", untimed)
        if saved:
            tables.send("save_unit", saved)
