"""`mp.why`: the reason in words."""

import asyncio

from millpond import Millpond, Retry


async def test_a_task_that_backs_off_names_its_error() -> None:
    """The last error is told by its type and message, as a person would read it."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(initial=10, jitter=0))

    async def fail() -> None:
        raise ConnectionError("away")

    async with mp:
        handle = await pool.submit(fail)
        await asyncio.sleep(1)
        assert "attempt 1 of 3 failed: ConnectionError: away)" in await mp.why(handle.id)
