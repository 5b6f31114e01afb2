"""One writing connection: one transaction after another, each in its turn among processes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, Protocol, TypeVar

from millpond.core.log_fields import about
from millpond.errors import (
    IllegalTransition,
    MillpondError,
    Miscounted,
    OutcomeUnknown,
    StoreError,
)
from millpond.store.sql.database import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.errors import StoreLocked

log = logging.getLogger("millpond.store")


class UnitOfWork(Protocol):
    """What jobs work on in one transaction."""

    def write(self) -> None:
        """Write what the jobs changed."""

    def committed(self) -> None:
        """Note that the transaction was committed."""


class WriteQueue(Protocol):
    """A lock at which processes queue to write; one holder at a time."""

    def acquire(self) -> None:
        """Wait for the lock, however long it takes."""

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""

    def wait(self) -> None:
        """Wait behind the holder and the processes before this one."""

    def release(self) -> None:
        """Release the lock; no effect if it is not held."""

    def close(self) -> None:
        """Close the lock; safe twice."""


Unit = TypeVar("Unit", bound=UnitOfWork)
C = TypeVar("C", bound=Connection)
T = TypeVar("T")


class Transactor(ABC, Generic[Unit, C]):
    """Begins, commits and rolls back on a connection of its own; for one thread at a time.

    The connection is opened when it is first needed, and again after an error that spoils it. Below
    is what all databases have in common; what each does its own way stands at the end.
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    """The exceptions of the database driver."""

    def __init__(
        self, where: str, lock: WriteQueue, make_unit: Callable[[C], Unit], *, patience: float
    ) -> None:
        self.where = where
        """The name of the database, for people."""
        self.lock = lock
        self.patience = patience
        """Seconds to wait for the transaction of another process before giving up."""
        self._make_unit = make_unit
        self._connection: C | None = None
        self.miscounted = False
        """Whether a write that changed an unexpected number of rows was committed."""

    def run(self, job: Callable[[Unit], T]) -> T:
        """Do one job in a transaction of its own; retry once if that may help."""
        self.lock.acquire()
        try:
            try:
                return self.once(job)
            except StoreError as error:
                if isinstance(error, OutcomeUnknown) or not self._may_pass(error.__cause__):
                    raise
                return self.once(job)
        finally:
            self.lock.release()

    def once(self, job: Callable[[Unit], T]) -> T:
        """Do one job in a transaction of its own; the caller holds the lock.

        An error of ours has changed nothing, so what else the unit did is kept, as in a group.
        """
        unit = self.begin()
        refused: MillpondError | None = None
        try:
            try:
                answer = job(unit)
            except MillpondError as error:
                if not self.is_answer(error):
                    raise
                refused = error
            self.commit(unit)
        except BaseException as error:
            self.undo(error)
            if isinstance(error, self.errors):
                raise self.translated(error) from error
            raise
        if refused is not None:
            raise refused
        return answer

    def begin(self) -> Unit:
        """Begin a transaction and return its unit of work."""
        try:
            connection = self._begun()
            return self._make_unit(connection)
        except BaseException as error:
            self.undo(error)
            if isinstance(error, self.errors):
                raise self.translated(error) from error
            raise

    def commit(self, unit: Unit) -> None:
        """Write and commit; raise OutcomeUnknown if the outcome is unknown."""
        unit.write()
        if not self.connection.in_transaction:
            # An error ended the transaction by itself, and the statement did not raise it.
            message = f"the database {self.where} has undone a transaction that was not over"
            raise StoreError(message)
        try:
            self._commit()
        except self.errors as error:
            if self._did_not_commit(error):
                raise
            self._disconnect()
            self._not_known(error)
        try:
            unit.committed()
        except Exception:
            # It is stored. An error now would have it done a second time.
            log.exception(
                "a hook after the commit to %s failed; the commit is stored",
                self.where,
                extra=about("commit.hook_failed"),
            )

    def undo(self, error: BaseException) -> None:
        """Roll back, and close a connection that `error` has made unusable."""
        spoilt = self.is_poisonous(error) or self.is_poisonous(error.__cause__)
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except self.errors:
                spoilt = True
        if spoilt:
            self._disconnect()

    def close(self) -> None:
        """Close connection and lock; safe twice."""
        self._disconnect()
        self.lock.close()

    @property
    def connection(self) -> C:
        """The connection; opened at first use."""
        if self._connection is None:
            self._connection = self._opened()
        return self._connection

    def of_database(self, error: BaseException) -> bool:
        """Return whether the database raised this error, translated or not."""
        return isinstance(error, self.errors) or isinstance(error.__cause__, self.errors)

    def is_answer(self, error: MillpondError) -> bool:
        """Return whether an error is the answer of a job that has changed nothing.

        What the database raised is not, and neither is a bug of ours: who knows what came before.
        """
        if self._connection is not None and not self._connection.in_transaction:
            # It has ended meanwhile, and with it what others did in it.
            return False
        return not (self.of_database(error) or isinstance(error, IllegalTransition | Miscounted))

    def _not_known(self, error: Exception) -> NoReturn:
        reason = " ".join(str(error).split())
        raise OutcomeUnknown(
            f"the commit to {self.where} failed ({self._name_of(error)}: {reason}): it is not "
            "known whether this change is stored; look before doing it again, or repeat it with an "
            "idempotency key",
            path=self.where,
        ) from error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._dispose(connection)

    # What each database does its own way

    @abstractmethod
    def _opened(self) -> C:
        """Open a connection."""

    @abstractmethod
    def _begun(self) -> C:
        """Begin a transaction that may write, and return its connection."""

    @abstractmethod
    def _dispose(self, connection: C) -> None:
        """Close a connection that may be broken; never raises."""

    @abstractmethod
    def interrupt(self) -> None:
        """Cancel the running statement; from another thread."""

    @abstractmethod
    def translated(self, error: Exception) -> StoreError:
        """Return the MillpondError for an error of the database; it says what to do."""

    @abstractmethod
    def is_poisonous(self, error: BaseException | None) -> bool:
        """Return whether the connection that raised this is unusable."""

    def _may_pass(self, error: BaseException | None) -> bool:
        """Return whether an immediate retry may succeed."""
        return self.is_poisonous(error)

    def _commit(self) -> None:
        """Commit."""
        self.connection.execute("COMMIT")

    @abstractmethod
    def _did_not_commit(self, error: Exception) -> bool:
        """Return whether a COMMIT that raised this certainly did not happen."""

    @abstractmethod
    def _name_of(self, error: Exception) -> str:
        """Return the database's own name of an error."""

    @abstractmethod
    def kept_waiting(self) -> StoreLocked:
        """Return the error for jobs that waited too long for the lock."""

    def has_to_tidy(self) -> bool:
        """Return whether the database needs maintenance."""
        return False

    def tidy(self) -> None:
        """Do the maintenance; the caller holds the lock."""
