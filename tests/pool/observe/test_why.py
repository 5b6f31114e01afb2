"""`mp.why`: the reason in words."""

import asyncio
import contextlib

import pytest

from millpond import Millpond, Retry


async def test_a_task_that_backs_off_names_its_error() -> None:
    """It shows the type and the message of the last error."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(initial=10, jitter=0))

    async def fail() -> None:
        raise ConnectionError("away")

    async with mp:
        handle = await pool.submit(fail)
        await asyncio.sleep(1)
        assert "attempt 1 of 3 failed: ConnectionError: away)" in await mp.why(handle.id)


@pytest.mark.rows("TR-24")
@pytest.mark.parametrize("concurrency", [None, 1])
async def test_why_names_the_handler_that_holds_the_last_slot(concurrency: int | None) -> None:
    """A handler that does not stop keeps its slot, and its task runs until it ends."""
    mp = Millpond(work=False)
    pool = mp.pool("work", max_concurrent=1, retry=Retry.never())
    other = mp.pool("other", max_concurrent=5)

    async def deaf() -> None:
        for _ in range(9):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)

    async def quick() -> None: ...

    async with mp, mp.worker(concurrency=concurrency):
        stuck = await pool.submit(deaf, timeout=2)
        await asyncio.sleep(9)
        assert "running" == (await stuck.refresh()).status
        assert "7 s ago, and its handler still runs" in await mp.why(stuck.id)
        waiting, elsewhere = await pool.submit(quick), await other.submit(quick)
        why = await mp.why(waiting.id)
        assert f"held by task {stuck.id} " in why
        assert "stuck: its time was over 7 s ago, its handler goes on" in why
        assert (concurrency == 1) == (f"task {stuck.id} " in await mp.why(elsewhere.id))
        await waiting
