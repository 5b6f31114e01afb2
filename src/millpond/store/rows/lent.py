"""A connection lent to a handler: it may read and write, and the transaction is not its to end."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from weakref import WeakSet

from millpond.core.errors import TransactionControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_ENDS_OR_BEGINS = re.compile(
    r"""(?: \s | ; | --[^\n]*(?:\n|$) | /\* .*? \*/ )*  # what may stand before a statement
        (?: BEGIN | COMMIT | END | ROLLBACK (?! \s+ (?:TRANSACTION\s+)? TO \b ) ) \b""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


class Closable(Protocol):
    """A cursor, as far as it matters here."""

    def close(self) -> None:
        """Let go of its rows."""
        ...


class LentConnection(Protocol):
    """What a handler may do with it, whatever its driver."""

    def execute(self, statement: str, parameters: Any = ..., /) -> Any:  # noqa: ANN401 - a cursor
        """Execute a statement; return its cursor, as the driver has them."""
        ...

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Any:  # noqa: ANN401 - a cursor
        """Execute a statement for each row."""
        ...

    def cursor(self) -> Any:  # noqa: ANN401 - of the driver
        """Return a new cursor."""
        ...


class Lent:
    """What a handler is given in place of the connection itself, whatever its driver.

    When the handler's part is over it is of no use any more.
    """

    def __init__(self) -> None:
        self._cursors: WeakSet[Closable] = WeakSet()
        self._over: Callable[[], Exception] | None = None
        self.lock = threading.RLock()
        """Held while a statement is executed, and by whoever ends the transaction."""

    def commit(self) -> NoReturn:
        """Refuse: it is committed with the completion of the attempt."""
        raise refusal("commit()")

    def rollback(self) -> NoReturn:
        """Refuse: raise an error to have everything undone."""
        raise refusal("rollback()")

    @contextmanager
    def use(self, statement: str) -> Iterator[None]:
        """Have the connection for one statement, if it may be executed."""
        if _ENDS_OR_BEGINS.match(statement):
            raise refusal(statement)
        with self.lock:
            if self._over is not None:
                raise self._over()
            yield

    def end(self, why: Callable[[], Exception] | None = None) -> None:
        """Execute nothing any more; `why` makes the error for those who try."""
        self._over = why or _too_late

    def over(self) -> Exception | None:
        """Return the error for those who still try, if nothing is executed any more."""
        return None if self._over is None else self._over()

    def close_cursors(self) -> None:
        """Let go of rows that were not fetched: they would keep the connection in the past."""
        for cursor in list(self._cursors):
            cursor.close()


def refusal(statement: str) -> TransactionControl:
    """Return the error for a statement that begins or ends a transaction."""
    shown = " ".join(statement.split())[:60]
    return TransactionControl(
        f"{shown} is not for a handler: the transaction is committed with the completion of its "
        "attempt, and rolled back if the handler raises. A part can be undone by a SAVEPOINT",
        statement=shown,
    )


def _too_late() -> Exception:
    return TransactionControl(
        "the transaction is over, and with it the use of its connection; read what you need inside",
        statement="",
    )
