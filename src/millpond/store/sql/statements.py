"""The statements of one connection, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.store.sql.database import miscounted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.store.sql.codec import Row
    from millpond.store.sql.database import Connection, Cursor, Dialect

_FINDS_EACH = frozenset(
    {"drop_task", "change_live", "update_result", "drop_ended", "drop_key", "drop_unit"}
    | {"drop_group", "change_group", "drop_seat", "update_task", "update_live"}
)
"""Statements that must change exactly one row per argument row."""


class Statements:
    """Executes statements on a connection, in the dialect of its database."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self.connection = connection
        self.dialect = dialect
        self._sql = dialect.sql
        self.listed = dialect.listed
        """Turns many ids or names into one argument."""

    def ask(self, name: str, arguments: Sequence[Any] = ()) -> Cursor:
        """Execute a statement."""
        return self.connection.execute(self._sql[name], arguments)

    def send(self, name: str, rows: Sequence[Row]) -> None:
        """Execute a statement for each row; some must match each of them."""
        done = self.connection.executemany(self._sql[name], rows)
        if name in _FINDS_EACH:
            self._must_touch(done, name, len(rows))

    def change(self, name: str, arguments: Sequence[Any], count: int) -> None:
        """Execute a statement that must change `count` rows."""
        self._must_touch(self.ask(name, arguments), name, count)

    def _must_touch(self, done: Any, name: str, count: int) -> None:  # noqa: ANN401 - a cursor
        # A server's cursor does not know yet; mending, which uses it so, recounts by itself.
        touched = getattr(done, "rowcount", count)
        if touched != count:
            raise miscounted(name, count, touched)
