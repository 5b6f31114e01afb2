"""Connect: every connection has the same settings and clear errors.

A pooler lends a session for one transaction only. Millpond must change no setting of it, because
the next client would get the setting, and must prepare no statement in it. There each transaction
begins with its settings instead. Millpond detects a pooler by the backend pid: the pid that a
pooler reports to its clients is not that of the server's process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from millpond.errors import ConfigError, PostgresTooOld, StoreNotWritable, WrongEncoding
from millpond.store.postgres.errors import aborted, commit_failed, not_connected, translated

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from millpond.store.postgres.url import Address

T = TypeVar("T")
Connection: TypeAlias = psycopg.Connection[TupleRow]
Durability: TypeAlias = Literal["full", "normal"]

SYNCHRONOUS: Mapping[str, str] = {"full": "on", "normal": "off"}
"""full: a commit is on the disk of the server when it is answered (and on that of a synchronous
replica, where there is one). normal: the latest commits, of some tenths of a second, may be missing
after a crash of the server, never after a crash of a client; the database stays whole in both."""

OLDEST_POSTGRES = 14

_KNOWS_TRANSACTION_TIMEOUT = 170_000
"""The first version with transaction_timeout."""

_LOOK = b"""\
SELECT pg_catalog.pg_is_in_recovery()
       OR pg_catalog.current_setting('transaction_read_only')::boolean,
       pg_catalog.pg_backend_pid(),
       (SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(oid, 'EXECUTE'))
          FROM pg_catalog.pg_proc WHERE proname = 'pg_logical_emit_message')"""

_STATEMENTS_KEPT = 1000
_PREPARED_AFTER = 2


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts in seconds; 0 = none."""

    connect: float = 10.0
    """To open a connection."""
    lock: float = 30.0
    """To wait for the transaction of another session."""
    statement: float = 60.0
    """For one statement, its locks included."""
    idle: float = 10.0
    """For idle time within a transaction: a frozen process must not keep its locks."""
    turn: float = 2.0
    """The same for a writer, unless it has much to do: meanwhile all other writers wait. A process
    that freezes while it waits for the lock gets the lock, too, and does nothing."""
    network: float = 30.0
    """For the network: TCP keepalive and unacknowledged data."""

    @property
    def silence(self) -> float | None:
        """For any answer; by then the server would have given up; None = no timeout."""
        return self.statement + self.network if self.statement else None


PATIENCE = Patience()


class _Listening(psycopg.Connection[TupleRow]):
    """A psycopg connection with a timeout for silence.

    In time, the system notices lost packets. It does not notice a server that hangs, nor a proxy
    that accepts data and passes none on.
    """

    silence: float | None = None
    may_flush = False

    def wait(self, gen: Generator[Any, Any, Any], *given: Any, **options: Any) -> Any:  # noqa: ANN401
        """Run a generator of the driver, and raise after too long a silence."""
        if self.silence is None:
            return super().wait(gen, *given, **options)
        try:
            return super().wait(_limited(gen, self.silence), *given, **options)
        except _Silent:
            # What it was asked for may come yet, and would be taken for another answer.
            self.close()
            raise


class _Silent(psycopg.OperationalError):
    """The server was silent for too long."""


def _limited(gen: Generator[Any, Any, T], silence: float) -> Generator[Any, Any, T]:
    """Yield the same, and raise after so many seconds of silence."""
    heard = time.monotonic()
    ready = None
    while True:
        try:
            wanted = next(gen) if ready is None else gen.send(ready)
        except StopIteration as end:
            done: T = end.value
            return done
        ready = yield wanted
        if ready:
            heard = time.monotonic()
        elif time.monotonic() - heard > silence:
            raise _Silent(silent_for(silence))


def silent_for(seconds: float) -> str:
    """Return the message for a silent server."""
    return f"the server has been silent for {seconds:g} s: it hangs, or the network does"


def connect(
    address: Address,
    *,
    durability: Durability = "full",
    name: str = "millpond",
    patience: Patience = PATIENCE,
    writable: bool = True,
    flushes: bool = False,
) -> Connection:
    """Open a connection with explicit transactions; see `begin`.

    `name` is what the server's lists of sessions say, unless the URL names the application. With
    `flushes` the caller waits for the disk itself, after each commit (flush.py).
    """
    if durability not in SYNCHRONOUS:
        raise ConfigError("durability", durability, "must be 'full' or 'normal'")
    connection = _connected(address, name, patience)
    try:
        check_version(connection.info.server_version)
        check_encoding(connection.info.parameter_status("server_encoding"), address)
        _look(connection, address, writable=writable)
        if not is_pooled(connection):
            _set(connection, settings_of(connection, durability, patience, flushes=flushes))
    except psycopg.Error as error:
        connection.close()
        raise translated(error, address) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(address: Address, name: str, patience: Patience) -> _Listening:
    try:
        given = conninfo_to_dict(address.conninfo)
        # What the URL says goes before what we would say.
        options = _libpq(address, name, patience) | given
        connection = _Listening.connect(
            make_conninfo("", **options),
            autocommit=True,
            prepare_threshold=None if address.pooler else _PREPARED_AFTER,
        )
    except psycopg.Error as error:
        raise not_connected(error, address) from error
    connection.silence = patience.silence
    return connection


def _libpq(address: Address, name: str, patience: Patience) -> dict[str, str | int | None]:
    silence = max(1, round(patience.network))
    options: dict[str, str | int | None] = {
        "application_name": name,
        "client_encoding": "UTF8",
        "connect_timeout": max(0, round(patience.connect)),
        "keepalives": 1,
        "keepalives_idle": max(1, silence // 3),
        "keepalives_interval": max(1, silence // 6),
        "keepalives_count": 4,
        "tcp_user_timeout": round(patience.network * 1000),
    }
    if address.several_hosts:
        # The one that may be written, whichever it is by now.
        options["target_session_attrs"] = "read-write"
    return options


def settings(
    durability: Durability,
    patience: Patience = PATIENCE,
    version: int = 0,
    *,
    flushes: bool = False,
) -> dict[str, str]:
    """Return the settings of each transaction, which override server, database and role.

    `version` is that of the server: what it does not know is left out.
    """
    limits = {"transaction_timeout": "0"} if version >= _KNOWS_TRANSACTION_TIMEOUT else {}
    return limits | {
        "synchronous_commit": "off" if flushes else SYNCHRONOUS[durability],
        "lock_timeout": _milliseconds(patience.lock),
        "statement_timeout": _milliseconds(patience.statement),
        "idle_in_transaction_session_timeout": _milliseconds(patience.idle),
        # Between two transactions a session holds no lock.
        "idle_session_timeout": "0",
        # A statement that is a transaction by itself must see the commits made while it waited.
        "default_transaction_isolation": "read committed",
        # Where statistics still call a table empty, the server would read it whole.
        "enable_seqscan": "off",
        # Nor is one read whole for a join, or all dead versions of a row for the newest: while
        # another session holds a transaction open, there are many more than statistics say.
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        # Before PostgreSQL 18 a plan that may not do so looks dear, and is compiled for 60 ms.
        "jit": "off",
        # Planning a statement costs as much as running it, and what it is given changes no plan.
        "plan_cache_mode": "force_generic_plan",
        "search_path": "pg_catalog",  # see names.py
        "TimeZone": "UTC",
    }


def is_pooled(connection: Connection) -> bool:
    """Return whether a pooler may change the session at any commit."""
    return connection.prepare_threshold is None


def _milliseconds(seconds: float) -> str:
    return str(max(0, round(seconds * 1000)))


def settings_of(
    connection: Connection,
    durability: Durability,
    patience: Patience = PATIENCE,
    *,
    flushes: bool = False,
) -> dict[str, str]:
    """Return the settings of each transaction of a connection; see `connect`."""
    version = connection.info.server_version
    return settings(durability, patience, version, flushes=flushes and may_flush(connection))


def may_flush(connection: Connection) -> bool:
    """Return whether the user may wait for the disk with a statement of its own (flush.py).

    Every user may, unless an administrator has revoked the right. Then each commit waits.
    """
    return isinstance(connection, _Listening) and connection.may_flush


def _look(connection: _Listening, address: Address, *, writable: bool) -> None:
    """Find out whether there is a pooler, and refuse a server that is not writable."""
    ((read_only, process, may_flush),) = connection.execute(_LOOK).fetchall()
    if address.pooler is None and process != connection.info.backend_pid:
        connection.prepare_threshold = None
    connection.may_flush = bool(may_flush)
    if writable and read_only:
        raise StoreNotWritable(
            f"{address} may only be read: the server is a replica, or its "
            "default_transaction_read_only is on; give the primary's address, or all hosts as "
            "host1,host2",
            path=str(address),
        )
    connection.prepared_max = _STATEMENTS_KEPT


def _set(connection: Connection, values: Mapping[str, str]) -> None:
    calls = ", ".join("set_config(%s, %s, false)" for _ in values)
    connection.execute(
        f"SELECT {calls}".encode(), [text for pair in values.items() for text in pair]
    )


def begin(connection: Connection, durability: Durability, patience: Patience = PATIENCE) -> bytes:
    """Return the statement that begins a transaction (READ COMMITTED), in one round trip.

    What another transaction committed while we waited for its lock must be seen, so the level is
    READ COMMITTED, whatever the server's default.
    """
    statement = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
    if is_pooled(connection):
        values = settings(durability, patience, connection.info.server_version)
        statement += "".join(f"; SET LOCAL {name} = '{value}'" for name, value in values.items())
    return statement.encode()


def commit(connection: Connection, address: Address) -> None:
    """Commit; raise OutcomeUnknown if the outcome is unknown.

    A transaction that failed before is rolled back by COMMIT without an error: here it is one.
    """
    try:
        answer = connection.execute("COMMIT").statusmessage
    except psycopg.Error as error:
        raise commit_failed(error, address) from error
    if answer != "COMMIT":
        raise aborted(address)


def rollback(connection: Connection) -> None:
    """Roll back; close a connection that cannot."""
    if connection.closed or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        return
    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()


def server_time(connection: Connection) -> float:
    """Return the server's clock in seconds since 1970."""
    query = "SELECT extract(epoch FROM clock_timestamp())::double precision"
    ((now,),) = connection.execute(query).fetchall()
    return cast("float", now)


def check_version(found: int) -> None:
    """Refuse a server that is too old; versions are numbers such as 150004."""
    if found < OLDEST_POSTGRES * 10_000:
        had = f"{found // 10_000}.{found % 10_000}"
        raise PostgresTooOld(
            f"the server is PostgreSQL {had}; the store needs {OLDEST_POSTGRES} or later: "
            "upgrade it, or give another server",
            found=had,
            needed=str(OLDEST_POSTGRES),
        )


def check_encoding(found: str | None, address: Address) -> None:
    """Refuse a database with the encoding SQL_ASCII."""
    if found == "SQL_ASCII":
        raise WrongEncoding(
            f"the database of {address} has the encoding SQL_ASCII, in which names and keys are "
            "not what they were; use one that was made with CREATE DATABASE ... ENCODING 'UTF8' "
            "TEMPLATE template0. Nothing was changed",
            path=str(address),
            found=found,
        )
