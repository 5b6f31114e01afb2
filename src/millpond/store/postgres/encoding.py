"""Encode arguments for the server: text format, and binary for bytes.

The server knows the type of each argument from the statement, so the client sends no types.
"""

from __future__ import annotations

import sys
from array import array as packed
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")

TEXT, BINARY = 0, 1
_BYTEA, _INT8 = 17, 20
"""The OIDs of the types bytea and bigint."""

Sent = tuple[bytes | None, int]
"""An encoded value and its format."""

_EMPTY: Sent = (b"{}", TEXT)


def sent(value: object) -> Sent:
    """Encode one argument."""
    form = _FORMS.get(type(value))
    if form is None:
        # An enumeration of texts or numbers, mostly.
        form = next(form for kind, form in _FORMS.items() if isinstance(value, kind))
    return form(value)


def array(values: Sequence[Any]) -> Sent:
    """Encode many values of one type as one array; None is NULL."""
    if not values:
        return _EMPTY
    kinds = set(map(type, values))
    if kinds <= {int}:
        return ("{" + ",".join(map(str, values)) + "}").encode(), TEXT
    if bytes in kinds:
        return _array_of_bytes(values), BINARY
    if kinds == {str}:
        return _array_of_texts(values).encode(), TEXT
    return ("{" + ",".join(map(_element, values)) + "}").encode(), TEXT


def array_of_bigints(values: packed[int]) -> Sent:
    """Encode many numbers as one array of bigint, for a parameter of that very type."""
    if not values:
        return _EMPTY
    count, numbers = len(values), values[:]
    if sys.byteorder == "little":
        numbers.byteswap()
    octets = numbers.tobytes()
    # Each has its length before it. All first octets at once, then all second ones: no loop.
    items = bytearray(12 * count)
    items[3::12] = b"\x08" * count
    for at in range(8):
        items[4 + at :: 12] = octets[at::8]
    return _head(_INT8, count, has_null=False) + items, BINARY


def columns(rows: Iterable[Sequence[Any]]) -> list[Sent]:
    """Encode rows as one array per column."""
    return [array(column) for column in zip(*rows, strict=True)]


def listed(values: Sequence[int] | Sequence[str]) -> str:
    """Encode many ids or names as one array."""
    if values and isinstance(values[0], str):
        return _array_of_texts(values)  # type: ignore[arg-type]
    return "{" + ",".join(map(str, values)) + "}"


def _text(value: str) -> Sent:
    if "\0" in value:
        # The driver's library would take it for the end of the text.
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return value.encode(), TEXT


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int):
        return str(int(value))
    return repr(value)


def _quoted(value: str) -> str:
    if "\0" in value:
        _text(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _array_of_texts(values: Sequence[str]) -> str:
    """Return the text format of an array of texts: all are quoted together."""
    # No text for the server has a NUL, so one marks where a value ends.
    joined = "\0".join(values)
    if joined.count("\0") >= len(values):
        _text(joined)
    quoted = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return '{"' + quoted + '"}'


def _array_of_bytes(values: Sequence[bytes | None]) -> bytes:
    """Return the binary format of an array of bytea."""
    head = _head(_BYTEA, len(values), has_null=None in values)
    lengths = [-1 if value is None else len(value) for value in values]
    length_of = {one: one.to_bytes(4, "big", signed=True) for one in set(lengths)}
    items = [b""] * (2 * len(values))
    items[::2] = map(length_of.__getitem__, lengths)
    items[1::2] = [value or b"" for value in values]
    return b"".join([head, *items])


def _head(kind: int, count: int, *, has_null: bool) -> bytes:
    """Return the beginning of an array in binary format."""
    return b"".join([number.to_bytes(4, "big") for number in (1, has_null, kind, count, 1)])


_FORMS: Mapping[type, Callable[[Any], Sent]] = {
    int: lambda value: (b"%d" % value, TEXT),
    str: _text,
    float: lambda value: (repr(value).encode(), TEXT),
    bytes: lambda value: (value, BINARY),
    type(None): lambda _: (None, TEXT),
}


def collapsed(values: list[T]) -> list[T]:
    """Return one value for all if all are equal: so the server reads a list."""
    return values[:1] if alike(values) else values


def alike(values: Sequence[object]) -> bool:
    """Return whether all values are equal."""
    return len(values) < 2 or values.count(values[0]) == len(values)
