"""Ids are unique, also between processes."""

import os
from itertools import pairwise

import pytest

from millpond.runtime.identity import Identity

MANY = 20_000


def test_ids_of_one_process_differ_and_mostly_stand_close_together() -> None:
    """An index takes in what stands beside what it has just taken in at the least cost."""
    made = [identity.new_id() for identity in [Identity()] for _ in range(MANY)]
    assert len(set(made)) == MANY
    assert all(0 <= one < 1 << 63 for one in made)
    steps = [after - before for before, after in pairwise(made)]
    assert sum(0 < step <= 1 << 36 for step in steps) > 0.99 * MANY


@pytest.mark.rows("TR-14")
def test_who_knows_an_id_cannot_guess_its_neighbours() -> None:
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


def test_they_do_not_go_past_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows the highest would not fit."""
    monkeypatch.setattr(os, "urandom", lambda count: b"\xff" * count)
    identity = Identity()
    made = [identity.new_id() for _ in range(3)]
    assert made == [(1 << 63) - 1] * 3


def test_what_is_seeded_repeats() -> None:
    """And draws each: so a world that was found with a seed stays what it was."""
    one, other = Identity(7), Identity(7)
    made = [one.new_id() for _ in range(100)]
    assert made == [other.new_id() for _ in range(100)]
    assert 1 not in [after - before for before, after in pairwise(made)]
