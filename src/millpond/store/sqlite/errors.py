"""Translate SQLite errors: one table from result codes to MillpondErrors."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, TypeAlias

from millpond.errors import (
    NotADatabase,
    StoreCorrupt,
    StoreError,
    StoreFailing,
    StoreFull,
    StoreLocked,
    StoreMissing,
    StoreNotWritable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PRIMARY = 0xFF
"""The low byte of an extended result code is the code it extends."""

Meaning: TypeAlias = tuple[type[StoreError], str]

_MEANINGS: Mapping[int, Meaning] = {
    sqlite3.SQLITE_BUSY: (
        StoreLocked,
        (
            "is locked: another program kept a transaction open for too long; "
            "find and end it, nothing of ours was changed"
        ),
    ),
    sqlite3.SQLITE_LOCKED: (
        StoreLocked,
        "is locked by another connection of this process; end its transaction",
    ),
    sqlite3.SQLITE_READONLY: (
        StoreNotWritable,
        (
            "may not be written; give this user the right to write the file and its folder "
            "(SQLite keeps -wal and -shm beside it)"
        ),
    ),
    sqlite3.SQLITE_PERM: (
        StoreNotWritable,
        "may not be used by this user; give it the right to read and write the file",
    ),
    sqlite3.SQLITE_AUTH: (
        StoreNotWritable,
        "may not be used by this user; give it the right to read and write the file",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreNotWritable,
        "cannot be opened; see that its folder is there and that this user may write in it",
    ),
    sqlite3.SQLITE_NOTADB: (
        NotADatabase,
        "is not a SQLite database (or an encrypted one); it was left as it is: give another path",
    ),
    sqlite3.SQLITE_FULL: (
        StoreFull,
        (
            "cannot grow: its disk is full, or a size limit is reached; make room, "
            "then go on: nothing was changed"
        ),
    ),
    sqlite3.SQLITE_TOOBIG: (
        StoreFull,
        "cannot hold a value that large; nothing was changed",
    ),
    sqlite3.SQLITE_CORRUPT: (
        StoreCorrupt,
        (
            "is damaged; stop its workers, keep a copy of it with its -wal, and restore a backup "
            "or salvage it with `sqlite3 FILE .recover`"
        ),
    ),
    sqlite3.SQLITE_IOERR: (
        StoreFailing,
        "met an error of the disk or the file system; look into the system's log",
    ),
    sqlite3.SQLITE_PROTOCOL: (
        StoreFailing,
        "could not be locked as its file system should; SQLite needs a local disk",
    ),
    sqlite3.SQLITE_NOLFS: (
        StoreFailing,
        "is larger than its file system can hold",
    ),
    sqlite3.SQLITE_NOMEM: (
        StoreFailing,
        "could not be worked on: there was not enough memory",
    ),
}

POISONOUS = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
"""Codes after which the connection is replaced: its cache may be wrong."""


_OF_VALUE = frozenset(
    {
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
        sqlite3.SQLITE_TOOBIG,
    }
)

DATABASE_ERRORS = (sqlite3.Error, MemoryError)
"""What a call of the database may raise; out of memory is Python's own error."""

DatabaseError: TypeAlias = sqlite3.Error | MemoryError


def code_of(error: BaseException | None) -> int | None:
    """Return the primary result code; None if SQLite did not raise this."""
    if isinstance(error, MemoryError):
        return sqlite3.SQLITE_NOMEM
    code = getattr(error, "sqlite_errorcode", None)
    return code & PRIMARY if isinstance(code, int) else None


def name_of(error: DatabaseError) -> str:
    """Return SQLite's name of an error."""
    if isinstance(error, MemoryError):
        return "SQLITE_NOMEM"
    return getattr(error, "sqlite_errorname", "no code")


def is_busy(error: DatabaseError) -> bool:
    """Return whether another connection holds the lock."""
    return code_of(error) == sqlite3.SQLITE_BUSY


def is_poisonous(error: BaseException | None) -> bool:
    """Return whether the connection that raised this is unusable.

    An error of the database whose code is not known is not trusted either.
    """
    code = code_of(error)
    return isinstance(error, DATABASE_ERRORS) and (code is None or code in POISONOUS)


def is_of_value(error: DatabaseError) -> bool:
    """Return whether SQLite or its driver refused one value."""
    if code_of(error) is None:
        return isinstance(error, (sqlite3.InterfaceError, sqlite3.ProgrammingError))
    return code_of(error) in _OF_VALUE


def translated(error: DatabaseError, path: Path, *, waited: float = 0.0) -> StoreError:
    """Return the MillpondError for a SQLite error; it names the file and says what to do."""
    code = code_of(error)
    name = name_of(error)
    kind, advice = _MEANINGS.get(code, (StoreError, "")) if code is not None else (StoreError, "")
    if not advice:
        ours = kind(f"the database {path} refused a statement ({name}: {error})", path=str(path))
    elif code == sqlite3.SQLITE_CANTOPEN and not path.parent.is_dir():
        ours = folder_missing(path)
    else:
        ours = kind(f"{path} {advice} ({name}: {error})", path=str(path))
    if isinstance(ours, StoreLocked):
        ours.waited = waited
    elif isinstance(ours, StoreFailing):
        ours.sqlite = name
    ours.of_counts = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CONSTRAINT_CHECK
    ours.of_value = is_of_value(error) and not ours.of_counts
    ours.__cause__ = error
    return ours


def folder_missing(path: Path) -> StoreMissing:
    """Return the error for a missing folder."""
    return StoreMissing(
        f"the folder {path.parent} does not exist, so {path.name} cannot be made in it; "
        "create the folder first, or correct the path",
        path=str(path),
    )
