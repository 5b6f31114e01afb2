"""A connection lent to a handler: it may read and write, and the transaction is not its to end."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from millpond.core.errors import TransactionControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

_ENDS_OR_BEGINS = re.compile(
    r"""(?: \s | ; | --[^\n]*(?:\n|$) | /\* .*? \*/ )*  # what may stand before a statement
        (?: BEGIN | COMMIT | END | ROLLBACK (?! \s+ (?:TRANSACTION\s+)? TO \b ) ) \b""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


class LentCursor(sqlite3.Cursor):
    """A cursor that refuses to begin, commit or roll back."""

    def __init__(self, connection: sqlite3.Connection, lent: LentConnection) -> None:
        super().__init__(connection)
        self._lent = lent

    def execute(self, statement: str, parameters: Any = (), /) -> Self:  # noqa: ANN401 - as sqlite3
        """Execute a statement."""
        with self._lent.use(statement):
            return super().execute(statement, parameters)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Self:
        """Execute a statement for each row."""
        with self._lent.use(statement):
            return super().executemany(statement, rows)

    def executescript(self, script: str, /) -> NoReturn:
        """Refuse: it would commit first."""
        del script
        raise _refusal("executescript()")


class LentConnection:
    """What a handler is given in place of the connection itself.

    It knows `execute`, `executemany` and `cursor`, as sqlite3 does, and `row_factory` for the
    cursors to come. When the handler's part is over it is of no use any more.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.row_factory: Callable[[sqlite3.Cursor, tuple[Any, ...]], Any] | None = None
        self._connection = connection
        self._cursors: WeakSet[LentCursor] = WeakSet()
        self._over: Callable[[], Exception] | None = None
        self.lock = threading.RLock()
        """Held while a statement is executed, and by whoever ends the transaction."""

    def cursor(self) -> LentCursor:
        """Return a new cursor."""
        cursor = LentCursor(self._connection, self)
        cursor.row_factory = self.row_factory
        self._cursors.add(cursor)
        return cursor

    def execute(self, statement: str, parameters: Any = (), /) -> LentCursor:  # noqa: ANN401
        """Execute a statement; return its cursor."""
        return self.cursor().execute(statement, parameters)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> LentCursor:
        """Execute a statement for each row."""
        return self.cursor().executemany(statement, rows)

    def commit(self) -> NoReturn:
        """Refuse: it is committed with the completion of the attempt."""
        raise _refusal("commit()")

    def rollback(self) -> NoReturn:
        """Refuse: raise an error to have everything undone."""
        raise _refusal("rollback()")

    @contextmanager
    def use(self, statement: str) -> Iterator[None]:
        """Have the connection for one statement, if it may be executed."""
        if _ENDS_OR_BEGINS.match(statement):
            raise _refusal(statement)
        with self.lock:
            if self._over is not None:
                raise self._over()
            yield

    def end(self, why: Callable[[], Exception] | None = None) -> None:
        """Execute nothing any more; `why` makes the error for those who try."""
        self._over = why or _too_late

    def close_cursors(self) -> None:
        """Let go of rows that were not fetched: they would keep the connection in the past."""
        for cursor in list(self._cursors):
            cursor.close()


def _refusal(statement: str) -> TransactionControl:
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
