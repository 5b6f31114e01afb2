"""Connections: their settings, and the errors when one cannot be made or is lost."""

import gc
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest
from verify.servers.postgres import OwnServer, Server

from millpond.errors import (
    BadStoreURL,
    ConfigError,
    MillpondError,
    MissingRights,
    OutcomeUnknown,
    PostgresTooOld,
    StoreDenied,
    StoreError,
    StoreLocked,
    StoreMissing,
    StoreNotWritable,
    StoreUnreachable,
    TooManyConnections,
    TransactionAborted,
    UnstorableText,
    WrongEncoding,
)
from millpond.store.postgres.connect import (
    Connection,
    Patience,
    begin,
    check_version,
    commit,
    connect,
    is_pooled,
    rollback,
    server_time,
)
from millpond.store.postgres.errors import is_gone, is_retryable, translated
from millpond.store.postgres.url import Address, address_of


@pytest.fixture
def spare(own: OwnServer) -> Iterator[OwnServer]:
    """Give a server of its own, to be broken."""
    with OwnServer(own.programs) as server:
        yield server


@pytest.fixture
def address(postgres_url: str) -> Address:
    """Give the address of an empty database."""
    return address_of(postgres_url)


@pytest.fixture
def connection(address: Address) -> Iterator[Connection]:
    """Give a connection to it."""
    with connect(address) as opened:
        yield opened


def more(url: str, option: str) -> str:
    """A URL with one option more."""
    return f"{url}{'&' if '?' in url else '?'}{option}"


def shown(connection: Connection, setting: str) -> Any:
    """What a setting is."""
    ((value,),) = connection.execute("SELECT current_setting(%s)", [setting]).fetchall()
    return value


def checked_text(error: MillpondError) -> str:
    """Return an error's text, after checks that hold for every error."""
    assert str(error).startswith(error.code)
    assert "\n" not in str(error)
    assert error.__cause__ is not None
    return str(error)


# Settings


def test_every_connection_has_the_same_settings(address: Address) -> None:
    """Whatever the server's own are."""
    with connect(address, name="millpond writer") as connection:
        for setting, value in {
            "synchronous_commit": "on",
            "lock_timeout": "30s",
            "statement_timeout": "1min",
            "idle_in_transaction_session_timeout": "10s",
            "TimeZone": "UTC",
            "client_encoding": "UTF8",
            "application_name": "millpond writer",
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
        }.items():
            assert value == shown(connection, setting), setting
        assert connection.autocommit
        assert connection.prepare_threshold is not None


def test_durability_may_be_traded(address: Address) -> None:
    """By its name, and with nothing else."""
    with connect(address, durability="normal") as connection:
        assert "off" == shown(connection, "synchronous_commit")
    with pytest.raises(ConfigError, match="'full' or 'normal'"):
        connect(address, durability="none")  # type: ignore[arg-type]


def test_options_of_the_url_take_precedence(postgres_url: str) -> None:
    """They are the user's own."""
    with connect(address_of(more(postgres_url, "application_name=mine"))) as connection:
        assert "mine" == shown(connection, "application_name")


def test_behind_a_pooler_a_session_is_left_as_it_is(postgres_url: str) -> None:
    """The next client of it must not find our settings; each transaction brings its own."""
    pooled = address_of(more(postgres_url, "pooler=1"))
    with connect(pooled, durability="normal") as connection:
        assert connection.prepare_threshold is None
        before = shown(connection, "search_path"), shown(connection, "synchronous_commit")
        assert "on" == before[1]
        connection.execute(begin(connection, "normal", Patience(lock=7.0)))
        assert "off" == shown(connection, "synchronous_commit")
        assert "7s" == shown(connection, "lock_timeout")
        commit(connection, pooled)
        assert before == (
            shown(connection, "search_path"),
            shown(connection, "synchronous_commit"),
        )


def test_a_pooler_is_noticed(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reports another backend than the session's own; the URL can override that."""
    with connect(address) as straight:
        assert not is_pooled(straight)
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 0)
    with connect(address) as noticed:
        assert is_pooled(noticed)
        assert "0" == shown(noticed, "lock_timeout")
    with connect(msgspec.structs.replace(address, pooler=False)) as believed:
        assert not is_pooled(believed)


def test_a_database_in_sql_ascii_is_refused(own: OwnServer) -> None:
    """It stores only bytes, so names depend on the client."""
    own.execute(
        "CREATE DATABASE bytes_only ENCODING 'SQL_ASCII' TEMPLATE template0"
        " LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        with pytest.raises(WrongEncoding, match="ENCODING 'UTF8'") as caught:
            connect(address_of(own.url_of("bytes_only")))
        assert "SQL_ASCII" == caught.value.found
    finally:
        own.execute("DROP DATABASE bytes_only")


def test_a_transaction_sees_what_others_commit(address: Address, connection: Connection) -> None:
    """Whatever isolation the server prefers."""
    connection.execute("SET default_transaction_isolation = 'serializable'")
    connection.execute("SET default_transaction_read_only = on")
    connection.execute(begin(connection, "full"))
    assert "read committed" == shown(connection, "transaction_isolation")
    assert "off" == shown(connection, "transaction_read_only")
    rollback(connection)


def test_the_servers_clock_is_read(connection: Connection) -> None:
    """In seconds since 1970, and it goes on within a transaction."""
    before = time.time()
    first = server_time(connection)
    connection.execute("BEGIN")
    second, third = server_time(connection), server_time(connection)
    assert first < second < third
    assert before - 60 < first < time.time() + 60


def test_a_forked_child_does_not_hang_up_for_its_parent(address: Address) -> None:
    """What the child inherits, and lets go of, is the parent's."""
    connections = [connect(address)]
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings(action="ignore"):
            connections.clear()
            gc.collect()
        os._exit(0)
    assert 0 == os.waitpid(child, 0)[1]
    with connections.pop() as connection:
        assert (1,) == connection.execute("SELECT 1").fetchone()


# What keeps a connection from being made


def test_a_port_without_a_server_is_unreachable() -> None:
    """The error says to check that the server runs."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql://me:hunter2@127.0.0.1:{unused.getsockname()[1]}/db"
        with pytest.raises(StoreUnreachable, match="see that the server runs") as caught:
            connect(address_of(url))
    assert "hunter2" not in checked_text(caught.value)
    assert "postgresql://me:***@127.0.0.1" in caught.value.path


def test_an_unknown_host_cannot_be_reached() -> None:
    """It has no address."""
    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        connect(address_of("postgresql://no.such.host.invalid/db"))


def test_connecting_to_a_silent_host_times_out() -> None:
    """It takes the connection and answers nothing."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = address_of(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/db")
        begun = time.monotonic()
        with pytest.raises(StoreUnreachable, match="timeout"):
            connect(address, patience=Patience(connect=2))
    assert time.monotonic() - begun < 10


def test_a_wrong_password_is_refused_and_not_shown(own: OwnServer) -> None:
    """Neither the wrong one nor the right one is shown."""
    right = urlsplit(own.tcp_url).password or ""
    url = own.tcp_url.replace(right, "hunter2")
    with pytest.raises(StoreDenied, match=r"user and password in the URL.*pg_hba") as caught:
        connect(address_of(url))
    assert "hunter2" not in checked_text(caught.value)
    assert "MILL-062" == caught.value.code


def test_an_unknown_user_is_refused(own: OwnServer) -> None:
    """There is no such role."""
    with pytest.raises(StoreDenied, match="unknown_role"):
        connect(address_of(own.url.replace("millpond@", "unknown_role@")))


def test_an_unknown_database_is_not_made(postgres: Server) -> None:
    """The user may have mistyped its name."""
    with pytest.raises(StoreMissing, match="createdb") as caught:
        connect(address_of(postgres.url_of("not_here")))
    assert "not_here" in checked_text(caught.value)


def test_the_missing_grant_to_connect_is_named(own: OwnServer, own_url: str) -> None:
    """The user may not connect to the database."""
    name = urlsplit(own_url).path[1:]
    own.execute("DROP ROLE IF EXISTS outsider")
    own.execute("CREATE ROLE outsider LOGIN")
    own.execute(f'REVOKE CONNECT ON DATABASE "{name}" FROM PUBLIC')
    with pytest.raises(MissingRights, match="GRANT CONNECT ON DATABASE"):
        connect(address_of(own_url.replace("millpond@", "outsider@")))


def test_too_many_connections_are_an_error(own: OwnServer, own_url: str) -> None:
    """Here of one role, as it is the same refusal."""
    own.execute("DROP ROLE IF EXISTS lonely")
    own.execute("CREATE ROLE lonely LOGIN CONNECTION LIMIT 0")
    with pytest.raises(TooManyConnections, match="max_connections") as caught:
        connect(address_of(own_url.replace("millpond@", "lonely@")))
    assert "MILL-064" in checked_text(caught.value)


def test_an_option_that_libpq_does_not_know_is_refused(postgres_url: str) -> None:
    """A misspelt sslmode must not be ignored."""
    with pytest.raises(BadStoreURL, match="sslmod"):
        connect(address_of(more(postgres_url, "sslmod=require")))


def test_encryption_that_the_server_lacks_is_an_error(own: OwnServer) -> None:
    """The client does not connect without it."""
    with pytest.raises(StoreUnreachable, match="SSL"):
        connect(address_of(f"{own.tcp_url}?sslmode=require"))


def test_a_server_that_is_too_old_is_refused() -> None:
    """The oldest that works is 14."""
    check_version(140000)
    with pytest.raises(PostgresTooOld, match=r"13\.4.*14 or later") as caught:
        check_version(130004)
    assert ("13.4", "14") == (caught.value.found, caught.value.needed)


def test_a_replica_is_refused(spare: OwnServer) -> None:
    """It is refused by itself, and passed over where the primary is given too."""
    with spare.standby() as standby:
        with pytest.raises(StoreNotWritable, match="primary's address"):
            connect(address_of(standby.url))
        with connect(address_of(standby.url), writable=False) as connection:
            assert "on" == shown(connection, "transaction_read_only")
        user = urlsplit(spare.tcp_url).netloc.rpartition("@")[0]
        hosts = f"127.0.0.1:{standby.port},127.0.0.1:{spare.port}"
        with connect(address_of(f"postgresql://{user}@{hosts}/postgres")) as connection:
            assert str(spare.port) == shown(connection, "port")
        spare.stop()
        with pytest.raises(StoreNotWritable):
            connect(address_of(f"postgresql://{user}@{hosts}/postgres"))
        with psycopg.connect(standby.url, autocommit=True) as admin:
            admin.execute("SELECT pg_promote()")
        with connect(address_of(f"postgresql://{user}@{hosts}/postgres")) as connection:
            assert str(standby.port) == shown(connection, "port")


def test_a_read_only_database_is_refused(own: OwnServer, own_url: str) -> None:
    """By its settings."""
    name = urlsplit(own_url).path[1:]
    own.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with pytest.raises(StoreNotWritable, match="default_transaction_read_only"):
        connect(address_of(own_url))


# What happens to a connection that was made


def refused(connection: Connection, address: Address, statement: str, *given: Any) -> MillpondError:
    """Our error for a statement that PostgreSQL refuses."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode(), given or None)
    return translated(caught.value, address)


def test_a_nul_character_cannot_be_stored(connection: Connection, address: Address) -> None:
    """PostgreSQL has no such text."""
    error = refused(connection, address, "SELECT %s::text", "a\0b")
    assert isinstance(error, UnstorableText)
    assert "NUL" in checked_text(error)
    assert not is_gone(error.__cause__)


def test_a_transaction_that_failed_commits_nothing(
    connection: Connection, address: Address
) -> None:
    """PostgreSQL answers such a COMMIT with ROLLBACK, and no error."""
    connection.execute(begin(connection, "full"))
    refused(connection, address, "SELECT 1/0")
    error = refused(connection, address, "SELECT 1")
    assert isinstance(error, TransactionAborted)
    assert "roll it back" in checked_text(error)
    with pytest.raises(TransactionAborted, match="MILL-066"):
        commit(connection, address)


def test_missing_tables_are_an_error(connection: Connection, address: Address) -> None:
    """They were dropped, or the schema is another."""
    for table in ("public.millpond_meta", "nowhere.millpond_meta"):
        error = refused(connection, address, f"TABLE {table}")
        assert isinstance(error, StoreMissing)
        assert "migrate=True" in checked_text(error)


def test_a_key_too_long_for_an_index_is_refused(connection: Connection, address: Address) -> None:
    """It is a limit of PostgreSQL's pages."""
    connection.execute("CREATE TABLE public.one (key text PRIMARY KEY)")
    digits = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n"
    error = refused(connection, address, f"INSERT INTO public.one {digits}")
    assert isinstance(error, UnstorableText)
    assert "2,600 bytes" in checked_text(error)


def test_a_lock_held_by_another_process_times_out(address: Address) -> None:
    """The wait for it has an end."""
    with connect(address) as holder, connect(address, patience=Patience(lock=0.05)) as waiter:
        holder.execute("BEGIN; SELECT pg_advisory_xact_lock(7)")
        error = refused(waiter, address, "SELECT pg_advisory_xact_lock(7)")
    assert isinstance(error, StoreLocked)
    assert "pg_stat_activity" in checked_text(error)


def test_a_slow_statement_times_out(address: Address) -> None:
    """The server cancels it."""
    with connect(address, patience=Patience(statement=0.05)) as connection:
        error = refused(connection, address, "SELECT pg_sleep(30)")
    assert isinstance(error, StoreLocked)
    assert "took too long" in checked_text(error)


def test_a_deadlock_may_be_retried(address: Address) -> None:
    """The server rolls back one of two that wait for each other."""
    with connect(address) as one, connect(address) as other:
        one.execute("BEGIN; SELECT pg_advisory_xact_lock(1)")
        other.execute("BEGIN; SELECT pg_advisory_xact_lock(2)")
        errors: list[psycopg.Error] = []

        def wait(connection: Connection, number: int) -> None:
            try:
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [number])
            except psycopg.Error as error:
                errors.append(error)
            rollback(connection)

        threads = [threading.Thread(target=wait, args=args) for args in ((one, 2), (other, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (error,) = errors
    assert is_retryable(error)
    assert not is_gone(error)
    assert isinstance(translated(error, address), StoreLocked)
    assert "try again" in checked_text(translated(error, address))


def test_a_connection_that_an_administrator_ends_is_gone(
    connection: Connection, address: Address
) -> None:
    """The store needs a new one then."""
    with connect(address) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
    error = refused(connection, address, "SELECT 1")
    assert isinstance(error, StoreUnreachable)
    assert is_gone(error.__cause__)
    again = refused(connection, address, "SELECT 1")
    assert isinstance(again, StoreUnreachable)
    assert is_gone(again.__cause__)


def test_the_server_ends_the_transaction_of_a_frozen_process(address: Address) -> None:
    """Others need what it has locked."""
    with connect(address, patience=Patience(idle=0.05)) as frozen, connect(address) as other:
        frozen.execute("BEGIN; SELECT pg_advisory_xact_lock(7)")
        other.execute("SELECT pg_advisory_xact_lock(7)")  # is had once the frozen one is gone
        error = refused(frozen, address, "SELECT 1")
    assert isinstance(error, StoreUnreachable)
    assert "frozen" in checked_text(error)
    assert is_gone(error.__cause__)


def test_a_crash_before_the_commit_stores_nothing(spare: OwnServer) -> None:
    """A transaction that was not committing is surely not stored."""
    address = address_of(spare.url)
    with connect(address) as connection:
        connection.execute(begin(connection, "full"))
        spare.crash()
        error = refused(connection, address, "SELECT 1")
        assert isinstance(error, StoreUnreachable)
        assert is_gone(error.__cause__)
        rollback(connection)
        assert connection.closed
    with pytest.raises(StoreUnreachable):
        connect(address)
    spare.start()
    connect(address).close()


@pytest.mark.parametrize("how", ["crash", "stop"])
def test_a_commit_whose_answer_is_lost_has_an_unknown_outcome(spare: OwnServer, how: str) -> None:
    """The outcome is unknown, and the error says so."""
    address = address_of(spare.url)
    with connect(address) as connection:
        connection.execute(begin(connection, "full"))
        connection.execute("CREATE TABLE public.one (value integer)")
        getattr(spare, how)()
        with pytest.raises(OutcomeUnknown, match="idempotency key") as caught:
            commit(connection, address)
    assert "MILL-048" in checked_text(caught.value)


def test_a_refused_commit_stores_nothing(connection: Connection, address: Address) -> None:
    """Its outcome is known."""
    connection.execute(
        "CREATE TABLE public.one (value integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    )
    connection.execute(begin(connection, "full"))
    connection.execute("INSERT INTO public.one VALUES (1), (1)")
    with pytest.raises(StoreError) as caught:
        commit(connection, address)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert "23505" in checked_text(caught.value)


def test_every_code_of_the_table_has_its_error() -> None:
    """Each error names the server and its code, ends with what it said, and has its own code."""
    address = address_of("postgresql://me:hunter2@host/db")
    expected = {
        "08006": "MILL-061",
        "25006": "MILL-042",
        "28P01": "MILL-062",
        "3D000": "MILL-041",
        "42501": "MILL-063",
        "53100": "MILL-045",
        "53200": "MILL-046",
        "53300": "MILL-064",
        "57P03": "MILL-061",
        "58030": "MILL-046",
        "XX001": "MILL-047",
        "22P05": "MILL-067",
        "26000": "MILL-068",
        "57P04": "MILL-041",
        "0A000": "MILL-020",
    }
    seen = {}
    for code in expected:
        error = psycopg.errors.lookup(code)("the server\nsaid so")
        ours = translated(error, address)
        assert "postgresql://me:***@host/db" in checked_text(ours)
        assert "the server said so" in checked_text(ours)
        assert "hunter2" not in checked_text(ours)
        seen[code] = ours.code
    assert expected == seen
