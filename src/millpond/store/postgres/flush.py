"""Early lock release: commit without waiting for the disk, then wait for the disk without a lock.

A transaction that commits with `synchronous_commit = off` frees the write lock at once. A second
transaction, sent in the same round trip, waits until the server's log is on disk, and on that of
the synchronous replicas. The log is one sequence: its record comes after that of the commit, so the
commit is on disk too, and so is everything that the commit has read. The store
answers only when the second transaction is confirmed (ADR 0025).

The server decides whether to wait, because the client does not know yet what the first transaction
did: it notes in a setting of the session whether it wrote, and the second one reads that.
"""

from __future__ import annotations

from enum import Enum

_NOTED = (
    "pg_catalog.set_config('millpond.wrote', "
    "(pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL)::text, false)"
)

NOTE_WRITES = f"SELECT {_NOTED}"
"""Note whether this transaction wrote: the last statement before its commit."""

_FLUSH = (
    "SELECT pg_catalog.set_config('synchronous_commit', 'on', true), "
    "pg_catalog.set_config('millpond.wrote', 'false', false), "
    # A transaction without a record in the log would not wait for it.
    "pg_catalog.pg_logical_emit_message(true, 'millpond', ''::text) "
    "WHERE pg_catalog.current_setting('millpond.wrote', true) OPERATOR(pg_catalog.=) 'true'"
)

_UNFLUSHED = (
    "pg_catalog.pg_current_wal_insert_lsn() OPERATOR(pg_catalog.>) "
    "pg_catalog.pg_current_wal_flush_lsn() "
    # What a replica has on disk is not known here.
    "OR pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) ''"
)


class Flush(Enum):
    """Which transactions must be on disk before a call is answered."""

    NOTHING = None
    """None: a hint."""
    OWN = _FLUSH
    """This one, if it wrote. For an answer that promises nothing: no task to lease."""
    SEEN = f"{_FLUSH} OR {_UNFLUSHED}"
    """Also those of others that it may have read. They may have written what the answer promises:
    a task with the same idempotency key."""

    def after(self, statement: str) -> str:
        """Return the statement that waits, with the one before it in a comment.

        The server shows only the last statement of a session: `renewed_since` recognises by the
        comment a session that renews leases, and so does a person.
        """
        return f"{self.value} /* after {statement.replace('*/', '')[:240]} */"


def noting_writes(statement: str) -> str:
    """Return a statement that also notes whether it wrote, in one more column, the last."""
    return f"SELECT done.*, {_NOTED} FROM ({statement}) done"  # noqa: S608 - ours
