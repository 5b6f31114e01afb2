"""Server calls: a function of the server that does a verb in one call and one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from millpond.store.postgres.flush import Flush

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.store.postgres.cursor import Row
    from millpond.store.postgres.encoding import Sent


class PreparedCall(NamedTuple):
    """One prepared call of a function of the server."""

    statement: str
    arguments: Callable[[], list[Sent]]
    answers: Callable[[Row | None], list[Any]]
    """Turns its row into the answers. None = the server refused."""
    is_large: bool = False
    """Whether encoding it takes too long for the event loop."""
    flush: Flush = Flush.SEEN
    """What must be on disk before it is answered."""


class ServerCall(msgspec.Struct, frozen=True):
    """A verb for the server to do; equal ones may go in one call."""

    prepare: Callable[[list[Any]], PreparedCall]
    kind: object
    call: Callable[[str, Callable[[], list[Sent]], Flush], Row | None]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Do it, and wait for the answers."""
        prepared = self.prepare(arguments)
        row = self.call(prepared.statement, prepared.arguments, prepared.flush)
        return prepared.answers(row)
