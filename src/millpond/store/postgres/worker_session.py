"""The session of a worker process: while the server has it, the process is alive.

The session holds a shared advisory lock whose number is a hash of the schema and the process. The
server releases the lock when the session ends: at once if the process is killed, because its kernel
closes the socket, and after a few seconds without an answer if the host or the network is gone.
Every role may read `pg_locks`, so any other process can see which locks are held.

Any role may also take such a lock. That cannot make a live worker look dead. It can only hide that
a worker is dead, and then the lease of that worker shows it.

A lock outlives a session in no case, and a process that connects again takes it beside its old
session, which the server may not have given up yet: the lock is shared.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING

import psycopg

from millpond.errors import MillpondError
from millpond.store.postgres.connect import Patience, connect, is_pooled
from millpond.store.postgres.errors import translated
from millpond.store.postgres.quoting import quoted

if TYPE_CHECKING:
    from millpond.store.postgres.connect import Connection
    from millpond.store.postgres.url import Address

MARK = "~session"
"""In the name of a worker whose process keeps a session; older versions keep names as they are."""

ANSWER_WITHIN = 2.0
"""Seconds after which a session without an answer is given up."""

_PATIENCE = Patience(connect=2.0, lock=1.0, statement=1.0, network=3.0)

_SETTINGS = b"""\
SELECT set_config('idle_session_timeout', '0', false),
       set_config('tcp_keepalives_idle', '1', false),
       set_config('tcp_keepalives_interval', '1', false),
       set_config('tcp_keepalives_count', '2', false),
       set_config('tcp_user_timeout', '3000', false)"""
"""The server gives up a client whose host is gone after some 3 s.

The session is idle between two questions, so only keepalives find that out:
client_connection_check_interval works while a statement runs.
"""

_HOLD = b"SELECT pg_catalog.pg_try_advisory_lock_shared(pg_catalog.hashtextextended(%s, 0))"
_WATCH = b"SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(%s, 0))"

_MISSING = """\
SELECT DISTINCT ON (w.id) w.id, w.expires_at FROM {schema}.millpond_worker AS w
 WHERE pg_catalog.strpos(w.id, %(mark)s) > 0
   AND pg_catalog.hashtextextended(%(prefix)s || w.owner, 0) <> ALL (ARRAY(
       SELECT (l.classid::bigint << 32) | l.objid::bigint FROM pg_catalog.pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
          AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                             WHERE d.datname = pg_catalog.current_database())))
 ORDER BY w.id, w.turn DESC"""


class PooledSession(MillpondError):
    """A pooler gives each transaction another session: none stands for this process."""


class PostgresWorkerSession:
    """One session that says which process it belongs to; for one thread at a time."""

    mark = MARK

    def __init__(self, address: Address, schema: str, owner: str) -> None:
        self._address = address
        self._prefix = f"millpond:{schema}:"
        self._owner = owner
        self._missing = _MISSING.format(schema=quoted(schema)).encode()
        self._connection: Connection | None = None
        self.watches = False
        """Whether this process holds the lock of the one that watches the others."""
        _OPEN.add(self)

    def open(self) -> None:
        """Connect and take the lock of this process."""
        self.close()
        connection = connect(self._address, name="millpond session", patience=_PATIENCE)
        if is_pooled(connection):
            connection.close()
            raise PooledSession(f"a pooler stands before {self._address}")
        try:
            connection.silence = ANSWER_WITHIN  # type: ignore[attr-defined]
            connection.execute(_SETTINGS)
            connection.execute(_HOLD, [self._prefix + self._owner])
        except psycopg.Error as error:
            connection.close()
            raise translated(error, self._address) from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def fileno(self) -> int:
        """Return the socket of the open session."""
        return -1 if self._connection is None else self._connection.fileno()

    def confirm(self, *, watch: bool) -> list[tuple[str, float]] | None:
        """Ask the server for an answer over this session.

        One process of all watches the others. It, and one that is asked to `watch`, returns the
        registered workers whose session the server does not have, each with the end of its lease.
        """
        connection = self._connection
        if connection is None:
            raise psycopg.OperationalError("the session is closed")
        try:
            if not self.watches:
                ((self.watches,),) = connection.execute(_WATCH, [f"{self._prefix}watch"]).fetchall()
            if not (watch or self.watches):
                return None
            given = {"mark": MARK, "prefix": self._prefix}
            return [
                (str(name), float(end)) for name, end in connection.execute(self._missing, given)
            ]
        except psycopg.Error as error:
            self.close()
            raise translated(error, self._address) from error

    def is_impossible(self, error: Exception) -> bool:
        """Return whether no attempt can ever succeed here."""
        return isinstance(error, PooledSession)

    def close(self) -> None:
        """End the session; safe twice."""
        connection, self._connection, self.watches = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def let_go_after_fork(self) -> None:
        """Leave the session to the parent: a child that keeps it open makes the dead look alive."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # Not closed in good order, which would end it for the parent, too.
            os.close(connection.fileno())
            _LEFT_TO_PARENT.append(connection)


_OPEN: weakref.WeakSet[PostgresWorkerSession] = weakref.WeakSet()
_LEFT_TO_PARENT: list[Connection] = []


def _let_go_after_fork() -> None:
    for session in list(_OPEN):
        session.let_go_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)
