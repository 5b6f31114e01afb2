"""The audit in rows: the records of one transaction are one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.audit import Record, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.audit import Note

_FIELDS = Record.__struct_fields__
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[list[Any]]).decode


def encoded(records: Sequence[Note | Record]) -> tuple[bytes, float]:
    """Return records as bytes, and when the last of them was written."""
    rows = [msgspec.structs.astuple(told(r) if isinstance(r, tuple) else r) for r in records]
    return _pack(rows), rows[-1][0]


def decoded(stored: bytes) -> list[Record]:
    """Return the records of a row."""
    return [
        msgspec.convert(dict(zip(_FIELDS, row, strict=True)), Record) for row in _unpack(stored)
    ]
