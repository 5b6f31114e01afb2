"""Health: what an operator should know about the server of a store.

Rows that are rewritten leave dead ones behind. PostgreSQL removes those only when no transaction
could still see them: one that stays open, a replication slot without a reader or a forgotten
prepared transaction keeps them all, in every table, and every claim reads past them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from millpond.store.postgres.connect import PATIENCE, connect, server_time
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.lock import POOLS, WRITERS
from millpond.store.postgres.migrate import migrate
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.quoting import qualified
from millpond.store.postgres.rights import rights
from millpond.store.postgres.roles import Role, role_of
from millpond.store.postgres.schema_drift import drifted
from millpond.store.sql.consistency import check_rows
from millpond.store.sql.store_time import clock_risks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.store.postgres.connect import Connection
    from millpond.store.postgres.url import Address

LONG_OPEN = 60.0
"""Seconds after which an open transaction is reported."""

OLD_ROWS = 1_000_000
"""A vacuum horizon older than so many transactions is reported."""

MANY_DEAD = 50_000
"""More dead rows than this, and five times the live ones, are reported."""

WRAPAROUND = 1_000_000_000
"""The part of the two billion transactions before a wraparound at which it is reported."""

LONG_LOCKED = 5.0
"""Seconds after which a holder of the writers' lock is reported."""

_SETTINGS = ("server_version", "autovacuum", "fsync", "full_page_writes")

_PINS = """\
SELECT 'session', pid::text,
       concat_ws(', ', nullif(usename, ''), nullif(application_name, ''), host(client_addr), state),
       extract(epoch FROM clock_timestamp() - xact_start)::double precision,
       greatest(age(backend_xmin), age(backend_xid))::bigint
  FROM pg_stat_activity
 WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
   AND backend_type NOT LIKE 'autovacuum%%'
UNION ALL
SELECT 'slot', slot_name::text, concat_ws(', ', slot_type, CASE WHEN active THEN 'in use'
       ELSE 'not in use' END), NULL, greatest(age(xmin), age(catalog_xmin))::bigint
  FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
UNION ALL
SELECT 'prepared', gid, owner::text,
       extract(epoch FROM clock_timestamp() - prepared)::double precision, age(transaction)::bigint
  FROM pg_prepared_xacts
UNION ALL
SELECT 'standby', application_name, concat_ws(', ', usename, host(client_addr)), NULL,
       age(backend_xmin)::bigint
  FROM pg_stat_replication WHERE backend_xmin IS NOT NULL
 ORDER BY 5 DESC NULLS LAST LIMIT 20"""

_HOLDER = """\
SELECT l.pid,
       concat_ws(', ', nullif(a.usename, ''), nullif(a.application_name, ''), host(a.client_addr)),
       coalesce(a.state, 'unknown'),
       extract(epoch FROM clock_timestamp() - a.xact_start)::double precision,
       extract(epoch FROM clock_timestamp() - a.state_change)::double precision,
       (SELECT count(*) FROM pg_locks AS w WHERE w.locktype = 'relation' AND NOT w.granted
           AND w.database = l.database AND w.relation = l.relation)
  FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.granted AND l.mode <> 'AccessShareLock'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.relation IN (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                      WHERE n.nspname = %s AND c.relname = ANY(%s))
 ORDER BY 4 DESC NULLS LAST, 6 DESC LIMIT 1"""

_DETOURS = "SELECT verb, reason, n, last_at FROM millpond_detour ORDER BY n DESC, verb, reason"

_TABLES = """\
SELECT s.relname::text, s.n_live_tup, s.n_dead_tup, pg_total_relation_size(s.relid),
       extract(epoch FROM greatest(s.last_autovacuum, s.last_vacuum))::double precision
  FROM pg_stat_all_tables s
 WHERE s.schemaname = %s AND s.relname LIKE 'millpond\\_%%' ORDER BY 4 DESC"""


class VacuumPin(msgspec.Struct, frozen=True):
    """What keeps vacuum from removing dead rows."""

    kind: str
    """session, slot, prepared (a prepared transaction) or standby."""
    name: str
    who: str
    seconds: float | None
    """For how long."""
    transactions: int | None
    """How many transactions have begun since."""


class LockHolder(msgspec.Struct, frozen=True):
    """The session that holds the lock of the store or of a pool; of several, the longest."""

    pid: int | None
    """None = a prepared transaction."""
    who: str
    """User, application name and address, as far as this user may see them."""
    state: str
    """What the session does: active, idle in transaction, ..."""
    seconds: float | None
    """How long its transaction has been open."""
    state_seconds: float | None
    """How long it has been in that state."""
    waiting: int
    """How many sessions wait for the lock."""


class Detour(msgspec.Struct, frozen=True):
    """Verbs that left the fast path for one reason, of all processes ever."""

    verb: str
    reason: str
    count: int
    last_at: float


class Table(msgspec.Struct, frozen=True):
    """One table of the store, from the server's statistics."""

    name: str
    live: int
    dead: int
    bytes: int
    vacuumed_at: float | None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A server and the tables of a store on it."""

    server: str
    schema: str
    version: int
    """The schema version of the tables."""
    user: str
    role: Role | None = None
    """The user's role for the store."""
    sees_others: bool
    """Whether the user may see the sessions of other users."""
    frozen_age: int
    """The age of datfrozenxid, in transactions."""
    settings: dict[str, str]
    pins: tuple[VacuumPin, ...]
    lock: LockHolder | None = None
    """The holder of the writers' lock; None = free."""
    tables: tuple[Table, ...]
    detours: tuple[Detour, ...] = ()
    """Why verbs left the fast path, the most frequent reason first."""
    clock: tuple[str, ...] = ()
    """Findings about the store's time."""


def examine(address: Address) -> tuple[Health, list[str]]:
    """Examine a server and recount all rows; return the state and the findings.

    That is what does not fit together, and what is no longer as the migrations have made it.
    """
    patient = msgspec.structs.replace(PATIENCE, statement=0.0, idle=0.0)
    driver = connect(address, name="millpond doctor", patience=patient, writable=False)
    try:
        version = migrate(driver, address, allowed=False, to_read=True)
        found = health(driver, address, version)
        found = msgspec.structs.replace(found, clock=_clock(driver, address))
        return found, [*drifted(driver, address), *_counted(driver, address)]
    finally:
        driver.close()


def _clock(driver: Connection, address: Address) -> tuple[str, ...]:
    meta = driver.execute(dialect_of(address.schema).sql["meta"].encode()).fetchone()
    return tuple(clock_risks(meta, server_time(driver), "the server"))


def submits_only(address: Address) -> bool:
    """Return whether the user may submit to a store but not read its tables."""
    driver = connect(address, name="millpond doctor", writable=False)
    try:
        return role_of(driver, address) is Role.SUBMITTER
    finally:
        driver.close()


def _counted(driver: Connection, address: Address) -> list[str]:
    """Recount every row, in one snapshot."""
    dialect = dialect_of(address.schema)
    driver.execute("; ".join((*dialect.begin_reading, dialect.sql["all_ways"])).encode())
    try:
        return check_rows(PostgresConnection(driver, dialect.many), dialect)
    finally:
        driver.execute("ROLLBACK")


def health(connection: Connection, address: Address, version: int) -> Health:
    """Return the state of the server."""
    columns = ", ".join(f"current_setting('{name}')" for name in _SETTINGS)
    (values,) = connection.execute(f"SELECT {columns}".encode()).fetchall()
    settings: dict[str, str] = dict(zip(_SETTINGS, values, strict=True))
    sees, frozen = _one(
        connection,
        "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), "
        "(SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database())",
    )
    return Health(
        server=settings.pop("server_version"),
        schema=address.schema,
        version=version,
        user=rights(connection, address).user,
        role=role_of(connection, address),
        sees_others=sees,
        frozen_age=frozen,
        settings=settings,
        pins=tuple(VacuumPin(*row) for row in connection.execute(_PINS).fetchall()),
        lock=_holder(connection, address),
        tables=tuple(Table(*row) for row in connection.execute(_TABLES, [address.schema])),
        detours=_detours(connection, address),
    )


def _detours(connection: Connection, address: Address) -> tuple[Detour, ...]:
    query = qualified(_DETOURS, address.schema)
    return tuple(Detour(*row) for row in connection.execute(query.encode()))


def _holder(connection: Connection, address: Address) -> LockHolder | None:
    row = connection.execute(_HOLDER, [address.schema, [WRITERS, *POOLS]]).fetchone()
    return None if row is None else LockHolder(*row)


def _one(connection: Connection, query: str) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", connection.execute(query.encode()).fetchone())


def risks(found: Health) -> Iterator[str]:
    """Yield risks, each with what to do about it."""
    yield from found.clock
    lock = found.lock
    if lock is not None and (lock.seconds is None or lock.seconds >= LONG_LOCKED):
        yield _kept_locked(lock)
    for pin in found.pins:
        if (pin.seconds or 0.0) >= LONG_OPEN or (pin.transactions or 0) >= OLD_ROWS:
            yield _pinned(pin)
    for table in found.tables:
        if table.dead >= MANY_DEAD and table.dead >= 5 * table.live:
            yield (
                f"{table.name} has {table.dead:,} dead rows beside {table.live:,} live ones: "
                "vacuum does not keep up, or may not remove them; see who pins the horizon, run "
                f"VACUUM {found.schema}.{table.name}"
            )
    yield from _settings(found)


def _settings(found: Health) -> Iterator[str]:
    if found.settings["autovacuum"] != "on":
        yield "autovacuum is off: dead rows pile up until a manual VACUUM; set autovacuum = on"
    for name in ("fsync", "full_page_writes"):
        if found.settings[name] != "on":
            yield f"{name} is off: a power failure may damage the whole server; set {name} = on"
    if found.frozen_age >= WRAPAROUND:
        yield (
            f"the database was last vacuumed whole {found.frozen_age:,} transactions ago; at two "
            "thousand million it stops taking writes: run VACUUM (FREEZE)"
        )


def findings(lock: LockHolder) -> str:
    """Return a sentence about the holder of the writers' lock."""
    who = "a prepared transaction" if lock.pid is None else f"session {lock.pid}"
    parts = [lock.who or "user not visible", lock.state]
    if lock.seconds is not None:
        parts.append(f"transaction open for {lock.seconds:.1f} s")
    if lock.state_seconds is not None:
        parts.append(f"in this state for {lock.state_seconds:.1f} s")
    return (
        f"{who} ({', '.join(parts)}) holds the writers' lock; {lock.waiting} session(s) wait for it"
    )


def _kept_locked(lock: LockHolder) -> str:
    if lock.pid is None:
        return f"{findings(lock)}: COMMIT PREPARED or ROLLBACK PREPARED it (pg_prepared_xacts)"
    return (
        f"{findings(lock)}: submits and workers stop until its transaction ends; end it, or SELECT "
        f"pg_terminate_backend({lock.pid})"
    )


_ADVICE = {
    "session": "end it, or SELECT pg_terminate_backend({name})",
    "slot": "read it, or SELECT pg_drop_replication_slot('{name}')",
    "prepared": "COMMIT PREPARED or ROLLBACK PREPARED '{name}'",
    "standby": "end its long query, or set hot_standby_feedback = off there",
}
_KINDS = {
    "session": "the transaction of session {name}",
    "slot": "the replication slot {name}",
    "prepared": "the prepared transaction {name}",
    "standby": "the standby {name}",
}


def _pinned(pin: VacuumPin) -> str:
    spans = []
    if pin.seconds is not None:
        spans.append(f"for {pin.seconds:,.0f} s")
    if pin.transactions is not None:
        spans.append(f"over {pin.transactions:,} transactions")
    kind, advice = (words[pin.kind].format(name=pin.name) for words in (_KINDS, _ADVICE))
    return (
        f"{kind} ({pin.who}) pins the horizon {' and '.join(spans)}: no dead row of the store can "
        f"be removed before it ends; {advice}"
    )
