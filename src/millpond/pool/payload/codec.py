"""One type on its way to JSON bytes and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from millpond.pool.payload.annotations import Hint
from millpond.pool.payload.difference import difference
from millpond.pool.payload.pydantic_models import from_model, is_model, to_model
from millpond.runtime.jobs.outcome import BadResult, Unreadable

T = TypeVar("T")

ENCODER = msgspec.json.Encoder(enc_hook=from_model)
SORTING = msgspec.json.Encoder(enc_hook=from_model, order="deterministic")
"""Sets have no order of their own: equal ones must give equal bytes, in every process.

It sorts dicts too, so a dict keeps its order only in an argument that holds no set.
"""

_MISMATCH = re.compile("Expected `[^`]*`, got `[^`]*`")
_PLAIN = (
    inspect.BoolType,
    inspect.FloatType,
    inspect.IntType,
    inspect.LiteralType,
    inspect.NoneType,
    inspect.StrType,
    inspect.UnionType,
)
_KEYS = (
    inspect.AnyType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.FloatType,
    inspect.IntType,
    inspect.LiteralType,
    inspect.Metadata,
    inspect.StrType,
    inspect.TimeDeltaType,
    inspect.TimeType,
    inspect.UnionType,
    inspect.UUIDType,
)


class Unsupported(Exception):
    """A type cannot be stored; the text says why."""


class Refused(Exception):
    """A value cannot be stored as its type; the text says why."""


class Codec:
    """Encodes and decodes values of one annotation.

    `exact`: it leaves something open (Any), so a value must come back in its very type.
    `plain`: made of scalars only, for which coming back equal is coming back the same.
    `unordered`: it holds sets. `nullable`: None is one of its values.
    """

    __slots__ = ("annotation", "decoder", "exact", "nullable", "plain", "unordered")

    def __init__(self, annotation: Hint) -> None:
        """Raise Unsupported for a type that JSON cannot hold or distinguish."""
        self.annotation: Hint = Any if annotation is object else annotation
        try:
            self.decoder = decoder(self.annotation)
            nodes = list(_nodes(inspect.type_info(self.annotation)))
        except Exception as error:
            # Whatever msgspec or a class of the user's meets while looking at the type.
            raise Unsupported(f"cannot be stored: {error}") from error
        for node in nodes:
            _check(node)
        kinds = {type(node) for node in nodes}
        self.exact = inspect.AnyType in kinds or inspect.CustomType in kinds
        self.plain = kinds.issubset(_PLAIN)
        self.nullable = kinds == {inspect.AnyType} or (self.plain and inspect.NoneType in kinds)
        self.unordered = not kinds.isdisjoint({inspect.SetType, inspect.FrozenSetType})

    def encode(self, value: object) -> bytes:
        """Return `value` as JSON that decodes to the same value, or raise Refused."""
        if value is None and self.nullable:
            # Most handlers return it.
            return b"null"
        try:
            stored = self.pack(value)
            back = self.decoder.decode(stored)
            lost = difference(value, back, exact=self.exact)
        except Exception as error:  # a user's own class may raise anything
            raise Refused(self._objection(value, error)) from error
        if lost is not None:
            raise Refused(self._loss(value, back, lost))
        return stored

    def pack(self, value: object) -> bytes:
        """Return `value` as JSON, unchecked."""
        return _in_order(value) if self.unordered else ENCODER.encode(value)

    def decode(self, stored: bytes) -> object:
        """Return the stored value, or raise Unreadable: whatever the bytes are, nothing else."""
        return read(self.decoder.decode, stored)

    def _loss(self, value: object, back: object, lost: str) -> str:
        """Return what a value would lose, and how to keep it."""
        if _is_no_number(value):
            return f"is {value}, which JSON cannot hold"
        if self.annotation is Any and type(value) is not type(back):
            return f"{lost}; to keep it, say its type in an annotation"
        return lost

    def _objection(self, value: object, error: Exception) -> str:
        """Return why a value was refused, in terms of the caller's types."""
        if isinstance(error, UnicodeEncodeError):
            return "holds a lone surrogate, which is not text"
        if isinstance(error, RecursionError):
            return "is nested too deeply"
        if _is_no_number(value):
            return f"is {value}, which JSON cannot hold"
        if self.annotation is Any:
            return f"cannot be stored: {error}"
        wanted = f"must be {shown(self.annotation)}"
        if isinstance(error, msgspec.ValidationError) and _MISMATCH.fullmatch(str(error)):
            # msgspec speaks of the JSON it saw; the caller knows the given value.
            return f"{wanted}, not {type(value).__name__}"
        return f"{wanted}: {error}"


def _is_no_number(value: object) -> bool:
    """Whether a value is an infinity or nan."""
    return isinstance(value, float) and not math.isfinite(value)


def plain_json(value: object) -> bytes:
    """Return `value` as JSON; ValueError for an infinity or nan in it, which would become null."""
    stored = ENCODER.encode(value)
    # Where the bytes hold no null, no number was lost.
    if b"null" in stored:
        _must_be_finite(msgspec.to_builtins(value, enc_hook=from_model, str_keys=True))
    return stored


def _must_be_finite(plain: object) -> None:
    left = [plain]
    while left:
        value = left.pop()
        if _is_no_number(value):
            message = f"it holds {value}, which JSON cannot hold"
            raise ValueError(message)
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            left += value


def _in_order(value: object) -> bytes:
    """Return JSON in which sets are sorted."""
    if isinstance(value, (frozenset, set)):
        return b"[%b]" % b",".join(sorted(map(_in_order, value)))
    try:
        return SORTING.encode(value)
    except TypeError:
        # A set within, of members that have no order: equal ones may then differ in bytes.
        return ENCODER.encode(value)


def decoder(kind: Hint) -> msgspec.json.Decoder[Any]:
    """Return what decodes JSON to a type."""
    return msgspec.json.Decoder(kind, dec_hook=to_model)


def read(decode: Callable[[bytes], T], stored: bytes) -> T:
    """Decode, or raise Unreadable for anything that can go wrong with bytes from outside."""
    try:
        return decode(stored)
    except Exception as error:
        # Bad JSON, wrong types, endless nesting, or a user's own class that objects.
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def shown(annotation: Hint) -> str:
    """Return an annotation as its author would have written it."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__qualname__
    return repr(annotation).replace("typing.", "")


def _check(node: inspect.Type) -> None:
    """Raise Unsupported for a type that msgspec would accept here and fail on later."""
    match node:
        case inspect.CustomType(cls=kind) if kind is not object and not is_model(kind):
            raise Unsupported(f"cannot be stored: {shown(kind)} is not a type that JSON can hold")
        case inspect.ExtType() | inspect.RawType():
            raise Unsupported("cannot be stored: it is not data")
        case inspect.DictType(key_type=key):
            for one in _nodes(key):
                if not isinstance(one, _KEYS):
                    name = type(one).__name__.removesuffix("Type").lower()
                    raise Unsupported(f"cannot be stored: JSON has no keys of type {name}")
        case _:
            pass


def _nodes(root: inspect.Type) -> Iterator[inspect.Type]:
    """Give every type within a type, once; types may hold themselves."""
    seen: set[int] = set()
    left: list[object] = [root]
    while left:
        node = left.pop()
        if isinstance(node, tuple):
            left.extend(node)
        elif isinstance(node, (inspect.Type, inspect.Field)) and id(node) not in seen:
            seen.add(id(node))
            left.extend(getattr(node, name) for name in node.__struct_fields__)
            if isinstance(node, inspect.Type):
                yield node


PLAIN = Codec(Any)
"""For a value without an annotation: it must come back in its own type."""


def plain_result(value: object, largest: int) -> bytes:
    """Return a closure's result as JSON; BadResult if it would not come back the same."""
    try:
        stored = PLAIN.encode(value)
    except Refused as refused:
        raise BadResult(str(refused)) from refused
    if len(stored) > largest:
        raise BadResult(f"it has {len(stored)} bytes, the limit is {largest}")
    return stored
