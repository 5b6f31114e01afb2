"""A transaction that a handler holds on a server: nobody waits for it before it completes.

It begins without the writers' lock. Only when the attempt is to end with what the handler wrote
does it take its turn, and then the fence is looked at: whoever lost it has written nothing.
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
"""What is as the server, the database and the role have it while a handler's statements run."""

_MARGIN = 5.0
"""Seconds by which the server lets a transaction stand idle for longer than we do."""

_KEPT = 4

_MARK = "SELECT set_config('millpond.transaction', $1, true)"
"""Mark a transaction: the mark is gone when it has ended, and another one does not have it."""

_MARKED = "SELECT current_setting('millpond.transaction', true)"


class SpareConnections:
    """Connections that handlers had: to open one takes longer than most transactions do."""

    def __init__(self, open_connection: Callable[[], PostgresConnection]) -> None:
        self._open_connection = open_connection
        self._idle: list[PostgresConnection] = []
        self._closed = False

    def take(self) -> PostgresConnection:
        """Return one that was given back, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._open_connection()

    def give_back(self, connection: PostgresConnection) -> None:
        """Keep a connection for the next one, unless it is of no use, or there are enough."""
        if self._closed or connection.closed or connection.in_transaction:
            connection.close()
        elif len(self._idle) < _KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    def forget(self) -> None:
        """Close them all: the server may have done so before."""
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Keep none any more."""
        self._closed = True
        self.forget()


class HandlerTransactor(PostgresTransactor[SqlTables]):
    """Transactions that take their turn late, on connections that are used again."""

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
        """Begin a transaction that nobody waits for; a spare connection may turn out dead."""
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
        """Wait for one's turn in the transaction that is open, and give what jobs work on."""
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
        """Let go of a connection on which the handler has begun or ended transactions itself."""
        self._disconnect()
        return ended_by_handler()

    def close(self) -> None:
        """Let others use the connection."""
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
        """Return whether an attempt may still end, as far as can be seen without a turn."""
        connection = self._transactor.connection
        return holds(SqlTables(connection, self._dialect, 0, readonly=True), fence)

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
    """Begin a handler's transaction, and undo it if it is not settled inside."""
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
    """End an attempt in one transaction with what `write` does; if that raises, do nothing."""
    value: Any = None
    with holding(held):
        if held.holds(settlement.fence):
            value = write(held.connection)
        return held.settle(settlement), value
