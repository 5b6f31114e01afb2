"""Timetables: at which moments a schedule fires, and what happens to those that it missed.

Nothing here reads a clock: moments are seconds since 1970 and `now` is an argument. A crontab line
is about wall time, in which an hour of spring never comes and an hour of autumn comes twice. As on
Debian, the line decides what then happens:

    "30 2 * * *"     a time of day: fires once a day. Where 02:30 never comes, as soon as the clock
                     is past it; where it comes twice, the first time
    "*/15 * * * *"   a pace: a minute or hour that begins with * fires whenever the clock shows it,
                     twice where it shows it twice, not at all where it does not

`cronsim`, which knows no zones here, finds the next minute of wall time; `zoneinfo` finds the
moment of that minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from millpond.errors import BadSchedule, DriverMissing

if TYPE_CHECKING:
    import zoneinfo

    from cronsim import CronSim

Missed: TypeAlias = Literal["once", "all", "skip"]
"""What happens to firings that no worker was there for."""

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

LONGEST_SHIFT = 26 * 3600.0
"""More than any clock was ever set by: the day that Samoa skipped had 24 hours."""


LONGEST_LINE = 256


class Timetable(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a schedule fires: a crontab line in a zone, or a pace in seconds since 1970 (UTC)."""

    expression: str = ""
    zone: str = "UTC"
    every: float = 0.0

    def check(self, schedule: str) -> None:
        """Raise BadSchedule for a line or zone that is not valid, or that never fires."""
        if self.every:
            return
        try:
            zone_of(self.zone)
        except BadSchedule as bad:
            raise BadSchedule(f"cron {schedule!r}: {bad.message}", **_fields(bad)) from None
        problem = _problem(self.expression)
        if problem is not None:
            raise BadSchedule(
                f"cron {schedule!r}: {self.expression!r} {problem}; a line has five fields, minute "
                "hour day month weekday, such as '0 9 * * mon-fri'",
                field="expression",
                value=self.expression,
            )

    def after(self, moment: float) -> float:
        """Return the first firing later than `moment`."""
        if self.every:
            return _next_multiple(self.every, moment)
        zone = zone_of(self.zone)
        # Down to the second: what is lost of a moment must not be the firing right after it.
        wall = datetime.fromtimestamp(math.floor(moment), zone).replace(tzinfo=None)
        shift = _shift_near(moment, zone)
        if not shift:
            # The clock is not set near this moment: no minute comes twice.
            return next(self._later(wall, moment))
        beyond = self._later(wall - shift, moment)
        found = next(beyond)
        until = wall + 2 * shift
        for one in beyond:
            if datetime.fromtimestamp(one, zone).replace(tzinfo=None) > until:
                break
            found = min(found, one)
        return found

    def _later(self, wall: datetime, moment: float) -> Iterator[float]:
        """Yield the firings later than a moment, in the order of their places on the clock."""
        for shown in walls(self.expression, wall):
            yield from (one for one in self._moments(shown) if one > moment)

    def _moments(self, wall: datetime) -> list[float]:
        """Return the moments at which a firing of this minute of the wall clock is due."""
        zone = zone_of(self.zone)
        first = wall.replace(tzinfo=zone)
        seen = datetime.fromtimestamp(first.timestamp(), zone)
        if seen.replace(tzinfo=None) != wall:
            # It never comes.
            return [] if self._is_pace else [_end_of_gap(first)]
        second = first.replace(fold=1)
        if self._is_pace and second.utcoffset() != first.utcoffset():
            return [first.timestamp(), second.timestamp()]
        return [first.timestamp()]

    @property
    def _is_pace(self) -> bool:
        """Whether the line gives a pace, and not a time of day."""
        *_, minute, hour, _, _, _ = _line(self.expression).split()
        return minute.startswith("*") or hour.startswith("*")

    def latest(self, since: float, until: float, most: int) -> list[float]:
        """Return the latest firings later than `since` and not later than `until`, oldest first.

        At most `most` of them, however many there were.
        """
        span = 60.0
        while True:
            begin = max(until - span, since)
            found: list[float] = []
            moment = self.after(begin)
            while moment <= until:
                found.append(moment)
                moment = self.after(moment)
            if begin == since or len(found) >= most:
                return found[-most:]
            # The number found in this span bounds how long the next must be.
            span *= 4 if len(found) * 4 < most else 1 + most / max(len(found), 1)


EARLY = 60.0
"""Seconds by which a firing may run before its moment, because clocks differ."""


class Plan(msgspec.Struct, frozen=True):
    """What to do about a firing that is due."""

    fire: float | None
    """The moment to fire for; None: it was missed and is skipped."""
    then: float
    """The next firing; one in the past is due at once."""
    left_out: bool = False
    """Whether moments were skipped."""


def plan(
    timetable: Timetable, due: float, now: float, *, missed: Missed, grace: float, most: int
) -> Plan:
    """Return what to do at `now` about the firing of the moment `due`.

    Up to `grace` seconds late is not missed. `once`: one firing, the latest, stands for all missed
    ones. `all`: each missed one fires, at most the latest `most`. `skip`: none does. A firing that
    a clock ahead of time had armed is replaced by the next one of the right clock.
    """
    if due > now + EARLY:
        return Plan(None, timetable.after(now))
    following = timetable.after(due)
    if now - due <= grace:
        return Plan(due, following)
    if missed == "skip":
        in_time = math.nextafter(now - grace, -math.inf)
        return Plan(None, timetable.after(max(due, in_time)), left_out=True)
    before = math.nextafter(due, -math.inf)
    fire = timetable.latest(before, now, most if missed == "all" else 1)[0]
    return Plan(fire, timetable.after(fire), left_out=fire != due)


def walls(expression: str, after: datetime) -> Iterator[datetime]:
    """Yield the minutes of wall time that a line matches, later than one of them."""
    return iter(_parsed(expression, after))


@lru_cache(maxsize=512)
def zone_of(name: str) -> zoneinfo.ZoneInfo:
    """Return a time zone by its name; BadSchedule, with the nearest name, if there is none."""
    # Most processes that import this ask for no zone.
    import difflib  # noqa: PLC0415
    import zoneinfo  # noqa: PLC0415

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
    like = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {like[0]!r}?" if like else "names are such as 'Europe/Berlin'"
    if not known:
        hint = "this system has no time zones: install the package tzdata (millpond[cron])"
    raise BadSchedule(f"no time zone is called {name!r}: {hint}", field="tz", value=name)


def _fields(bad: BadSchedule) -> dict[str, object]:
    return {"field": bad.field, "value": bad.value}


def _line(expression: str) -> str:
    return NICKNAMES.get(expression.strip().lower(), expression)


def _parsed(expression: str, after: datetime) -> CronSim:
    """Return an iterator over the minutes of a line, later than one; it knows no zone."""
    from cronsim import CronSim  # noqa: PLC0415 - an extra

    return CronSim(_line(expression), after)


def _problem(expression: str) -> str | None:
    """Return what is wrong with a line, in words, or None."""
    try:
        from cronsim import CronSimError  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise DriverMissing(
            "crontab lines need the package cronsim: run `pip install 'millpond[cron]'`; "
            "every=seconds needs nothing",
            extra="cron",
        ) from None
    if expression.strip().startswith("@") and _line(expression) is expression:
        return f"is none of {', '.join(NICKNAMES)}"
    if len(expression) > LONGEST_LINE:
        return f"is no crontab line: it has more than {LONGEST_LINE} characters"
    try:
        next(walls(expression, datetime(2024, 1, 1)))  # noqa: DTZ001 - a wall clock's
    except CronSimError as error:
        return f"is no crontab line: {str(error).lower()}"
    except StopIteration:
        return "never fires"
    return None


def _next_multiple(pace: float, moment: float) -> float:
    count = math.floor(moment / pace)
    while count * pace <= moment:
        count += 1
    return count * pace


def _shift_near(moment: float, zone: zoneinfo.ZoneInfo) -> timedelta:
    """Return by how much the clock is set near a moment, close enough to matter; else zero."""
    shift = _spread(moment, LONGEST_SHIFT, zone)
    return _spread(moment, shift.total_seconds(), zone) if shift else shift


def _spread(moment: float, around: float, zone: zoneinfo.ZoneInfo) -> timedelta:
    """Return how far the offsets from UTC are apart, before, at and after a moment."""
    offsets = [
        datetime.fromtimestamp(moment + by, zone).utcoffset() or timedelta()
        for by in (-around, 0.0, around)
    ]
    return max(offsets) - min(offsets)


def _end_of_gap(wall: datetime) -> float:
    """Return when the clock was set past a minute of it that never came.

    With fold=0 such a minute has the old offset, with fold=1 the new: the clock was set between
    these two moments.
    """
    zone = wall.tzinfo
    low, high = sorted((wall.replace(fold=0).timestamp(), wall.replace(fold=1).timestamp()))
    old = datetime.fromtimestamp(low, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return float(high)
