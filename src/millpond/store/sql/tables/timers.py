"""Moments in the rows of tasks: when they expire, since when they are parked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables


class SqlDeadlines:
    """Tasks by a moment in their rows; every question is a query."""

    def __init__(self, tables: SqlTables, first: str, those_until: str) -> None:
        self._tables = tables
        self._first = first
        self._those_until = those_until

    def lowest(self) -> Row | None:
        """Return the first moment."""
        tables = self._tables
        tables.write_rows()
        while True:
            row: Row | None = tables.ask(self._first, (tables.left_alone(),)).fetchone()
            if row is None or tables.pools.understands(row[2]):
                return row

    def until(self, key: float, most: int) -> Iterator[int]:
        """Yield the tasks whose moment has passed; they are loaded at once."""
        tables = self._tables
        tables.write_rows()
        while True:
            rows = tables.ask(self._those_until, (key, tables.left_alone(), most)).fetchall()
            if all(tables.pools.understands(pool) for pool in {row[1] for row in rows}):
                break
        found = [row[0] for row in rows]
        tables.tasks.load(found)
        return iter(found)
