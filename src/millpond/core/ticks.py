"""Moments: seconds as floats in the API, whole microseconds wherever they are compared.

A store rounds each `now` to a whole microsecond first. So a computed moment (a rate that refills, a
retry that is due) equals the same moment passed as `now`, on every store, despite float rounding.
"""

from __future__ import annotations

MICROSECONDS = 1_000_000


def ticks(moment: float) -> int:
    """Return a moment in whole microseconds."""
    return round(moment * MICROSECONDS)


def seconds(ticked: int) -> float:
    """Return whole microseconds as seconds: the same float for the same tick, always."""
    return ticked / MICROSECONDS


def rounded(moment: float) -> float:
    """Return a moment on a whole microsecond."""
    return round(moment * MICROSECONDS) / MICROSECONDS


def in_utc(moment: float) -> str:
    """Return a moment as date and time in UTC; reads no clock."""
    days, second = divmod(int(moment // 1), 86_400)
    # Years begin in March here, so that the odd day of a leap year is their last.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    shown = month + 3 if month < 10 else month - 9
    year += 400 * era + (shown <= 2)
    clock = f"{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{year:04}-{shown:02}-{day + 1:02} {clock} UTC"
