"""A handler that waits for another task: allowed where it can end, refused where it cannot."""

import asyncio

import pytest

from millpond import Handle, Millpond, Retry, TaskFailed


async def test_a_wait_for_a_task_that_runs_already_counts_in_the_circle() -> None:
    """Who waits for a running task holds its slot too: the wait that closes the circle is told."""
    mp = Millpond()
    pool = mp.pool("nested", max_concurrent=3)

    @pool.task(retry=Retry.never())
    async def nested(depth: int) -> int:
        if not depth:
            return 0
        inner: Handle[int] = await nested.submit(depth - 1)
        await asyncio.sleep(1)  # by now it runs, if it can
        return 1 + await inner

    async with mp:
        assert 2 == await (await nested.submit(2))
        with pytest.raises(TaskFailed, match="WouldDeadlock"):
            async with asyncio.timeout(600):
                await (await nested.submit(3))
