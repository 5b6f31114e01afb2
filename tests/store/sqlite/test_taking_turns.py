"""What a store keeps of the file between two transactions holds only while nobody else writes."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from millpond.store.protocol import Store, View
from millpond.store.sqlite import SqliteStore
from millpond.testing.simulation import memory_store, same_story, simulate_on


class TakingTurns(Store):
    """Several stores on one file: each verb is carried out by the next of them."""

    def __init__(self, stores: list[SqliteStore], *, verbs_each: int) -> None:
        self._stores = stores
        self._turns = cycle([store for store in stores for _ in range(verbs_each)])

    @property
    def view(self) -> View:
        return self._stores[0].view

    async def submit(self, *asked: Any, **moment: Any) -> Any:
        return await next(self._turns).submit(*asked, **moment)

    async def lease(self, *asked: Any, **moment: Any) -> Any:
        return await next(self._turns).lease(*asked, **moment)

    async def renew(self, *asked: Any, **moment: Any) -> Any:
        return await next(self._turns).renew(*asked, **moment)

    async def settle(self, *asked: Any, **moment: Any) -> Any:
        return await next(self._turns).settle(*asked, **moment)

    async def recover(self, **moment: Any) -> Any:
        return await next(self._turns).recover(**moment)

    async def control(self, *asked: Any, **moment: Any) -> Any:
        return await next(self._turns).control(*asked, **moment)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def on_one_file(path: Path, count: int) -> list[SqliteStore]:
    """Open several stores on one file."""
    return [SqliteStore(path, durability="normal", inline=True) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("verbs_each", [1, 3])
async def test_two_stores_on_one_file_tell_the_story_of_one(
    seed: int, verbs_each: int, tmp_path: Path
) -> None:
    """Whoever wrote last, the other sees it: the story is the memory store's."""
    lived = await simulate_on(seed, memory_store(), steps=100)
    both = TakingTurns(on_one_file(tmp_path / "work.db", 2), verbs_each=verbs_each)
    try:
        await same_story(lived.history, memory_store(), both)
    finally:
        await both.close()
