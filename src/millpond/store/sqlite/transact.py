"""One connection that writes, one transaction after another, each in its turn."""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeVar

from millpond.core.errors import MillpondError, OutcomeUnknown, StoreError
from millpond.store.sqlite.connect import PATIENCE, begin, dispose, identity_of, is_another
from millpond.store.sqlite.errors import (
    DATABASE_ERRORS,
    code_of,
    is_answer,
    is_poisonous,
    name_of,
    translated,
)
from millpond.store.sqlite.lock import WritersLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from millpond.store.sqlite.connect import FileIdentity
    from millpond.store.sqlite.errors import DatabaseError

log = logging.getLogger("millpond.sqlite")

_NOT_COMMITTED = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
    }
)
"""A COMMIT that says one of these did not happen; after any other error nobody can tell."""


class UnitOfWork(Protocol):
    """What jobs work on, made anew for each transaction."""

    def write(self) -> None:
        """Send to the database what the jobs changed."""
        ...

    def committed(self) -> None:
        """Hear that it is stored for good."""
        ...


Unit = TypeVar("Unit", bound=UnitOfWork)
T = TypeVar("T")


class Transactor(Generic[Unit]):
    """Begins, commits and undoes on a connection of its own; for one thread at a time.

    The connection is opened when it is first needed, and anew after an error that spoils it.
    """

    def __init__(
        self,
        path: Path,
        open_connection: Callable[[], sqlite3.Connection],
        make_unit: Callable[[sqlite3.Connection], Unit],
        *,
        patience: float = PATIENCE,
    ) -> None:
        self.path = path
        self.lock = WritersLock(path)
        self._open_connection = open_connection
        self._make_unit = make_unit
        self._patience = patience
        self._connection: sqlite3.Connection | None = None
        self._file: FileIdentity | None = None
        """Which file the connection is of, whatever has its name by now."""

    def run(self, job: Callable[[Unit], T]) -> T:
        """Do one job in a transaction of its own, in its turn; try again once if that may help."""
        self.lock.acquire()
        try:
            try:
                return self.once(job)
            except StoreError as error:
                if not is_poisonous(error.__cause__) or isinstance(error, OutcomeUnknown):
                    raise
                return self.once(job)
        finally:
            self.lock.release()

    def once(self, job: Callable[[Unit], T]) -> T:
        """Do one job in a transaction of its own; the caller holds the lock.

        An error of ours has changed nothing, so what else the unit did is kept, as in a group.
        """
        unit = self.begin()
        refused: MillpondError | None = None
        try:
            try:
                answer = job(unit)
            except MillpondError as error:
                if not is_answer(error):
                    raise
                refused = error
            self.commit(unit)
        except BaseException as error:
            self.undo(error)
            if isinstance(error, DATABASE_ERRORS):
                raise translated(error, self.path) from error
            raise
        if refused is not None:
            raise refused
        return answer

    def begin(self) -> Unit:
        """Begin a transaction and give what jobs work on."""
        try:
            connection = self._begun()
            return self._make_unit(connection)
        except BaseException as error:
            self.undo(error)
            if isinstance(error, DATABASE_ERRORS):
                raise translated(error, self.path) from error
            raise

    def commit(self, unit: Unit) -> None:
        """Write and commit; OutcomeUnknown if nobody can tell whether it happened."""
        unit.write()
        if not self.connection.in_transaction:
            # Some errors end a transaction by themselves; whoever met one did not pass it on.
            message = f"the database {self.path} has undone a transaction that was not over"
            raise StoreError(message)
        try:
            self.connection.execute("COMMIT")
        except DATABASE_ERRORS as error:
            if code_of(error) in _NOT_COMMITTED:
                raise
            self._disconnect()
            self._not_known(error)
        try:
            unit.committed()
        except Exception:
            # It is stored. An error now would have it done a second time.
            log.exception("after a commit to %s", self.path)

    def undo(self, error: BaseException) -> None:
        """Leave nothing of a transaction behind, nor a connection that `error` has spoilt."""
        spoilt = is_poisonous(error) or is_poisonous(error.__cause__)
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except DATABASE_ERRORS:
                spoilt = True
        if spoilt:
            self._disconnect()

    def close(self) -> None:
        """Let go of connection and lock; safe twice."""
        self._disconnect()
        self.lock.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, opened if need be."""
        if self._connection is None:
            self._connection = self._open_connection()
            self._file = identity_of(self.path)
            # `begin` waits in its own way.
            self._connection.execute("PRAGMA busy_timeout=0")
        return self._connection

    def _begun(self) -> sqlite3.Connection:
        if self._connection is not None and is_another(self._file, self.path):
            # What was put in the place of the file is what everybody else opens.
            self._disconnect()
        try:
            begin(self.connection, self.path, patience=self._patience)
        except StoreError as error:
            if not is_poisonous(error.__cause__):
                raise
            # Perhaps it is only this connection: one more try with a new one.
            self._disconnect()
            begin(self.connection, self.path, patience=self._patience)
        return self.connection

    def _not_known(self, error: DatabaseError) -> NoReturn:
        raise OutcomeUnknown(
            f"the commit to {self.path} failed ({name_of(error)}: {error}): it is not known "
            "whether this change is stored; look before doing it again, or repeat it with an "
            "idempotency key",
            path=str(self.path),
        ) from error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            dispose(connection, self.path)
