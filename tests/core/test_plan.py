"""The loop's plan: it neither spins nor oversleeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.core.plan import ClaimTimer, IdleUntil, Wake, Work, sooner

MOMENTS = st.floats(0, 1000)


@pytest.mark.rows("CX-T60")
def test_a_new_watch_asks_at_once() -> None:
    """A worker that has never claimed claims at once: it waits for no wake-up."""
    assert Work(3) == ClaimTimer().plan(free=3, now=0.0)


def test_without_a_free_slot_nothing_is_asked() -> None:
    """A full worker waits for its own work to end, whatever else happens."""
    watch = ClaimTimer()
    watch.wake(Wake("p", 0.0))
    assert IdleUntil(None) == watch.plan(free=0, now=5.0)
    assert Work(1) == watch.plan(free=1, now=5.0)


@given(st.integers(1, 9), MOMENTS, st.floats(0.001, 10))
def test_a_short_answer_ends_in_sleep(want: int, now: float, wait: float) -> None:
    """Less than asked for: sleep until time alone helps, then ask; it cannot spin."""
    watch = ClaimTimer()
    watch.claim_sent()
    watch.claim_answered(want=want, got=want - 1, next_at=now + wait, now=now)
    assert IdleUntil(now + wait) == watch.plan(free=want, now=now)
    assert Work(want) == watch.plan(free=want, now=now + wait)


@pytest.mark.rows("CX-T59")
def test_nothing_to_wait_for_means_waiting_to_be_woken() -> None:
    """No moment and no wake-up: sleep, however late it gets."""
    watch = ClaimTimer()
    watch.claim_sent()
    watch.claim_answered(want=1, got=0, next_at=None, now=1.0)
    assert IdleUntil(None) == watch.plan(free=1, now=1e9)
    watch.wake(Wake("p", 7.0))
    assert IdleUntil(7.0) == watch.plan(free=1, now=6.0)
    assert Work(1) == watch.plan(free=1, now=7.0)


@given(st.integers(1, 9), MOMENTS)
def test_a_full_answer_asks_again(want: int, now: float) -> None:
    """As much as asked for: there may be more, also if a later moment was named."""
    watch = ClaimTimer()
    watch.claim_sent()
    watch.claim_answered(want=want, got=want, next_at=now + 60, now=now)
    assert Work(2) == watch.plan(free=2, now=now)


@given(st.none() | MOMENTS, st.lists(MOMENTS, min_size=1))
def test_wake_ups_only_bring_the_moment_forward(next_at: float | None, wakes: list[float]) -> None:
    """Of all wake-ups and the moment known, the earliest counts, in any order."""
    watch = ClaimTimer()
    watch.claim_sent()
    watch.claim_answered(want=1, got=0, next_at=next_at, now=-1.0)
    for at in wakes:
        watch.wake(Wake("p", at))
    earliest = min([*wakes, *([] if next_at is None else [next_at])])
    assert IdleUntil(earliest) == watch.plan(free=1, now=-1.0)
    assert Work(1) == watch.plan(free=1, now=earliest)


def test_a_wake_up_during_the_question_is_not_lost() -> None:
    """What wakes while a claim is on its way is not in its answer, and is kept."""
    watch = ClaimTimer()
    watch.claim_sent()
    watch.wake(Wake("p", 4.5))
    watch.claim_answered(want=1, got=0, next_at=None, now=4.0)
    assert IdleUntil(4.5) == watch.plan(free=1, now=4.0)
    assert Work(1) == watch.plan(free=1, now=4.5)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 5)), max_size=50))
def test_one_question_per_moment_and_full_answer(moments: list[tuple[float, int]]) -> None:
    """A worker with two slots asks once per moment, and again only after a full answer."""
    watch, now = ClaimTimer(), 0.0
    for wait, ready in moments:
        left, claims = ready, 0
        while isinstance(work := watch.plan(free=2, now=now), Work):
            claims += 1
            got = min(left, work.want)
            left -= got
            watch.claim_sent()
            watch.claim_answered(want=work.want, got=got, next_at=now + wait, now=now)
        assert (ready // 2 + 1, 0) == (claims, left)
        now += wait


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(None, None, None), (1.0, None, 1.0), (None, 2.0, 2.0), (1.0, 2.0, 1.0), (2.0, 1.0, 1.0)],
)
def test_sooner_treats_none_as_never(
    first: float | None, second: float | None, expected: float | None
) -> None:
    """The earlier of two moments; never is later than any."""
    assert expected == sooner(first, second)
