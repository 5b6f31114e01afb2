"""The oracle: when crontab lines fire, found by looking at every minute there was.

It shares nothing with what it judges: no `cronsim`, no arithmetic on clocks. It writes down what
the wall clock of a zone shows at each minute of UTC, and reads each line off that list.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class Shown(NamedTuple):
    """What a wall clock shows at one minute, or leaves out before it."""

    moment: float
    wall: datetime
    again: bool = False
    """It showed the same an hour (or so) ago."""
    left_out: bool = False
    """It never shows this: it was set past it, at that moment."""


class Clock:
    """Everything a wall clock shows between two moments, by the minute of the day."""

    def __init__(self, zone: str, since: float, until: float) -> None:
        self.shown: dict[tuple[int, int], list[Shown]] = defaultdict(list)
        place = ZoneInfo(zone)
        before: datetime | None = None
        for moment in range(int(since // 60) * 60, int(until), 60):
            local = datetime.fromtimestamp(moment, place)
            wall = local.replace(tzinfo=None, fold=0)
            while before is not None and before + MINUTE < wall:
                before += MINUTE
                self._note(Shown(float(moment), before, left_out=True))
            if moment > since:
                self._note(Shown(float(moment), wall, again=bool(local.fold)))
            before = wall

    def _note(self, one: Shown) -> None:
        self.shown[one.wall.hour, one.wall.minute].append(one)


class Line:
    """A crontab line of five fields."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, weekday = expression.lower().split()
        self._minutes = _numbers(minute, 0, 59)
        self._hours = _numbers(hour, 0, 23)
        self._days = _numbers(day, 1, 31)
        self._months = _numbers(month, 1, 12, MONTHS, first=1)
        self._weekdays = {number % 7 for number in _numbers(weekday, 0, 7, DAYS)}
        self._is_pace = minute.startswith("*") or hour.startswith("*")
        self._needs_both = day.startswith("*") or weekday.startswith("*")

    def firings(self, clock: Clock) -> list[float]:
        """Return every moment at which it fires, in order."""
        found = set()
        for hour in self._hours:
            for minute in self._minutes:
                for one in clock.shown.get((hour, minute), ()):
                    if self._is_that_day(one.wall) and self._counts(one):
                        found.add(one.moment)
        return sorted(found)

    def _counts(self, one: Shown) -> bool:
        """A pace fires whenever it is shown; a time of day once, if late."""
        return not one.left_out if self._is_pace else not one.again

    def _is_that_day(self, wall: datetime) -> bool:
        day, weekday = wall.day in self._days, wall.isoweekday() % 7 in self._weekdays
        return wall.month in self._months and (
            day and weekday if self._needs_both else day or weekday
        )


def _numbers(
    field: str, least: int, most: int, names: tuple[str, ...] = (), first: int = 0
) -> set[int]:
    """Return what a field allows."""

    def number(text: str) -> int:
        return names.index(text) + first if text in names else int(text)

    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, dash, high = span.partition("-")
        begin = least if span == "*" else number(low)
        end = number(high) if dash else most if span == "*" or step else begin
        found.update(range(begin, end + 1, int(step or 1)))
    return found
