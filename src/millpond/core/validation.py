"""Checks of option values; each raises ConfigError with the name of the option."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from millpond.core import bounds
from millpond.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])

LONGEST_NAME = bounds.MAX_NAME
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]*\Z")


def text(option: str, value: object) -> str:
    """Return `value` if it is a string."""
    if not isinstance(value, str):
        raise ConfigError(option, value, "must be a string")
    return value


def encodable(option: str, value: str) -> str:
    """Return `value` if UTF-8 can encode it: a lone surrogate cannot be stored."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(option, value, "holds a lone surrogate, which is not text") from None
    return value


def storable(option: str, value: object, most: int, *, least: int = 1) -> str:
    """Return `value` if every store can keep it: text of `least` to `most` bytes, without NUL."""
    given = text(option, value)
    # ASCII text has one byte per character.
    size = len(given) if given.isascii() else len(encodable(option, given).encode())
    if not least <= size <= most:
        raise ConfigError(
            option, given, f"has {size:,} bytes in UTF-8, and must have {least} to {most:,}"
        )
    if "\0" in given:
        raise ConfigError(option, given, "holds a NUL character, which no store keeps in a name")
    return given


def surely_fits(value: object, most: int) -> bool:
    """Return whether a value is short ASCII text that every store can keep, or none at all.

    It makes no message, so it costs a fraction of `storable`: bodies of stored tasks are checked
    whenever they are read.
    """
    return isinstance(value, str) and len(value) <= most and value.isascii() and "\0" not in value


def fits(value: object, most: int) -> bool:
    """Return whether a value is text of 1 to `most` bytes that every store can keep."""
    try:
        storable("value", value, most)
    except ConfigError:
        return False
    return True


def cut(value: str, most: int) -> str:
    """Return the first `most` bytes of a text; characters that cannot be encoded become `?`."""
    if len(value) * 4 <= most and value.isascii():
        return value
    data = value[:most].encode("utf-8", "replace")
    return data[:most].decode("utf-8", "ignore")


def name(option: str, given: object) -> str:
    """Return `value` if it can name a pool or bulkhead: short, plain, and never a path or SQL."""
    value = text(option, given)
    if not value or len(value) > LONGEST_NAME:
        raise ConfigError(option, value, f"must have 1 to {LONGEST_NAME} characters")
    if not _NAME.match(value) or ".." in value:
        raise ConfigError(
            option,
            value,
            "may hold only letters, digits and . _ : @ / + - (but no ..), a letter or digit first",
        )
    return value


def integer(option: str, value: object, *, least: int = 0, most: int = bounds.MAX_COUNT) -> int:
    """Return `value` if it is a whole number within its bounds (bool is not a number here)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(option, value, "must be a whole number")
    if value < least:
        raise ConfigError(option, value, f"must be at least {least}")
    if value > most:
        raise ConfigError(option, value, f"must be at most {most}")
    return value


def is_finite(value: float) -> bool:
    """Return whether a number is finite as a float: nan, inf and 10**400 are not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def number(
    option: str,
    value: object,
    *,
    least: float = 0.0,
    above: float | None = None,
    most: float | None = None,
) -> float:
    """Return `value` as a finite float of at least `least`, or greater than `above` if given."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(option, value, "must be a number")
    if not is_finite(value):
        raise ConfigError(option, value, "must be finite")
    if above is not None and value <= above:
        raise ConfigError(option, value, f"must be greater than {above:g}")
    if above is None and value < least:
        raise ConfigError(option, value, f"must be at least {least:g}")
    if most is not None and value > most:
        raise ConfigError(option, value, f"must be at most {most:g}")
    return float(value)


@runtime_checkable
class Lasting(Protocol):
    """A duration, such as a timedelta."""

    def total_seconds(self) -> float:
        """Return it in seconds."""


Seconds: TypeAlias = float | Lasting
"""Seconds may be given as a number or as a timedelta, everywhere."""


def seconds(option: str, value: object, *, least: float = 0.0, above: float | None = None) -> float:
    """Return a duration in seconds, given as a number or as a timedelta; ten years at most."""
    if isinstance(value, Lasting):
        value = value.total_seconds()
    return number(option, value, least=least, above=above, most=bounds.MAX_SECONDS)


def capped_seconds(option: str, value: object) -> float:
    """Return a duration that the caller caps: finite, not negative, however long."""
    if isinstance(value, Lasting):
        value = value.total_seconds()
    return number(option, value)


def moment(option: str, value: object) -> float:
    """Return a moment in seconds since 1970 that every store can keep."""
    return number(option, value, least=-bounds.MAX_MOMENT, most=bounds.MAX_MOMENT)


def instance(option: str, value: object, kind: type, written: str | None = None) -> None:
    """Raise ConfigError unless a value is a `kind`; `written` shows how to write one."""
    if not isinstance(value, kind):
        raise ConfigError(option, value, f"must be {written or f'a {kind.__name__}'}")


def function(option: str, value: Function) -> Function:
    """Return `value` if it can be called."""
    if not callable(value):
        raise ConfigError(option, value, "must be a function")
    return value


def one_of(option: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(option, value, f"must be one of {', '.join(choices)}")
    return value
