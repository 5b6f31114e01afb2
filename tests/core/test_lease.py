"""Leases: tokens, and who may hold how many."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from millpond.core.lease import may_hold, tokens

ENTROPY = st.integers(0, 2**64 - 1)


@given(ENTROPY)
def test_tokens_have_63_bits_and_never_repeat_in_a_verb(entropy: int) -> None:
    """A token fits a signed 64-bit column, and one verb draws no token twice."""
    drawn = list(islice(tokens(entropy), 200))
    assert all(0 <= token < 2**63 for token in drawn)
    assert 200 == len(set(drawn))


@given(ENTROPY)
def test_the_same_entropy_draws_the_same_tokens(entropy: int) -> None:
    """A history can be replayed, and a store that holds more bits sees the same 64."""
    assert list(islice(tokens(entropy), 20)) == list(islice(tokens(entropy), 20))
    assert list(islice(tokens(entropy), 20)) == list(islice(tokens(entropy + 2**64), 20))


def test_tokens_match_the_published_generator() -> None:
    """SplitMix64 seeded with 0 begins with these numbers; ours drop the lowest bit."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [value >> 1 for value in published] == list(islice(tokens(0), 3))


def test_neighbouring_entropies_are_well_spread() -> None:
    """First tokens of 2,000 consecutive seeds differ, and every bit is set about half the time."""
    first = [next(tokens(seed)) for seed in range(2000)]
    assert 2000 == len(set(first))
    for bit in range(63):
        ones = sum(token >> bit & 1 for token in first)
        assert 850 < ones < 1150


@given(st.integers(0, 100), st.integers(0, 20))
def test_a_worker_may_hold_all_slots_until_another_starves(limit: int, workers: int) -> None:
    """No other worker wants a slot: the full limit. Another does: an even share, rounded up."""
    assert limit == may_hold(limit, workers, starved=False)
    share = may_hold(limit, workers, starved=True)
    assert share * max(workers, 1) >= limit
    assert (share - 1) * max(workers, 1) < limit or 0 == limit
