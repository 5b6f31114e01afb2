"""A handler's psycopg connection."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import TupleRow

from millpond.store.sql.handler_connection import HandlerConnectionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from psycopg.abc import Params, Query

    from millpond.store.postgres.pipeline import PostgresConnection


class PostgresHandlerCursor(psycopg.Cursor[TupleRow]):
    """A cursor that refuses to begin, commit or roll back."""

    lent: PostgresHandlerConnection

    def _execute_send(self, query: Any, **options: Any) -> None:  # noqa: ANN401 - as psycopg
        # In the other protocol a text may hold several statements, a COMMIT among them.
        super()._execute_send(query, **{**options, "force_extended": True})

    def stream(self, query: Any, *args: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401
        """Execute a statement and yield its rows as they come."""
        with self.lent.use(_text(query, self)):
            yield from super().stream(query, *args, **options)

    @contextmanager
    def copy(self, statement: Any, *args: Any, **options: Any) -> Iterator[psycopg.Copy]:  # noqa: ANN401
        """Copy rows from or to the server."""
        with (
            self.lent.use(_text(statement, self)),
            super().copy(statement, *args, **options) as copying,
        ):
            yield copying

    def execute(self, query: Any, params: Params | None = None, **options: Any) -> Self:  # noqa: ANN401
        """Execute a statement."""
        with self.lent.use(_text(query, self)):
            return super().execute(query, params, **options)

    def executemany(self, query: Query, params_seq: Iterable[Params], **options: Any) -> None:  # noqa: ANN401
        """Execute a statement for each row."""
        with self.lent.use(_text(query, self)):
            super().executemany(query, params_seq, **options)


def _text(query: Query, cursor: psycopg.Cursor[Any]) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    as_string = getattr(query, "as_string", None)
    return str(query) if as_string is None else str(as_string(cursor))


class PostgresHandlerConnection(HandlerConnectionBase):
    """A wrapper that a handler gets instead of the connection itself.

    It knows `execute`, `executemany` and `cursor`, as psycopg does. When the handler's part is over
    it is of no use any more.
    """

    def __init__(self, connection: PostgresConnection) -> None:
        super().__init__()
        self._connection = connection

    @contextmanager
    def use(self, statement: str) -> Iterator[None]:
        """Return the connection for one statement, after sending our own queued statements."""
        with super().use(statement):
            self._connection.sync()
            try:
                yield
            except psycopg.errors.QueryCanceled as error:
                # The transaction took too long: its time limit cancelled this statement.
                if (over := self.over()) is not None:
                    raise over from error
                raise

    def cursor(self) -> PostgresHandlerCursor:
        """Return a new cursor."""
        cursor = PostgresHandlerCursor(self._connection.driver)
        cursor.lent = self
        self._cursors.add(cursor)
        return cursor

    def execute(self, query: Query, params: Params | None = None) -> PostgresHandlerCursor:
        """Execute a statement; return its cursor."""
        # Without parameters a % is a %.
        return self.cursor().execute(query, params or None)

    def executemany(self, query: Query, params_seq: Iterable[Params]) -> PostgresHandlerCursor:
        """Execute a statement for each row."""
        cursor = self.cursor()
        cursor.executemany(query, params_seq)
        return cursor
