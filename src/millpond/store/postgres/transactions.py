"""Transactions on a server: a table lock orders the writers."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, NoReturn

import psycopg

from millpond.core.log_fields import about
from millpond.errors import StoreError, StoreLocked
from millpond.store.postgres.errors import aborted, code_of, is_gone, is_retryable, translated
from millpond.store.postgres.flush import Flush
from millpond.store.postgres.lock import to_write
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.sql.transactions import Transactor, Unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.store.postgres.connect import Connection as DriverConnection
    from millpond.store.postgres.cursor import Row
    from millpond.store.postgres.dialect import PostgresDialect
    from millpond.store.postgres.encoding import Sent
    from millpond.store.postgres.pending_call import PendingServerCall
    from millpond.store.postgres.url import Address

log = logging.getLogger("millpond.postgres")

_REFUSALS = frozenset({"MP001", "23505"})
"""SQLSTATEs of a function that refuses: not plain, or known already."""

_MISCOUNTED = "MP002"
"""The SQLSTATE of a function whose write had an unexpected count; it rolled back."""

_LOCKED = "55P03"

_SPOILT = frozenset({"0A000", "26000", "25006"})
"""What a session says whose prepared statements are gone, or were made for other tables; and one
of a server that may only be read, since by now: another host may be the primary."""


class NoWriteQueue:
    """No queue in this process: the table lock of each transaction orders writers."""

    def acquire(self) -> None:
        """Return at once."""

    def try_acquire(self) -> bool:
        """Return at once."""
        return True

    def wait(self) -> None:
        """Return at once."""

    def release(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class PostgresTransactor(Transactor[Unit, PostgresConnection]):
    """Transactions on one schema of a server."""

    errors = (psycopg.Error,)

    def __init__(
        self,
        address: Address,
        dialect: PostgresDialect,
        open_connection: Callable[[], PostgresConnection],
        make_unit: Callable[[PostgresConnection], Unit],
        *,
        move: Callable[[PostgresTransactor[Unit], Unit], None] | None = None,
        patience: float,
    ) -> None:
        super().__init__(str(address), NoWriteQueue(), make_unit, patience=patience)
        self.address = address
        self._open_connection = open_connection
        self._move = move
        """Moves the inbox into the queue, in a transaction of its own."""
        self._lock = to_write(dialect.schema)
        self._look = dialect.sql["begun"]

    @property
    def driver(self) -> DriverConnection | None:
        """The driver's connection, between two transactions; None if there is none."""
        if self._connection is None or self._connection.closed:
            return None
        return self._connection.driver

    def begin(self) -> Unit:
        """Begin a transaction, after moving the inbox into the queue."""
        unit = self.begin_plainly()
        begun = self.connection.begun
        if self._move is None or begun is None or not begun.inbox:
            return unit
        self._move(self, unit)
        return self.begin_plainly()

    def begin_plainly(self) -> Unit:
        """Begin a transaction."""
        return super().begin()

    def _opened(self) -> PostgresConnection:
        return self._open_connection()

    def _begun(self) -> PostgresConnection:
        if self._connection is not None and self._connection.closed:
            self._disconnect()
        stood = self._connection is not None
        try:
            return self._begun_once()
        except psycopg.Error as error:
            if not stood or not self.is_poisonous(error):
                raise
            # The server was restarted, or has ended what stood idle: one more try with a new one.
            self._disconnect()
            return self._begun_once()

    def _begun_once(self) -> PostgresConnection:
        connection = self.connection
        connection.begin(self._lock, self._look)
        return connection

    def call(
        self,
        statement: str,
        arguments: Callable[[], list[Sent]],
        flush: Flush = Flush.SEEN,
    ) -> Row | None:
        """Do one statement in a transaction of its own; None if the server refused.

        It also returns None if the statement failed: the caller then uses the Python path, which
        meets the same error and raises it.
        """
        return self._ended(lambda: self._connected().call(statement, arguments(), flush))

    def start(
        self,
        statement: str,
        arguments: Callable[[], list[Sent]],
        flush: Flush = Flush.SEEN,
    ) -> PendingServerCall | None:
        """Send one statement without waiting; None if a connection must be opened first."""
        if self._connection is None or self._connection.is_over():
            return None
        return self._connection.start(statement, arguments(), flush)

    def start_behind(
        self, statement: str, arguments: Callable[[], list[Sent]], flush: Flush
    ) -> PendingServerCall:
        """Send one statement without waiting, behind others whose answers are not read yet."""
        return self.connection.start(statement, arguments(), flush)

    @property
    def may_send_behind(self) -> bool:
        """Whether `start_behind` may be called while another statement is under way."""
        return self._connection is not None and self._connection.may_send_behind

    def finish(self, call: PendingServerCall) -> Row | None:
        """Wait for the answer of a sent statement."""
        if call.connection is not self._connection:
            # It went behind a call with which the connection was lost.
            self.lost(psycopg.OperationalError("the connection was lost before its answer came"))
        return self._ended(call.finish)

    def lost(self, error: Exception) -> NoReturn:
        """Close the connection of a call that was sent, perhaps in part; raise OutcomeUnknown."""
        self._disconnect()
        self._not_known(error)

    def _ended(self, call: Callable[[], tuple[str, Row | None]]) -> Row | None:
        try:
            status, row = call()
        except self.errors as error:
            self.call_failed(error)
            return None
        return row if status == "COMMIT" else None

    def discard_connection(self) -> None:
        """Close the connection, whose state is unknown; the next transaction opens another."""
        self._disconnect()

    def hurry(self, seconds: float) -> None:
        """Set the timeout for silence of the server."""
        self._connected().hurry(seconds)

    def call_failed(self, error: Exception) -> None:
        """Clean up after a failed call; raise if the Python path would fail too."""
        if not self._did_not_commit(error):
            self.lost(error)
        self.undo(error)
        if code_of(error) == _LOCKED:
            # The Python path would wait for the same lock, as long once more.
            raise self.translated(error) from error
        if code_of(error) == _MISCOUNTED:
            log.error(
                "MILL-081 rows of %s are inconsistent (%s); nothing was changed; using the Python "
                "path. Run `millpond doctor`, then `millpond doctor --repair`",
                self.where,
                str(error).partition("\n")[0],
                extra=about("store.inconsistent", reason=str(error).partition("\n")[0]),
            )
        elif code_of(error) not in _REFUSALS and not self._may_pass(error):
            log.warning(
                "server fast path of %s failed; using the Python path: %s",
                self.where,
                error,
                extra=about("fast_path.failed", reason=str(error)),
            )

    def _connected(self) -> PostgresConnection:
        """Return the connection; a new one if the server closed the old one.

        What is sent to a server that is gone may have been done, for all we know. So it is asked
        for, before anything is sent.
        """
        if self._connection is not None and self._connection.is_over():
            self._disconnect()
        return self.connection

    def _commit(self) -> None:
        # A transaction that failed before is rolled back by COMMIT, and that is no error.
        connection = self.connection
        if connection.commit() != "COMMIT":
            raise aborted(self.address)
        if connection.miscounted is not None:
            # The answer came with that of the commit. The wrong rows are stored: repair them now.
            found, connection.miscounted = connection.miscounted, None
            self.miscounted = True
            log.error(
                "MILL-081 in %s the write %s changed %d rows instead of %d and was committed; "
                "recounting",
                self.where,
                found[0],
                found[2],
                found[1],
                extra=about("store.miscounted", reason=found[0]),
            )

    def _dispose(self, connection: PostgresConnection) -> None:
        dispose(connection)

    def interrupt(self) -> None:
        """Cancel the running statement."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.cancel()

    def translated(self, error: Exception) -> StoreError:
        """Return the MillpondError for a PostgreSQL error."""
        return translated(error, self.address, waited=self.patience)  # type: ignore[arg-type, return-value]

    def is_poisonous(self, error: BaseException | None) -> bool:
        """Return whether the connection that raised this is unusable."""
        return is_gone(error) or code_of(error) in _SPOILT

    def _may_pass(self, error: BaseException | None) -> bool:
        return self.is_poisonous(error) or is_retryable(error)

    def _did_not_commit(self, error: Exception) -> bool:
        connection = self._connection
        if connection is None or not connection.in_doubt:
            return True
        return not (connection.unflushed or is_gone(error))

    def _name_of(self, error: Exception) -> str:
        return code_of(error) or type(error).__name__

    def kept_waiting(self) -> StoreLocked:
        """Return the error for jobs that waited too long for the lock."""
        return StoreLocked(
            f"other transactions have kept {self.where} locked for more than {self.patience:g} s; "
            "`millpond doctor` says who holds the lock. Nothing was changed",
            path=self.where,
            waited=self.patience,
        )


def dispose(connection: PostgresConnection) -> None:
    """Close a connection that may be broken."""
    with contextlib.suppress(psycopg.Error):
        connection.close()
