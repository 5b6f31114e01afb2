"""Migrations: numbered SQL files, each applied once, in one transaction, under a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from millpond.store.migration import migrations_of, pending, refused
from millpond.store.postgres.connect import PATIENCE, commit, rollback
from millpond.store.postgres.errors import translated
from millpond.store.postgres.lock import to_migrate
from millpond.store.postgres.quoting import qualified, quoted
from millpond.store.postgres.rights import check_migration, check_tables, check_use, rights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millpond.store.migration import Migration
    from millpond.store.postgres.connect import Connection
    from millpond.store.postgres.url import Address

_LEDGER = """\
CREATE TABLE IF NOT EXISTS millpond_schema (
    version integer PRIMARY KEY,
    name text NOT NULL,
    digest text NOT NULL,
    applied_at double precision NOT NULL
)"""

# Not to_regclass(), which answers from a cache: what was not there when this transaction began is
# not there for it, though whoever had the lock has made it since.
_LEDGER_THERE = """\
SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = 'millpond_schema'"""

_MADE_MEANWHILE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateTable,
)

_NOTE = """\
INSERT INTO millpond_schema
VALUES (%s, %s, %s, extract(epoch FROM clock_timestamp())::double precision)"""


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this release, in order."""
    return migrations_of("millpond.store.postgres")


def migrate(
    connection: Connection,
    address: Address,
    *,
    allowed: bool = True,
    to_read: bool = False,
    migrations: Sequence[Migration] | None = None,
    patience: float = PATIENCE.lock,
) -> int:
    """Migrate the tables to this release, and check privileges; return the version.

    Of processes that open the store at once one migrates, and the others wait and find it done.
    Where `allowed` is False, or the tables are not ours to change, nothing is changed. `to_read`:
    the tables need only be readable.
    """
    known = known_migrations() if migrations is None else tuple(migrations)
    try:
        found = rights(connection, address)
        check_use(found, address)
        check_tables(connection, found, address, to_read=to_read)
        lacking = pending(known, _applied(connection, address), str(address))
        if lacking and not allowed:
            raise refused(known, lacking, str(address))
        if lacking:
            check_migration(found, address)
            _make_ledger(connection, address, patience)
        for migration in lacking:
            _apply(connection, address, migration, known, patience)
    except psycopg.Error as error:
        raise translated(error, address, waited=patience) from error
    return known[-1].version if known else 0


def _applied(connection: Connection, address: Address) -> Mapping[int, str]:
    """Return the digests of the applied migrations, by version."""
    if connection.execute(_LEDGER_THERE, [address.schema]).fetchone() is None:
        return {}
    asked = qualified("SELECT version, digest FROM millpond_schema", address.schema)
    return dict(connection.execute(asked.encode()).fetchall())


def _apply(
    connection: Connection,
    address: Address,
    migration: Migration,
    known: Sequence[Migration],
    patience: float,
) -> None:
    try:
        _begin(connection, address, patience)
        connection.execute(to_migrate(address.schema).encode())
        # Another process may have done it while this one waited for its turn.
        if migration in pending(known, _applied(connection, address), str(address)):
            connection.execute(migration.text.encode())
            note = (migration.version, migration.name, migration.digest)
            connection.execute(_NOTE, note)
        commit(connection, address)
    except BaseException:
        rollback(connection)
        raise


def _begin(connection: Connection, address: Address, patience: float) -> None:
    """Begin a migration transaction, which may take long."""
    connection.execute(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on; "
        f"SET LOCAL lock_timeout = {round(patience * 1000)}; SET LOCAL statement_timeout = 0; "
        "SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL search_path = "
        f"{quoted(address.schema)}, pg_catalog, pg_temp".encode()
    )


def _make_ledger(connection: Connection, address: Address, patience: float) -> None:
    """Create the ledger of migrations if missing; its lock serializes migrations."""
    if connection.execute(_LEDGER_THERE, [address.schema]).fetchone() is not None:
        return
    try:
        _begin(connection, address, patience)
        _make_schema(connection, address)
        connection.execute(_LEDGER)
        commit(connection, address)
    except _MADE_MEANWHILE:
        # The server made us wait for another process that made the same, and committed it.
        rollback(connection)
    except BaseException:
        rollback(connection)
        raise


def _make_schema(connection: Connection, address: Address) -> None:
    # IF NOT EXISTS would ask for the right to create it even where it is there.
    asked = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
    if connection.execute(asked, [address.schema]).fetchone() is None:
        connection.execute(f"CREATE SCHEMA {quoted(address.schema)}".encode())
