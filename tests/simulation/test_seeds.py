"""Seeded histories: a fixed few in every run, and those that once found a bug for good."""

from functools import cache
from pathlib import Path

import pytest
from verify import flow_seeds

from millpond.core.lifecycle import LIFECYCLE
from millpond.testing.simulation.history import load, replay, save, trace
from millpond.testing.simulation.invariants import Violated
from millpond.testing.simulation.seeded import (
    FLOW_SEEDS,
    Broken,
    Lived,
    breaks,
    memory_store,
    same_story,
    shrink,
    simulate,
    simulate_on,
)
from millpond.testing.simulation.world import FAULTS

FOUND = sorted((Path(__file__).parent / "found").glob("*.jsonl"))


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_a_few_histories_break_no_promise(first: int) -> None:
    """Every invariant holds after every step of seeded histories with all kinds of trouble."""
    for seed in range(first, first + 10):
        assert simulate(seed).verbs > 0


@pytest.mark.parametrize("found", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_stays_mended(found: Path) -> None:
    """A history that once broke a promise breaks none any more."""
    assert breaks(load(found.read_bytes())) is None


def test_there_are_found_histories() -> None:
    """The folder of found histories is read, and not empty."""
    assert len(FOUND) >= 3


async def test_the_same_seed_lives_the_same_history() -> None:
    """One number makes a whole history, verb for verb, and makes it again."""
    once = await simulate_on(7, memory_store())
    again = await simulate_on(7, memory_store())
    assert once.history == again.history


async def test_the_same_history_gives_the_same_trace() -> None:
    """I12: two stores of one kind give the same trace for one history."""
    lived = await simulate_on(11, memory_store())
    await same_story(lived.history, memory_store(), memory_store())


async def test_histories_of_flow_control_try_all_of_it() -> None:
    """Those that stores are compared by refund, charge more, hold keys and pools, and run dry."""
    found = [await flow_seeds.tried(seed) for seed in FLOW_SEEDS]
    assert flow_seeds.WANTED == set().union(*found), "python -m verify.flow_seeds finds others"


async def test_two_different_traces_are_unequal() -> None:
    """I12 is not vacuous: a history that lost a verb gives another trace."""
    lived = await simulate_on(11, memory_store())
    full_trace = trace(await replay(memory_store(), lived.history, judged=False))
    shorter = lived.history[:20] + lived.history[21:]
    part = trace(await replay(memory_store(), shorter, judged=False))
    assert full_trace != part


async def test_a_saved_history_is_the_same_history() -> None:
    """Found histories survive being written to a file and read again."""
    lived = await simulate_on(3, memory_store())
    assert lived.history == load(save(lived.history))


def test_shrinking_keeps_the_promise_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest part of a breaking history breaks the same promise with far fewer verbs."""
    from millpond.store.verbs import lease

    monkeypatch.setattr(lease, "slots", lambda *_: 1)
    with pytest.raises(Broken) as broken:
        for seed in range(50):
            simulate(seed)
    assert isinstance(broken.value.cause, Violated)
    shortest = shrink(broken.value.history)
    assert broken.value.cause.invariant == breaks(shortest)
    assert len(shortest) <= 10 < len(broken.value.history)


@cache
def simulated(seed: int) -> Lived:
    """One history, lived once for all who look at it."""
    return simulate(seed)


def test_few_histories_hold_every_named_fault() -> None:
    """Each kind of trouble falls on some seed, and none breaks a promise."""
    assert set(FAULTS) == {fault for seed in range(40) for fault in simulated(seed).faults}


def test_few_histories_take_most_arrows() -> None:
    """The worlds are rich: forty histories already take nearly every arrow of the lifecycle."""
    taken = {arrow for seed in range(40) for arrow in simulated(seed).arrows}
    assert len(set(LIFECYCLE) - taken) <= 3
