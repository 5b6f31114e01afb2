"""Django's connection, which wraps one of psycopg."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from millpond.store.postgres.caller_transaction.psycopg import PsycopgAdapter
from millpond.store.postgres.caller_transaction.refusals import (
    not_in_transaction,
    unknown_connection,
)
from millpond.store.postgres.errors import aborted

if TYPE_CHECKING:
    from millpond.store.postgres.caller_transaction.driver_adapter import DriverAdapter
    from millpond.store.postgres.url import Address


def adapter_of_django(given: Any, address: Address) -> DriverAdapter:  # noqa: ANN401 - django's connection
    """Return the adapter of the psycopg connection inside Django's."""
    if getattr(given, "vendor", None) != "postgresql":
        raise unknown_connection(given, address)
    if given.connection is None:
        raise not_in_transaction(address)
    if given.needs_rollback:
        raise aborted(address)
    if not isinstance(given.connection, psycopg.Connection):
        raise unknown_connection(given.connection, address)
    return PsycopgAdapter(given.connection)
