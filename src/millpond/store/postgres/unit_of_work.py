"""The tables on a server: plain tasks may be folded into their lease, and are unfolded here.

The server starts and completes plain tasks by itself (step.py), and then keeps no row for each that
runs. The verbs work on rows and must find all of them. So a statement that may find running tasks
first gives those tasks their rows back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from millpond.core.task import Dedupe
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.sql.codec import SEQ_BITS, body_of, place_of
from millpond.store.sql.unit_of_work import SqlTables

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

    from millpond.core.task import NewTask
    from millpond.store.postgres.detours import Detours
    from millpond.store.sql.codec import Row, TaskRow
    from millpond.store.sql.database import Cursor

_OF_SOME = frozenset({"live_tasks"})
"""What asks for tasks by their ids, given as its one argument."""

_OF_ALL = frozenset(
    {
        *("held_by", "held_ahead_by", "live_of_pool", "live_of_run", "rest_of_run"),
        *("held_per_unit", "held_of_unit", "held_in_pool"),
    }
)
"""What finds tasks that run by something else."""

_PUT_IN = {
    "add_queued": (-1, 0),
    "add_live": (-1, 0),
    "change_live": (-2, -1),
    "update_live": (-2, -1),
}
"""Statements that may put tasks into a queue -> the indexes of group and place in their rows."""

_FROM_THE_FIRST = frozenset({"next_of_group", "next_due"})

_NOT_LOOKED: Row = (None, None, None)

_BEHIND_ALL = (1 << 63) - 1
"""A rank behind every other."""

KEPT_LONGER = 1 / 8
"""How much longer than it is kept an audit record may stay: so much of it is one part."""

FIRST_GROUP = 1 << 20
"""Groups with lower numbers are the one line of a pool without groups, or 0: what is not due."""

_encode = msgspec.json.Encoder().encode


class PostgresTables(SqlTables):
    """One unit of work on a server."""

    folds = False
    """Whether there may be folded tasks."""
    detours: Detours | None = None
    """Counts to store along with the next write."""
    audit_due: deque[tuple[float, float]] | None = None
    """Where to note which part of the audit is full, and which is too old: by their moments."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - as all rows have it
        super().__init__(*arguments, **named)
        self._put_in: dict[int, list[int]] = {}
        """Places of tasks that were put into the queue of a pool, and of those that wait."""
        self._seated: dict[int, tuple[int, int]] = {}
        """The first place that was given to a share of a pool, of those that all may claim from."""
        self._found: dict[int, Row] = {}
        """The first tasks of a queue as read, by its pool: rank and place of the first ready one,
        and when the first of the others is due; None where nothing was read."""

    def ask(self, name: str, arguments: Sequence[Any] = ()) -> Cursor:
        """Execute a statement; one that may find running tasks finds each in a row of its own."""
        if self.folds and name in _OF_ALL:
            self.folds = False
            self._unfold(None)
        elif self.folds and name in _OF_SOME:
            self._unfold(arguments[0])
        return super().ask(name, arguments)

    def _unfold(self, these: Any) -> None:  # noqa: ANN401 - a list of ids, as the database takes it
        super().ask("unfold", (these,))
        # This query writes: answers to queries that were sent ahead of it are out of date.
        if isinstance(self.connection, PostgresConnection):
            self.connection.foresee_nothing()

    def trimmed(self) -> int:
        """Let go of what the next transaction will hardly ask for, or what may be old by then."""
        # A renewal leaves the version as it is, or each would wake idle processes. So rows of
        # workers may be old here although the version is the same.
        self.workers.forget()
        return super().trimmed()

    # Marks of a queue: where claims begin to look for ready tasks

    def send(self, name: str, rows: Sequence[Row]) -> None:
        """Execute a statement for each row; what it puts into a queue must be found there."""
        super().send(name, rows)
        if name == "save_seat":
            for pool, _, owner, turn, joined, resting in rows:
                if not owner and not resting:
                    first = self._seated.get(pool, (turn, joined))
                    self._seated[pool] = min(first, (turn, joined))
        if name in _PUT_IN:
            grp, place = _PUT_IN[name]
            for row in rows:
                if row[grp] is not None and row[grp] < FIRST_GROUP:
                    self._put_in.setdefault(row[place] >> SEQ_BITS, []).append(row[place])

    def _must_touch(self, done: Any, name: str, count: int) -> None:  # noqa: ANN401 - cursors
        """Let the connection notice it when the server answers, which is not waited for here."""
        cursors = done if isinstance(done, list) else [done]
        for cursor in cursors:
            cursor.must_touch = (name, count // len(cursors))

    def look_at_live(self, name: str, arguments: Sequence[Any]) -> list[TaskRow]:
        """Return the live tasks that a statement finds, for reading only."""
        found = super().look_at_live(name, arguments)
        pool = arguments[0]
        if name in _FROM_THE_FIRST and pool < FIRST_GROUP and not self._readonly:
            seen = self._found.get(pool, _NOT_LOOKED)
            first = self._first_of(name, pool, found)
            # A verb that reads the first due task reads the first ready one next: keep both.
            self._found[pool] = tuple(
                old if new is None else new for new, old in zip(first, seen, strict=True)
            )
        return found

    def _first_of(self, name: str, pool: int, found: list[TaskRow]) -> Row:
        """Return where the first that was found stands; if none was, there is nothing at all."""
        if name == "next_due":
            return None, None, found[0].due if found else self.latest
        if not found:
            return _BEHIND_ALL, 0, None
        return found[0].rank, place_of(pool, found[0].seq), None

    def write_rows(self) -> None:
        """Send every row that changed to the file, and where to look for it."""
        super().write_rows()
        found, self._found = self._found, {}
        put_in, self._put_in = self._put_in, {}
        seated, self._seated = self._seated, {}
        for pool, place in seated.items():
            super().send("lower_ring", [(pool, *place)])
        for pool, first in found.items():
            super().ask("raise", (pool, *first))
        for pool, places in put_in.items():
            super().ask("lower", (pool, self.listed(places)))
        self._save_detours()

    def _save_detours(self) -> None:
        """Store counts of detours with other changes only: asking an empty pool writes nothing."""
        writes = bool(self._records) or self.connection.total_changes != self._changes
        detours = self.detours.to_save() if writes and self.detours is not None else []
        if detours:
            super().send("add_detours", detours)

    def prune_audit(self, before: float) -> None:
        """Have the parts of the audit emptied that are too old, once this is committed.

        What a part keeps for too long, because it holds newer records too, is deleted row by row.
        """
        longer = (self.latest - before) * KEPT_LONGER
        if self.audit_due is not None:
            self.audit_due.append((self.latest - longer, before))
        first = self.ask("first_of_audit").fetchone()
        if first is not None and first[0] < before - longer:
            super().prune_audit(before - longer)

    def task_row(self, place: int, new: NewTask) -> Row:
        """Return the row of a task's body, with what the server must know of a plain one."""
        return place, new.id, body_of(new), plain_text(new)

    def body_row(self, task: TaskRow) -> Row:
        """Return the arguments that write the body of an updated task."""
        return body_of(task.new), plain_text(task.new), task.stored_at


def is_plain(new: NewTask) -> bool:
    """Return whether the functions of the server know everything that hangs on a task."""
    return (
        new.owner is None
        and new.on_complete is None
        and (new.run is None or not new.is_callback)
        and (new.idempotency_key is None or new.dedupe is not Dedupe.RUN)
    )


def plain_text(new: NewTask) -> str | None:
    """Return the fields of a plain task as JSON; None if the task is not plain."""
    if not is_plain(new):
        return None
    function, attempts, weight = new.call.function, new.attempts, new.weight
    share = UNSET if new.share == new.key else new.share
    if new.run is None:
        if new.idempotency_key is None:
            return _row_text(function, attempts, weight, share)
        before, after = _around_key(function, attempts, weight, share, new.dedupe)
        return before + _encode(new.idempotency_key).decode() + after
    fields = _said(function, attempts, weight, share)
    if new.idempotency_key is not None:
        fields |= {"idempotency_key": new.idempotency_key, "dedupe": new.dedupe}
    fields["run"] = new.run
    return _encode(fields).decode()


@lru_cache(maxsize=10_000)
def _row_text(function: str, attempts: int, weight: int, share: str | UnsetType | None) -> str:
    return _encode(_said(function, attempts, weight, share)).decode()


@lru_cache(maxsize=10_000)
def _around_key(
    function: str, attempts: int, weight: int, share: str | UnsetType | None, dedupe: Dedupe
) -> tuple[str, str]:
    """Return what stands before and behind the idempotency key of such a task."""
    fields = _said(function, attempts, weight, share)
    # The last NUL in the JSON marks the place of the key.
    text = _encode(fields | {"idempotency_key": "\0", "dedupe": dedupe}).decode()
    before, _, after = text.rpartition(r'"\u0000"')
    return before, after


def _said(
    function: str, attempts: int, weight: int, share: str | UnsetType | None
) -> dict[str, Any]:
    plain = {"function": function, "attempts": attempts, "weight": weight}
    return plain if share is UNSET else plain | {"share": share}
