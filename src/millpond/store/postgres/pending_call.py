"""A statement that was sent, and whose answer is read as it arrives."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from millpond.store.postgres.pipeline import Cursor, PostgresConnection, Row

Steps: TypeAlias = Generator[None, None, str]
"""Reads answers; yields when more data must arrive first."""


class PendingServerCall:
    """A sent statement, alone in its transaction; for one thread at a time."""

    __slots__ = ("_connection", "_cursor", "_steps", "is_sent")

    def __init__(self, connection: PostgresConnection, cursor: Cursor) -> None:
        self._connection = connection
        self._cursor = cursor
        self._steps = connection.send_off()
        self.is_sent = connection.is_sent
        """Whether all of it was sent, and only the answer is missing."""

    def proceed(self) -> tuple[str, Row | None] | None:
        """Read what has arrived, without waiting; return the outcome and the row if complete."""
        try:
            self._connection.take_in()
        except BaseException as error:  # noqa: BLE001 - the generator raises it again
            # The rest of the answer would be taken for that of another call.
            self._connection.close()
            self._steps.throw(error)
        try:
            next(self._steps)
        except StopIteration as over:
            return over.value or "COMMIT", self._cursor.fetchone()
        return None

    def finish(self) -> tuple[str, Row | None]:
        """Wait for the rest; return the outcome and the row."""
        status = self._connection.waited_for(self._steps)
        return status or "COMMIT", self._cursor.fetchone()
