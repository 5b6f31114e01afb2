"""Connect: every connection has the same settings and clear errors.

The file itself is never opened by anything but SQLite: the locks of a process on a file are gone
as soon as the process closes *any* descriptor of it, so an innocent `open(path).close()` would
let another process write in the middle of our transaction.

No portable program can distinguish a network file system from a local disk. On a
network file system the locks SQLite relies on may not work: keep the file on a local disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
import weakref
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import quote

from millpond.core.log_fields import about
from millpond.errors import (
    ConfigError,
    NotADatabase,
    SQLiteTooOld,
    StoreFailing,
    StoreForked,
    StoreMissing,
    StoreNotWritable,
)
from millpond.store.private_files import check, check_place_of, made_private, sharing_of
from millpond.store.sqlite.errors import DATABASE_ERRORS, folder_missing, is_busy, translated

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("millpond.sqlite")

Durability: TypeAlias = Literal["full", "normal"]
FileIdentity: TypeAlias = tuple[int, int]
"""The device and the number of a file."""

SYNCHRONOUS: dict[str, str] = {"full": "FULL", "normal": "NORMAL"}
"""full: a commit is on the disk when it is answered. normal: the latest commits may be missing
after a power cut or a crash of the system, never after a crash of a process; the database stays
whole in both."""

OLDEST_SQLITE = (3, 35, 0)
"""The first with RETURNING."""

PATIENCE = 30.0
"""Seconds to wait for the transaction of another connection before giving up."""

READ_A_PAGE = "SELECT count(*) FROM sqlite_schema"

_STATEMENTS_KEPT = 512
_CACHE_KIB = 8_192
_SIDECARS = ("-wal", "-shm", "-journal", "-writers", "-alive", "-wake")
_WAL_KEPT = 16 * 1024 * 1024
_SHORTEST_WAIT, _LONGEST_WAIT = 0.0002, 0.005


class Connection(sqlite3.Connection):
    """A connection that a forked child neither uses nor closes."""

    file: FileIdentity | None = None


def connect(
    path: Path,
    *,
    durability: Durability = "full",
    create: bool = True,
    patience: float = PATIENCE,
    factory: type[Connection] = Connection,
) -> Connection:
    """Open the database at `path`; it may then be used by one thread at a time.

    Transactions are begun and ended by hand. The mode of the file is WAL from now on.
    """
    if durability not in SYNCHRONOUS:
        raise ConfigError("durability", durability, "must be 'full' or 'normal'")
    connection = _opened(path, patience, factory, create=create)
    try:
        _set_up(connection, path, durability, patience)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_look(path: Path, *, patience: float = PATIENCE) -> Connection:
    """Open an existing database for reading only."""
    connection = _opened(path, patience, Connection, create=False)
    try:
        _insist(connection, path, "PRAGMA query_only=1", patience)
        _insist(connection, path, READ_A_PAGE, patience)
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(path: Path, patience: float, factory: type[Connection], *, create: bool) -> Connection:
    check_version(sqlite3.sqlite_version_info)
    _look(path, create=create)
    _must_not_be_the_parents(path)
    try:
        connection = sqlite3.connect(
            f"file:{quote(os.fspath(path.absolute()))}?mode={'rwc' if create else 'rw'}",
            uri=True,
            timeout=patience,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS_KEPT,
            factory=factory,
        )
    except DATABASE_ERRORS as error:
        raise translated(error, path) from error
    connection.file = identity_of(path)
    _OPEN.add(connection)
    return connection


def begin(connection: sqlite3.Connection, path: Path, *, patience: float = PATIENCE) -> None:
    """Begin a write transaction, waiting for other writers in short steps.

    SQLite's own way to wait sleeps up to a tenth of a second at a time, and so loses its turn to
    the process that does not sleep. A connection that begins here should have no busy timeout.
    """
    _insist(connection, path, "BEGIN IMMEDIATE", patience)


def dispose(connection: sqlite3.Connection, path: Path) -> None:
    """Close a connection that may be broken; it must not block other writers.

    SQLite keeps a closed connection, and its transaction, until the last of its cursors is gone:
    those of a call that failed are gone with its traceback, whenever that is.
    """
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except DATABASE_ERRORS as error:
        log.warning(
            "rolling back a transaction on %s failed: %s",
            path,
            error,
            extra=about("rollback.failed", reason=str(error)),
        )
    try:
        connection.close()
    except DATABASE_ERRORS as error:
        log.warning(
            "closing %s failed: %s",
            path,
            error,
            extra=about("close.failed", reason=str(error)),
        )


def identity_of(path: Path) -> FileIdentity | None:
    """Return device and inode of the file at a path; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - at each transaction
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def is_another(opened: FileIdentity | None, path: Path) -> bool:
    """Return whether another file has replaced the opened one.

    One that was removed is not replaced by itself: writes to it are lost, so
    that is refused.
    """
    found = identity_of(path)
    if found is None:
        raise StoreMissing(
            f"{path} was removed while it was open, and what is written now would go with it: put "
            "it back (a copy, a backup) or close this Millpond and open a new one. Nothing was "
            "changed",
            path=str(path),
        )
    return found != opened


def check_version(found: tuple[int, ...]) -> None:
    """Refuse a SQLite library that is too old."""
    if found < OLDEST_SQLITE:
        had, needed = (".".join(map(str, version)) for version in (found, OLDEST_SQLITE))
        raise SQLiteTooOld(
            f"this Python uses SQLite {had}; the store needs {needed} or later: "
            "use a newer Python build or a newer system library",
            found=had,
            needed=needed,
        )


def _look(path: Path, *, create: bool) -> None:
    """Check the path first: the errors of SQLite say less."""
    folder = path.absolute().parent
    try:
        if not folder.is_dir():
            raise folder_missing(path)
        found = path.exists()
        if found and not path.is_file():
            raise NotADatabase(
                f"{path} is not a file, so it cannot be a database; give another path",
                path=str(path),
            )
    except PermissionError as error:
        raise _not_allowed(path, folder) from error
    if not found and not create:
        raise StoreMissing(
            f"there is no database at {path}; create it with a Millpond, or correct the path",
            path=str(path),
        )
    if not _may(folder, os.W_OK | os.X_OK):
        raise _not_allowed(path, folder)
    if found and not _may(path, os.R_OK | os.W_OK):
        raise _not_allowed(path, path)
    check_place_of(path)
    sharing = sharing_of(path)
    for ending in _SIDECARS:
        check(path.absolute().with_name(path.name + ending), sharing)
    if not found:
        # SQLite gives the files beside it the rights of the database.
        with contextlib.suppress(OSError):
            made_private(path)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _not_allowed(path: Path, culprit: Path) -> StoreNotWritable:
    return StoreNotWritable(
        f"{culprit} may not be read and written by this process, so {path} cannot be used "
        "(SQLite also writes -wal and -shm files beside it); change the rights of the file "
        "and its folder, or see that the disk is not mounted read-only",
        path=str(path),
    )


def _set_up(
    connection: sqlite3.Connection, path: Path, durability: Durability, patience: float
) -> None:
    mode = _insist(connection, path, "PRAGMA journal_mode=WAL", patience)
    if mode != "wal":
        raise StoreFailing(
            f"{path} cannot be used in WAL mode (it stays in {mode!r}): its file system lacks "
            "shared memory; SQLite needs a local disk",
            path=str(path),
            sqlite="journal_mode",
        )
    full = int(durability == "full")
    for setting in (
        f"synchronous={SYNCHRONOUS[durability]}",
        f"fullfsync={full}",  # on macOS a plain fsync leaves data in the drive
        f"checkpoint_fullfsync={full}",
        "wal_autocheckpoint=0",  # see checkpoint.py: one process at a time, and it alone
        f"journal_size_limit={_WAL_KEPT}",
        "mmap_size=0",
        "temp_store=MEMORY",
        f"cache_size=-{_CACHE_KIB}",
    ):
        _insist(connection, path, f"PRAGMA {setting}", patience)
    # Nothing above must read a page of the file: this does, so that a damaged one is found here.
    _insist(connection, path, READ_A_PAGE, patience)


def _insist(connection: sqlite3.Connection, path: Path, statement: str, patience: float) -> object:
    """Execute a statement, retrying while the database is locked; return its first value.

    The switch to WAL needs the whole file for a moment and does not wait by itself.
    """
    begun, pause = time.monotonic(), _SHORTEST_WAIT
    while True:
        try:
            row = connection.execute(statement).fetchone()
            return None if row is None else row[0]
        except DATABASE_ERRORS as error:
            waited = time.monotonic() - begun
            if not is_busy(error) or waited >= patience:
                raise translated(error, path, waited=waited) from error
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_WAIT)


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()
_THE_PARENTS: list[Connection] = []
_FILES_OF_PARENTS: set[FileIdentity] = set()


def _leave_to_the_parent() -> None:
    """Keep the parent's connections referenced, so that this fork never closes them.

    Closing in the child would act on the parent's files with the child's locks, which are none.
    """
    _THE_PARENTS.extend(_OPEN)
    for connection in _OPEN:
        if connection.file is not None and _is_open(connection):
            _FILES_OF_PARENTS.add(connection.file)


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        _ = connection.in_transaction
    except sqlite3.ProgrammingError:
        return False
    return True


def _must_not_be_the_parents(path: Path) -> None:
    """Refuse a file that was open in the parent at the moment of the fork.

    SQLite keeps one table of locks per process. The child inherits the table, but not the locks:
    it would wait for ever for a lock of the parent, or go without one that it needs.
    """
    if _FILES_OF_PARENTS and identity_of(path) in _FILES_OF_PARENTS:
        raise StoreForked(
            f"{path} was open in the process that forked this one, and SQLite cannot open it again "
            "here: open the Millpond after the fork only, in each process, or close it before; or "
            "start the processes by spawn",
            path=str(path),
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
