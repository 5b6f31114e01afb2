"""Buckets: refunds give back unused tokens, but none that time has already given back."""

import random

from hypothesis import given
from hypothesis import strategies as st

from millpond.core.bucket import LOWS_KEPT, Bucket, charge, correct, fresh, ready_at, taken_over
from millpond.core.rate import Rate
from millpond.testing.simulation.rate_ledger import Ledger

TOKENS = Rate(60, per=60.0, of="weight")


def live(seed: int, lows_matter: bool = True) -> tuple[int, int]:
    """Start what a bucket allows and settle it at random; return (starts, objections)."""
    dice = random.Random(seed)
    rate = Rate(dice.choice((10, 60)), per=10.0, burst=dice.choice((5, 60)), of="weight")
    buckets, ledger = fresh([rate]), Ledger(rate)
    running: dict[int, tuple[float, int]] = {}
    now, starts, objections = 1000.0, 0, 0
    for task in range(300):
        now = round(now + dice.choice((0.0, 0.01, 0.3, 5.0)), 6)
        weight = dice.randint(1, rate.depth)
        if ready_at([rate], buckets, weight, now) <= now:
            charge([rate], buckets, weight, now)
            objections += not ledger.start(task, weight, now)
            running[task] = (now, weight)
            starts += 1
        if running and dice.random() < 0.6:
            done = dice.choice(list(running))
            since, weight = running.pop(done)
            actual = dice.randint(0, weight)
            given = since if lows_matter else now
            correct([rate], buckets, weight, actual, since=given, now=now)
            ledger.correct(done, actual, now)
    return starts, objections


@given(st.integers(0, 2**32))
def test_no_refund_breaks_the_rate(seed: int) -> None:
    """Counted with what each start really used, no window ever sees more than the rate allows."""
    assert 0 == live(seed)[1]


def test_the_ledger_would_object() -> None:
    """Refunds that look at the present only are found out, or the test above shows nothing."""
    assert any(live(seed, lows_matter=False)[1] for seed in range(200))


def test_under_load_a_refund_is_whole() -> None:
    """A bucket that was never near full gives back all that was not used, however late."""
    buckets, now = [Bucket()], 1000.0
    charge([TOKENS], buckets, 60, now)
    starts = [now]
    for _ in range(50):
        now += 10.0
        charge([TOKENS], buckets, 10, now)
        starts.append(now)
    # The bucket has owed at least 50 ever since.
    correct([TOKENS], buckets, 10, 0, since=starts[1], now=now)
    assert now + 50.0 == ready_at([TOKENS], buckets, 60, now)


def test_the_memory_of_a_bucket_is_bounded() -> None:
    """Ever higher debts are remembered by a few low points, merged to the careful side."""
    rate = Rate(1000, per=1.0, burst=100_000, of="weight")
    bucket, now = Bucket(), 1000.0
    for _ in range(200):
        bucket.take(rate, 20, now)
        now += 0.01
    assert len(bucket.lows) <= LOWS_KEPT
    assert bucket.lows == sorted(bucket.lows)


def test_more_than_thought_is_owed_from_now_on() -> None:
    """Use beyond the weight takes the bucket below zero."""
    buckets = fresh([TOKENS])
    charge([TOKENS], buckets, 10, 1000.0)
    correct([TOKENS], buckets, 10, 100, since=1000.0, now=1005.0)
    assert 1100.0 == ready_at([TOKENS], buckets, 60, 1005.0)


def test_a_rate_that_stays_keeps_its_bucket() -> None:
    """Another rate beside it is full, and refunds nothing of starts before it."""
    buckets = fresh([TOKENS])
    charge([TOKENS], buckets, 60, 1000.0)
    other = Rate(10, per=10.0, of="weight")
    changed = taken_over([TOKENS], buckets, [other, TOKENS], 1000.0)
    assert buckets[0] is changed[1]
    charge([other], changed[:1], 10, 1000.0)
    correct([other], changed[:1], 10, 0, since=1000.0, now=1001.0)
    assert 1010.0 == ready_at([other], changed[:1], 10, 1001.0)
