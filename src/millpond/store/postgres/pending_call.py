"""A call under way: it was sent, and its answer is taken in as it arrives."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from millpond.store.postgres.pipeline import Cursor, PostgresConnection, Row

Steps: TypeAlias = Generator[None, None, str]
"""Takes in answers; each step ends where more must have arrived before the next one."""


class PendingServerCall:
    """A statement on its way, alone in its transaction; for one thread at a time."""

    __slots__ = ("_connection", "_cursor", "_steps", "is_sent")

    def __init__(self, connection: PostgresConnection, cursor: Cursor) -> None:
        self._connection = connection
        self._cursor = cursor
        self._steps = connection.send_off()
        self.is_sent = connection.is_sent
        """Whether all of it is on its way, so that there is only the answer to wait for."""

    def proceed(self) -> tuple[str, Row | None] | None:
        """Take in what has arrived, without waiting; return the end and the row if that is all."""
        try:
            self._connection.take_in()
        except BaseException as error:  # noqa: BLE001 - raised there, and so here
            # What is left of the answer would be taken for that of another.
            self._connection.close()
            self._steps.throw(error)
        try:
            next(self._steps)
        except StopIteration as over:
            return over.value or "COMMIT", self._cursor.fetchone()
        return None

    def finish(self) -> tuple[str, Row | None]:
        """Wait for the rest; return the end and its row."""
        status = self._connection.waited_for(self._steps)
        return status or "COMMIT", self._cursor.fetchone()
