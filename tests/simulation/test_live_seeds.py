"""Live histories: real Millponds over one store that fails them, each from one number."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections import Counter

import pytest
from verify.live import FAULTS, simulate_live
from verify.live.mutants import LIVE_MUTANTS
from verify.mutants import HUNTS, MUTANTS, hunt

from millpond.core.lifecycle import LIFECYCLE, Status, Transition
from millpond.testing.simulation.history import load, save
from millpond.testing.simulation.invariants import Violated
from millpond.testing.simulation.seeded import (
    Broken,
    Lived,
    breaks,
    kind_of,
    memory_store,
    same_story,
    shrink,
)

SEEDS = 60
lived: dict[int, Lived] = {}
"""The histories of this module, each lived through once."""


def live(seed: int) -> Lived:
    """Live through a history, once."""
    if seed not in lived:
        lived[seed] = simulate_live(seed)
    return lived[seed]


@pytest.mark.parametrize("first", range(0, SEEDS, 6))
def test_a_few_live_histories_break_no_promise(first: int) -> None:
    """Real workers, handlers and callers keep every promise in every kind of trouble."""
    for seed in range(first, first + 6):
        assert live(seed).verbs > 100


def test_a_poll_between_two_pieces_of_work_is_no_sleep() -> None:
    """Seed 75: a worker that took each task as it became due made another look asleep."""
    assert live(75).verbs > 100


def test_asking_ten_queues_over_a_slow_line_is_no_sleep() -> None:
    """Seed 700019: a worker that asked the queues of events first made the last one wait."""
    assert live(700019).verbs > 100


@pytest.mark.timeout(120)
def test_every_kind_of_fault_is_common() -> None:
    """No kind of trouble is so rare that its absence would go unnoticed."""
    seen = Counter(fault for seed in range(SEEDS) for fault in live(seed).faults)
    assert [] == [fault for fault in FAULTS if seen[fault] < SEEDS * 0.1]


@pytest.mark.timeout(120)
def test_nearly_every_arrow_is_taken() -> None:
    """The worlds are rich: few histories already take nearly every arrow of the lifecycle."""
    taken = {arrow for seed in range(SEEDS) for arrow in live(seed).arrows}
    # Damaged bytes, and a claim that is lost on its last attempt: these worlds seldom have either.
    rare = {(Status.QUEUED, Transition.CORRUPT), (Status.QUEUED, Transition.EXHAUST)}
    assert set(LIFECYCLE) - taken <= rare


SCRIPT = """
import hashlib
from millpond.testing.simulation.history import save
from verify.live import simulate_live
print(hashlib.sha256(save(simulate_live(5).history)).hexdigest())
"""


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_one_seed_is_one_history_byte_for_byte(hash_seed: str) -> None:
    """Neither the process nor the order of sets decides what happens, only the seed."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    other = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert hashlib.sha256(save(live(5).history)).hexdigest() == other.stdout.strip()


def test_a_live_history_is_a_history_like_any_other() -> None:
    """I12: a saved history replays with the same trace on two stores."""
    history = live(3).history
    assert history == load(save(history))
    asyncio.run(same_story(history, memory_store(), memory_store()))


def test_a_broken_live_history_can_be_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the judge of the store saw in a live history is there in a shrunk history."""
    from millpond.store.verbs import lease

    monkeypatch.setattr(lease, "slots", lambda *_: 1)
    with pytest.raises(Broken) as broken:
        for seed in range(20):
            simulate_live(seed)
    assert isinstance(broken.value.cause, Violated)
    shortest = shrink(broken.value.history)
    assert kind_of(broken.value.cause) == breaks(shortest)
    assert len(shortest) < len(broken.value.history)


QUICK = (
    "no_capacity_check",
    "grant_at_wake_up",
    "no_fence",
    "fence_by_state_only",
    "depth_check_outside_the_lock",
    "attempts_counted_at_settle",
    "nothing_but_hints",
    "ends_heard_only_at_home",
    "joins_what_a_worker_holds",
)
"""Mutants that a few live histories find; `make mutants` hunts the others as well."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", QUICK)
def test_live_histories_find_the_mutant(name: str) -> None:
    """A mistake in the store or in the runtime is found within a few live histories."""
    assert hunt(name, most=40, world="live").found is not None


def test_every_mutant_is_hunted_live() -> None:
    """What breaks a store must show in live histories too; none is left out."""
    live = [name for world, name in HUNTS if world == "live"]
    assert {mutant.__name__ for mutant in (*MUTANTS, *LIVE_MUTANTS)} == set(live)
