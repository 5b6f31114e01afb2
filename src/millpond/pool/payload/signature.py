"""Typed payloads: a function's arguments and result as JSON bytes, and back to the same types.

An argument that would not come back the same is refused at submit, by the parameter's name.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from enum import Enum
from functools import cached_property
from hashlib import blake2b
from inspect import Parameter
from types import UnionType
from typing import Any, Final, Never, NoReturn, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import asdict, astuple

from millpond.core import bounds
from millpond.errors import BadPayload, ConfigError, PayloadTooLarge
from millpond.pool.options import NAMES
from millpond.pool.payload.annotations import Hint, hints_of
from millpond.pool.payload.codec import (
    ENCODER,
    SORTING,
    Codec,
    Refused,
    Unsupported,
    decoder,
    shown,
)
from millpond.pool.payload.difference import difference
from millpond.runtime.jobs.outcome import BadResult, Misfit, Unreadable

__all__ = ["LARGEST", "MISSING", "BadResult", "Signature", "Unreadable", "fingerprint"]

LARGEST = bounds.MAX_PAYLOAD
"""How many bytes arguments or a result may have by default."""

EMPTY = b"{}"
"""The payload of a call without arguments."""


class Missing(Enum):
    """The type of MISSING."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""A parameter has no value: none was given and it has no default."""

_IN_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_LISTS = (list, Sequence)
_UNIONS = (Union, UnionType)


class Signature:
    """What a function takes and gives, as data.

    A payload is a JSON object with an entry per argument that was given. An argument left out is
    not stored: the default that the function has when it runs counts, so a parameter with a
    default can be added under a backlog. A stored argument that the function no longer takes is
    Unreadable, as running without it would be another call than the one that was submitted.

    A batch function takes one list; a payload is one item of it, and a result is one item's.
    """

    __slots__ = (
        "__dict__",
        "_by_name",
        "_call",
        "_codecs",
        "_decode",
        "_defaults",
        "_fill",
        "_most",
        "_optional",
        "_plain",
        "_positional",
        "_record",
        "_rest",
        "_result",
        "_sorted",
        "_spread",
        "_words",
        "largest",
        "name",
        "parameters",
        "quickly",
        "wants_context",
    )

    def __init__(
        self,
        fn: Callable[..., object],
        *,
        name: str,
        context_types: tuple[type, ...] = (),
        outcome_types: tuple[type, ...] = (),
        batch: bool = False,
        largest: int = LARGEST,
    ) -> None:
        """Read a function's annotations; a ConfigError names the one that cannot be stored.

        The worker passes the first parameter if it is annotated with one of `context_types`.
        A batch function may return one of `outcome_types` in place of a result.
        """
        self.name = name
        self.largest = largest
        hints = hints_of(fn, name)
        parameters = _parameters(fn, name)
        self.wants_context = _takes_context(parameters, hints, context_types, name)
        if self.wants_context:
            del parameters[0]
        if batch:
            parameters = _batch(parameters, name)
            hints = _of_items(hints, parameters[0].name, outcome_types, name)
        self.parameters: tuple[str, ...] = tuple(one.name for one in parameters)
        self._call = inspect.Signature(parameters)
        self._codecs = {
            one.name: _codec(_type_of(one, hints), name, one.name) for one in parameters
        }
        self._result = _codec(_given(hints.get("return", Any)), name, "return")
        self._read_shape(parameters)
        self._make_record(parameters)

    def _read_shape(self, parameters: list[Parameter]) -> None:
        """Note how values are passed to the function."""
        kinds = {one.kind for one in parameters}
        names: dict[Any, list[str]] = {kind: [] for kind in kinds}
        for one in parameters:
            names[one.kind].append(one.name)
        self._positional = tuple(one.name for one in parameters if one.kind in _IN_PLACE)
        self._words = tuple(names.get(Parameter.KEYWORD_ONLY, ()))
        self._spread = next(iter(names.get(Parameter.VAR_POSITIONAL, ())), None)
        self._rest = next(iter(names.get(Parameter.VAR_KEYWORD, ())), None)
        self._by_name = Parameter.POSITIONAL_ONLY not in kinds
        variadic = self._spread is not None or self._rest is not None
        self._most = -1 if variadic else len(self._positional)
        self._optional = frozenset(
            one.name for one in parameters if one.default is not one.empty or one.kind in _VARIADIC
        )
        self._fill = tuple(one.default for one in parameters)
        self._defaults = {
            one.name: one.default for one in parameters if one.default is not one.empty
        }

    def _make_record(self, parameters: list[Parameter]) -> None:
        """Make the struct of all arguments: it binds, encodes and decodes them in one go."""
        fields = {
            one.name: (one.name, self._codecs[one.name].annotation, UNSET)
            if one.name in self._optional
            else (one.name, self._codecs[one.name].annotation)
            for one in parameters
        }
        ahead = [fields.pop(name) for name in self._positional]
        self._record: Any = msgspec.defstruct("Arguments", ahead, forbid_unknown_fields=True)
        if fields:
            self._record = msgspec.defstruct(
                "Arguments",
                fields.values(),
                bases=(self._record,),
                kw_only=True,
                forbid_unknown_fields=True,
            )
        self._decode = decoder(self._record).decode
        self._plain = all(codec.plain for codec in self._codecs.values())
        positional = self._plain and self._most >= 0
        self.quickly = _quick_encoder(self._record, self._decode, self.largest, positional)
        """Encodes arguments that were given by position; None = `encode` must look closer."""
        self._sorted = tuple(name for name, codec in self._codecs.items() if codec.unordered)

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Return the arguments as JSON; what does not fit its parameter is a BadPayload."""
        if not args and not kwargs and not self.parameters:
            return EMPTY
        if not kwargs and (quickly := self.quickly(args)) is not None:
            return quickly
        record = self._bind(args, kwargs)
        try:
            payload = ENCODER.encode(self._packed(record) if self._sorted else record)
            # A payload that is too large is refused below, so its content does not matter.
            kept = len(payload) > self.largest or self._survives(record, payload)
        except Exception as error:  # a user's own class may raise anything
            raise self._blamed(record, error) from error
        if not kept:
            raise self._blamed(record, None)
        if len(payload) > self.largest:
            raise self._too_large(len(payload))
        return payload

    def decode(self, payload: bytes) -> tuple[list[object], dict[str, object]]:
        """Return what to call the function with; Unreadable, whatever is wrong with the bytes."""
        if payload == EMPTY and not self.parameters:
            return [], {}
        try:
            record = self._decode(payload)
        except Exception as error:
            # Bad JSON, other parameters, other types, or a user's own class that objects.
            raise self._unreadable(payload, error) from error
        if self._most == len(self.parameters):
            values = astuple(record)
            if not self._defaults:
                return list(values), {}
            pairs = zip(values, self._fill, strict=True)
            return [fill if value is UNSET else value for value, fill in pairs], {}
        return self._arranged(record)

    @cached_property
    def digest(self) -> str:
        """The same for functions that read the same arguments, in every process."""
        try:
            schema = msgspec.json.schema(self._record, schema_hook=_schema)
        except Exception:  # noqa: BLE001 - a user's own class may raise anything
            schema = {one: shown(codec.annotation) for one, codec in self._codecs.items()}
        encoded = msgspec.json.encode(schema, order="sorted", enc_hook=repr)
        return blake2b(encoded, digest_size=5).hexdigest()

    @cached_property
    def text(self) -> str:
        """The function with its parameters, for people."""
        parameters = ", ".join(
            f"{one}: {shown(codec.annotation)}" + (" = ..." if one in self._optional else "")
            for one, codec in self._codecs.items()
        )
        return f"{self.name}({parameters})"[:LONGEST_TEXT]

    def _unreadable(self, payload: bytes, error: Exception) -> Unreadable:
        """Say which argument does not fit; what is no object of arguments at all is damaged."""
        try:
            stored = msgspec.json.decode(payload)
        except Exception as damage:  # noqa: BLE001 - whatever bytes can be
            return Unreadable(f"{type(damage).__name__}: {damage}")
        if not isinstance(stored, dict):
            return Unreadable(f"a {type(stored).__name__} is stored in place of arguments")
        if missing := [one for one in self.parameters if one not in {*stored, *self._optional}]:
            return Misfit(f"no {_listed(missing)} is stored, which it must be given", missing[0])
        if unknown := [one for one in stored if one not in self.parameters]:
            return Misfit(f"{_listed(unknown)} is stored, which it does not take", unknown[0])
        for name, codec in self._codecs.items():
            if name in stored:
                try:
                    codec.decoder.decode(msgspec.json.encode(stored[name]))
                except Exception as objection:  # noqa: BLE001 - a user's own class may raise anything
                    wanted = shown(codec.annotation)
                    return Misfit(f"{name!r} is not what {wanted} takes: {objection}", name)
        return Misfit(f"{type(error).__name__}: {error}")

    def argument(
        self, args: Sequence[object], kwargs: Mapping[str, object], name: str
    ) -> object | Missing:
        """Return the value a call would bind to a parameter, or its default, or MISSING."""
        if name in kwargs:
            return kwargs[name]
        if name in self._positional and (place := self._positional.index(name)) < len(args):
            return args[place]
        default: object = self._defaults.get(name, MISSING)
        return default

    def encode_result(self, value: object) -> bytes:
        """Return the function's result as JSON; BadResult for what cannot be stored."""
        try:
            stored = self._result.encode(value)
        except Refused as refused:
            raise BadResult(f"the result of {self.name} {refused}") from refused
        if len(stored) > self.largest:
            raise BadResult(
                f"the result of {self.name} has {len(stored)} bytes, the limit is {self.largest}"
            )
        return stored

    def decode_result(self, stored: bytes) -> object:
        """Return a stored result in its annotated type, or raise Unreadable."""
        return self._result.decode(stored)

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Struct:
        """Bind as a call would."""
        if len(args) <= self._most and (self._by_name or not kwargs):
            try:
                record: Struct = self._record(*args, **kwargs)
                return record
            except TypeError:
                pass  # Python's own words are better known
        try:
            bound = self._call.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise self._bad(_named(str(error)), f"{error}{_for_options(error)}") from None
        made: Struct = self._record(**bound)
        return made

    def _packed(self, record: Struct) -> Struct:
        """Return the record with its sets in an order of their own."""
        packed = copy(record)
        for name in self._sorted:
            if (value := getattr(record, name)) is not UNSET:
                setattr(packed, name, Raw(self._codecs[name].pack(value)))
        return packed

    def _survives(self, record: Struct, payload: bytes) -> bool:
        """Whether every argument would come back as it was given."""
        back = self._decode(payload)
        if self._plain:
            return bool(record == back)
        for name, codec in self._codecs.items():
            given, got = getattr(record, name), getattr(back, name)
            if difference(given, got, exact=codec.exact) is not None:
                return False
        return True

    def _blamed(self, record: Struct, error: Exception | None) -> BadPayload:
        """Find the argument that cannot be stored."""
        for name, codec in self._codecs.items():
            value = getattr(record, name)
            if value is UNSET and name in self._optional:
                continue
            try:
                codec.encode(value)
            except Refused as refused:
                return self._bad(name, str(refused))
        return self._bad(None, f"cannot be stored: {error}")

    def _bad(self, parameter: str | None, reason: str) -> BadPayload:
        where = self.name if parameter is None else f"{self.name}({parameter})"
        return BadPayload(f"{where}: {reason}", task=self.name, parameter=parameter, reason=reason)

    def _too_large(self, size: int) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"the arguments of {self.name} have {size} bytes, the limit is {self.largest}",
            task=self.name,
            size=size,
            limit=self.largest,
        )

    def _arranged(self, record: Struct) -> tuple[list[object], dict[str, object]]:
        """Return decoded values in the way the function wants them, defaults filled in."""
        values = asdict(record)
        for name, default in self._defaults.items():
            if values[name] is UNSET:
                values[name] = default
        args = [values[name] for name in self._positional]
        kwargs = {name: values[name] for name in self._words}
        if self._spread is not None and (spread := values[self._spread]) is not UNSET:
            args.extend(spread)
        if self._rest is not None and (rest := values[self._rest]) is not UNSET:
            named = {one.name for one in self._call.parameters.values() if one.kind in _BY_NAME}
            if twice := rest.keys() & named:
                raise Misfit(f"arguments stored twice: {', '.join(sorted(twice))}")
            kwargs.update(rest)
        return args, kwargs


def _quick_encoder(
    record: Any,  # noqa: ANN401 - a struct class of its own
    decode: Callable[[bytes], object],
    largest: int,
    positional: bool,
) -> Callable[[tuple[object, ...]], bytes | None]:
    """Return what encodes scalars that were given by position; None = look closer."""
    encode = ENCODER.encode

    def quickly(args: tuple[object, ...]) -> bytes | None:
        try:
            given = record(*args)
            payload = encode(given)
            return payload if len(payload) <= largest and decode(payload) == given else None
        except Exception:  # noqa: BLE001 - what is wrong is found out by the other way
            return None

    return quickly if positional else lambda _: None


LONGEST_TEXT = 300
"""How many characters of a signature are shown."""


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))[:LONGEST_TEXT]


def _schema(kind: type) -> dict[str, Any]:
    """Return what a class of another library takes, as JSON Schema; else its name."""
    make: Any = getattr(kind, "model_json_schema", None)
    made = make() if make is not None else None
    return made if isinstance(made, dict) else {"title": f"{kind.__module__}.{kind.__qualname__}"}


def fingerprint(function: str, payload: bytes) -> int:
    """Return 63 bits that identify a call, the same on every machine for ever.

    Dicts that are equal make equal calls, whatever their order.
    """
    if payload.count(b"{") > 1:
        payload = _canonical(payload)
    name = function.encode("utf-8", "surrogatepass")
    # The length keeps ("ab", b"c") and ("a", b"bc") apart.
    digest = blake2b(b"%d:%b%b" % (len(name), name, payload), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def _canonical(payload: bytes) -> bytes:
    try:
        return SORTING.encode(msgspec.json.decode(payload))
    except Exception:  # noqa: BLE001 - nested too deeply, or no JSON: then every byte counts
        return payload


def _parameters(fn: Callable[..., object], task: str) -> list[Parameter]:
    """Return a function's parameters as a caller sees them."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"task {task}", shown(type(fn)), f"has no signature: {error}") from error
    for one in parameters:
        if one.name.startswith("__"):
            raise ConfigError(f"{task}({one.name})", one.name, "may not begin with two underscores")
    return parameters


def _takes_context(
    parameters: list[Parameter], hints: dict[str, Hint], contexts: tuple[type, ...], task: str
) -> bool:
    """Whether the first parameter is the context; an error if any other one is."""
    found = [one for one in parameters if _is_one_of(hints.get(one.name), contexts)]
    if not found:
        _warn_of_data(parameters, hints, contexts, task)
        return False
    if found != parameters[:1] or found[0].kind not in _IN_PLACE:
        where = f"{task}({found[-1].name})"
        raise ConfigError(where, shown(hints[found[-1].name]), "must be the first parameter")
    return True


def _warn_of_data(
    parameters: list[Parameter], hints: dict[str, Hint], contexts: tuple[type, ...], task: str
) -> None:
    """Say that a first parameter named ctx is no context, where its annotation was forgotten."""
    if not contexts or not parameters or parameters[0].name != "ctx" or "ctx" in hints:
        return
    kinds = " or ".join(f"ctx: millpond.{one.__name__}" for one in contexts)
    warnings.warn(
        f"the first parameter of task {task!r} is named ctx and has no annotation, so it is taken "
        f"for data that a caller gives. Write {kinds} to be given the context, or `ctx: object` "
        "if it is data",
        UserWarning,
        stacklevel=8,
    )


def _is_one_of(hint: Hint, kinds: tuple[type, ...]) -> bool:
    kind = _origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, kinds)


def _origin(hint: Hint) -> Hint:
    """Return the list of list[int]; None for what has no parameters."""
    return get_origin(hint)


def _batch(parameters: list[Parameter], task: str) -> list[Parameter]:
    """Return the one parameter of a batch function, which every item must be given for."""
    if len(parameters) != 1 or parameters[0].kind not in _IN_PLACE:
        taken = ", ".join(one.name for one in parameters)
        raise ConfigError(f"batch task {task}", taken, "must take one list and nothing else")
    return [parameters[0].replace(default=Parameter.empty)]


def _of_items(
    hints: dict[str, Hint], parameter: str, outcomes: tuple[type, ...], task: str
) -> dict[str, Hint]:
    """Return the types of one item and one item's result, from those of the lists."""
    made = {name: _item(hints[name], task, name) for name in {parameter, "return"} & hints.keys()}
    if "return" in made:
        made["return"] = _without(made["return"], outcomes)
    return made


def _item(hint: Hint, task: str, parameter: str) -> Hint:
    """Return what a list is a list of."""
    if hint is Any or hint in _LISTS:
        return Any
    if _origin(hint) not in _LISTS:
        raise ConfigError(f"{task}({parameter})", shown(hint), "must be a list in a batch task")
    return get_args(hint)[0]


def _without(hint: Hint, kinds: tuple[type, ...]) -> Hint:
    """Return a union without some of its members."""
    members = get_args(hint) if _origin(hint) in _UNIONS else (hint,)
    kept = tuple(one for one in members if not _is_one_of(one, kinds))
    return Union[kept] if kept else None  # noqa: UP007 - the members are in a tuple


def _type_of(one: Parameter, hints: dict[str, Hint]) -> Hint:
    """Return the type of all that a parameter binds; without an annotation it may be anything."""
    hint = hints.get(one.name, Any)
    if one.kind is Parameter.VAR_POSITIONAL:
        return tuple.__class_getitem__((hint, ...))
    if one.kind is Parameter.VAR_KEYWORD:
        return dict.__class_getitem__((str, hint))
    return hint


def _given(hint: Hint) -> Hint:
    """Return the type of a result; a function that never returns can promise anything."""
    return Any if hint is Never or hint is NoReturn else hint


def _codec(hint: Hint, task: str, parameter: str) -> Codec:
    try:
        return Codec(hint)
    except Unsupported as error:
        raise ConfigError(f"{task}({parameter})", shown(hint), str(error)) from error


def _for_options(error: TypeError) -> str:
    """Return advice for an option of a submit that was given as an argument; else nothing."""
    name = _named(str(error))
    if name not in NAMES or "unexpected keyword" not in str(error):
        return ""
    with_it = f"options({name}=...)"
    return f"; it is an option: use fn.{with_it}.submit(...), or fn.bind(...).{with_it}"


def _named(message: str) -> str | None:
    """Return the parameter that Python's message about a call is about."""
    found = re.search(r"'(\w+)'", message)
    return None if found is None else found[1]
