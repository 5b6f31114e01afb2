"""What the rows ask of a database: a connection, and its way of saying what they all understand.

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
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows that are left."""
        ...


class Connection(Protocol):
    """A connection whose transactions are begun and ended by hand."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as far as the driver knows."""
        ...

    @property
    def total_changes(self) -> int:
        """A number that has grown whenever a row was changed over this connection."""
        ...

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Cursor:
        """Execute a statement."""
        ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Execute a statement for each row."""
        ...


class Dialect(msgspec.Struct, frozen=True):
    """One database's way of saying what all of them are asked."""

    sql: Mapping[str, str]
    """The statements, by name."""
    listed: Callable[[Sequence[int] | Sequence[str]], object]
    """Makes one argument of many ids or names: one statement then serves any number of them."""
    begin_reading: str
    """Begins a transaction in which everything read is of one moment."""


def miscounted(name: str, expected: int, touched: int) -> Miscounted:
    """Return the error for a write that did not touch the rows it must."""
    return Miscounted(
        f"the write {name!r} touched {touched} rows instead of {expected}: the rows do not fit "
        "together. Nothing was changed; `millpond doctor` says what is wrong",
        statement=name,
        expected=expected,
        touched=touched,
    )
