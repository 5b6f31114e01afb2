"""psycopg's connections, synchronous and asynchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from millpond.store.postgres.caller_transaction.driver_adapter import DriverAdapter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.store.postgres.caller_transaction.driver_adapter import Statement


class PsycopgAdapter(DriverAdapter):
    """psycopg's connection; Django's over it, too."""

    given: psycopg.Connection[Any]

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.given.pgconn.transaction_status in (
            TransactionStatus.INTRANS,
            TransactionStatus.INERROR,
            TransactionStatus.ACTIVE,
        )

    def state(self) -> str:
        """Return what can be done with it."""
        return _state_of_psycopg(self.given)

    def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask over a cursor of our own: its owner's may give rows of any kind."""
        with psycopg.Cursor(self.given, row_factory=tuple_row) as cursor:
            query = statement.with_placeholder("%s").encode()
            row = cursor.execute(query, [argument], prepare=False).fetchone()
        return _text(row)


class AsyncPsycopgAdapter(DriverAdapter):
    """psycopg's asynchronous connection."""

    given: psycopg.AsyncConnection[Any]
    waits = True
    in_transaction = PsycopgAdapter.in_transaction

    def state(self) -> str:
        """Return what can be done with it."""
        return _state_of_psycopg(self.given)

    async def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask over a cursor of our own."""
        async with psycopg.AsyncCursor(self.given, row_factory=tuple_row) as cursor:
            query = statement.with_placeholder("%s").encode()
            await cursor.execute(query, [argument], prepare=False)
            row = await cursor.fetchone()
        return _text(row)


def _state_of_psycopg(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> str:
    if connection.closed:
        return "closed"
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INERROR:
        return "failed"
    # Without autocommit the driver begins at the first statement, and this may be it.
    return "none" if status == TransactionStatus.IDLE and connection.autocommit else "open"


def _text(row: Sequence[Any] | None) -> Any:  # noqa: ANN401 - a text, or bytes in an odd encoding
    assert row is not None  # noqa: S101 - the statements give one row
    return row[0]
