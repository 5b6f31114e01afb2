"""The audit over rows: the records of one transaction are one row."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from millpond.core.audit import KIND_OF, RUN_FINISHED, Record, RecordKind, command_record
from millpond.core.lifecycle import LIFECYCLE, Status, Transition
from millpond.core.task import Dedupe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.core.audit import AuditNote
    from millpond.core.task import Task

T = TypeVar("T")

_FIELDS = Record.__struct_fields__
_BEFORE = {
    Transition.SUBMIT: None,
    Transition.CLAIM: Status.QUEUED,
    Transition.LEASE: Status.QUEUED,
    Transition.COMPLETE: Status.RUNNING,
    Transition.FAIL: Status.RUNNING,
    Transition.RETRY: Status.RUNNING,
    Transition.RELEASE: Status.RUNNING,
}
_EVENTS = {event.value: event for event in _BEFORE}
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_SUBMITTED = _pack(Transition.SUBMIT)
_PAIR = 0x92
"""The first byte of an entry with many records: a list of two."""

_SAID = ("key", "share", "weight", "idempotency_key", "dedupe", "on_complete", "attempts")
_said = attrgetter(*_SAID, "call.function")
"""The fields of a submitted task that audit records have."""


class Notes:
    """The same transition of several plain tasks of one worker: one entry."""

    __slots__ = ("_all", "_first", "_of_each", "_said", "count")

    def __init__(
        self,
        tasks: Sequence[Task],
        event: Transition,
        before: Status,
        worker: str | None,
        at: float,
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
        """Return the record of the first task, and the differences of the others."""
        event, before, worker, at = self._all
        common = _noted((self._first, event, before, at, 0, 0, 0, worker, 0.0, False, None, None))
        if self._said.count(self._said[0]) != self.count:
            self._log_progress()
        return common, self._of_each

    def _log_progress(self) -> None:
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


def encoded(records: Sequence[AuditNote | Notes | Record]) -> tuple[bytes, float, int]:
    """Return encoded records, the moment of the last, and their number."""
    rows: list[tuple[Any, ...]] = []
    count = 0
    for one in records:
        if isinstance(one, Notes):
            rows.append(one.entry())
            count += one.count
        else:
            rows.append(_noted(one) if isinstance(one, tuple) else _fields(one))
            count += 1
    last = rows[-1][0]
    return _pack(rows), last[0] if isinstance(last, tuple) else last, count


def _fields(record: Record) -> tuple[Any, ...]:
    """Return the fields of a record, in their order; who gave an order is left out if unknown."""
    fields = msgspec.structs.astuple(record)
    return fields if record.by is not None else fields[:-1]


def _noted(noted: AuditNote) -> tuple[Any, ...]:
    """Return the fields of a note's record, in their order."""
    task, event, before, at, attempt, runs, token, worker, due, fresh, reason, cause = noted
    new = task.new
    key = new.idempotency_key
    return (
        at,
        KIND_OF.get(event, RecordKind.SETTLE),
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


def may_name(stored: bytes, number: int) -> bool:
    """Return whether a row may contain this id: its encoded bytes are in the row."""
    return (b"%d" % number if stored.startswith(b"{") else _pack(number)) in stored


def decoded(stored: bytes) -> list[Record]:
    """Return the records of a row."""
    return list(decoded_lazily(stored))


def decoded_lazily(stored: bytes, first: int = 0) -> Iterator[Record]:
    """Yield the records of a row from number `first` on, each made when it is asked for."""
    if stored.startswith(b"{"):
        row = _unpack_plain(stored)
        records = (
            _finished_runs(row)
            if row.event == RUN_FINISHED
            else (_plain_record(row, arrow) for arrow in _arrows(row))
        )
        yield from islice(records, first, None)
        return
    for raw in _split(stored):
        entry = bytes(raw)
        count = _count(entry)
        if first < count:
            for fields in islice(_records_of(_unpack(entry)), first, None):
                yield msgspec.convert(fields, Record)
        first = max(first - count, 0)


def decoded_of(stored: bytes, task: int) -> Iterator[tuple[int, Record]]:
    """Yield the records of a row that are of one task, with their numbers in the row."""
    if stored.startswith(b"{"):
        row = _unpack_plain(stored)
        if row.event == RUN_FINISHED:
            return  # it names runs, not tasks
        for number, arrow in enumerate(_arrows(row)):
            if arrow[1] == task:
                yield number, _plain_record(row, arrow)
        return
    for number, entry in _entries_with(stored, _pack(task)):
        for at, fields in enumerate(_records_of(_unpack(entry)), number):
            if fields["task"] == task:
                yield at, msgspec.convert(fields, Record)


def submitted_in(stored: bytes) -> Iterator[tuple[int, int]]:
    """Yield the tasks that a row says were submitted, each with the number of its record."""
    if stored.startswith(b"{"):
        row = _unpack_plain(stored)
        if row.event == Transition.SUBMIT:
            yield from enumerate(row.ids)
        return
    for number, entry in _entries_with(stored, _SUBMITTED):
        for at, fields in enumerate(_records_of(_unpack(entry)), number):
            if fields["event"] == Transition.SUBMIT:
                yield at, fields["task"]


def _entries_with(stored: bytes, needle: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the entries of a row that contain some bytes, with the numbers of their records."""
    if needle not in stored:
        return
    entries = list(map(bytes, _split(stored)))
    ends = list(accumulate(map(len, entries)))
    header = len(stored) - ends[-1]
    at, counted, upto = stored.find(needle, header), 0, 0
    while at >= 0:
        index = bisect_right(ends, at - header)
        counted += sum(map(_count, entries[upto:index]))
        upto = index
        yield counted, entries[index]
        at = stored.find(needle, header + ends[index])


def _count(entry: bytes) -> int:
    """Return how many records an entry has: one, or those of a record with differences."""
    return len(_unpack(entry)[1]["task"]) if entry[0] == _PAIR else 1


class _Plain(msgspec.Struct):
    """The same transition of plain tasks, as the server's functions write it.

    A list of one value says it for every task; no keys = none has one.
    """

    at: float
    event: str
    starts: list[bool] | None
    """Which of these transitions are starts of tasks that took over the slots.

    One value: the second half is, and each of it comes right after its counterpart in the first.
    """
    pool: str
    worker: str | None
    tokens: list[int]
    ids: list[int]
    seqs: list[int] | None
    due: list[float]
    keys: list[str | None]
    plain: list[str]
    differs: list[str | None] | None = None
    """What else is stored of each (`_Differs`); None = nothing of any."""


class _Differs(msgspec.Struct):
    """What is stored of a transition that is not that of a first attempt."""

    event: Transition | None = None
    attempt: int | None = None
    runs: int = 0
    reason: str | None = None
    lane: str | None = None
    sequence: int | None = None
    """Its number in its lane."""


class _Said(msgspec.Struct):
    """The submitted fields of a plain task."""

    function: str
    attempts: int
    weight: int
    share: str | msgspec.UnsetType | None = msgspec.UNSET
    """Left out where it is the key: so all tasks of a pool say the same, and it is stored once."""
    idempotency_key: str | None = None
    dedupe: Dedupe | None = None
    run: int | None = None


_unpack_plain = msgspec.json.Decoder(_Plain).decode
_unpack_said = msgspec.json.Decoder(_Said).decode
_unpack_differs = msgspec.json.Decoder(_Differs).decode
_ALIKE = _Differs()


_Arrow: TypeAlias = tuple[Transition, int, int, int, float, str | None, _Said, _Differs]
"""A transition of a plain task: event, task, seq, token, due, key, submitted fields, and more."""


def _finished_runs(packed: _Plain) -> Iterator[Record]:
    for run in packed.ids:
        yield command_record(packed.pool, RUN_FINISHED, at=packed.at, run=run)


def _arrows(packed: _Plain) -> list[_Arrow]:
    """Return the transitions of a row, in their order."""
    count = len(packed.ids)
    said = [_unpack_said(text) for text in packed.plain]
    keys: list[str | None] = packed.keys or [None]
    differs = [_unpack_differs(text) if text else _ALIKE for text in packed.differs or (None,)]
    events, starts, half = [_EVENTS[packed.event]], packed.starts, count // 2
    in_two = starts is not None and len(starts) == 1
    if starts is not None:
        flags = [at >= half for at in range(count)] if in_two else starts
        events = [Transition.LEASE if start else events[0] for start in flags]
    arrows = list(
        zip(
            of_each(events, count),
            packed.ids,
            packed.seqs or (),
            of_each(packed.tokens, count),
            of_each(packed.due, count),
            of_each(keys, count),
            of_each(said, count),
            of_each(differs, count),
            strict=True,
        )
    )
    if in_two:
        ends_and_starts = zip(arrows[:half], arrows[half:], strict=True)
        arrows = [arrow for pair in ends_and_starts for arrow in pair]
    return arrows


def _plain_record(packed: _Plain, arrow: _Arrow) -> Record:
    event, task, seq, token, due, key, said, differs = arrow
    event = differs.event or event
    before = _BEFORE[event]
    runs = 1 if event in (Transition.LEASE, Transition.COMPLETE) else 0
    attempt = runs if differs.attempt is None else differs.attempt
    return Record(
        at=packed.at,
        kind=KIND_OF.get(event, RecordKind.SETTLE),
        pool=packed.pool,
        task=task,
        event=event,
        before=before,
        after=LIFECYCLE[before, event],
        attempt=attempt,
        attempts=said.attempts,
        runs=differs.runs or runs,
        token=token,
        worker=packed.worker,
        key=key,
        share=key if isinstance(said.share, msgspec.UnsetType) else said.share,
        lane=differs.lane,
        seq=seq,
        sequence=seq if differs.lane is None or differs.sequence is None else differs.sequence,
        due=due,
        weight=said.weight,
        function=said.function,
        idempotency_key=said.idempotency_key,
        dedupe=said.dedupe,
        run=said.run,
        reason=differs.reason,
        fresh=event is Transition.SUBMIT,
    )


def of_each(values: list[T], count: int) -> list[T]:
    """Return `count` values; a single value is repeated."""
    return values * count if len(values) == 1 else values


def _records_of(entry: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each record of an entry."""
    if not isinstance(entry[0], list):
        # A record that does not say who gave an order has one field less.
        yield dict(zip(_FIELDS, entry, strict=False))
        return
    row, of_each = entry
    common = dict(zip(_FIELDS, row, strict=False))
    for values in zip(*of_each.values(), strict=True):
        yield {**common, **dict(zip(of_each, values, strict=True))}
