"""Early lock release: commit without waiting for the disk, then wait for the disk without a lock.

A transaction that commits with `synchronous_commit = off` frees the write lock at once. A second
transaction, sent in the same round trip, waits until the server's log is on disk, and on that of
the synchronous replicas. The log is one sequence: its record comes after that of the commit, so the
commit is on disk too, and so is everything that the commit has read. The store
answers only when the second transaction is confirmed (ADR 0025).

The server decides whether to wait, because the client does not know yet what the first transaction
did: it notes in a setting of the session whether it wrote, and the second one reads that.

A connection that is the only one to write keeps no other waiting. It sends one transaction whose
commit waits for the disk, until another one writes (ADR 0032).
"""

from __future__ import annotations

from enum import Enum
from functools import cache

_TRANSACTION = "pg_catalog.pg_current_xact_id_if_assigned()"

_NOTED = f"pg_catalog.set_config('millpond.wrote', ({_TRANSACTION} IS NOT NULL)::text, false)"

NOTE_WRITES = f"SELECT {_NOTED}"
"""Note whether this transaction wrote: the last statement before its commit."""

_WAIT = "pg_catalog.set_config('synchronous_commit', 'on', true)"
"""Let the commit of this transaction wait for the disk."""

_RECORD = "pg_catalog.pg_logical_emit_message(true, 'millpond', ''::text)"
"""Write a record to the log: the commit of a transaction without one would not wait."""

_FLUSH = (
    f"SELECT {_WAIT}, pg_catalog.set_config('millpond.wrote', 'false', false), {_RECORD} "
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

    @cache
    def after(self, statement: str) -> str:
        """Return the statement that waits, with the one before it in a comment.

        The server shows only the last statement of a session: `renewed_since` recognises by the
        comment a session that renews leases, and so does a person.
        """
        return f"{self.value} /* after {statement.replace('*/', '')[:240]} */"

    @cache
    def within(self, statement: str) -> str:
        """Return a statement whose own commit waits for the disk; with MORE_COLUMNS."""
        others = f" WHEN {_UNFLUSHED} THEN {_WAIT} || {_RECORD}" if self is Flush.SEEN else ""
        return _and(f"CASE WHEN {_TRANSACTION} IS NOT NULL THEN {_WAIT}{others} END", statement)


@cache
def noting_writes(statement: str) -> str:
    """Return a statement that also notes whether it wrote; with MORE_COLUMNS."""
    return _and(_NOTED, statement)


MORE_COLUMNS = 2
"""The last columns of these statements: the number of a transaction that wrote, and a note."""


def _and(more: str, statement: str) -> str:
    number = f"{_TRANSACTION}::pg_catalog.text::pg_catalog.int8"
    return f"SELECT done.*, {number}, {more} FROM ({statement}) done"  # noqa: S608 - ours


_MANY = 8
"""After so many transactions without one of others, a connection has the server to itself."""


class Solitude:
    """Whether only one connection writes, by the numbers that the server gives to transactions.

    The server numbers those that write, in all its databases. Where the numbers of one connection
    follow each other, no other has written in between. If another one writes later, the next
    number shows it: so others wait for at most one flush of this connection.
    """

    __slots__ = ("_alone", "_last", "_last_at", "_sent")

    def __init__(self) -> None:
        self._last = 0
        self._last_at = 0
        """Which transaction of this connection had the last known number."""
        self._sent = 0
        """How many transactions this connection has sent."""
        self._alone = 0
        """Known numbers in a row that followed each other."""

    @property
    def is_known(self) -> bool:
        """Whether no other session has written lately."""
        return self._alone >= _MANY

    def sent(self, transactions: int) -> int:
        """Note that transactions were sent, each of which may have a number.

        Return which transaction of this connection the first of them is.
        """
        first = self._sent + 1
        self._sent += transactions
        return first

    def numbered(self, number: int | None, at: int) -> None:
        """Note the number of a transaction, None if it has none; `at` is what `sent` returned."""
        if number is not None:
            follows = number - self._last <= at - self._last_at
            self._alone = self._alone + 1 if follows else 0
            self._last, self._last_at = number, at
