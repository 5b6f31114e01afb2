"""Errands: what the server does by itself, in one call and one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.store.postgres.encoding import Sent
    from millpond.store.postgres.pipeline import Row


class ServerCallResult(NamedTuple):
    """One call of a function of the server, and what its row means."""

    statement: str
    arguments: Callable[[], list[Sent]]
    answers: Callable[[Row | None], list[Any]]
    """What those are told who asked for it. Without a row: the server refused."""
    is_large: bool = False
    """Whether it takes so long to be put into words that the event loop should not do it."""


class ServerCall(msgspec.Struct, frozen=True):
    """What somebody wants the server to do; several that are equal may go in one call."""

    prepare: Callable[[list[Any]], ServerCallResult]
    kind: object
    call: Callable[[str, Callable[[], list[Sent]]], Row | None]

    def __call__(self, told: list[Any]) -> list[Any]:
        """Do it, and wait for the answer."""
        calling = self.prepare(told)
        return calling.answers(self.call(calling.statement, calling.arguments))
