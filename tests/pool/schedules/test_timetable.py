"""When schedules fire: against every minute there was, in zones that set their clocks."""

from __future__ import annotations

import itertools
import math
import random
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verify.cron_year.oracle import Clock, Line

from millpond.errors import BadSchedule
from millpond.pool.schedules.timetable import Plan, Timetable, plan

DAY = 86_400.0

LINES = (
    "30 2 * * *",
    "0 2 * * *",
    "15 2,3 * * *",
    "0,30 1-3 * * *",
    "45 1 * * *",
    "50 2 * * *",
    "*/15 * * * *",
    "0 * * * *",
    "* 3 * * *",
    "*/7 2 * * *",
    "10 */3 * * *",
    "0 9 * * mon-fri",
    "0 0 13 * fri",
    "59 1 29 3 *",
)

CHANGES = {
    "Europe/Berlin spring": ("Europe/Berlin", "2026-03-29T01:00Z"),
    "Europe/Berlin autumn": ("Europe/Berlin", "2026-10-25T01:00Z"),
    "America/New_York spring": ("America/New_York", "2026-03-08T07:00Z"),
    "America/New_York autumn": ("America/New_York", "2026-11-01T06:00Z"),
    "half an hour, autumn": ("Australia/Lord_Howe", "2026-04-04T15:00Z"),
    "half an hour, spring": ("Australia/Lord_Howe", "2026-10-03T15:30Z"),
    "at midnight": ("America/Sao_Paulo", "2018-11-04T03:00Z"),
    "a whole day left out": ("Pacific/Apia", "2011-12-30T10:00Z"),
    "never": ("UTC", "2026-03-29T01:00Z"),
}


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def local(moment: float, zone: str) -> str:
    return datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%m-%d %H:%M %z")


def walked(timetable: Timetable, since: float, until: float) -> list[float]:
    found = []
    moment = timetable.after(since)
    while moment < until:
        found.append(moment)
        moment = timetable.after(moment)
    return found


@pytest.mark.rows("CR-02")
@pytest.mark.parametrize("change", CHANGES)
def test_a_line_fires_at_its_wall_time_also_over_clock_changes(change: str) -> None:
    zone, text = CHANGES[change]
    middle = at(text)
    since, until = middle - 1.5 * DAY, middle + 1.5 * DAY
    clock = Clock(zone, since, until)
    dice = random.Random(change)
    for expression in LINES:
        timetable = Timetable(expression, zone)
        expected = Line(expression).firings(clock)
        assert walked(timetable, since, until) == expected, expression
        # after() gives the same from any start, also inside an hour that comes twice.
        for _ in range(20):
            start = middle + dice.uniform(-7_200, 7_200)
            later = [moment for moment in expected if moment > start]
            if later:
                assert timetable.after(start) == later[0], (expression, start)


@pytest.mark.rows("CR-02")
def test_a_time_of_day_fires_once_on_the_days_the_clock_is_set() -> None:
    timetable = Timetable("30 2 * * *", "Europe/Berlin")
    spring = walked(timetable, at("2026-03-28T00:00Z"), at("2026-03-31T00:00Z"))
    assert ["03-28 02:30 +0100", "03-29 03:00 +0200", "03-30 02:30 +0200"] == [
        local(moment, "Europe/Berlin") for moment in spring
    ]
    autumn = walked(timetable, at("2026-10-24T12:00Z"), at("2026-10-26T12:00Z"))
    assert ["10-25 02:30 +0200", "10-26 02:30 +0100"] == [
        local(moment, "Europe/Berlin") for moment in autumn
    ]


@pytest.mark.rows("CR-02")
def test_a_line_of_every_30_minutes_ignores_clock_changes() -> None:
    timetable = Timetable("*/30 * * * *", "Australia/Lord_Howe")
    for text in ("2026-04-04T12:00Z", "2026-10-03T12:00Z"):
        found = walked(timetable, at(text), at(text) + DAY / 2)
        assert {1800.0} == {b - a for a, b in itertools.pairwise(found)}


def test_every_counts_seconds_since_1970() -> None:
    timetable = Timetable(every=900.0)
    assert 1_800.0 == timetable.after(900.0) == timetable.after(1_799.9)


@given(st.floats(0.5, 1e6), st.floats(0, 2e9))
def test_a_pace_is_always_ahead_and_never_by_more_than_itself(pace: float, moment: float) -> None:
    later = Timetable(every=pace).after(moment)
    assert moment < later <= moment + pace * (1 + 1e-9) + 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LINES),
    st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe"]),
    st.floats(at("2026-03-27T00:00Z"), at("2026-04-07T00:00Z")),
    st.integers(1, 40),
)
def test_latest_returns_the_last_firings(line: str, zone: str, since: float, most: int) -> None:
    timetable = Timetable(line, zone)
    until = since + 2.2 * DAY
    every = [moment for moment in walked(timetable, since, until + 1) if moment <= until]
    assert every[-most:] == timetable.latest(since, until, most)


def test_a_year_of_missed_firings_is_not_computed_one_by_one() -> None:
    timetable = Timetable("* * * * *", "Europe/Berlin")
    now = at("2026-07-01T12:00Z")
    calls = []
    original = Timetable.after

    class Counted(Timetable, frozen=True):
        def after(self, moment: float) -> float:
            calls.append(moment)
            return original(self, moment)

    counted = Counted(timetable.expression, timetable.zone)
    assert 100 == len(counted.latest(now - 365 * DAY, now, 100))
    assert len(calls) < 2_000


HOURLY = Timetable("0 * * * *")
NOON = at("2026-07-01T12:00Z")


@pytest.mark.rows("CR-03")
@pytest.mark.parametrize(
    ("missed", "late", "expected"),
    [
        ("once", 0.0, Plan(NOON, NOON + 3_600)),
        ("skip", 60.0, Plan(NOON, NOON + 3_600)),
        ("once", 61.0, Plan(NOON, NOON + 3_600)),
        ("once", 7_201.0, Plan(NOON + 7_200, NOON + 10_800, left_out=True)),
        ("skip", 61.0, Plan(None, NOON + 3_600, left_out=True)),
        ("skip", 3_630.0, Plan(None, NOON + 3_600, left_out=True)),
        ("skip", 7_261.0, Plan(None, NOON + 10_800, left_out=True)),
        ("all", 61.0, Plan(NOON, NOON + 3_600)),
        ("all", 7_201.0, Plan(NOON, NOON + 3_600)),
        ("all", 3_600.0 * 5, Plan(NOON + 3 * 3_600, NOON + 4 * 3_600, left_out=True)),
    ],
)
def test_missed_firings_follow_the_missed_option(missed: str, late: float, expected: Plan) -> None:
    planned = plan(HOURLY, NOON, NOON + late, missed=missed, grace=60.0, most=3)  # type: ignore[arg-type]
    assert expected == planned


@pytest.mark.rows("TR-08")
@pytest.mark.parametrize("missed", ["once", "all", "skip"])
def test_a_firing_armed_by_a_clock_that_was_ahead_is_replaced(missed: str) -> None:
    """It does not fire before its time, and the schedule does not wait for it."""
    for ahead in (61.0, 400 * 86_400.0):
        now = NOON - ahead
        planned = plan(HOURLY, NOON, now, missed=missed, grace=60.0, most=3)  # type: ignore[arg-type]
        assert Plan(None, HOURLY.after(now)) == planned
    on_time = plan(HOURLY, NOON, NOON - 59.0, missed=missed, grace=60.0, most=3)  # type: ignore[arg-type]
    assert NOON == on_time.fire


@given(st.sampled_from(["once", "all", "skip"]), st.floats(0, 2e5), st.floats(0, 1e4))
def test_a_plan_never_goes_back_and_never_fires_ahead(
    missed: str, late: float, grace: float
) -> None:
    planned = plan(HOURLY, NOON, NOON + late, missed=missed, grace=grace, most=5)  # type: ignore[arg-type]
    assert planned.then > (planned.fire or NOON) >= NOON
    assert planned.fire is None or planned.fire <= NOON + late
    assert math.isfinite(planned.then)


@pytest.mark.rows("CR-08")
@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("61 9 * * *", "bad minute"),
        ("0 9 * *", "wrong number of fields"),
        ("0 9 * * funday", "bad day-of-week"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 31 4,6 *", "bad day-of-month"),
        ("", "wrong number of fields"),
        ("@noon", "is none of @yearly"),
        ("0 0 */40 2 1#5", "never fires"),
        (",".join(map(str, range(60))) * 2 + " * * * *", "more than 256 characters"),
    ],
)
def test_a_bad_crontab_line_is_refused_with_the_reason(expression: str, says: str) -> None:
    with pytest.raises(BadSchedule, match="cron 'nightly'") as caught:
        Timetable(expression).check("nightly")
    assert says in str(caught.value)
    assert "expression" == caught.value.field


@settings(deadline=None)
@given(st.text("0123456789*/,-#LW mon@", max_size=24))
def test_any_line_either_fires_or_is_refused(line: str) -> None:
    try:
        Timetable(line).check("nightly")
    except BadSchedule:
        return
    assert Timetable(line).after(NOON) > NOON


@pytest.mark.rows("CR-08")
def test_a_bad_time_zone_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadSchedule, match="did you mean 'Europe/Berlin'") as caught:
        Timetable("0 9 * * *", "Europe/Berln").check("nightly")
    assert "tz" == caught.value.field
    for zone in ("../etc/passwd", "", "/etc/localtime", "Mars/Olympus"):
        with pytest.raises(BadSchedule, match="no time zone"):
            Timetable("0 9 * * *", zone).check("nightly")


def test_seconds_come_first_where_there_are_six_fields() -> None:
    timetable = Timetable("30 0 9 * * *", "Europe/Berlin")
    timetable.check("nightly")
    assert "07-02 09:00 +0200" == local(timetable.after(NOON), "Europe/Berlin")
    assert 30 == timetable.after(NOON) % 60


def test_nicknames_such_as_daily_are_accepted() -> None:
    assert Timetable("0 0 * * *").after(NOON) == Timetable("@daily").after(NOON)
    Timetable("@Hourly").check("nightly")
    assert datetime(2027, 1, 1, tzinfo=UTC).timestamp() == Timetable("@yearly").after(NOON)
