"""Migrations: numbered SQL files, each applied once, in one transaction, under a lock.

The functions are installed under the same lock, wherever their digest differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from millpond.errors import MigrationNeeded
from millpond.store.migration import migrations_of, pending, refused
from millpond.store.postgres.connect import PATIENCE, commit, rollback
from millpond.store.postgres.errors import translated
from millpond.store.postgres.lock import to_migrate
from millpond.store.postgres.quoting import qualified, quoted
from millpond.store.postgres.rights import check_migration, check_tables, check_use, rights
from millpond.store.postgres.server_functions import VERSION, digest, installation, versioned

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

# Not to_regclass(), which answers from a cache: it does not find a table that another process has
# made, under the lock, since this transaction began.
_THERE = """\
SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s"""

_MADE_MEANWHILE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateTable,
)

_NOTE_FUNCTIONS = """\
INSERT INTO millpond_functions
VALUES (%s, %s, extract(epoch FROM clock_timestamp())::double precision)
ON CONFLICT (version)
DO UPDATE SET digest = excluded.digest, installed_at = excluded.installed_at"""

_REVOKE_FROM_ALL = "REVOKE EXECUTE ON FUNCTION submit, status, millpond_enter FROM PUBLIC"

# A store that is new does not know its server yet.
_NOTE_SERVER = versioned(
    "UPDATE millpond_meta SET server = coalesce(millpond_server(), '') WHERE server = ''"
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
        if _has_functions_to_install(connection, address):
            if not allowed:
                raise _functions_missing(known, address)
            check_migration(found, address)
            _install(connection, address, patience)
    except psycopg.Error as error:
        raise translated(error, address, waited=patience) from error
    return known[-1].version if known else 0


def _applied(connection: Connection, address: Address) -> Mapping[int, str]:
    """Return the digests of the applied migrations, by version."""
    if not _is_there(connection, address, "millpond_schema"):
        return {}
    query = qualified("SELECT version, digest FROM millpond_schema", address.schema)
    return dict(connection.execute(query.encode()).fetchall())


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


def _is_there(connection: Connection, address: Address, table: str) -> bool:
    return connection.execute(_THERE, [address.schema, table]).fetchone() is not None


def installed_functions(connection: Connection, address: Address) -> Mapping[int, str]:
    """Return the digests of the installed functions, by version."""
    query = qualified("SELECT version, digest FROM millpond_functions", address.schema)
    return dict(connection.execute(query.encode()).fetchall())


def _has_functions_to_install(connection: Connection, address: Address) -> bool:
    if not _is_there(connection, address, "millpond_functions"):
        return False
    return installed_functions(connection, address).get(VERSION) != digest()


def _install(connection: Connection, address: Address, patience: float) -> None:
    """Install the functions of this release; those of other versions stay as they are."""
    try:
        _begin(connection, address, patience)
        connection.execute(to_migrate(address.schema).encode())
        found = installed_functions(connection, address)
        # Another process may have done it while this one waited for its turn.
        if found.get(VERSION) != digest():
            connection.execute(installation(public=max(found, default=0) <= VERSION).encode())
            if not found:
                connection.execute(_REVOKE_FROM_ALL)
            connection.execute(_NOTE_FUNCTIONS, (VERSION, digest()))
            connection.execute(_NOTE_SERVER.encode())
        commit(connection, address)
    except BaseException:
        rollback(connection)
        raise


def _functions_missing(known: Sequence[Migration], address: Address) -> MigrationNeeded:
    version = known[-1].version
    return MigrationNeeded(
        f"{address} lacks version {VERSION} of the functions that this release calls, or has them "
        "from another build; migrate=False forbids to install them: run `millpond migrate`, or "
        "open the store once with Millpond(..., migrate=True), which is the default",
        path=str(address),
        found=version,
        needed=version,
    )


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
    if _is_there(connection, address, "millpond_schema"):
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
    query = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
    if connection.execute(query, [address.schema]).fetchone() is None:
        connection.execute(f"CREATE SCHEMA {quoted(address.schema)}".encode())
