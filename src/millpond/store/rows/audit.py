"""The audit in rows: the records of one transaction are one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.audit import KIND_OF, Kind, Record
from millpond.core.lifecycle import LIFECYCLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.audit import Note

_FIELDS = Record.__struct_fields__
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[list[Any]]).decode


def encoded(records: Sequence[Note | Record]) -> tuple[bytes, float]:
    """Return records as bytes, and when the last of them was written."""
    rows = [_noted(r) if isinstance(r, tuple) else msgspec.structs.astuple(r) for r in records]
    return _pack(rows), rows[-1][0]


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


def decoded(stored: bytes) -> list[Record]:
    """Return the records of a row."""
    return [
        msgspec.convert(dict(zip(_FIELDS, row, strict=True)), Record) for row in _unpack(stored)
    ]
