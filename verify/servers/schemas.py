"""PostgreSQL stores for tests: every verb on the caller's thread, as virtual time needs it.

To make the tables takes longer than most tests do. So those that are no longer used are emptied and
used again, and so are the connections to them, on which all statements are prepared already.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

import msgspec
from psycopg.pq import PipelineStatus

from millpond.store.postgres.connect import connect, is_pooled, settings
from millpond.store.postgres.constraints import constraints
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.migrate import migrate
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.quoting import qualified
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import address_of
from millpond.store.sql.consistency import check_rows
from verify.servers.consistency import must_be_consistent

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from millpond.store.postgres.connect import Patience
    from millpond.store.postgres.server_call import ServerCall
    from millpond.store.postgres.url import Address

_TABLES = (
    *("pool", "budget", "revision", "task", "live", "lease", "ended", "removed", "key", "unit"),
    *("group", "seat", "lane", "worker", "run", "audit", "measured", "inbox", "meta", "detour"),
)
_FIRST = "INSERT INTO millpond_meta VALUES (1, 0.0, 0, 1048576, 1, 0, '', 0.0, 0, 0, 0, '', 0)"
_DELETE = "; ".join(
    [*(f"DELETE FROM millpond_{table}" for table in _TABLES), _FIRST]  # noqa: S608 - our names
)
_TRUNCATE = f"TRUNCATE {', '.join(f'millpond_{table}' for table in _TABLES)}; {_FIRST}"
_MANY = 400
"""After so many writes more of the tables is dead than alive: then it takes longer to delete."""


class _Lent(PostgresConnection):
    """A connection that is used again by others when it is closed."""

    idle: list[_Lent]

    def has_something_to_read(self) -> bool:
        """Return whether the server has sent something unasked: that it ended the session."""
        socket = select.poll()  # not select(): a test may have thousands of files open
        socket.register(self._library.socket, select.POLLIN)
        return bool(socket.poll(0))

    def close(self) -> None:
        """Give it back, unless something is wrong with it."""
        cut_off = self._library.pipeline_status != PipelineStatus.OFF and not self._owed
        if self.closed or self._line or cut_off or self.in_transaction:
            super().close()
        elif self not in self.idle:
            self.idle.append(self)


class Schema:
    """The tables of one store after another."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle: list[_Lent] = []
        self._writes = 0
        connection = self.connection()
        migrate(connection.driver, address)
        connection.driver.execute(qualified(constraints(), address.schema).encode())
        connection.close()

    def connection(self) -> PostgresConnection:
        """Return a connection, of those that others had, or a new one."""
        while self.idle:
            lent = self.idle.pop()
            if not lent.has_something_to_read():
                return lent
            PostgresConnection.close(lent)
        driver = connect(self.address, flushes=True)
        lent = _Lent(
            driver,
            dialect_of(self.address.schema).many,
            settings=settings("full", flushes=True) if is_pooled(driver) else None,
            flushes=True,
        )
        lent.idle = self.idle
        return lent

    def wrong(self) -> list[str]:
        """Return every inconsistency between the rows."""
        connection = self.connection()
        try:
            return check_rows(connection, dialect_of(self.address.schema))
        finally:
            connection.close()

    def empty(self) -> None:
        """Make it as it was when it was new."""
        connection = self.connection()
        row = connection.execute(dialect_of(self.address.schema).sql["version"]).fetchone()
        self._writes += _MANY if row is None else row[0]
        how, self._writes = (_DELETE, self._writes) if self._writes < _MANY else (_TRUNCATE, 0)
        connection.driver.execute(qualified(how, self.address.schema).encode())
        connection.close()

    def hang_up(self) -> None:
        """Close the connections."""
        while self.idle:
            PostgresConnection.close(self.idle.pop())


class InlinePostgresStore(PostgresStore):
    """A store of one process on a schema: no threads, and no LISTEN.

    Several of them on one schema are several processes. They hear nothing of each other and find
    out by asking; who died is found by its lease. One of them leads maintenance.

    Every third call goes to the function for any pool, so that tests of simple pools try both.
    """

    elects = True
    renewer: Any = None
    listen: Any = None
    in_full_every = 3
    _calls = 0

    def __init__(self, schema: Schema, clock: Callable[[], float] = time.time) -> None:
        self._tables = schema
        super().__init__(schema.address, durability="normal", clock=clock, inline=True)

    def _first(self, *, may_migrate: bool) -> PostgresConnection:
        del may_migrate
        return self._open()

    def _open(self, patience: Patience | None = None) -> PostgresConnection:
        del patience
        return self._tables.connection()

    async def _called(self, errand: ServerCall, value: Any) -> Any:  # noqa: ANN401 - of any call
        self._calls += 1
        in_full = self._calls % self.in_full_every == 0
        return await super()._called(errand, value._replace(in_full=in_full or value.in_full))


class RecountedPostgresStore(InlinePostgresStore):
    """A store that recounts its rows when it is closed, and raises InconsistentRows."""

    def __init__(
        self, schema: Schema, clock: Callable[[], float], done: Callable[[Schema], None]
    ) -> None:
        super().__init__(schema, clock)
        self._done = done

    async def close(self) -> None:
        """Close the store and recount its rows."""
        if self._closed:
            return
        await super().close()
        must_be_consistent(str(self._tables.address), self._tables.wrong())
        self._done(self._tables)


class Schemas:
    """Schemas of one database, each for one test at a time."""

    def __init__(self, url: str, *, prefix: str = "millpond_") -> None:
        self._address = address_of(url)
        self._prefix = prefix
        self._all: list[Schema] = []
        self._free: list[Schema] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for schema in self._all:
            schema.hang_up()

    def fresh(self, clock: Callable[[], float] = time.time) -> RecountedPostgresStore:
        """Return a store on empty tables; when it is closed they are emptied and used again."""
        return RecountedPostgresStore(self.take(), clock, self.give_back)

    def take(self) -> Schema:
        """Return empty tables that no test uses."""
        if self._free:
            return self._free.pop()
        name = f"{self._prefix}{len(self._all) + 1}"
        schema = Schema(msgspec.structs.replace(self._address, schema=name))
        self._all.append(schema)
        return schema

    def give_back(self, schema: Schema) -> None:
        """Let others use these tables."""
        schema.empty()
        self._free.append(schema)
