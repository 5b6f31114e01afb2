"""The reading connection: reopened after an error that makes it unusable."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

import psycopg

from millpond.store.postgres.errors import is_gone, translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.store.postgres.pipeline import PostgresConnection
    from millpond.store.postgres.url import Address

T = TypeVar("T")


class PostgresReadConnection:
    """Reads the database; for one thread at a time."""

    def __init__(
        self,
        address: Address,
        open_connection: Callable[[], PostgresConnection],
        first: PostgresConnection | None = None,
    ) -> None:
        self._address = address
        self._open_connection = open_connection
        self._connection = first

    def ask(self, question: Callable[[PostgresConnection], T]) -> T:
        """Return the answer; retry once if a new connection may help."""
        try:
            return self._once(question)
        except psycopg.Error as error:
            if not is_gone(error):
                raise translated(error, self._address) from error
        try:
            return self._once(question)
        except psycopg.Error as error:
            raise translated(error, self._address) from error

    def _once(self, question: Callable[[PostgresConnection], T]) -> T:
        if self._connection is None or self._connection.closed:
            self._connection = self._open_connection()
        try:
            return question(self._connection)
        except psycopg.Error:
            # Asking is cheap to begin anew, and what the connection remembers may be wrong.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; safe twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()
