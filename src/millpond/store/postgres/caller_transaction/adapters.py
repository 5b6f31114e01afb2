"""Which adapter fits a caller's connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from millpond.store.postgres.caller_transaction.asyncpg import AsyncpgAdapter
from millpond.store.postgres.caller_transaction.django import adapter_of_django
from millpond.store.postgres.caller_transaction.psycopg import (
    AsyncPsycopgAdapter,
    PsycopgAdapter,
)
from millpond.store.postgres.caller_transaction.refusals import unknown_connection
from millpond.store.postgres.caller_transaction.sqlalchemy import (
    AsyncSqlAlchemyAdapter,
    SqlAlchemyAdapter,
)

if TYPE_CHECKING:
    from millpond.store.postgres.caller_transaction.driver_adapter import DriverAdapter
    from millpond.store.postgres.url import Address


def adapter_of(given: object, address: Address) -> DriverAdapter:
    """Return the adapter for a connection, or raise ForeignConnection for an unknown kind."""
    if isinstance(given, psycopg.Connection):
        return PsycopgAdapter(given)
    if isinstance(given, psycopg.AsyncConnection):
        return AsyncPsycopgAdapter(given)
    origins = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    if "asyncpg" in origins and hasattr(given, "is_in_transaction"):
        return AsyncpgAdapter(given)
    if "sqlalchemy" in origins:
        names = {kind.__name__ for kind in type(given).__mro__}
        if names & {"AsyncConnection", "AsyncSession", "async_scoped_session"}:
            return AsyncSqlAlchemyAdapter(given)
        if names & {"Connection", "Session", "scoped_session"}:
            return SqlAlchemyAdapter(given)
    if "django" in origins:
        return adapter_of_django(given, address)
    raise unknown_connection(given, address)
