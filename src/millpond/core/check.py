"""Checks for options, shared by everything that is configured: at birth, and blamed by name."""

from __future__ import annotations

import math
import re
from typing import Protocol

from millpond.core.errors import ConfigError

LONGEST_NAME = 128
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]*\Z")


class Span(Protocol):
    """What a timedelta is to the core, which knows no calendar."""

    def total_seconds(self) -> float:
        """Return its length."""


def text(option: str, value: object) -> str:
    """Return `value` if it is a string."""
    if not isinstance(value, str):
        raise ConfigError(option, value, "must be a string")
    return value


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


def whole(option: str, value: object, *, least: int = 0, most: int | None = None) -> int:
    """Return `value` if it is a whole number within its bounds (bool is not a number here)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(option, value, "must be a whole number")
    if value < least:
        raise ConfigError(option, value, f"must be at least {least}")
    if most is not None and value > most:
        raise ConfigError(option, value, f"must be at most {most}")
    return value


def number(option: str, value: object, *, least: float = 0.0, above: float | None = None) -> float:
    """Return `value` as a finite float of at least `least`, and greater than `above` if given."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(option, value, "must be a number")
    if not math.isfinite(value):
        raise ConfigError(option, value, "must be finite")
    if above is not None and value <= above:
        raise ConfigError(option, value, f"must be greater than {above:g}")
    if above is None and value < least:
        raise ConfigError(option, value, f"must be at least {least:g}")
    return float(value)


def seconds(value: float | Span) -> float:
    """Return a length of time in seconds, whichever way it was given."""
    if isinstance(value, (int, float)):
        return value
    if not hasattr(value, "total_seconds"):
        raise TypeError(f"must be seconds or a timedelta, not {type(value).__name__}")
    return value.total_seconds()


def duration(
    option: str, value: float | Span | None, *, least: float = 0.0, above: float | None = None
) -> float | None:
    """Return `value` in seconds if it is a finite number or timedelta within bounds, or None."""
    if value is None:
        return None
    try:
        given = seconds(value)
    except TypeError as error:
        raise ConfigError(option, value, str(error)) from None
    return number(option, given, least=least, above=above)


def instance(option: str, value: object, kind: type) -> None:
    """Object to a value that is not a `kind`."""
    if not isinstance(value, kind):
        raise ConfigError(option, value, f"must be a {kind.__name__}")


def one_of(option: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(option, value, f"must be one of {', '.join(choices)}")
    return value
