"""A handler's transaction on a server: other writers wait only for its completion.

It begins without the writers' lock, and takes the lock only to settle the attempt. Then it checks
the fence: if the attempt has lost its lease, the handler's writes are undone.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from millpond.store.postgres.handler_connection import PostgresHandlerConnection
from millpond.store.postgres.pipeline import BEGIN
from millpond.store.postgres.transactions import PostgresTransactor
from millpond.store.sql.handler_connection import ended_by_handler
from millpond.store.sql.handler_transaction import HandlerTransaction
from millpond.store.sql.unit_of_work import SqlTables
from millpond.store.verbs import api as verbs
from millpond.store.verbs.settle import holds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from millpond.core.settle import Settlement
    from millpond.core.task import Fence
    from millpond.errors import TransactionControl
    from millpond.store.postgres.dialect import PostgresDialect
    from millpond.store.postgres.pipeline import PostgresConnection
    from millpond.store.postgres.url import Address
    from millpond.store.protocol import SettleAnswer

T = TypeVar("T")

OF_THE_USER = (
    *("search_path", "enable_seqscan", "enable_bitmapscan", "enable_hashjoin"),
    *("enable_mergejoin", "jit", "plan_cache_mode", "TimeZone"),
)
"""The settings that a handler's statements get from server, database and role."""

_MARGIN = 5.0
"""Seconds by which the server's idle timeout is longer than ours."""

_KEPT = 4

_MARK = "SELECT set_config('millpond.transaction', $1, true)"
"""Mark a transaction with a setting that ends with it."""

_MARKED = "SELECT current_setting('millpond.transaction', true)"


class SpareConnections:
    """Spare connections for handlers: opening one is slower than most transactions."""

    def __init__(self, open_connection: Callable[[], PostgresConnection]) -> None:
        self._open_connection = open_connection
        self._idle: list[PostgresConnection] = []
        self._closed = False

    def take(self) -> PostgresConnection:
        """Return a spare connection, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._open_connection()

    def give_back(self, connection: PostgresConnection) -> None:
        """Keep a connection, unless it is unusable or there are enough."""
        if self._closed or connection.closed or connection.in_transaction:
            connection.close()
        elif len(self._idle) < _KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    def forget(self) -> None:
        """Close all spare connections: the server may have ended them."""
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Close all, and keep none from now on."""
        self._closed = True
        self.forget()


class HandlerTransactor(PostgresTransactor[SqlTables]):
    """Transactions that take the write lock late, on spare connections."""

    def __init__(
        self,
        address: Address,
        dialect: PostgresDialect,
        spares: SpareConnections,
        make_unit: Callable[[PostgresConnection], SqlTables],
        *,
        settings: Mapping[str, str],
        patience: float,
    ) -> None:
        super().__init__(address, dialect, spares.take, make_unit, patience=patience)
        self._spares = spares
        self._settings = settings
        self._mark = secrets.token_hex(8)

    def begin_apart(self, limit: float) -> PostgresConnection:
        """Begin a transaction without the write lock; a spare connection may be dead."""
        try:
            return self._apart(limit)
        except psycopg.Error as error:
            if not self.is_poisonous(error):
                raise
            self._disconnect()
            self._spares.forget()
            return self._apart(limit)

    def _apart(self, limit: float) -> PostgresConnection:
        connection = self.connection
        connection.execute(BEGIN)
        for name in OF_THE_USER:
            connection.execute(f"SET LOCAL {name} TO DEFAULT")
        idle = round((limit + _MARGIN) * 1000)
        connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = {idle}")
        connection.execute(_MARK, (self._mark,))
        connection.sync()
        return connection

    def take_turn(self) -> SqlTables:
        """Take the write lock in the open transaction, and return its unit of work."""
        connection = self.connection
        connection.sync()
        if not connection.in_transaction:
            raise self._ended_by_handler()
        marked = connection.execute(_MARKED)
        for name in OF_THE_USER:
            connection.execute(f"SET LOCAL {name} = '{self._settings[name]}'")
        connection.take_turn(self._lock, self._look)
        if marked.fetchone() != (self._mark,):
            raise self._ended_by_handler()
        return self._make_unit(connection)

    def _ended_by_handler(self) -> TransactionControl:
        """Close a connection on which the handler began or ended transactions itself."""
        self._disconnect()
        return ended_by_handler()

    def close(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._spares.give_back(connection)
        super().close()


class PostgresHandlerTransaction(HandlerTransaction[PostgresHandlerConnection]):
    """A handler's transaction on a server."""

    in_the_way = "others wait for the rows it has written"

    _transactor: HandlerTransactor

    def __init__(
        self,
        transactor: HandlerTransactor,
        dialect: PostgresDialect,
        clock: Callable[[], float],
        limit: float,
    ) -> None:
        super().__init__(transactor, PostgresHandlerConnection, clock, limit)
        self._dialect = dialect

    def _opened(self) -> PostgresConnection:
        return self._transactor.begin_apart(self._limit)

    def holds(self, fence: Fence) -> bool:
        """Return whether an attempt seems current, without the write lock."""
        connection = self._transactor.connection
        try:
            return holds(SqlTables(connection, self._dialect, 0, readonly=True), fence)
        except self._transactor.errors as error:
            raise self._transactor.translated(error) from error

    def _settled(self, settlement: Settlement) -> SettleAnswer:
        transactor = self._transactor
        unit = transactor.take_turn()
        if holds(unit, settlement.fence):
            answer = verbs.settle(unit, (settlement,), self._clock())
            transactor.commit(unit)
            return answer
        # Undone as a whole: going back to a savepoint would also let go of the turn.
        transactor.undo(RuntimeError())
        return transactor.once(lambda tables: verbs.settle(tables, (settlement,), self._clock()))


@contextmanager
def holding(held: PostgresHandlerTransaction) -> Iterator[PostgresHandlerTransaction]:
    """Begin a handler's transaction, and roll it back unless it is settled inside."""
    held.begin()
    try:
        yield held
    finally:
        # Once it is committed this does nothing.
        held.rollback()


def settled_with(
    held: PostgresHandlerTransaction,
    settlement: Settlement,
    write: Callable[[PostgresHandlerConnection], T],
) -> tuple[SettleAnswer, T | None]:
    """Settle an attempt in one transaction with the writes of `write`; undo both if it raises."""
    value: Any = None
    with holding(held):
        if held.holds(settlement.fence):
            value = write(held.connection)
        return held.settle(settlement), value
