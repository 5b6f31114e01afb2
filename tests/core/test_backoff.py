"""Delays between attempts."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.core.backoff import Curve, Retry, delay
from millpond.errors import ConfigError

POLICIES = st.builds(
    Retry,
    attempts=st.integers(1, 50),
    initial=st.floats(0.001, 100),
    factor=st.floats(1, 10),
    max_delay=st.floats(0, 1000),
    jitter=st.floats(0, 1),
    curve=st.sampled_from(Curve),
)
UNIT = st.floats(0, 1, exclude_max=True)


def test_the_default_doubles_from_one_second_to_a_minute() -> None:
    """Without jitter: 1, 2, 4, ... and never more than 60."""
    delays = [delay(Retry(jitter=0.0), attempt, jitter=0.3) for attempt in range(1, 9)]
    assert [1, 2, 4, 8, 16, 32, 60, 60] == delays


def test_the_other_curves() -> None:
    """A constant stays, a line grows by its step up to its cap, and never is one attempt."""
    constant = Retry.constant(7.0, jitter=0.0)
    linear = Retry.linear(10.0, max_delay=25.0, jitter=0.0)
    assert [7, 7, 7] == [delay(constant, n, jitter=0.5) for n in (1, 2, 3)]
    assert [10, 20, 25] == [delay(linear, n, jitter=0.5) for n in (1, 2, 3)]
    for picky in (
        Retry.constant(1, on=OSError, never=TimeoutError, give_up_after=9),
        Retry.linear(1, on=OSError, never=TimeoutError, give_up_after=9),
    ):
        assert (("OSError",), ("TimeoutError",), 9.0) == (
            picky.on,
            picky.never_on,
            picky.give_up_after,
        )
    assert 1 == Retry.never().attempts


@given(POLICIES, st.integers(1, 10_000), UNIT)
def test_a_delay_is_never_negative_and_stays_near_its_cap(
    policy: Retry, attempt: int, jitter: float
) -> None:
    """However many attempts: finite, not negative, at most the cap plus its jitter."""
    wait = delay(policy, attempt, jitter=jitter)
    assert 0 <= wait <= policy.max_delay * (1 + policy.jitter) * (1 + 1e-9)


@given(POLICIES, st.integers(1, 100), UNIT)
def test_jitter_spreads_around_the_plain_delay(policy: Retry, attempt: int, chance: float) -> None:
    """The middle of the dice is the plain delay; the edges are as far off as promised."""
    middle = delay(policy, attempt, jitter=0.5)
    wait = delay(policy, attempt, jitter=chance)
    assert abs(wait - middle) <= policy.jitter * middle * (1 + 1e-9)


@given(POLICIES, st.integers(1, 100))
def test_delays_never_shrink(policy: Retry, attempt: int) -> None:
    """A later attempt waits at least as long, the dice being equal."""
    assert delay(policy, attempt, jitter=0.5) <= delay(policy, attempt + 1, jitter=0.5)


REFUSED: list[tuple[str, Callable[[], Retry]]] = [
    ("retry.attempts=0", lambda: Retry(attempts=0)),
    ("retry.attempts=True", lambda: Retry(attempts=True)),
    ("retry.initial=-1", lambda: Retry(initial=-1)),
    ("retry.initial=300 would be cut to max_delay=60", lambda: Retry(initial=300)),
    ("retry.initial=90 would be cut to max_delay=60", lambda: Retry.linear(90)),
    ("retry.factor=0.5", lambda: Retry(factor=0.5)),
    ("retry.max_delay=inf", lambda: Retry(max_delay=float("inf"))),
    ("retry.jitter=1.5", lambda: Retry(jitter=1.5)),
    ("retry.jitter=-0.1", lambda: Retry(jitter=-0.1)),
    ("retry.give_up_after=0", lambda: Retry(give_up_after=0)),
    ("retry.initial=-1", lambda: Retry.constant(-1)),
    ("retry.attempts=0", lambda: Retry.linear(1.0, attempts=0)),
]


@pytest.mark.parametrize(("start", "make"), REFUSED)
def test_a_bad_option_is_refused_by_name(start: str, make: Callable[[], Retry]) -> None:
    """The message starts with the option and its value."""
    with pytest.raises(ConfigError) as refused:
        make()
    assert start == refused.value.message[: len(start)]
