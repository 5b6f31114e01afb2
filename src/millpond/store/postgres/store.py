"""The PostgreSQL store behind the store protocol: what is its own, and not that of all rows."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millpond.store.clock import ServerClock
from millpond.store.postgres.connect import PATIENCE, connect, server_time, settings
from millpond.store.postgres.connection import PostgresConnection
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.lent import LentConnection
from millpond.store.postgres.migrate import migrate
from millpond.store.postgres.reader import Reader
from millpond.store.postgres.transact import PostgresTransactor
from millpond.store.postgres.wake import Wakes
from millpond.store.rows.store import RowsStore
from millpond.store.rows.tables import SqlTables

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Self

    from millpond.core.task import NewTask
    from millpond.store.postgres.connect import Connection as DriverConnection
    from millpond.store.postgres.connect import Durability, Patience
    from millpond.store.postgres.url import Address
    from millpond.store.rows.database import Connection
    from millpond.store.rows.held import HeldTransaction

_LONGEST_PER_TASK = 0.0005
"""Seconds that a slow machine takes for each task of a submit before the server hears of them."""


class PostgresStore(RowsStore[PostgresConnection, LentConnection]):
    """One schema of a database that many processes of many machines share.

    The server's clock is the time of all of them, unless another `clock` is given.
    """

    presence = None
    """Who died is found by its lease: nobody sees the processes of another machine."""

    def __init__(
        self,
        address: Address,
        *,
        durability: Durability = "full",
        may_migrate: bool = True,
        clock: Callable[[], float] | None = None,
        owner: str = "",
        patience: Patience = PATIENCE,
        inline: bool = False,
    ) -> None:
        self._address = address
        self._durability = durability
        self._patience = patience
        self._schema = dialect_of(address.schema)
        clock = ServerClock() if clock is None else clock
        self._told: Callable[[float], None] | None = getattr(clock, "told", None)
        super().__init__(
            str(address),
            self._schema,
            Reader(address, self._open, self._first(may_migrate=may_migrate)),
            clock=clock,
            wakes=None if inline or not owner else Wakes(address, owner, self._notifying),
            inline=inline,
        )

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        owner: str = "",
        durability: Durability = "full",
        migrate: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """Connect in another thread: the server may be far away."""
        made = partial(
            cls, address, durability=durability, may_migrate=migrate, clock=clock, owner=owner
        )
        return await asyncio.get_running_loop().run_in_executor(None, made)

    def _first(self, *, may_migrate: bool) -> PostgresConnection:
        """Return the first connection, over which the tables were looked at."""
        connection = self._open()
        try:
            migrate(
                connection.driver,
                self._address,
                allowed=may_migrate,
                patience=self._patience.lock,
            )
            if self._told is not None:
                self._told(server_time(connection.driver))
        except BaseException:
            connection.close()
            raise
        return connection

    def _open(self, patience: Patience | None = None) -> PostgresConnection:
        patience = patience or self._patience
        return PostgresConnection(
            connect(self._address, durability=self._durability, patience=patience),
            self._schema.many,
            settings=settings(self._durability, patience) if self._address.pooler else None,
            silence=patience.statement + patience.network if patience.statement else None,
        )

    def _notifying(self) -> DriverConnection | None:
        """Return the connection that has just written: others are told over it."""
        assert isinstance(self._writing, PostgresTransactor)  # noqa: S101 - made below
        return self._writing.driver

    # What PostgreSQL does its own way

    def _transactor(
        self,
        make_unit: Callable[[PostgresConnection], SqlTables],
        *,
        idle: float | None = None,
    ) -> PostgresTransactor[SqlTables]:
        patience = msgspec.structs.replace(self._patience, idle=idle or self._patience.turn)
        return PostgresTransactor(
            self._address,
            self._schema,
            partial(self._open, patience),
            make_unit,
            told=self._told,
            patience=self._patience.lock,
        )

    def hold(self, limit: float) -> HeldTransaction[LentConnection]:
        """Return a transaction for a handler: it may do nothing for as long as it may last."""
        idle = limit + self._patience.turn
        return self._held(self._transactor(self._new_unit, idle=idle), limit)

    def _takes_time(self, tables: SqlTables, tasks: int | None = None) -> None:
        seconds = self._patience.idle if tasks is None else tasks * _LONGEST_PER_TASK
        if seconds > self._patience.turn and isinstance(tables.connection, PostgresConnection):
            tables.connection.may_think(seconds)

    def _connected(self) -> AbstractContextManager[PostgresConnection]:
        return closing(self._open())

    def _version_of(self, connection: PostgresConnection) -> int:
        if connection.begun is not None and connection.begun.version is not None:
            return connection.begun.version
        row = connection.execute(self._schema.sql["version"]).fetchone()
        return -1 if row is None else row[0]

    def _new_unit(
        self, connection: Connection, bodies: dict[int, NewTask] | None = None
    ) -> SqlTables:
        begun = None
        if isinstance(connection, PostgresConnection):
            begun = connection.begun
            connection.note_reads()
        return SqlTables(
            connection,
            self._schema,
            self._dice.getrandbits(64),
            bodies,
            meta=None if begun is None else begun.meta,
        )

    def _keep(self, unit: SqlTables) -> None:
        if unit.written:
            # It has counted the version up itself: that is not the write of another.
            unit.version += 1
        super()._keep(unit)

    def _lend(self, connection: PostgresConnection) -> LentConnection:
        return LentConnection(connection)
