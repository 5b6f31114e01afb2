"""The reading connection: reopened after an error that makes it unusable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.store.sql.database import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.errors import MillpondError

T = TypeVar("T")
C = TypeVar("C", bound=Connection)


class ReadConnection(Generic[C]):
    """Reads the database; for one thread at a time. The arguments say what differs by driver."""

    def __init__(
        self,
        first: C,
        open_connection: Callable[[], C],
        *,
        dispose: Callable[[C], object],
        is_over: Callable[[C], bool],
        errors: tuple[type[Exception], ...],
        is_lost: Callable[[Any], bool],
        translated: Callable[[Any], MillpondError],
    ) -> None:
        self._connection: C | None = first
        self._open_connection = open_connection
        self._dispose = dispose
        self._is_over = is_over
        self._errors = errors
        self._is_lost = is_lost
        self._translated = translated

    def ask(self, question: Callable[[C], T]) -> T:
        """Return the answer; retry once if a new connection may help."""
        try:
            return self._once(question)
        except self._errors as error:
            if not self._is_lost(error):
                raise self._translated(error) from error
        try:
            return self._once(question)
        except self._errors as error:
            raise self._translated(error) from error

    def _once(self, question: Callable[[C], T]) -> T:
        if self._connection is not None and self._is_over(self._connection):
            self.close()
        if self._connection is None:
            self._connection = self._open_connection()
        try:
            return question(self._connection)
        except self._errors:
            # A question is cheap to repeat, and the caches of the connection may be wrong.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; safe twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._dispose(connection)
