"""The reading connection: reopened after an error that makes it unusable."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from millpond.store.sqlite.connect import dispose, identity_of, is_another
from millpond.store.sqlite.errors import DATABASE_ERRORS, is_poisonous, translated

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


class SqliteReadConnection:
    """Reads the database; for one thread at a time."""

    def __init__(
        self,
        path: Path,
        open_connection: Callable[[], sqlite3.Connection],
        first: sqlite3.Connection | None = None,
    ) -> None:
        self._path = path
        self._open_connection = open_connection
        self._connection = first
        self._file = None if first is None else identity_of(path)
        self._prepared = False

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Return the answer; retry once if a new connection may help."""
        try:
            return self._once(question)
        except DATABASE_ERRORS as error:
            if not is_poisonous(error):
                raise translated(error, self._path) from error
        try:
            return self._once(question)
        except DATABASE_ERRORS as error:
            raise translated(error, self._path) from error

    def _once(self, question: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return question(self._opened())
        except DATABASE_ERRORS:
            # Asking is cheap to begin anew, and what the connection remembers may be wrong.
            self.close()
            raise

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and is_another(self._file, self._path):
            self.close()
        if self._connection is None:
            self._connection, self._prepared = self._open_connection(), False
            self._file = identity_of(self._path)
        if not self._prepared:
            self._connection.execute("PRAGMA query_only=ON")
            self._prepared = True
        return self._connection

    def close(self) -> None:
        """Close the connection; safe twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            dispose(connection, self._path)
