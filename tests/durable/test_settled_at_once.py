"""What has ended is stored at once, however much is claimed ahead."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.pool.fleet import Fleet
from verify.servers.schemas import Schema

from millpond.pool.internals import internals_of

pytestmark = pytest.mark.rows("TR-12")


@pytest.mark.parametrize("slots", [1, 8])
async def test_an_end_is_reported_before_the_next_job_of_its_slot_ends(
    place: Path | Schema, slots: int
) -> None:
    """A kill repeats no more than there are slots, and no waiter elsewhere waits for a batch."""
    happened: list[tuple[str, int]] = []
    async with Fleet(place).millpond(work=True) as mp:
        pool = mp.pool("work", max_concurrent=slots, prefetch=16)
        store = internals_of(mp).runtime.store
        settle = store.settle

        async def noted(settlements: Any, **options: Any) -> Any:
            happened.extend(("settled", one.fence.task) for one in settlements)
            return await settle(settlements, **options)

        store.settle = noted  # type: ignore[method-assign]

        @pool.task
        async def job(number: int) -> int:
            await asyncio.sleep(0.1 * (number * 7 % 5))
            happened.append(("ended", ids[number]))
            return number

        ids: dict[int, int] = {}
        async with asyncio.timeout(600):
            handles = await pool.submit_many(job.each(range(200)))
            ids.update((number, handle.id) for number, handle in enumerate(handles))
            await mp.wait(handles)
    untold = most = 0
    for what, _ in happened:
        untold += 1 if what == "ended" else -1
        most = max(most, untold)
    assert most <= slots


async def test_jobs_that_end_at_once_are_settled_by_one_call(place: Path | Schema) -> None:
    """Calls for a part of the slots each would leave the slots to two halves that take turns."""
    sizes: list[int] = []
    async with Fleet(place).millpond(work=True) as mp:
        pool = mp.pool("work", max_concurrent=10)
        store = internals_of(mp).runtime.store
        settle = store.settle

        async def noted(settlements: Any, **options: Any) -> Any:
            sizes.append(len(settlements))
            return await settle(settlements, **options)

        store.settle = noted  # type: ignore[method-assign]

        @pool.task
        async def job(number: int) -> int:
            return number

        async with asyncio.timeout(600):
            await mp.wait(await pool.submit_many(job.each(range(100))))
    assert [10] * 10 == sizes
