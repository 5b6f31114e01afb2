"""What the SQL stores need of a database: a connection, and its dialect.

The code in this folder knows no driver. What follows is the little of one that it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from millpond.errors import Miscounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class Cursor(Protocol):
    """The rows that a statement found, as tuples."""

    def fetchone(self) -> Any:  # noqa: ANN401 - a row, or None
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows that are left."""


class Connection(Protocol):
    """A connection with explicit transactions."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as far as the driver knows."""

    @property
    def total_changes(self) -> int:
        """A number that grows with every changed row of this connection."""

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Cursor:
        """Execute a statement."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Execute a statement for each row."""


class Dialect(msgspec.Struct, frozen=True):
    """The statements of one database."""

    sql: Mapping[str, str]
    """The statements, by name."""
    listed: Callable[[Sequence[int] | Sequence[str]], object]
    """Turns many ids or names into one argument, so that one statement takes any number."""
    begin_reading: tuple[str, ...]
    """Statements that begin a read transaction with one snapshot."""


def miscounted(name: str, expected: int, touched: int) -> Miscounted:
    """Return the error for a write that changed an unexpected number of rows."""
    return Miscounted(
        f"the write {name!r} touched {touched} rows instead of {expected}: the rows do not fit "
        "together. Nothing was changed; `millpond doctor` says what is wrong",
        statement=name,
        expected=expected,
        touched=touched,
    )
