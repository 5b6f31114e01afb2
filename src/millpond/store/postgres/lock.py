"""Locks of writers and migrations: table locks, held until commit.

An advisory lock has a number, and any role that can connect may take it. A lock on a table in these
modes needs the right to change the table, so a stranger cannot stop the store.

The functions of the server lock the store in ROW EXCLUSIVE MODE, which they can hold together, and
then their pool (functions/locks.sql has the order). The Python verbs may touch any pool, so their
mode keeps out each other and the functions, and no reader. For it the server looks through the
locks of every session; for the modes of the functions it does not.
"""

from __future__ import annotations

import hashlib

from millpond.store.postgres.quoting import quoted

WRITERS = "millpond_lock"
"""The table that writers lock. It has no rows, and nothing else locks it."""

POOLS = tuple([f"{WRITERS}_{number}" for number in range(8)])
"""The tables of which a function locks one: that of its pool. They have no rows either."""

SMALL = ("millpond_unit", "millpond_group", "millpond_seat", "millpond_lane", "millpond_budget")
"""Tables of few rows that are written all the time, and may be copied without dead rows."""


def of_waiters(schema: str) -> int:
    """Return the advisory lock that processes share which wait for the ends of tasks.

    A stranger who takes it only makes others send needless hints.
    """
    digest = hashlib.sha256(f"millpond:{schema}:waiters".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def to_read(schema: str) -> str:
    """Return the statement that a read transaction begins with, before it has a snapshot.

    So no reader sees an empty table: a copy waits for the reader, or the reader for it.
    """
    named = ", ".join(f"{quoted(schema)}.{table}" for table in SMALL)
    return f"LOCK TABLE {named} IN ACCESS SHARE MODE"


def to_write(schema: str) -> str:
    """Return the statement that keeps out every other writer."""
    return _locked(schema, WRITERS, "SHARE ROW EXCLUSIVE")


def to_migrate(schema: str) -> str:
    """Return the statement that takes the migration lock."""
    return _locked(schema, "millpond_schema", "SHARE UPDATE EXCLUSIVE")


def _locked(schema: str, table: str, mode: str) -> str:
    return f"LOCK TABLE {quoted(schema)}.{table} IN {mode} MODE"
