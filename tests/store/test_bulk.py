"""Plain tasks are started and completed by the batch, as if it had been one at a time."""

from __future__ import annotations

import pytest

from millpond.core.order.backlog import Backlog
from millpond.store.verbs import bulk as plain
from millpond.testing.simulation.history import replay, trace
from millpond.testing.simulation.seeded import memory_store, simulate_on

SEEDS = range(300, 312)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_history_is_the_same_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace is the same whether tasks change by the batch or one by one."""
    lived = await simulate_on(seed, memory_store())
    together = trace(await replay(memory_store(), lived.history, judged=False))
    monkeypatch.setattr(Backlog, "take", lambda *_: [])
    monkeypatch.setattr(plain, "_completes_plainly", lambda *_: False)
    one_by_one = trace(await replay(memory_store(), lived.history, judged=False))
    assert one_by_one == together
