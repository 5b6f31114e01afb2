"""A store keeps rows between two transactions only until another process writes the file."""

from pathlib import Path

import pytest
from verify.servers.sqlite_files import TakingTurns

from millpond.store.sqlite import SqliteStore
from millpond.testing.simulation.seeded import (
    FLOW_SEEDS,
    FLOW_STEPS,
    flow_specs,
    memory_store,
    same_story,
    simulate_on,
)


def on_one_file(path: Path, count: int) -> list[SqliteStore]:
    """Open several stores on one file."""
    return [SqliteStore(path, durability="normal", inline=True) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("verbs_each", [1, 3])
async def test_two_stores_on_one_file_do_what_one_store_does(
    seed: int, verbs_each: int, tmp_path: Path
) -> None:
    """Each sees what the other wrote: answers and audit are those of the memory store."""
    lived = await simulate_on(seed, memory_store(), steps=100)
    both = TakingTurns(on_one_file(tmp_path / "work.db", 2), verbs_each=verbs_each)
    try:
        await same_story(lived.history, memory_store(), both)
    finally:
        await both.close()


@pytest.mark.parametrize("seed", FLOW_SEEDS)
async def test_two_stores_on_one_file_share_rates_and_budgets(seed: int, tmp_path: Path) -> None:
    """I12 where every start asks rates, by count, by weight and by key, and a shared budget."""
    lived = await simulate_on(seed, memory_store(), steps=FLOW_STEPS, make_specs=flow_specs)
    both = TakingTurns(on_one_file(tmp_path / "work.db", 2), verbs_each=1)
    try:
        await same_story(lived.history, memory_store(), both)
    finally:
        await both.close()
