"""Time in tests: read the clock, run the ready callbacks, and wait for a handle."""

import asyncio
from typing import TypeVar

from millpond import Handle

T = TypeVar("T")


def clock() -> float:
    """Return the time of the running loop."""
    return asyncio.get_running_loop().time()


def timers() -> int:
    """How many timers the loop has that were not cancelled."""
    # No loop lists its timers in public.
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return sum(not timer.cancelled() for timer in scheduled)


async def rounds(count: int = 20) -> None:
    """Run the loop a few rounds, so that everything happens that needs no time to pass."""
    for _ in range(count):
        await asyncio.sleep(0)


async def result_of(handle: Handle[T]) -> T:
    """Await a handle as a coroutine, which timeouts and tasks can be made of."""
    return await handle
