"""What the store needs of a caller's connection, whatever its driver."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple


class Statement(NamedTuple):
    """A statement with one argument; each driver marks its place in its own way."""

    before: str
    after: str

    def with_placeholder(self, placeholder: str) -> str:
        """Return the text of the statement with this placeholder for the argument."""
        return f"{self.before}{placeholder}{self.after}"


class DriverAdapter:
    """A caller's connection. Two adapters are equal if their connections are the same."""

    waits: ClassVar[bool] = False
    """Whether its answers are awaited on an event loop."""
    announces: ClassVar[bool] = True
    """Whether its commit itself notifies other processes."""

    def __init__(self, given: Any) -> None:  # noqa: ANN401 - of any driver
        self.given = given
        self.driver = given
        """The driver's connection, which a pool may lend again and again."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DriverAdapter) and self.given is other.given

    def __hash__(self) -> int:
        return id(self.given)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, perhaps another one by now."""
        raise NotImplementedError

    def state(self) -> str:
        """Return "open", "closed", "failed" or "none" (no transaction); may be awaitable."""
        raise NotImplementedError

    def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text, or to be awaited
        """Execute a statement and return the one text it gives."""
        raise NotImplementedError
