"""Ids: no two are the same, whoever makes them."""

from itertools import pairwise

from millpond.runtime.identity import Identity

MANY = 20_000


def test_ids_of_one_process_differ_and_mostly_follow_each_other() -> None:
    """An index takes in what follows what it has just taken in at the least cost."""
    made = [identity.new_id() for identity in [Identity()] for _ in range(MANY)]
    assert len(set(made)) == MANY
    assert all(0 <= one < 1 << 63 for one in made)
    steps = [after - before for before, after in pairwise(made)]
    assert steps.count(1) > 0.99 * MANY


def test_ids_of_two_processes_differ() -> None:
    """Each begins anywhere among 63 bits."""
    made = [identity.new_id() for identity in (Identity(), Identity()) for _ in range(MANY)]
    assert len(set(made)) == 2 * MANY


def test_they_do_not_go_past_the_last() -> None:
    """What follows the highest would not fit."""
    identity = Identity()
    identity.dice.getrandbits = lambda bits: (1 << bits) - 1  # type: ignore[method-assign]
    made = [identity.new_id() for _ in range(3)]
    assert made == [(1 << 63) - 1] * 3


def test_what_is_seeded_repeats() -> None:
    """And draws each: so a world that was found with a seed stays what it was."""
    one, other = Identity(7), Identity(7)
    made = [one.new_id() for _ in range(100)]
    assert made == [other.new_id() for _ in range(100)]
    assert 1 not in [after - before for before, after in pairwise(made)]
