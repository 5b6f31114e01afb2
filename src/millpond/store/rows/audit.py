"""The audit in rows: the records of one transaction are one row."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.audit import KIND_OF, Kind, Record
from millpond.core.lifecycle import LIFECYCLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.core.audit import Note
    from millpond.core.lifecycle import Event, Status
    from millpond.core.task import Task

_FIELDS = Record.__struct_fields__
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[list[Any]]).decode

_SAID = ("key", "share", "weight", "idempotency_key", "dedupe", "on_complete", "attempts")
_said = attrgetter(*_SAID, "call.function")
"""What the submitter said of a task, as far as the audit tells of it."""


class Notes:
    """The same arrow of several plain tasks that have or had the same worker: one entry."""

    __slots__ = ("_all", "_first", "_of_each", "_said", "count")

    def __init__(
        self, tasks: Sequence[Task], event: Event, before: Status, worker: str | None, at: float
    ) -> None:
        self._first = tasks[0]
        self._all = (event, before, worker, at)
        # By value, because later arrows change it.
        self._of_each = {
            "task": [task.new.id for task in tasks],
            "attempt": [task.attempt for task in tasks],
            "runs": [task.runs for task in tasks],
            "token": [task.token for task in tasks],
            "seq": [task.seq for task in tasks],
            "sequence": [task.sequence for task in tasks],
            "due": [task.due for task in tasks],
        }
        self._said = [_said(task.new) for task in tasks]
        self.count = len(tasks)

    def entry(self) -> tuple[Any, ...]:
        """Return the record of the first, and in what those of the others differ."""
        event, before, worker, at = self._all
        common = _noted((self._first, event, before, at, 0, 0, 0, worker, 0.0, False, None, None))
        if self._said.count(self._said[0]) != self.count:
            self._tell_what_was_said()
        return common, self._of_each

    def _tell_what_was_said(self) -> None:
        columns: dict[str, list[Any]] = dict(
            zip((*_SAID, "function"), map(list, zip(*self._said, strict=True)), strict=True)
        )
        calls, keys = columns.pop("on_complete"), columns["idempotency_key"]
        columns["callback"] = [call is not None for call in calls]
        columns["dedupe"] = [
            dedupe if key is not None else None
            for key, dedupe in zip(keys, columns["dedupe"], strict=True)
        ]
        self._of_each.update(columns)


def encoded(records: Sequence[Note | Notes | Record]) -> tuple[bytes, float, int]:
    """Return records as bytes, when the last of them was written, and how many they are."""
    rows: list[tuple[Any, ...]] = []
    count = 0
    for one in records:
        if isinstance(one, Notes):
            rows.append(one.entry())
            count += one.count
        else:
            rows.append(_noted(one) if isinstance(one, tuple) else msgspec.structs.astuple(one))
            count += 1
    last = rows[-1][0]
    return _pack(rows), last[0] if isinstance(last, tuple) else last, count


def _noted(noted: Note) -> tuple[Any, ...]:
    """Return the fields of a note's record, in their order; a record of its own costs as much."""
    task, event, before, at, attempt, runs, token, worker, due, fresh, reason, cause = noted
    new = task.new
    key = new.idempotency_key
    return (
        at,
        KIND_OF.get(event, Kind.SETTLE),
        new.pool,
        new.id,
        event,
        before,
        LIFECYCLE[before, event],
        attempt,
        new.attempts,
        runs,
        token,
        worker,
        new.key,
        new.share,
        task.lane,
        task.seq,
        task.sequence,
        due,
        new.weight,
        fresh,
        new.run,
        new.owner,
        new.call.function,
        key,
        new.dedupe if key is not None else None,
        new.on_complete is not None,
        cause,
        reason,
        None,
    )


def encoded_number(number: int) -> bytes:
    """Return what a row that tells of this number holds somewhere, as others may too."""
    return _pack(number)


def decoded(stored: bytes) -> list[Record]:
    """Return the records of a row."""
    return [
        msgspec.convert(told, Record) for entry in _unpack(stored) for told in _records_of(entry)
    ]


def _records_of(entry: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield what each record of an entry tells."""
    if not isinstance(entry[0], list):
        yield dict(zip(_FIELDS, entry, strict=True))
        return
    row, of_each = entry
    common = dict(zip(_FIELDS, row, strict=True))
    for values in zip(*of_each.values(), strict=True):
        yield {**common, **dict(zip(of_each, values, strict=True))}
