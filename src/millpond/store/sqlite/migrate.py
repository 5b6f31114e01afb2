"""Migrations: numbered SQL files, each applied once, in one transaction with the write lock."""

from __future__ import annotations

import re
import sqlite3
import time
from typing import TYPE_CHECKING

from millpond.store.migration import Migration as Migration
from millpond.store.migration import migrations_of, pending, refused
from millpond.store.sqlite.connect import PATIENCE, begin
from millpond.store.sqlite.errors import DATABASE_ERRORS, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

_LEDGER = """\
CREATE TABLE IF NOT EXISTS millpond_schema (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    applied_at REAL NOT NULL
)"""


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this release, in order."""
    return migrations_of("millpond.store.sqlite")


def must_be_there(path: Path) -> None:
    """Raise if the file does not exist and may not be created."""
    if not path.exists():
        known = known_migrations()
        raise refused(known, known, str(path))


def migrate(
    connection: sqlite3.Connection,
    path: Path,
    *,
    allowed: bool = True,
    migrations: Sequence[Migration] | None = None,
    patience: float = PATIENCE,
) -> int:
    """Migrate the tables to this release; return the version.

    Of processes that open the file at once one migrates, and the others wait and find it done.
    Where `allowed` is False, or the file is not one of ours to change, nothing is changed.
    """
    known = known_migrations() if migrations is None else tuple(migrations)
    try:
        lacking = pending(known, _applied(connection), str(path))
        if lacking and not allowed:
            raise refused(known, lacking, str(path))
        for migration in lacking:
            _apply(connection, path, migration, known, patience)
    except DATABASE_ERRORS as error:
        raise translated(error, path) from error
    return known[-1].version if known else 0


def _applied(connection: sqlite3.Connection) -> Mapping[int, str]:
    """Return the digests of the applied migrations, by version."""
    there = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'millpond_schema'"
    if connection.execute(there).fetchone() is None:
        return {}
    return dict(connection.execute("SELECT version, digest FROM millpond_schema"))


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
        if migration in pending(known, _applied(connection), str(path)):
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
