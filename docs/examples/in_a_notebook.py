"""A notebook: its event loop runs already, so cells await. Here each cell is a step of one task."""

import asyncio

from millpond import Millpond

mp = Millpond()
pool = mp.pool("figures", max_concurrent=2)


@pool.task
async def square(number: int) -> int:
    return number * number


async def cells() -> None:
    """Do what the cells do, one after another."""
    await mp.open()  # run this cell again, and nothing happens

    figures = await pool.map(square, range(5))
    assert figures == [0, 1, 4, 9, 16]

    await mp.close()  # in the last cell


asyncio.run(cells())
