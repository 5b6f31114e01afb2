"""Stories: whole seeded histories, judged as they happen and compared between stores."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.lease import LeaseRequest
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Batch
from millpond.testing.conformance.scenario import StoreSuite
from millpond.testing.simulation.history import Verb, replay, trace
from millpond.testing.simulation.seeded import same_story, simulate_on

LIVED = tuple(range(1, 25))
"""Seeds lived through on the store under test, every step judged."""

SEEDS = tuple(range(101, 113))
"""Seeds simulated on the memory store and replayed on the store under test."""


def reference() -> MemoryStore:
    """Return the store that every other must match."""
    return MemoryStore(audit_limit=None)


class StoryConformance(StoreSuite):
    """A store keeps its promises over whole histories, with the same trace as the others."""

    @pytest.mark.parametrize("seed", LIVED)
    def test_a_seeded_world_keeps_every_promise(self, seed: int) -> None:
        """Crashes, zombies, lost answers and operators: no invariant breaks, all work ends."""

        async def live() -> None:
            store = await self.make_store()
            try:
                await simulate_on(seed, store)
            finally:
                await store.close()

        self.run(live())

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_same_history_is_the_same_story(self, seed: int) -> None:
        """A recorded history gives the same answers and the same audit as on the memory store."""

        async def replay_all() -> None:
            lived = await simulate_on(seed, reference())
            store = await self.make_store()
            try:
                await same_story(lived.history, reference(), store)
            finally:
                await store.close()

        self.run(replay_all())

    def test_the_same_history_twice_is_the_same_trace(self) -> None:
        """Given `now` and `entropy`, nothing else decides: two fresh stores agree to the token."""
        history = [
            Verb("control", orders.Declare(PoolSpec(name="p", max_concurrent=2)), 0.0, 1),
            Verb("control", orders.Register("w", 30.0), 0.0, 2),
            Verb("submit", (Batch(tasks=tuple(map(_task, range(1, 4)))),), 1.0, 3),
            Verb("lease", LeaseRequest(pool="p", worker="w", want=5), 2.0, 4),
            Verb("control", orders.DeclareDead("w"), 3.0, 5),
        ]

        async def twice() -> None:
            answer = []
            for _ in range(2):
                store = await self.make_store()
                try:
                    answer.append(await replay(store, history))
                finally:
                    await store.close()
            assert answer[0] == answer[1]
            assert trace(answer[0]) == trace(answer[1])

        self.run(twice())


def _task(identifier: int) -> NewTask:
    return NewTask(id=identifier, pool="p", call=Call("work"))
