"""A statement that was sent, and whose answer is read as it arrives."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, TypeAlias

from millpond.store.postgres.flush import MORE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.store.postgres.cursor import Cursor, Row
    from millpond.store.postgres.pipeline import PostgresConnection

Steps: TypeAlias = Generator[None, None, str]
"""Reads answers; yields when more data must arrive first."""


class PendingServerCall:
    """A sent statement, alone in its transaction; for one thread at a time."""

    __slots__ = ("_cursor", "_numbered", "_steps", "connection", "is_sent")

    def __init__(
        self,
        connection: PostgresConnection,
        cursor: Cursor,
        numbered: Callable[[int | None], None] | None = None,
    ) -> None:
        """`numbered` gets the number of its transaction, from columns that the caller does not."""
        self.connection = connection
        self._cursor = cursor
        self._numbered = numbered
        self._steps = connection.send_off()
        self.is_sent = connection.is_sent
        """Whether all of it was sent, and only the answer is missing."""

    def proceed(self) -> tuple[str, Row | None] | None:
        """Read what has arrived, without waiting; return the outcome and the row if complete.

        Calls that were sent one behind the other are read one after the other.
        """
        try:
            self.connection.take_in()
        except BaseException as error:  # noqa: BLE001 - the generator raises it again
            # The rest of the answer would be taken for that of another call.
            self.connection.close()
            self._steps.throw(error)
        try:
            next(self._steps)
        except StopIteration as over:
            return self._ended(over.value)
        return None

    def finish(self) -> tuple[str, Row | None]:
        """Wait for the rest; return the outcome and the row."""
        return self._ended(self.connection.waited_for(self._steps))

    def _ended(self, status: str) -> tuple[str, Row | None]:
        row = self._cursor.fetchone()
        if row is not None and self._numbered is not None:
            self._numbered(row[-MORE_COLUMNS])
            row = row[:-MORE_COLUMNS]
        return status or "COMMIT", row
