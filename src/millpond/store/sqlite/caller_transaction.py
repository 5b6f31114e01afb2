"""Joining: to work inside a transaction that the caller has open on the store's own file.

It is done over his connection and in his thread, whatever he has set on it: what he commits is
there, what he rolls back never was. Nothing of SQLAlchemy or Django is imported: what they hand
out leads to the driver's connection by the names it has there.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from inspect import ismethod
from typing import TYPE_CHECKING, Any

from millpond.errors import ForeignConnection, NotInTransaction, StoreLocked
from millpond.store.sqlite.errors import translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_SAVEPOINT = "millpond_joined"

_WAYS = ("driver_connection", "dbapi_connection", "connection")
"""Where wrappers keep the connection they wrap."""
_DEEPEST = 5


class PlainCursors:
    """A connection as the store's own code knows it, whatever its owner wants rows to look like."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._connection.in_transaction

    @property
    def total_changes(self) -> int:
        """How many rows all users of it have changed."""
        return self._connection.total_changes

    def execute(self, statement: str, parameters: Iterable[Any] = (), /) -> sqlite3.Cursor:
        """Execute a statement; rows are tuples."""
        # Made by its class and not by the connection: so it has no row factory.
        return sqlite3.Cursor(self._connection).execute(statement, parameters)  # type: ignore[arg-type]

    def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        """Execute a statement for each row."""
        return sqlite3.Cursor(self._connection).executemany(statement, rows)


@contextmanager
def joined(given: object, path: Path) -> Iterator[PlainCursors]:
    """Work inside the transaction that is open on a connection; an error leaves it as it was."""
    connection = driver_connection(given, path)
    cursors = PlainCursors(connection)
    _check(connection, cursors, given, path)
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        with _savepoint(connection, cursors, path):
            yield cursors
    finally:
        connection.text_factory = text_factory


def driver_connection(given: object, path: Path) -> sqlite3.Connection:
    """Return the connection of the standard driver that is the given object, or inside it."""
    found: Any = given
    for _ in range(_DEEPEST):
        if isinstance(found, sqlite3.Connection):
            return found
        found = _inside(found)
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    raise ForeignConnection(
        f"connection={kind} leads to no sqlite3.Connection, and {path} can be joined by no other: "
        "give the connection of the standard sqlite3 module, of SQLAlchemy over pysqlite, or "
        "Django's. Of an asynchronous driver or of another SQLite library it cannot be used",
        path=str(path),
        found=kind,
    )


def _inside(wrapper: object) -> object:
    """Return what a wrapper wraps, by the first of the known names under which it has something."""
    inner = (getattr(wrapper, way, None) for way in _WAYS)
    return next((one for one in inner if one is not None and not ismethod(one)), None)


def _check(
    connection: sqlite3.Connection, cursors: PlainCursors, given: object, path: Path
) -> None:
    """Refuse a connection of another file or thread, or one that has no transaction open."""
    try:
        file = _file_of(cursors, connection)
        if not connection.in_transaction and _says_it_is_in_one(given):
            # The driver begins at the first write, and this is going to be it.
            cursors.execute("BEGIN IMMEDIATE")
    except sqlite3.ProgrammingError as error:
        raise ForeignConnection(
            f"the connection cannot be used here ({error}): submit where it was made and is open; "
            "from another thread than the loop's through `pool.sync`",
            path=str(path),
            found="closed, or of another thread",
        ) from error
    except sqlite3.Error as error:
        raise _explained(error, path) from error
    if not _is_same(file, path):
        raise ForeignConnection(
            f"the connection is of {file or 'a database in memory'}, the pools are in {path}: one "
            "transaction cannot span both; keep your tables in the file of the pools, or "
            "submit without connection=",
            path=str(path),
            found=file,
        )
    if not connection.in_transaction:
        raise NotInTransaction(
            f"connection= joins an open transaction on {path}, and there is none: begin one with "
            '`connection.execute("BEGIN IMMEDIATE")`, `engine.begin()` or `transaction.atomic()`, '
            "or submit without connection=",
            path=str(path),
        )


def _file_of(cursors: PlainCursors, connection: sqlite3.Connection) -> str:
    """Return the main file of a connection."""
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        rows = cursors.execute("PRAGMA database_list").fetchall()
    finally:
        connection.text_factory = text_factory
    return next((file or "" for _, name, file in rows if name == "main"), "")


def _is_same(file: str, path: Path) -> bool:
    try:
        return bool(file) and path.samefile(file)
    except OSError:
        return False


def _says_it_is_in_one(given: object) -> bool:
    """Return whether a wrapper (SQLAlchemy's) has begun what its driver has yet to begin."""
    found = getattr(given, "in_transaction", None)
    return callable(found) and found() is True


@contextmanager
def _savepoint(connection: sqlite3.Connection, cursors: PlainCursors, path: Path) -> Iterator[None]:
    """Undo the work inside if it fails; what its owner did before stays."""
    try:
        cursors.execute(f"SAVEPOINT {_SAVEPOINT}")
        yield
        cursors.execute(f"RELEASE {_SAVEPOINT}")
    except BaseException as error:
        # Some errors of the disk end the whole transaction by themselves.
        if connection.in_transaction:
            cursors.execute(f"ROLLBACK TO {_SAVEPOINT}")
            cursors.execute(f"RELEASE {_SAVEPOINT}")
        if isinstance(error, sqlite3.Error):
            raise _explained(error, path) from error
        raise


def _explained(error: sqlite3.Error, path: Path) -> Exception:
    """Return our error for SQLite's; one kind of it has a cure of its own."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreLocked(
            f"the transaction began by reading {path}, and others have written since, so it "
            "cannot write: roll it back, and begin with BEGIN IMMEDIATE the next time. Nothing was "
            "submitted",
            path=str(path),
            waited=0.0,
        )
    return translated(error, path)
