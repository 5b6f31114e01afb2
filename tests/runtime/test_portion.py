"""Portions: one verb carries a bounded number of bytes, so that other calls do not wait long."""

import asyncio

import pytest
from tests.pool.stores import Watched, memory

from millpond import Millpond
from millpond.pool.internals import internals_of
from millpond.runtime.batching import MOST_BYTES, bytes_of, bytes_of_tasks, fitting

MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("weights", "most", "expected"),
    [
        ([], 5, 0),
        ([1, 1, 1], 5, 3),
        ([1, 1, 1], 2, 2),
        ([2 * MOST_BYTES, 1], 5, 1),
        ([1, 2 * MOST_BYTES], 5, 1),
        ([MOST_BYTES // 2] * 3, 5, 2),
    ],
)
def test_a_portion_has_as_many_items_as_fit(weights: list[int], most: int, expected: int) -> None:
    """At least one, however heavy; at most so many, however light."""
    assert expected == fitting(weights, int, most)


@pytest.mark.rows("CX-19")
async def test_results_and_arguments_go_to_the_store_in_portions() -> None:
    """Forty megabytes of results or arguments at once take more than one transaction."""
    store = Watched(memory(), pauses=2)
    mp = Millpond(max_payload=4 * MEGABYTE)
    internals_of(mp).owner.make_store = lambda: store
    pool = mp.pool("films", max_concurrent=20)

    @pool.task
    async def film(data: str) -> str:
        await asyncio.sleep(10)
        return data

    async with mp:
        handles = await asyncio.gather(*(film.submit("x" * 2 * MEGABYTE) for _ in range(20)))
        assert {2 * MEGABYTE} == {len(await handle) for handle in handles}
    settles = [sum(map(bytes_of, what[0])) for verb, what in store.log if verb == "settle"]
    submits = [
        sum(bytes_of_tasks(batch.tasks) for batch in what)
        for verb, what in store.log
        if verb == "submit"
    ]
    for heavy in (settles, submits):
        assert sum(heavy) > 40 * MEGABYTE
        assert max(heavy) <= MOST_BYTES
        assert len([one for one in heavy if one]) < 20
