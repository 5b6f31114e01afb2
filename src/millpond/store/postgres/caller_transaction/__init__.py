"""Submit inside a transaction that the caller has open on the store's database.

The submit goes over the caller's connection, whatever its driver: it needs two statements that take
one text and return one text. What the caller commits is submitted, what the caller rolls back is
not, and the submit takes none of the store's locks. No driver but psycopg is imported: a connection
is recognized by the module of its class.
"""

from millpond.store.postgres.caller_transaction.adapters import adapter_of
from millpond.store.postgres.caller_transaction.driver_adapter import DriverAdapter
from millpond.store.postgres.caller_transaction.submit import CallerTransactions

__all__ = ["CallerTransactions", "DriverAdapter", "adapter_of"]
