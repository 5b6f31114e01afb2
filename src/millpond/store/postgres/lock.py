"""Locks of writers and migrations: table locks, held until commit.

An advisory lock has a number, and any role that can connect may take it. A lock on a table in this
mode needs the right to change the table, so a stranger cannot stop the store. The mode conflicts
with itself and with none that a reader takes; the weaker ones do not keep writers apart, the
stronger ones make the server look through the locks of every session.
"""

from __future__ import annotations

from millpond.store.postgres.quoting import quoted

WRITERS = "millpond_lock"
"""The table that writers lock. It has no rows, and nothing else locks it."""

SMALL = ("millpond_unit", "millpond_group", "millpond_seat", "millpond_lane", "millpond_budget")
"""Tables of few rows that are written all the time, and may be copied without dead rows."""


def to_read(schema: str) -> str:
    """Return the statement that a read transaction begins with, before it has a snapshot.

    A copy shows nobody an empty table then: it waits for the reader, or the reader for it.
    """
    named = ", ".join(f"{quoted(schema)}.{table}" for table in SMALL)
    return f"LOCK TABLE {named} IN ACCESS SHARE MODE"


def to_write(schema: str) -> str:
    """Return the statement that takes the write lock."""
    return _locked(schema, WRITERS)


def to_migrate(schema: str) -> str:
    """Return the statement that takes the migration lock."""
    return _locked(schema, "millpond_schema")


def _locked(schema: str, table: str) -> str:
    return f"LOCK TABLE {quoted(schema)}.{table} IN SHARE UPDATE EXCLUSIVE MODE"
