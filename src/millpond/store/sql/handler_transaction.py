"""A transaction for a handler: its writes and its completion are committed together.

It has a connection of its own. While it lasts, every other writer of the store waits,
in this process and in others. So it has a time limit, after which it is rolled back.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from millpond.errors import TransactionTooLong
from millpond.store.sql.handler_connection import HandlerConnectionBase, ended_by_handler
from millpond.store.verbs import api as verbs
from millpond.store.verbs.settle import holds

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.core.settle import Settlement
    from millpond.store.protocol import SettleAnswer
    from millpond.store.sql.database import Connection
    from millpond.store.sql.transactions import Transactor
    from millpond.store.sql.unit_of_work import SqlTables

L = TypeVar("L", bound=HandlerConnectionBase)

SAVEPOINT = "millpond_handler"
"""The savepoint before a handler's writes, to roll back only those."""


def leave_savepoint(connection: Connection, *, undo: bool) -> None:
    """Keep a handler's writes, or undo them; raise if it ended the transaction."""
    if not connection.in_transaction:
        raise ended_by_handler()
    try:
        if undo:
            connection.execute(f"ROLLBACK TO {SAVEPOINT}")
        connection.execute(f"RELEASE {SAVEPOINT}")
    except Exception as error:
        if "savepoint" in str(error):
            raise ended_by_handler() from error
        raise


class HandlerTransaction(Generic[L]):
    """Begun, used and ended in any threads, one at a time."""

    in_the_way: ClassVar[str] = "every other writer waits for it"
    """Why its time is limited, for people."""

    def __init__(
        self,
        transactor: Transactor[SqlTables, Any],
        lend: Callable[[Any], L],
        clock: Callable[[], float],
        limit: float,
    ) -> None:
        self._transactor = transactor
        self._lend = lend
        self._clock = clock
        self._limit = limit
        self._state = threading.RLock()
        self._deciding = threading.Lock()
        """Held while deciding whether its handler or its time limit ends it."""
        self._unit: SqlTables | None = None
        self._lent: L | None = None
        self._timer: threading.Timer | None = None
        self._begun_at = 0.0
        self._ending = False
        self._given_up = False
        self._too_long = False
        self._closed = False

    @property
    def connection(self) -> L:
        """The handler's connection."""
        assert self._lent is not None  # noqa: S101 - it was begun
        return self._lent

    def begin(self) -> None:
        """Wait for the write lock and begin; its time limit counts from now on."""
        self._transactor.lock.acquire()
        with self._state:
            if self._given_up:
                self._close()
                return
            try:
                connection = self._opened()
            except BaseException as error:
                self._undo(error)
                if isinstance(error, self._transactor.errors):
                    raise self._transactor.translated(error) from error
                raise
            self._lent = self._lend(connection)
            self._begun_at = time.monotonic()
            self._timer = threading.Timer(self._limit, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _opened(self) -> Any:  # noqa: ANN401 - of the store's driver
        """Begin, and return the handler's connection."""
        self._unit = self._transactor.begin()
        self._unit.connection.execute(f"SAVEPOINT {SAVEPOINT}")
        return self._unit.connection

    def give_up(self) -> None:
        """Do not begin if it has not begun; otherwise the caller must roll back."""
        self._given_up = True

    def settle(self, settlement: Settlement) -> SettleAnswer:
        """Settle and commit; if the fence is stale, roll back the handler's writes."""
        self._begin_to_end()
        with self._state, self.connection.lock:
            if self._too_long:
                self._undo(None)
                raise self._took_too_long()
            self.connection.end()
            try:
                self.connection.close_cursors()
                answer = self._settled(settlement)
            except BaseException as error:
                self._undo(error)
                if isinstance(error, self._transactor.errors):
                    raise self._transactor.translated(error) from error
                raise
            self._close()
            return answer

    def _settled(self, settlement: Settlement) -> SettleAnswer:
        """Settle the attempt and commit."""
        unit = self._unit
        assert unit is not None  # noqa: S101 - it was begun
        # Before anything is settled: it must be in the transaction that the handler wrote in.
        leave_savepoint(unit.connection, undo=not holds(unit, settlement.fence))
        answer = verbs.settle(unit, (settlement,), self._clock())
        self._transactor.commit(unit)
        return answer

    def rollback(self) -> None:
        """Roll back; no effect before it has begun and after it has ended."""
        self._begin_to_end()
        with self._state:
            if self._lent is None or self._closed:
                return
            with self._lent.lock:
                self._lent.end()
                self._lent.close_cursors()
                self._undo(None)

    def must_not_be_too_long(self) -> None:
        """Raise if it was rolled back because it lasted too long."""
        if self._too_long:
            raise self._took_too_long()

    def _expire(self) -> None:
        """Roll back from the timer thread; the handler finds its connection closed."""
        with self._deciding:
            if self._ending:
                return
            self._too_long = True
        lock = self.connection.lock
        self.connection.end(self._took_too_long)
        if not lock.acquire(blocking=False):
            # A statement is at work: it is interrupted, and none comes after it.
            self._transactor.interrupt()
            lock.acquire()
        try:
            # Its handler may have come meanwhile, and closed it.
            if not self._closed:
                self._transactor.undo(self._took_too_long())
                self._transactor.lock.release()
        finally:
            lock.release()

    def _begin_to_end(self) -> None:
        """Stop the time limit, unless it has expired already."""
        with self._deciding:
            self._ending = True

    def _took_too_long(self) -> TransactionTooLong:
        held = time.monotonic() - self._begun_at
        return TransactionTooLong(
            f"a handler held its transaction on {self._transactor.where} for longer than "
            f"{self._limit:g} s and it was rolled back, since {self.in_the_way}: do what takes "
            "long before it, wait in it for nothing that writes to the same database, or give "
            "ctx.transaction(hold=...) more",
            path=self._transactor.where,
            held=held,
            limit=self._limit,
        )

    def _undo(self, error: BaseException | None) -> None:
        self._transactor.undo(error or RuntimeError())
        self._close()

    def _close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._transactor.lock.release()
        self._transactor.close()
