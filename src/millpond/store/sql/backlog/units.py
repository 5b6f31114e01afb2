"""Lanes and keys over rows: how many of each run, its pauses, its rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.order.groups import Unit, UnitState
from millpond.store.sql.backlog.groups import SqlGroups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.store.sql.backlog.backlog import SqlBacklog
    from millpond.store.sql.codec import Row

NO_TIMES = (None, None, None, None)


class SqlUnits(dict[Unit, UnitState]):
    """The lanes and keys that were read."""

    def __init__(self, backlog: SqlBacklog) -> None:
        super().__init__()
        self._backlog = backlog
        self._stored: dict[Unit, Row | None] = {}
        self._handed: set[Unit] = set()
        """Units that may have changed."""

    def get(self, unit: Unit, default: UnitState | None = None) -> UnitState | None:  # type: ignore[override]
        """Return a unit, or None."""
        self._handed.add(unit)
        return self.look_at(unit) or default

    def look_at(self, unit: Unit) -> UnitState | None:
        """Return a unit for reading only, or None."""
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
        """Return every unit."""
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
        """Write what has changed."""
        backlog = self._backlog
        saved, untimed, dropped = [], [], []
        for unit in self._handed:
            state, stored = super().get(unit), self._stored.get(unit)
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
        if unit not in self._stored and not super().__contains__(unit):
            self._take_in(unit, row)

    def let_go(self) -> None:
        """Forget which units may have changed: all are written."""
        self._handed = set()
