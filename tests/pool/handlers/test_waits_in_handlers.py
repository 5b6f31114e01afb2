"""A handler that waits for another task: allowed where it can end, refused where it cannot."""

import asyncio

import pytest

from millpond import Handle, Millpond, Retry, TaskFailed, WouldDeadlock


async def test_a_wait_for_a_task_that_runs_already_counts_in_the_circle() -> None:
    """A wait for a running task also holds a slot: the wait that closes the cycle raises."""
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


async def squared(n: int) -> int:
    """Some work."""
    await asyncio.sleep(0.1)
    return n * n


@pytest.mark.rows("TRAP-14")
@pytest.mark.parametrize("way", ["map", "map of a task", "drain", "run", "drain of nothing"])
async def test_a_handler_that_waits_for_its_own_full_pool_raises_would_deadlock(way: str) -> None:
    """Each way to wait raises: with no slot but its own, the wait would never end."""
    mp = Millpond()
    pool = mp.pool("own", retry=Retry.never())
    task = pool.task(squared)

    async def outer() -> object:
        match way:
            case "map":
                return await pool.map(squared, range(3))
            case "map of a task":
                return await pool.map(task, range(3))
            case "drain":
                return await pool.drain([task.bind(1)])
            case "run":
                async with pool.run() as run:
                    await run.submit(task.bind(1))
                return run.report
            case _:
                return await pool.drain()

    async with mp:
        handle = await pool.submit(outer)
        async with asyncio.timeout(60):
            with pytest.raises(TaskFailed) as caught:
                await handle
        assert isinstance(caught.value.__cause__, WouldDeadlock)
        assert 9 == await (await pool.submit(task.bind(3)))
        await asyncio.sleep(1)
        assert 0 == await pool.size()


@pytest.mark.parametrize("way", ["map", "map of a task", "drain", "run"])
async def test_a_handler_may_wait_for_more_of_its_own_pool_where_there_is_room(way: str) -> None:
    """With a second slot the same waits come to their end."""
    mp = Millpond()
    pool = mp.pool("own", max_concurrent=2, retry=Retry.never())
    task = pool.task(squared)

    async def outer() -> int:
        match way:
            case "map":
                return len(await pool.map(squared, range(3)))
            case "map of a task":
                return len(await pool.map(task, range(3)))
            case "drain":
                return (await pool.drain([task.bind(n) for n in range(3)])).completed
            case _:
                async with pool.run() as run:
                    await run.submit_many(task.bind(n) for n in range(3))
                assert run.report is not None
                return run.report.completed

    async with mp:
        assert 3 == await (await pool.submit(outer))
