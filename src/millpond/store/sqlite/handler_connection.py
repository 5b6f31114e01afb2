"""A handler's sqlite3 connection."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, NoReturn

from millpond.store.sql.handler_connection import HandlerConnectionBase, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self


class SqliteHandlerCursor(sqlite3.Cursor):
    """A cursor that refuses to begin, commit or roll back."""

    def __init__(self, connection: sqlite3.Connection, lent: SqliteHandlerConnection) -> None:
        super().__init__(connection)
        self._lent = lent

    @property
    def connection(self) -> NoReturn:
        """Raise TransactionControl: the connection could commit."""
        raise refusal("cursor.connection")

    def execute(self, statement: str, parameters: Any = (), /) -> Self:  # noqa: ANN401 - as sqlite3
        """Execute a statement."""
        with self._lent.use(statement):
            return super().execute(statement, parameters)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Self:
        """Execute a statement for each row."""
        with self._lent.use(statement):
            return super().executemany(statement, rows)

    def executescript(self, script: str, /) -> NoReturn:
        """Raise TransactionControl: executescript commits first."""
        del script
        raise refusal("executescript()")


class SqliteHandlerConnection(HandlerConnectionBase):
    """A wrapper that a handler gets instead of the connection itself.

    It knows `execute`, `executemany` and `cursor`, as sqlite3 does, and `row_factory` for the
    cursors to come. When the handler's part is over it is of no use any more.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self.row_factory: Callable[[sqlite3.Cursor, tuple[Any, ...]], Any] | None = None
        self._connection = connection

    def cursor(self) -> SqliteHandlerCursor:
        """Return a new cursor."""
        cursor = SqliteHandlerCursor(self._connection, self)
        cursor.row_factory = self.row_factory
        self._cursors.add(cursor)
        return cursor

    def execute(self, statement: str, parameters: Any = (), /) -> SqliteHandlerCursor:  # noqa: ANN401
        """Execute a statement; return its cursor."""
        return self.cursor().execute(statement, parameters)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> SqliteHandlerCursor:
        """Execute a statement for each row."""
        return self.cursor().executemany(statement, rows)
