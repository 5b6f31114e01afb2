"""Migrations: numbered SQL files, each applied once, whole, and under the database's write lock."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import time
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from millpond.core.errors import MigrationNeeded, SchemaChanged, SchemaTooNew
from millpond.store.sqlite.connect import PATIENCE, begin
from millpond.store.sqlite.errors import DATABASE_ERRORS, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

_LEDGER = """\
CREATE TABLE IF NOT EXISTS millpond_schema (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    applied_at REAL NOT NULL
)"""


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema."""

    version: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """What tells this text from any other."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this release, in order."""
    found = []
    for file in files("millpond.store.sqlite").joinpath("migrations").iterdir():
        if named := _FILE_NAME.fullmatch(file.name):
            text = file.read_text("utf-8").replace("\r\n", "\n")
            found.append(Migration(int(named[1]), named[2], text))
    return tuple(sorted(found, key=lambda migration: migration.version))


def migrate(
    connection: sqlite3.Connection,
    path: Path,
    *,
    allowed: bool = True,
    migrations: Sequence[Migration] | None = None,
    patience: float = PATIENCE,
) -> int:
    """Bring the tables up to this release; return the version in force.

    Of processes that open the file at once one migrates, and the others wait and find it done.
    Where `allowed` is False, or the file is not one of ours to change, nothing is changed.
    """
    known = known_migrations() if migrations is None else tuple(migrations)
    try:
        pending = _pending(known, _applied(connection), path)
        if pending and not allowed:
            raise _refused(known, pending, path)
        for migration in pending:
            _apply(connection, path, migration, known, patience)
    except DATABASE_ERRORS as error:
        raise translated(error, path) from error
    return known[-1].version if known else 0


def _applied(connection: sqlite3.Connection) -> Mapping[int, str]:
    """Return the digests of the migrations the file has seen, by version."""
    there = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'millpond_schema'"
    if connection.execute(there).fetchone() is None:
        return {}
    return dict(connection.execute("SELECT version, digest FROM millpond_schema"))


def _pending(
    known: Sequence[Migration], applied: Mapping[int, str], path: Path
) -> Sequence[Migration]:
    newest, found = known[-1].version if known else 0, max(applied, default=0)
    if found > newest:
        raise SchemaTooNew(
            f"{path} has schema {found}, and this release knows none above {newest}: "
            "a newer release has opened it; use that release here too. Nothing was changed",
            path=str(path),
            found=found,
            known=newest,
        )
    for migration in known:
        if applied.get(migration.version, migration.digest) != migration.digest:
            raise SchemaChanged(
                f"migration {migration.version} ({migration.name}) of {path} is not the one this "
                "release has: it was made by another build; use that build, or a new file. "
                "Nothing was changed",
                path=str(path),
                version=migration.version,
            )
    return [migration for migration in known if migration.version not in applied]


def _refused(
    known: Sequence[Migration], pending: Sequence[Migration], path: Path
) -> MigrationNeeded:
    found, needed = pending[0].version - 1, known[-1].version
    return MigrationNeeded(
        f"{path} has {f'schema {found}' if found else 'no tables of Millpond'} and this release "
        f"needs schema {needed}; migrate=False forbids to change it: open it once with "
        "Millpond(..., migrate=True), which is the default",
        path=str(path),
        found=found,
        needed=needed,
    )


def _apply(
    connection: sqlite3.Connection,
    path: Path,
    migration: Migration,
    known: Sequence[Migration],
    patience: float,
) -> None:
    begin(connection, path, patience=patience)
    try:
        # Another process may have done it while this one waited for its turn.
        if migration in _pending(known, _applied(connection), path):
            for statement in statements(migration.text):
                connection.execute(statement)
            connection.execute(_LEDGER)
            connection.execute(
                "INSERT INTO millpond_schema VALUES (?, ?, ?, ?)",
                (migration.version, migration.name, migration.digest, time.time()),
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def statements(text: str) -> Iterator[str]:
    """Split SQL into statements; `executescript` would commit the transaction it runs in."""
    begun = 0
    for end in (place.end() for place in re.finditer(";", text)):
        # A semicolon inside a literal, a comment or a trigger's body ends nothing.
        if sqlite3.complete_statement(text[begun:end]):
            yield text[begun:end].strip()
            begun = end
    if _COMMENT.sub("", text[begun:]).strip():
        yield text[begun:].strip()
