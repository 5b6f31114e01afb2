"""Seeded histories on SQLite: the same story as in memory, by one store and by two in turn."""

import pytest

from millpond.testing.live import simulate_live
from millpond.testing.simulate import lived_on_a_file, retold
from millpond.testing.simulation import memory_store, simulate_on


@pytest.mark.rows("DE-T24")
@pytest.mark.parametrize("seed", [3, 17])
async def test_histories_with_crashes_are_the_same_on_a_file(seed: int) -> None:
    """I12, with leaders that come and go."""
    lived = await simulate_on(seed, memory_store())
    await retold(lived.history)


@pytest.mark.rows("DE-T24")
def test_live_processes_live_the_same_history_on_a_file() -> None:
    """Real Millponds over a store that fails them, verb for verb."""
    lived_on_a_file(2, simulate_live(2))
