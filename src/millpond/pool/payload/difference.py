"""Differences: what a value would lose on its way to JSON and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import Any, TypeAlias

import msgspec

from millpond.pool.payload.pydantic_models import is_model

Found: TypeAlias = "tuple[str, str] | None"
"""Where and what, or nothing."""

_CHANGED = "would come back changed"
_SCALARS = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = (dict, frozenset, list, set, tuple)


def difference(given: object, back: object, *, exact: bool) -> str | None:
    """Return what would be lost if `given` came back as `back`, with its path; None if nothing.

    Types count at every level: 1 and True, a tuple and a list, a dataclass and its base differ.
    Two exceptions, for the annotated type: an int where a float is annotated, if it is
    the same number; and, unless `exact`, a builtin container or enum member that stands for its
    plain base (a Counter for a dict, a StrEnum for a str).
    """
    found = _compare(given, back, exact)
    return None if found is None else " ".join(part for part in found if part)


def _compare(given: object, back: object, exact: bool) -> Found:
    if given is back:
        return None
    kind: type = type(back)
    if type(given) is not kind and not _stands_for(given, kind, exact=exact):
        return "", f"{type(given).__name__} would come back as {kind.__name__}"
    return _comparison(kind)(given, back, exact)


def _stands_for(given: object, kind: type, *, exact: bool) -> bool:
    if kind is float and type(given) is int:
        return True
    if exact or not isinstance(given, kind):
        return False
    # Attributes of its own would be lost in silence.
    return isinstance(given, Enum) or (kind in _CONTAINERS and not getattr(given, "__dict__", None))


@lru_cache(maxsize=1024)
def _comparison(kind: type) -> Callable[[Any, Any, bool], Found]:
    """Choose once per type how two of it are compared."""
    if issubclass(kind, (list, tuple)):
        return _items
    if issubclass(kind, dict):
        return _entries
    if issubclass(kind, (set, frozenset)):
        return _members
    if issubclass(kind, (datetime, time)):
        return _moments
    if issubclass(kind, Decimal):
        return _digits
    names = _field_names(kind)
    return _equal if names is None else partial(_fields, names)


def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a class made of fields; None for any other."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in kind.__attrs_attrs__)
    if is_model(kind):
        return (*kind.model_fields, "__pydantic_extra__")
    return None


def _equal(given: object, back: object, _: bool) -> Found:
    return None if given == back else ("", _CHANGED)


def _digits(given: Decimal, back: Decimal, _: bool) -> Found:
    # 1.0 and 1.00 are equal and not the same; NaN is the same and not equal.
    return None if given.as_tuple() == back.as_tuple() else ("", _CHANGED)


def _moments(given: datetime | time, back: datetime | time, _: bool) -> Found:
    """Compare clock face and offset: the name of a zone is not kept, the moment is.

    Nor is the fold of a naive time kept: `datetime.now()` sets it for one hour in autumn, and a
    call that is fine all year must not be refused then.
    """
    if (given.tzinfo is None) != (back.tzinfo is None) or given.utcoffset() != back.utcoffset():
        return "", "would lose its time zone"
    return None if given.replace(tzinfo=None) == back.replace(tzinfo=None) else ("", _CHANGED)


def _items(given: Sequence[object], back: Sequence[object], exact: bool) -> Found:
    if len(given) != len(back):
        return "", _CHANGED
    if _alike(given, back) and list(given) == list(back):
        return None
    for place, (one, other) in enumerate(zip(given, back, strict=True)):
        if found := _compare(one, other, exact):
            return _under(f"[{place}]", found)
    return None


def _entries(
    given: Mapping[object, object],
    back: Mapping[object, object],
    exact: bool,
) -> Found:
    if len(given) != len(back):
        return "", "would lose entries"
    if _alike(given, back) and _alike(given.values(), back.values()) and given == back:
        return None
    keys = {key: key for key in back}
    for key, value in given.items():
        if key not in keys:
            return "", f"has a key of type {type(key).__name__} that would come back changed"
        if found := _compare(key, keys[key], exact):
            return _under("key", found)
        if found := _compare(value, back[key], exact):
            return _under("[...]", found)
    return None


def _members(given: set[object], back: set[object], exact: bool) -> Found:
    if given != back:
        return "", _CHANGED
    same = {member: member for member in back}
    for member in given:
        if found := _compare(member, same[member], exact):
            return _under("member", found)
    return None


def _fields(names: tuple[str, ...], given: object, back: object, exact: bool) -> Found:
    for name in names:
        # A slot may be empty on either side.
        if found := _compare(getattr(given, name, None), getattr(back, name, None), exact):
            return _under(f".{name}", found)
    return None


def _alike(given: Iterable[object], back: Iterable[object]) -> bool:
    """Whether both are made of scalars of the same types: then equal is the same, and quick."""
    kinds = list(map(type, back))
    return _SCALARS.issuperset(kinds) and kinds == list(map(type, given))


def _under(place: str, found: tuple[str, str]) -> tuple[str, str]:
    where, what = found
    return place + where, what
