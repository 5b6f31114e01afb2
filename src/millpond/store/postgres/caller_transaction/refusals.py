"""Why a connection cannot be used to submit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.errors import ForeignConnection, NotInTransaction
from millpond.store.postgres.quoting import quoted

if TYPE_CHECKING:
    from millpond.store.postgres.url import Address


def unknown_connection(given: object, address: Address) -> ForeignConnection:
    """Return the error for a connection of a kind that the store does not know."""
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    return ForeignConnection(
        f"connection={kind} cannot join a transaction on {address}: give one of psycopg (sync or "
        "async), asyncpg, SQLAlchemy (a connection or session) or Django over psycopg; over any "
        f"other, call the function {quoted(address.schema)}.submit(...) in SQL",
        path=str(address),
        found=kind,
    )


def not_in_transaction(address: Address) -> NotInTransaction:
    """Return the error for a connection without an open transaction."""
    return NotInTransaction(
        f"connection= joins an open transaction on {address}, and there is none: begin one with "
        "`connection.transaction()`, `engine.begin()` or `transaction.atomic()`, or submit without "
        "connection=",
        path=str(address),
    )
