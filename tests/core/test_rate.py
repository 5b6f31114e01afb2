"""Rates: the promise over every window, and no starving within it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.core.rate import Rate, give_back, ready_at, take
from millpond.core.ticks import MICROSECONDS
from millpond.errors import ConfigError

RATES = st.builds(
    Rate,
    n=st.integers(1, 20),
    per=st.sampled_from([0.25, 1.0, 2.5, 60.0]),
    burst=st.none() | st.integers(1, 10),
)
CLOSE = 1e-6


@given(RATES, st.lists(st.tuples(st.floats(0, 5), st.integers(1, 10)), max_size=60))
def test_no_window_holds_more_than_promised(rate: Rate, asks: list[tuple[float, int]]) -> None:
    """Over any time t callers take at most burst + t*n/per, whatever they ask for, and when."""
    now, tat = 0.0, 0
    taken: list[tuple[float, int]] = []
    for pause, weight in asks:
        now += pause
        cost = min(weight, rate.depth)
        if ready_at(rate, tat, cost, now) <= now:
            tat = take(rate, tat, cost, now)
            taken.append((now, cost))
    for first, (start, _) in enumerate(taken):
        total = 0
        for end, cost in taken[first:]:
            total += cost
            assert total <= rate.depth + (end - start) * rate.n / rate.per + CLOSE


@given(RATES, st.lists(st.integers(1, 10), min_size=1, max_size=40), st.floats(0, 1e9))
def test_who_waits_until_ready_is_let_in_then(rate: Rate, weights: list[int], now: float) -> None:
    """At the promised moment the take is allowed: sleeping until then never turns into a spin."""
    tat = 0
    for weight in weights:
        cost = min(weight, rate.depth)
        moment = ready_at(rate, tat, cost, now)
        assert moment >= now
        assert moment == ready_at(rate, tat, cost, moment)
        now, tat = moment, take(rate, tat, cost, moment)


@given(RATES, st.integers(1, 40))
def test_a_full_bucket_is_used_to_the_last_token(rate: Rate, count: int) -> None:
    """After a rest exactly `depth` start at once, then one per interval: nothing is withheld."""
    now, tat = 1000.0, 0
    moments = []
    for _ in range(count):
        now = ready_at(rate, tat, 1, now)
        tat = take(rate, tat, 1, now)
        moments.append(now - 1000.0)
    interval = rate.interval / MICROSECONDS
    expected = [max(0, i + 1 - rate.depth) * interval for i in range(count)]
    assert pytest.approx(expected, abs=CLOSE) == moments


@given(RATES, st.lists(st.integers(1, 5), max_size=20), st.integers(1, 5))
def test_what_is_given_back_can_be_taken_again(rate: Rate, spent: list[int], extra: int) -> None:
    """An unstarted claim leaves the state as if it had never been made."""
    now, tat = 1000.0, 0
    for cost in spent:
        tat = take(rate, tat, cost, now)
    tat = max(tat, round(now * MICROSECONDS))
    assert tat == give_back(rate, take(rate, tat, extra, now), extra)


@given(RATES, st.integers(1, 10), st.floats(0, 1e6))
def test_giving_back_late_saves_up_nothing(rate: Rate, cost: int, later: float) -> None:
    """Tokens returned to a full bucket run over: a burst stays a burst."""
    tat = give_back(rate, take(rate, 0, cost, 0.0), cost)
    started = 0
    while ready_at(rate, tat, 1, later) <= later + CLOSE and started <= rate.depth:
        tat = take(rate, tat, 1, later)
        started += 1
    assert rate.depth == started


def test_a_weight_costs_what_it_weighs_only_where_weights_count() -> None:
    """A rate of starts counts each start once, a rate of weight its weight."""
    assert [1, 500] == [Rate(10).cost(500), Rate(1000, of="weight").cost(500)]


def test_the_burst_is_n_unless_given() -> None:
    """A pool that rested may start a whole period's worth at once."""
    assert [100, 7] == [Rate(100, per=60.0).depth, Rate(100, per=60.0, burst=7).depth]
    assert 600_000 == Rate(100, per=60.0).interval
    assert 333_334 == Rate(3).interval


REFUSED: list[tuple[str, Callable[[], Rate]]] = [
    ("rate.n=0", lambda: Rate(0)),
    ("rate.n=1.5", lambda: Rate(1.5)),  # type: ignore[arg-type]
    ("rate.n=True", lambda: Rate(True)),
    ("rate.per=0", lambda: Rate(1, per=0)),
    ("rate.per=nan", lambda: Rate(1, per=float("nan"))),
    ("rate.per='1'", lambda: Rate(1, per="1")),  # type: ignore[arg-type]
    ("rate.burst=0", lambda: Rate(1, burst=0)),
    ("rate.of='bytes'", lambda: Rate(1, of="bytes")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("start", "make"), REFUSED)
def test_a_bad_option_is_refused_by_name(start: str, make: Callable[[], Rate]) -> None:
    """The message starts with the option and its value."""
    with pytest.raises(ConfigError) as refused:
        make()
    assert start == refused.value.message[: len(start)]
