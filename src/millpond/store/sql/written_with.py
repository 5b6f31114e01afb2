"""What a handler writes in the transaction that settles its attempt, and the hints of answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.store.hints import PendingHint
from millpond.store.protocol import Hint, RenewAnswer, SubmitAnswer
from millpond.store.sql.handler_connection import HandlerConnectionBase
from millpond.store.sql.handler_transaction import SAVEPOINT, leave_savepoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.store.protocol import SettleAnswer
    from millpond.store.sql.database import Connection

T = TypeVar("T")
L = TypeVar("L", bound=HandlerConnectionBase)


class WrittenWith(Generic[T]):
    """The outcome of a handler's writes in the transaction that settles its attempt."""

    value: T | None = None
    error: BaseException | None = None
    answer: SettleAnswer | None = None

    def do(self, connection: Connection, lent: L, write: Callable[[L], T]) -> None:
        """Let the handler write; if it raises, keep the error and undo its writes."""
        connection.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            self.value = write(lent)
        except BaseException as error:
            if not connection.in_transaction:
                # An error that ended the transaction ended it for the caller too.
                raise
            self.error = error
        lent.end()
        lent.close_cursors()
        leave_savepoint(connection, undo=self.error is not None)


def hint_of(answers: Sequence[Any]) -> Hint:
    """Return the hint for these answers."""
    if len(answers) == 1 and type(one := answers[0]) is SubmitAnswer:
        # Mostly there is no other, and so nothing to merge.
        return Hint(wakes=one.wakes, ended=one.ended, finished_runs=one.finished_runs)
    pending = PendingHint()
    for answer in answers:
        # The order to stop was in the hint of the command that a renewal repeats.
        if isinstance(answer, WrittenWith):
            pending.add(answer.answer)
        elif not isinstance(answer, RenewAnswer):
            pending.add(answer)
    return pending.hint()
