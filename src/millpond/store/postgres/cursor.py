"""The rows of a statement that stands in line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.store.postgres.pipeline import PostgresConnection

Row = tuple[Any, ...]

_FEW, _SMALL = 200, 4096
"""The limits of read-ahead: rows, and bytes of a body."""


class Cursor:
    """The rows of a statement; reading them waits for the answer."""

    __slots__ = ("_connection", "_next", "_rows", "must_touch")

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self._rows: list[Row] | None = None
        self._next = 0
        self.must_touch: tuple[str, int] | None = None
        """The name of the statement and how many rows it must change; None = any number."""

    def fetchone(self) -> Row | None:
        """Return the next row, or None."""
        rows = self._there()
        if self._next >= len(rows):
            return None
        self._next += 1
        return rows[self._next - 1]

    def fetchall(self) -> list[Row]:
        """Return all rows that are left."""
        rows = self._there()
        first, self._next = self._next, len(rows)
        return rows[first:] if first else rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())

    def _there(self) -> list[Row]:
        if self._rows is None:
            self._connection.sync()
        if self._rows is None:
            raise psycopg.InterfaceError("a statement was not executed: one before it had failed")
        return self._rows

    def is_small(self) -> bool:
        """Return whether its rows have arrived and are few."""
        rows = self._rows
        if not rows:
            return rows is not None
        last = rows[0][-1]
        return len(rows) <= _FEW and not (isinstance(last, bytes) and len(last) > _SMALL)

    def take_in(self, rows: list[Row]) -> None:
        """Set the rows."""
        self._rows = rows
