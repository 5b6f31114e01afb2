"""Time in a pool in memory: long attempts, expiry and retention."""

import asyncio

import pytest
from tests.pool.moments import timers

from millpond import Context, Keep, Millpond, Retry, TaskFailed


async def test_an_attempt_may_run_for_longer_than_a_lease() -> None:
    """In memory no other process can take the task: a slow handler keeps its lease."""
    mp = Millpond(lease=30.0)
    pool = mp.pool("slow")

    @pool.task(retry=Retry.never())
    async def slow() -> str:
        await asyncio.sleep(10 * 30.0)
        return "done"

    async with mp:
        assert "done" == await (await slow.submit())


async def test_an_idle_pool_sets_no_timer() -> None:
    """A pool with nothing to do sleeps until it is woken; it does not even renew leases."""
    mp = Millpond()
    mp.pool("idle")
    async with mp:
        for _ in range(10):
            await asyncio.sleep(0)
        assert 0 == timers()


async def test_a_waiting_task_expires_by_time_alone() -> None:
    """A task not started within expires_in fails at that moment, though nothing else happens."""
    mp = Millpond()
    pool = mp.pool("late")

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        await asyncio.sleep(5)
        handle = await work.options(expires_in=7.0).submit()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TaskFailed) as caught:
            await handle
        assert 7.0 == pytest.approx(loop.time() - began, abs=0.01)
        assert "expired" == caught.value.reason
        assert 0 == caught.value.attempts


async def test_a_follow_up_expires_by_time_alone() -> None:
    """A task submitted through ctx expires like any other."""
    mp = Millpond()
    pool, other = mp.pool("first"), mp.pool("second")
    handles = []

    @other.task
    async def work() -> None: ...

    @pool.task
    async def first(ctx: Context) -> None:
        handles.append(await ctx.submit(work.bind(), pool=other, expires_in=3.0))

    async with mp:
        await other.pause()
        await (await first.submit())
        await asyncio.sleep(4)
        assert ["failed"] == await mp.status([handles[0].id])


async def test_a_task_that_comes_back_still_expires() -> None:
    """A retry that has not started again by expires_in fails as expired."""
    mp = Millpond()
    pool = mp.pool("back", retry=Retry.constant(100.0))

    @pool.task
    async def work() -> None:
        raise ValueError

    async with mp:
        handle = await work.options(expires_in=20.0).submit()
        await asyncio.sleep(21)
        assert "failed" == (await handle.refresh()).status
        assert "expired" == handle.reason


async def test_retention_runs_by_time_alone() -> None:
    """An ended task is forgotten once it is older than it is kept, though nothing else happens."""
    mp = Millpond(keep=Keep(completed=60.0))
    pool = mp.pool("kept")

    @pool.task
    async def work() -> int:
        return 1

    async with mp:
        await asyncio.sleep(1000)
        handle = await work.submit()
        await handle
        await asyncio.sleep(50)
        assert ["completed"] == await mp.status([handle.id])
        await asyncio.sleep(130)
        assert ["expired"] == await mp.status([handle.id])
