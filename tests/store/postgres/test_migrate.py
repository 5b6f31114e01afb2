"""Migrations: each once, whole, in order; and what is not ours to change is not changed."""

import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from verify.servers.postgres import OwnServer, Server

from millpond.errors import (
    MigrationNeeded,
    MissingRights,
    SchemaChanged,
    SchemaTooNew,
    StoreError,
    StoreLocked,
)
from millpond.store.migration import Migration
from millpond.store.postgres.connect import Connection, Patience, connect
from millpond.store.postgres.migrate import known_migrations, migrate
from millpond.store.postgres.quoting import LONGEST
from millpond.store.postgres.url import Address, address_of
from millpond.store.sqlite.migrate import known_migrations as of_sqlite

ROOT = Path(__file__).parents[3]
NEWEST = known_migrations()[-1].version

FIRST = Migration(1, "first", "CREATE TABLE millpond_one (value integer);")
SECOND = Migration(
    2, "second", "ALTER TABLE millpond_one ADD COLUMN more text; CREATE TABLE millpond_two ();"
)
BROKEN = Migration(2, "broken", "CREATE TABLE millpond_two (); CREATE TABLE millpond_one ();")

OPEN = """\
import sys
from millpond.store.postgres.connect import connect
from millpond.store.postgres.migrate import migrate
from millpond.store.postgres.url import address_of

address = address_of(sys.argv[1])
with connect(address) as connection:
    print("ready", flush=True)
    sys.stdin.read()
    print(migrate(connection, address))
"""


@pytest.fixture
def address(postgres_url: str) -> Address:
    """Give the address of an empty database."""
    return address_of(postgres_url)


@pytest.fixture
def connection(address: Address) -> Iterator[Connection]:
    """Give a connection to it."""
    with connect(address) as opened:
        yield opened


def tables(connection: Connection, schema: str = "millpond") -> list[str]:
    """The tables of a schema, by name."""
    query = "SELECT tablename::text FROM pg_tables WHERE schemaname = %s ORDER BY 1"
    return [name for (name,) in connection.execute(query, [schema])]


def test_a_new_database_gets_all_migrations_in_order(
    connection: Connection, address: Address
) -> None:
    """It records each with its digest and the server's time."""
    assert 2 == migrate(connection, address, migrations=(FIRST, SECOND))
    assert ["millpond_one", "millpond_schema", "millpond_two"] == tables(connection)
    noted = connection.execute(
        "SELECT version, name, digest, applied_at > 1e9 FROM millpond.millpond_schema ORDER BY 1"
    ).fetchall()
    assert [(1, "first", FIRST.digest, True), (2, "second", SECOND.digest, True)] == noted
    assert [] == tables(connection, "public")


def test_an_older_database_gets_only_the_missing_migrations(
    connection: Connection, address: Address
) -> None:
    """The rows in its tables stay."""
    migrate(connection, address, migrations=(FIRST,))
    connection.execute("INSERT INTO millpond.millpond_one VALUES (7)")
    migrate(connection, address, migrations=(FIRST, SECOND))
    assert [(7, None)] == connection.execute("SELECT * FROM millpond.millpond_one").fetchall()


def test_a_migration_that_fails_leaves_nothing(connection: Connection, address: Address) -> None:
    """A migration is one transaction; the one before it stays."""
    with pytest.raises(StoreError, match="42P07"):
        migrate(connection, address, migrations=(FIRST, BROKEN))
    assert ["millpond_one", "millpond_schema"] == tables(connection)
    assert not connection.closed
    assert 1 == migrate(connection, address, migrations=(FIRST,))


def test_a_newer_schema_is_left_alone(connection: Connection, address: Address) -> None:
    """A newer release knows what it means; this one does not."""
    migrate(connection, address, migrations=(FIRST, SECOND))
    with pytest.raises(SchemaTooNew, match=r"schema 2.*none above 1") as caught:
        migrate(connection, address, migrations=(FIRST,))
    assert (2, 1) == (caught.value.found, caught.value.known)
    assert "MILL-049" in str(caught.value)


def test_another_builds_schema_is_left_alone(connection: Connection, address: Address) -> None:
    """The same number with another text is not the same."""
    migrate(connection, address, migrations=(FIRST,))
    with pytest.raises(SchemaChanged, match=r"migration 1 \(first\)"):
        migrate(connection, address, migrations=(Migration(1, "first", "SELECT 1;"),))


def test_migrating_can_be_forbidden(connection: Connection, address: Address) -> None:
    """Then nothing is made, not even the schema."""
    with pytest.raises(MigrationNeeded, match="migrate=True") as caught:
        migrate(connection, address, allowed=False)
    assert (0, known_migrations()[-1].version) == (caught.value.found, caught.value.needed)
    query = "SELECT count(*) FROM pg_namespace WHERE nspname = 'millpond'"
    assert (0,) == connection.execute(query).fetchone()
    version = migrate(connection, address)
    assert version == migrate(connection, address, allowed=False)


@pytest.mark.parametrize(
    "schema", ['a"b', "it's", "Two Words", "mühle", "x" * LONGEST, "select", "a.b;--"]
)
def test_a_schema_may_have_any_name(postgres_url: str, schema: str) -> None:
    """Quotes and all, up to the last byte."""
    address = msgspec.structs.replace(address_of(postgres_url), schema=schema)
    with connect(address) as connection:
        version = migrate(connection, address)
        assert version == migrate(connection, address, allowed=False)
        assert "millpond_live" in tables(connection, schema)
        assert [] == tables(connection, "public")


def test_stores_of_one_database_are_apart(postgres_url: str) -> None:
    """Each schema is one."""
    one, other = (
        address_of(postgres_url),
        address_of(postgres_url + ("&" if "?" in postgres_url else "?") + "schema=other"),
    )
    with connect(one) as connection:
        migrate(connection, one)
        connection.execute("UPDATE millpond.millpond_meta SET joined = 7")
        migrate(connection, other)
        assert (0,) == connection.execute("SELECT joined FROM other.millpond_meta").fetchone()


def test_settings_of_the_session_are_as_before(connection: Connection, address: Address) -> None:
    """A migration may take long, the rest may not."""

    def settings() -> Any:
        names = "search_path", "statement_timeout", "lock_timeout"
        return [connection.execute(f"SHOW {name}".encode()).fetchone() for name in names]

    before = settings()
    migrate(connection, address)
    assert before == settings()


# At once


def test_of_eight_processes_at_once_one_migrates(postgres_url: str) -> None:
    """All find the migrations done."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, postgres_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    answers = [process.communicate(timeout=50) for process in processes]
    assert [(f"{NEWEST}\n", "")] * 8 == answers
    with psycopg.connect(postgres_url) as connection:
        query = "SELECT count(*) FROM millpond.millpond_schema"
        assert (NEWEST,) == connection.execute(query).fetchone()


def test_many_threads_at_once_and_again(postgres: Server) -> None:
    """The race is run often: in each round all begin with an empty database."""
    for _ in range(5):
        with postgres.database() as url:
            address = address_of(url)
            connections = [connect(address) for _ in range(8)]
            versions: list[int] = []
            barrier = threading.Barrier(len(connections))

            def run(
                connection: Connection,
                address: Address = address,
                barrier: threading.Barrier = barrier,
                versions: list[int] = versions,
            ) -> None:
                barrier.wait()
                versions.append(migrate(connection, address))

            threads = [threading.Thread(target=run, args=[one]) for one in connections]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for connection in connections:
                connection.close()
            assert [NEWEST] * 8 == versions


def test_a_migration_that_does_not_end_is_not_waited_for(address: Address) -> None:
    """Another process runs it, and has not committed."""
    with connect(address) as holder, connect(address, patience=Patience(lock=0.05)) as waiter:
        holder.execute("BEGIN")
        holder.execute("CREATE SCHEMA millpond")
        with pytest.raises(StoreLocked, match="nothing of ours was changed"):
            migrate(waiter, address, patience=0.05)
        holder.execute("ROLLBACK")
        assert [] == tables(waiter)


# Rights


@pytest.fixture
def admin(own_url: str) -> Iterator[Connection]:
    """Give a connection of a superuser."""
    with connect(address_of(own_url)) as opened:
        yield opened


@pytest.fixture
def plain_url(own: OwnServer, own_url: str) -> str:
    """Give the URL of the same database for a user without rights there."""
    own.execute(
        'DO $$BEGIN CREATE ROLE "pla\'in" LOGIN; EXCEPTION WHEN duplicate_object THEN END$$'
    )
    return own_url.replace("millpond@", "pla%27in@")


def grant(connection: Connection, error: MissingRights) -> None:
    """Do what an error says."""
    assert error.grants
    assert all(statement in str(error) for statement in error.grants)
    for statement in error.grants:
        connection.execute(statement.encode())


def test_missing_rights_are_named_and_granting_them_helps(
    admin: Connection, plain_url: str
) -> None:
    """Each grant that an error names takes the user one step on."""
    address = address_of(plain_url)
    with connect(address) as plain:
        with pytest.raises(MissingRights, match="GRANT CREATE ON DATABASE") as caught:
            migrate(plain, address)
        assert 'CREATE SCHEMA "millpond" AUTHORIZATION "pla\'in"' in str(caught.value)
        grant(admin, caught.value)
        assert NEWEST == migrate(plain, address)
        assert NEWEST == migrate(plain, address, allowed=False)


def test_a_schema_that_was_made_for_the_user_will_do(admin: Connection, plain_url: str) -> None:
    """The user needs no right to create one."""
    admin.execute('CREATE SCHEMA millpond AUTHORIZATION "pla\'in"')
    address = address_of(plain_url)
    with connect(address) as plain:
        assert NEWEST == migrate(plain, address)


def test_foreign_tables_in_the_schema_are_refused(admin: Connection, plain_url: str) -> None:
    """An administrator migrates, and the application may only use what is there."""
    address = address_of(plain_url)
    with connect(address) as plain:
        admin.execute("CREATE SCHEMA millpond")
        with pytest.raises(MissingRights, match="GRANT USAGE ON SCHEMA") as caught:
            migrate(plain, address)
        grant(admin, caught.value)
        with pytest.raises(MissingRights, match="GRANT USAGE, CREATE ON SCHEMA"):
            migrate(plain, address)
        migrate(admin, address)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            plain.execute("SELECT * FROM millpond.millpond_schema")
        with pytest.raises(MissingRights, match="GRANT SELECT") as caught:
            migrate(plain, address, allowed=False)
        grant(admin, caught.value)
        assert NEWEST == migrate(plain, address, allowed=False)
        admin.execute('REVOKE SELECT ON millpond.millpond_schema FROM "pla\'in"')
        with pytest.raises(MissingRights, match="GRANT SELECT ON ALL TABLES") as caught:
            migrate(plain, address)
        grant(admin, caught.value)
        admin.execute('REVOKE UPDATE ON millpond.millpond_live FROM "pla\'in"')
        with pytest.raises(MissingRights, match="GRANT UPDATE ON ALL TABLES"):
            migrate(plain, address)


# The tables themselves


def columns_of_sqlite() -> dict[str, list[str]]:
    """The columns of each table on SQLite, in their order."""
    memory = sqlite3.connect(":memory:")
    for migration in of_sqlite():
        memory.executescript(migration.text)
    names = [
        name for (name,) in memory.execute("SELECT name FROM sqlite_schema WHERE type='table'")
    ]
    found = {
        name: [row[1] for row in memory.execute(f"PRAGMA table_info({name})")] for name in names
    }
    memory.close()
    return found


def indexes_of_sqlite() -> dict[str, str]:
    """The indexes that have a name of ours on SQLite: what they say after ON."""
    memory = sqlite3.connect(":memory:")
    for migration in of_sqlite():
        memory.executescript(migration.text)
    rows = memory.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
    ).fetchall()
    memory.close()
    return {name: plain(sql.partition(" ON ")[2]) for name, sql in rows}


def plain(text: str) -> str:
    """An index without what each database writes in its own way."""
    return re.sub(r"[\s()]|USING btree|::(double precision|\w+)", "", text.replace("millpond.", ""))


def test_the_tables_have_the_columns_of_those_on_sqlite(
    connection: Connection, address: Address
) -> None:
    """In the same order: the same verbs work on both. Columns only for a server come last."""
    migrate(connection, address)
    found: dict[str, list[str]] = {}
    query = (
        "SELECT table_name::text, column_name::text FROM information_schema.columns "
        "WHERE table_schema = 'millpond' ORDER BY table_name, ordinal_position"
    )
    for table, column in connection.execute(query):
        found.setdefault(table, []).append(column)
    for own in ("schema", "functions", "detour", "lease", "folded", "alive", "inbox"):
        del found[f"millpond_{own}"]
    behind = {"millpond_meta": ["version", "leases", "seen_upto", "seen_open", "turn", "server"]}
    behind["millpond_meta"] += ["first_lease"]
    behind["millpond_task"] = ["plain"]
    behind["millpond_pool"] = ["bands", "lows", "undue_since", "ring_turn", "ring_join"]
    behind["millpond_pool"] += ["writes", "turn"]
    behind["millpond_worker"] = ["writes", "turn"]
    behind["millpond_group"] = ["shelf_rank", "shelf_seq"]
    behind["millpond_measured"] = ["due", "started_at", "finished_at", "n"]
    behind["millpond_removed"] = ["ids"]
    behind["millpond_audit"] = [
        *("event", "starts", "pool", "worker", "tokens", "ids", "places", "due", "keys", "plain"),
        *("differs", "part"),
    ]
    parts = [table for table in found if re.fullmatch(r"millpond_audit_\d+", table)]
    for table in parts:
        assert found.pop(table) == found["millpond_audit"]
    for table, columns in columns_of_sqlite().items():
        assert columns + behind.get(table, []) == found.pop(table)
    assert {} == found


def test_the_tables_have_the_indexes_of_those_on_sqlite(
    connection: Connection, address: Address
) -> None:
    """With the same columns and conditions, but for the place of a group on its shelf."""
    migrate(connection, address)
    query = "SELECT indexname::text, indexdef FROM pg_indexes WHERE schemaname = 'millpond'"
    found = {name: plain(sql.partition(" ON ")[2]) for name, sql in connection.execute(query)}
    found["millpond_shelf"] = found["millpond_shelf"].replace("shelf_", "")
    expected = indexes_of_sqlite()
    assert expected == {name: found[name] for name in expected}


def test_texts_are_ordered_by_code_points(connection: Connection, address: Address) -> None:
    """Whatever the locale of the database: as Python and SQLite order them."""
    migrate(connection, address)
    query = (
        "SELECT c.relname || '.' || a.attname FROM pg_attribute a "
        "JOIN pg_class c ON c.oid = a.attrelid JOIN pg_collation o ON o.oid = a.attcollation "
        "WHERE c.relnamespace = 'millpond'::regnamespace AND c.relkind = 'r' "
        "AND c.relname <> 'millpond_schema' AND o.collname <> 'C'"
    )
    assert [] == connection.execute(query).fetchall()


def test_rows_that_are_rewritten_are_vacuumed_soon(
    connection: Connection, address: Address
) -> None:
    """Whatever the size of their table."""
    migrate(connection, address)
    query = (
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'millpond'::regnamespace "
        "AND 'autovacuum_vacuum_scale_factor=0' = ANY (reloptions) "
        "AND 'vacuum_truncate=off' = ANY (reloptions) ORDER BY 1"
    )
    expected = ["group", "lease", "live", "meta", "pool", "seat", "unit"]
    assert [(f"millpond_{name}",) for name in expected] == connection.execute(query).fetchall()


def test_the_migrations_are_in_the_installed_package() -> None:
    """The files are read as resources of the package."""
    (first, *_) = known_migrations()
    file = ROOT / "src/millpond/store/postgres/migrations/0001_tables.sql"
    assert (1, "tables") == (first.version, first.name)
    assert file.read_text("utf-8") == first.text
