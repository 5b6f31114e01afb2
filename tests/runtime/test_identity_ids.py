"""Ids are unique, also between processes."""

import os
from itertools import pairwise

import pytest

from millpond.runtime.identity import Identity

MANY = 20_000


def test_ids_of_one_process_are_unique_and_mostly_close_together() -> None:
    """Inserting ids close together is cheap for an index."""
    made = [identity.new_id() for identity in [Identity()] for _ in range(MANY)]
    assert len(set(made)) == MANY
    assert all(0 <= one < 1 << 63 for one in made)
    steps = [after - before for before, after in pairwise(made)]
    assert sum(0 < step <= 1 << 36 for step in steps) > 0.99 * MANY


@pytest.mark.rows("TR-14")
def test_ids_cannot_be_guessed_from_other_ids() -> None:
    """The gap between two has 36 random bits, from the system's source."""
    made = [identity.new_id() for identity in [Identity()] for _ in range(MANY)]
    steps = [after - before for before, after in pairwise(made)]
    assert len(set(steps)) > 0.99 * MANY
    close = [step for step in steps if 0 < step <= 1 << 36]
    assert sum(step > 1 << 26 for step in close) > 0.99 * len(close)


def test_ids_of_two_processes_differ() -> None:
    """Each begins anywhere among 63 bits."""
    made = [identity.new_id() for identity in (Identity(), Identity()) for _ in range(MANY)]
    assert len(set(made)) == 2 * MANY


def test_ids_never_exceed_63_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With random bytes of all ones, each id is the highest."""
    monkeypatch.setattr(os, "urandom", lambda count: b"\xff" * count)
    identity = Identity()
    made = [identity.new_id() for _ in range(3)]
    assert made == [(1 << 63) - 1] * 3


def test_a_seed_repeats_the_ids() -> None:
    """The seed also draws the gaps, so a simulation with the same seed has the same ids."""
    one, other = Identity(7), Identity(7)
    made = [one.new_id() for _ in range(100)]
    assert made == [other.new_id() for _ in range(100)]
    assert 1 not in [after - before for before, after in pairwise(made)]
