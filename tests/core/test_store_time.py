"""Store time: how it follows a wall clock that is set, and finds back to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.core.store_time import (
    NOISE,
    SHORTEST_DOUBT,
    SLEWED,
    TOLERANCE,
    Timeline,
    confirmation,
    read,
)

START = 1e9
HOUR, DAY = 3_600.0, 86_400.0


def test_an_unset_clock_is_the_stores_time() -> None:
    """With a witness or without, after a moment and after a weekend."""
    known = Timeline(START)
    for passed in (0.001, 5.0, 50.0):
        assert read(known, START + passed).timeline == Timeline(START + passed)
        vouched = read(known, START + passed, START + passed)
        assert vouched.timeline == Timeline(START + passed)
    weekend = read(known, START + 3 * DAY, START + 3 * DAY)
    assert weekend.timeline == Timeline(START + 3 * DAY)
    assert weekend.jump is None


@pytest.mark.rows("TR-07")
def test_set_back_time_goes_on_from_where_it_was() -> None:
    """By as much as a process can vouch for; then by the clock's own pace, a little slower."""
    reading = read(Timeline(START), START - 300.0, START + 5.0)
    assert START + 5.0 == reading.timeline.latest
    assert reading.jump is not None
    assert ("back", 300.0) == (reading.jump.kind, reading.jump.by)
    later = read(reading.timeline, START - 200.0, START + 105.0).timeline
    assert START + 5.0 + 95.0 < later.latest < START + 105.0


@pytest.mark.rows("TR-07")
def test_set_back_by_little_it_is_at_the_clocks_time_again_some_hours_later() -> None:
    """It never stands still meanwhile."""
    known = read(Timeline(START), START - 300.0).timeline
    wall = START - 300.0
    for _ in range(5 * 60):
        wall += 60.0
        after = read(known, wall).timeline
        assert after.latest > known.latest
        known = after
    assert 0.0 == known.behind
    assert wall == known.latest


@pytest.mark.rows("TR-07", "TR-08")
@pytest.mark.parametrize("by", [HOUR, 400 * DAY])
def test_set_back_by_much_it_steps_back_once_the_clock_has_stayed_there(by: float) -> None:
    """Not at once: a clock that is soon corrected has changed nothing."""
    known = read(Timeline(START), START - by).timeline
    soon = read(known, START - by + SHORTEST_DOUBT - 1.0)
    assert 0.0 == soon.step
    assert soon.timeline.latest > START
    after = read(soon.timeline, START - by + SHORTEST_DOUBT)
    assert START - by + SHORTEST_DOUBT == after.timeline.latest
    assert -by == pytest.approx(after.step)
    assert 1 == after.timeline.steps
    right = read(soon.timeline, START + 5.0, START + SHORTEST_DOUBT)
    assert 0.0 == right.step
    assert START <= right.timeline.latest <= START + SHORTEST_DOUBT + 1.0


@pytest.mark.rows("TR-08")
@pytest.mark.parametrize("by", [TOLERANCE * 2, HOUR, 400 * DAY])
def test_set_forward_it_is_not_followed_until_it_has_stayed_there(by: float) -> None:
    """For a hundredth of the jump, a minute at least and an hour at most."""
    reading = read(Timeline(START), START + by + 5.0, START + 5.0)
    assert START + 5.0 == reading.timeline.latest
    assert reading.jump is not None
    assert ("forward", by) == (reading.jump.kind, reading.jump.by)
    stays = confirmation(by)
    known = reading.timeline
    soon = read(known, START + by + 4.0 + stays, START + 4.0 + stays)
    assert START + 4.0 + stays == soon.timeline.latest
    after = read(soon.timeline, START + by + 5.0 + stays, START + 5.0 + stays)
    assert START + by + 5.0 + stays == after.timeline.latest
    assert by == after.step
    assert by == after.timeline.doubtful


@pytest.mark.rows("TR-08")
def test_set_forward_and_right_again_nothing_has_happened() -> None:
    """Only the list of jumps, which people read, has both."""
    known = read(Timeline(START), START + 400 * DAY, START + 1.0).timeline
    known = read(known, START + 2.0, START + 2.0).timeline
    assert (START + 2.0, 0.0, 0.0) == (known.latest, known.behind, known.doubtful)
    assert ["forward", "back"] == [jump.kind for jump in known.jumps]


@pytest.mark.rows("TR-08")
def test_a_gap_without_a_witness_counts_at_once_but_not_for_retention() -> None:
    """For an hour, or for as long as the gap was."""
    known = read(Timeline(START), START + 3 * DAY).timeline
    assert START + 3 * DAY == known.latest
    assert 3 * DAY == known.doubtful
    known = read(known, START + 3 * DAY + HOUR - 1, START + 3 * DAY + HOUR - 1).timeline
    assert 3 * DAY == known.doubtful
    known = read(known, START + 3 * DAY + HOUR, START + 3 * DAY + HOUR).timeline
    assert 0.0 == known.doubtful


@pytest.mark.rows("TR-08")
def test_two_clocks_that_differ_take_turns_and_time_goes_on() -> None:
    """One is 400 days ahead: time passes as it does, and what is kept of it stays short."""
    known = Timeline(START)
    for n in range(1, 100):
        passed = 10.0 * n
        off = 400 * DAY if n % 2 else 0.0
        known = read(known, START + passed + off, START + passed).timeline
        assert START + passed == pytest.approx(known.latest)
    assert len(known.jumps) <= 4


_PASSED = st.floats(0.0, 100_000.0)
_SET = st.sampled_from([0.0, 0.0, 0.0, 2.0, -2.0, -300.0, 300.0, -HOUR, HOUR, 1e8, -1e8])


@pytest.mark.rows("TR-07", "TR-08")
@given(st.lists(st.tuples(_PASSED, _SET, st.booleans())), st.integers(0, 3))
def test_time_only_goes_back_in_a_step_and_finds_back_whatever_a_clock_does(
    course: list[tuple[float, float, bool]], seed: int
) -> None:
    """After a while without further jumps store time is the clock's again."""
    known, wall, true = Timeline(START + seed), START + seed, START + seed
    for passed, jump, watched in course:
        wall += passed + jump
        true += passed
        reading = read(known, wall, true if watched else None)
        after = reading.timeline
        if reading.step >= 0.0:
            assert after.latest >= known.latest
        if watched and reading.step == 0.0 and passed < HOUR:
            assert after.latest <= max(true, known.latest) + TOLERANCE + NOISE
        known, true = after, after.latest
    for _ in range(200):
        wall, true = wall + 600.0, true + 600.0
        known = read(known, wall, true).timeline
        true = known.latest
    assert 0.0 == known.behind
    assert wall == pytest.approx(known.latest, abs=1e-5)
    assert SLEWED > 0.0
