"""Seeded histories on SQLite and PostgreSQL: the same story as in memory, by stores in turn."""

from itertools import count
from pathlib import Path

import pytest
from verify.live import simulate_live
from verify.servers.schemas import Schemas
from verify.simulate import lived_on_a_file, retold, retold_on_a_server

from millpond.testing.simulation.history import load
from millpond.testing.simulation.seeded import Lived, flow_specs, memory_store, simulate_on

FOUND = {
    path.stem: load(path.read_bytes())
    for path in sorted((Path(__file__).parent / "found").glob("*.jsonl"))
}


async def lived_with_crashes(seed: int, steps: int) -> Lived:
    """Return the next history, from a seed on, in which workers crash and lose their leases."""
    for number in count(seed):
        lived = await simulate_on(number, memory_store(), steps=steps)
        if {"crash", "lease lost"} <= lived.faults:
            return lived
    raise AssertionError


@pytest.mark.rows("DE-T24")
@pytest.mark.parametrize("seed", [0, 20])
async def test_histories_with_crashes_are_the_same_on_a_file(seed: int) -> None:
    """I12, with workers that crash between any two steps: every invariant holds there, too."""
    await retold((await lived_with_crashes(seed, 200)).history)


@pytest.mark.rows("DE-T24")
@pytest.mark.real_loop
@pytest.mark.parametrize("seed", [0, 20])
async def test_histories_with_crashes_are_the_same_on_a_server(
    seed: int, postgres_schemas: Schemas
) -> None:
    """I12, with workers that crash between any two steps: every invariant holds there, too."""
    lived = await lived_with_crashes(seed, 100)
    await retold_on_a_server(lived.history, postgres_schemas, (1,))


@pytest.mark.rows("DE-T24")
def test_live_processes_live_the_same_history_on_a_file() -> None:
    """Real Millponds over a store that fails them, verb for verb."""
    lived_on_a_file(2, simulate_live(2))


@pytest.mark.rows("TR-25")
@pytest.mark.parametrize("found", FOUND)
async def test_what_was_found_once_is_the_same_story_in_turns_on_a_file(found: str) -> None:
    """I12 for histories that once broke a promise, by one, two and three stores on one file."""
    await retold(FOUND[found])


@pytest.mark.rows("TR-25")
@pytest.mark.real_loop
@pytest.mark.parametrize("found", FOUND)
async def test_what_was_found_once_is_the_same_story_in_turns_on_a_server(
    found: str, postgres_schemas: Schemas
) -> None:
    """I12 for histories that once broke a promise, by one, two and three stores on a server."""
    await retold_on_a_server(FOUND[found], postgres_schemas)


@pytest.mark.rows("TR-25")
@pytest.mark.parametrize("seed", range(100, 108))
async def test_two_and_three_stores_on_one_file_answer_as_one(seed: int) -> None:
    """I12: what a store keeps between two verbs never hides what another one wrote."""
    lived = await simulate_on(seed, memory_store(), steps=120)
    await retold(lived.history, (2, 3))


@pytest.mark.rows("TR-25")
@pytest.mark.parametrize("seed", range(200, 206))
async def test_stores_in_turns_on_one_file_count_rates_and_budgets_as_one(seed: int) -> None:
    """I12 where every start asks rates, by count, by weight and by key, and a shared budget."""
    lived = await simulate_on(seed, memory_store(), steps=100, make_specs=flow_specs)
    await retold(lived.history, (2, 3))


@pytest.mark.rows("TR-25")
@pytest.mark.real_loop
@pytest.mark.parametrize("seed", range(300, 304))
async def test_three_stores_on_a_server_answer_as_one(seed: int, postgres_schemas: Schemas) -> None:
    """I12: what a store keeps between two verbs never hides what another one wrote."""
    lived = await simulate_on(seed, memory_store(), steps=80)
    await retold_on_a_server(lived.history, postgres_schemas, (3,))


@pytest.mark.rows("TR-25")
@pytest.mark.real_loop
@pytest.mark.parametrize("seed", range(400, 403))
async def test_stores_in_turns_on_a_server_count_rates_and_budgets_as_one(
    seed: int, postgres_schemas: Schemas
) -> None:
    """I12 where every start asks rates, by count, by weight and by key, and a shared budget."""
    lived = await simulate_on(seed, memory_store(), steps=80, make_specs=flow_specs)
    await retold_on_a_server(lived.history, postgres_schemas, (2,))
