"""`@pool.task(ignore_result=True)`: nothing is stored, and a caller that waits gets None."""

import asyncio

import pytest
from tests.pool import process_tasks

from millpond import Millpond, Outcome


async def test_a_result_that_is_ignored_is_not_stored() -> None:
    """Not even one that could not be stored."""
    mp = Millpond()
    pool = mp.pool("mail")
    seen: list[object] = []

    @pool.task(ignore_result=True)
    async def send(number: int) -> int:
        return number

    @pool.task(ignore_result=True)
    async def odd() -> object:
        return object()

    @mp.task
    async def after(outcome: Outcome) -> None:
        seen.append(outcome.result)

    async with mp:
        handle = await send.options(on_complete=after.bind()).submit(7)
        assert None is await handle
        found = await mp.handle(handle.id)
        assert None is await found
        assert None is await (await odd.submit())
        await pool.drain()
    assert [None] == seen


@pytest.mark.real_loop
async def test_a_process_sends_no_result_either() -> None:
    """It could not be encoded."""
    async with process_tasks.mp:
        handle = await process_tasks.silent.submit()
        assert None is await asyncio.wait_for(handle, 30)
