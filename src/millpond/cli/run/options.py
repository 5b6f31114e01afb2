"""Parse the values of options: jobs, times, rates, when to halt."""

from __future__ import annotations

import argparse
import math
import os
import re
from typing import Literal

import msgspec

from millpond.core.rate import Rate
from millpond.errors import ConfigError

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
"""Seconds per unit of time; the default unit is seconds."""

MOST_JOBS = 100_000

_TIME = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([smhd]?)\Z", re.ASCII)
_RATE = re.compile(r"(\d+)/(\d*(?:\.\d+)?)([smhd])\Z", re.ASCII)
_HALT = re.compile(r"(now|soon),(fail|success|done)=(\d+)(%?)\Z", re.ASCII)

ESCAPES = {r"\0": b"\0", r"\n": b"\n", r"\t": b"\t", r"\r": b"\r"}


class Halt(msgspec.Struct, frozen=True):
    """When to end a run before all its items are done."""

    when: Literal["now", "soon"]
    """`now` kills running commands, `soon` lets them end."""
    of: Literal["fail", "success", "done"]
    count: int
    percent: bool = False

    def is_met(self, *, failed: int, succeeded: int, total: int | None) -> bool:
        """Return whether to halt. A percentage needs the total, None while items are read."""
        counted = {"fail": failed, "success": succeeded, "done": failed + succeeded}[self.of]
        if not self.percent:
            return counted >= self.count
        return total is not None and counted > 0 and counted * 100 >= self.count * total


def jobs(text: str) -> int:
    """Return how many run at a time: a number, a share of the cores, or 0 for all at once."""
    cores = os.cpu_count() or 1
    found = re.fullmatch(r"(\+?)(\d+)(%?)", text, re.ASCII)
    if found is None or (found[1] and found[3]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 8, 150%, +2 or 0")
    number = int(found[2])
    if found[3]:
        return min(max(cores * number // 100, 1), MOST_JOBS)
    if found[1]:
        return min(cores + number, MOST_JOBS)
    return min(number or MOST_JOBS, MOST_JOBS)


def count(text: str) -> int:
    """Return a whole number from 1 on."""
    return whole_number(text, least=1)


def whole_number(text: str, least: int = 0) -> int:
    """Return a whole number."""
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return int(text)


def seconds(text: str) -> float:
    """Return a time above zero, such as 30, 1.5, 5m or 2h, in seconds."""
    found = _TIME.match(text)
    value = float(found[1]) * UNITS[found[2]] if found else math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 30, 1.5, 5m or 2h")
    return value


def pause(text: str) -> float:
    """Return a time, which may be none at all, in seconds."""
    return 0.0 if text == "0" else seconds(text)


def rate(text: str) -> Rate:
    """Return a rate such as 10/s, 100/m or 1/30s; starts are spread evenly."""
    found = _RATE.match(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate such as 10/s, 100/m or 1/30s")
    try:
        return Rate(int(found[1]), float(found[2] or 1) * UNITS[found[3]], burst=1)
    except (ConfigError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: {error}") from None


def halt(text: str) -> Halt | None:
    """Return when to halt: never, or such as now,fail=1 or soon,fail=10%."""
    if text == "never":
        return None
    found = _HALT.match(text)
    if found is None or not int(found[3]):
        message = f"{text!r} is not such as now,fail=1, soon,fail=10%, now,success=1 or never"
        raise argparse.ArgumentTypeError(message)
    return msgspec.convert(
        {"when": found[1], "of": found[2], "count": int(found[3]), "percent": bool(found[4])}, Halt
    )


def delimiter(text: str) -> bytes:
    """Return the byte that ends an item."""
    found = ESCAPES.get(text, os.fsencode(text))
    if len(found) != 1:
        raise argparse.ArgumentTypeError(rf"{text!r} is not one character, \n, \t, \r or \0")
    return found


def pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression of which the first group, or else all, is a key."""
    try:
        return re.compile(text)
    except re.error as error:
        message = f"{text!r} is not a regular expression: {error}"
        raise argparse.ArgumentTypeError(message) from None
