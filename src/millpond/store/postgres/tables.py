"""The tables on a server: plain tasks may be folded into their lease, and are unfolded here.

The server starts and completes plain tasks by itself (step.py), and then keeps no row for each that
runs. Whoever works on rows must find them all: so whatever asks for tasks that may run gives them
their rows back first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.store.postgres.connection import PostgresConnection
from millpond.store.rows.rows import body_of
from millpond.store.rows.tables import SqlTables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.task import NewTask
    from millpond.store.rows.database import Cursor
    from millpond.store.rows.rows import Row

_OF_SOME = frozenset({"live_tasks"})
"""What asks for tasks by their ids, given as its one argument."""

_OF_ALL = frozenset(
    {"held_by", "held_ahead_by", "live_of_pool", "held_per_unit", "held_of_unit", "held_in_pool"}
)
"""What finds tasks that run by something else."""

_encode = msgspec.json.Encoder().encode


class PostgresTables(SqlTables):
    """One unit of work on a server."""

    folds = False
    """Whether there may be folded tasks."""

    def ask(self, name: str, asked: Sequence[Any] = ()) -> Cursor:
        """Execute a statement; one that may find running tasks finds each in a row of its own."""
        if self.folds and name in _OF_ALL:
            self.folds = False
            self._unfold(None)
        elif self.folds and name in _OF_SOME:
            self._unfold(asked[0])
        return super().ask(name, asked)

    def _unfold(self, these: Any) -> None:  # noqa: ANN401 - a list of ids, as the database takes it
        super().ask("unfold", (these,))
        # A question that writes: what was asked ahead of it is answered otherwise now.
        if isinstance(self.connection, PostgresConnection):
            self.connection.foresee_nothing()

    def trimmed(self) -> int:
        """Let go of what the next transaction will hardly ask for, or what may be old by then."""
        # A renewal does not count as a write, or whoever rests would look each time.
        self.workers.forget()
        return super().trimmed()

    def task_row(self, place: int, new: NewTask) -> Row:
        """Return the row of a task's body, with what the server must know of a plain one."""
        return place, new.id, body_of(new), plain_text(new)


def plain_text(new: NewTask) -> str | None:
    """Return what is told of a task on which nothing else hangs; None if something does."""
    if (
        new.run is not None
        or new.owner is not None
        or new.on_complete is not None
        or new.idempotency_key is not None
    ):
        return None
    return _told(new.call.function, new.attempts, new.weight, new.share)


@lru_cache(maxsize=10_000)
def _told(function: str, attempts: int, weight: int, share: str | None) -> str:
    told = {"function": function, "attempts": attempts, "weight": weight, "share": share}
    return _encode(told).decode()
