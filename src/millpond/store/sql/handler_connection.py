"""A connection for a handler: it reads and writes, but cannot end the transaction."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from weakref import WeakSet

from millpond.errors import TransactionControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BLANK = re.compile(r"(?: \s | ; | \ufeff | --[^\n]*(?:\n|$) )+", re.VERBOSE)
_COMMENT = re.compile(r"/\* .*? \*/", re.VERBOSE | re.DOTALL)
_COMMENT_MARK = re.compile(r"/\*|\*/")

_ENDS_OR_BEGINS = re.compile(
    r"""(?: BEGIN | START \s+ TRANSACTION | COMMIT | END | ABORT | PREPARE \s+ TRANSACTION
          | ROLLBACK (?! \s+ (?:(?:TRANSACTION|WORK)\s+)? TO \b ) ) \b""",
    re.IGNORECASE | re.VERBOSE,
)


class Closable(Protocol):
    """A cursor that can be closed."""

    def close(self) -> None:
        """Discard its rows."""


class HandlerConnection(Protocol):
    """The interface of a handler's connection, whatever its driver."""

    def execute(self, statement: str, parameters: Any = ..., /) -> Any:  # noqa: ANN401 - a cursor
        """Execute a statement; return the driver's cursor."""

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Any:  # noqa: ANN401 - a cursor
        """Execute a statement for each row."""

    def cursor(self) -> Any:  # noqa: ANN401 - of the driver
        """Return a new cursor."""


class HandlerConnectionBase:
    """A wrapper that a handler gets instead of the connection itself.

    When the handler's part is over it is of no use any more.
    """

    def __init__(self) -> None:
        self._cursors: WeakSet[Closable] = WeakSet()
        self._over: Callable[[], Exception] | None = None
        self.lock = threading.RLock()
        """Held while a statement runs, and to end the transaction."""

    def commit(self) -> NoReturn:
        """Raise TransactionControl: Millpond commits with the completion of the attempt."""
        raise refusal("commit()")

    def rollback(self) -> NoReturn:
        """Raise TransactionControl: raise an error to roll back."""
        raise refusal("rollback()")

    @contextmanager
    def use(self, statement: str) -> Iterator[None]:
        """Return the connection for one statement, if the statement is allowed."""
        if ends_or_begins(statement):
            raise refusal(statement)
        with self.lock:
            if self._over is not None:
                raise self._over()
            yield

    def end(self, why: Callable[[], Exception] | None = None) -> None:
        """Refuse all further statements; `why` makes the error."""
        self._over = why or _too_late

    def over(self) -> Exception | None:
        """Return the error for further statements, if they are refused."""
        return None if self._over is None else self._over()

    def close_cursors(self) -> None:
        """Discard rows that were not fetched: they would keep an old snapshot open."""
        for cursor in list(self._cursors):
            cursor.close()


def ends_or_begins(statement: str) -> bool:
    """Return whether a statement begins or ends a transaction, also behind comments.

    Comments are nested in PostgreSQL and not in SQLite: what either would execute is refused.
    """
    return any(
        _ENDS_OR_BEGINS.match(re.sub(r"/\*.*?\*/|--[^\n]*", " ", statement[at:], flags=re.DOTALL))
        for at in {_first_word(statement, nested=False), _first_word(statement, nested=True)}
    )


def _first_word(statement: str, *, nested: bool) -> int:
    """Return where the first statement begins, behind blanks, semicolons and comments."""
    at = 0
    while True:
        blank = _BLANK.match(statement, at)
        if blank is not None:
            at = blank.end()
        elif statement.startswith("/*", at):
            at = _behind_comment(statement, at, nested=nested)
        else:
            return at


def _behind_comment(statement: str, at: int, *, nested: bool) -> int:
    if not nested:
        found = _COMMENT.match(statement, at)
        return len(statement) if found is None else found.end()
    depth = 0
    for mark in _COMMENT_MARK.finditer(statement, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(statement)


def refusal(statement: str) -> TransactionControl:
    """Return the error for a statement that begins or ends a transaction."""
    shown = " ".join(statement.split())[:60]
    return TransactionControl(
        f"{shown} is not for a handler: the transaction is committed with the completion of its "
        "attempt, and rolled back if the handler raises. A part can be undone by a SAVEPOINT",
        statement=shown,
    )


def ended_by_handler() -> TransactionControl:
    """Return the error for a handler that ended its transaction itself."""
    return TransactionControl(
        "a handler has committed or rolled back the transaction that was lent to it, by a way "
        "around its connection: the attempt is not completed by it, and what the handler wrote "
        "before may be stored. Leave COMMIT to ctx.commit and ctx.transaction",
        statement="",
    )


def _too_late() -> Exception:
    return TransactionControl(
        "the transaction is over, and with it the use of its connection; read what you need inside",
        statement="",
    )
