"""Transactions on a file: one writer at a time, and checkpoints in between."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from millpond.errors import StoreError, StoreLocked
from millpond.store.sql.transactions import Transactor, Unit
from millpond.store.sqlite.checkpoint import Checkpointer
from millpond.store.sqlite.connect import PATIENCE, begin, dispose, identity_of, is_another
from millpond.store.sqlite.errors import (
    DATABASE_ERRORS,
    code_of,
    is_poisonous,
    name_of,
    translated,
)
from millpond.store.sqlite.writers_lock import WritersLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from millpond.store.sqlite.connect import FileIdentity

_NOT_COMMITTED = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
    }
)
"""Codes of a COMMIT that certainly did not happen; other errors leave it unknown."""


class SqliteTransactor(Transactor[Unit, sqlite3.Connection]):
    """Transactions on one file."""

    errors = DATABASE_ERRORS

    def __init__(
        self,
        path: Path,
        open_connection: Callable[[], sqlite3.Connection],
        make_unit: Callable[[sqlite3.Connection], Unit],
        *,
        patience: float = PATIENCE,
    ) -> None:
        lock = WritersLock(path)
        super().__init__(str(path), lock, make_unit, patience=patience)
        self.path = path
        self._line = lock.path
        self._open_connection = open_connection
        self._checkpointer = Checkpointer(path)
        self._file: FileIdentity | None = None
        """Device and inode of the opened file."""

    def _opened(self) -> sqlite3.Connection:
        connection = self._open_connection()
        self._file = identity_of(self.path)
        try:
            # `begin` waits in its own way.
            connection.execute("PRAGMA busy_timeout=0")
        except BaseException:
            connection.close()
            raise
        return connection

    def _begun(self) -> sqlite3.Connection:
        if self._connection is not None and is_another(self._file, self.path):
            # All other processes open the file that is now at its path.
            self._disconnect()
        try:
            begin(self.connection, self.path, patience=self.patience)
        except StoreError as error:
            if not is_poisonous(error.__cause__):
                raise
            # Perhaps it is only this connection: one more try with a new one.
            self._disconnect()
            begin(self.connection, self.path, patience=self.patience)
        return self.connection

    def _dispose(self, connection: sqlite3.Connection) -> None:
        dispose(connection, self.path)

    def interrupt(self) -> None:
        """Cancel the running statement."""
        if self._connection is not None:
            self._connection.interrupt()

    def translated(self, error: Exception) -> StoreError:
        """Return the MillpondError for a SQLite error."""
        return translated(error, self.path)  # type: ignore[arg-type]

    def is_poisonous(self, error: BaseException | None) -> bool:
        """Return whether the connection that raised this is unusable."""
        return is_poisonous(error)

    def _did_not_commit(self, error: Exception) -> bool:
        return code_of(error) in _NOT_COMMITTED

    def _name_of(self, error: Exception) -> str:
        return name_of(error)  # type: ignore[arg-type]

    def kept_waiting(self) -> StoreLocked:
        """Return the error for jobs that waited too long for the lock."""
        return StoreLocked(
            f"another process has kept {self._line} locked for more than {self.patience:g} s: it "
            f"was stopped or hangs while it writes to {self.path}; let it go on, or end it. "
            "Nothing was changed",
            path=self.where,
            waited=self.patience,
        )

    def has_to_tidy(self) -> bool:
        """Return whether the WAL is large."""
        return self._checkpointer.due()

    def tidy(self) -> None:
        """Empty the WAL."""
        self._checkpointer.checkpoint(self.connection)
