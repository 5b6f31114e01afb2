"""Waiting in real time for what gives no event: other threads and processes, files, a server.

Whatever does give an event is waited for by that event. These look again and again, and fail loudly
if what they wait for does not come.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable

PATIENCE = 30.0
BETWEEN = 0.002
"""Seconds from one look to the next."""


def until(condition: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait in this thread until something is so."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {within} s"
        time.sleep(BETWEEN)  # another thread or process does it, and gives no event


async def eventually(
    condition: Callable[[], object | Awaitable[object]], within: float = PATIENCE
) -> None:
    """Wait on a real loop until something is so; the condition may be a coroutine function."""
    async with asyncio.timeout(within):
        while not await _so(condition):  # noqa: ASYNC110
            await asyncio.sleep(BETWEEN)  # another thread or process does it, and gives no event


async def _so(condition: Callable[[], object | Awaitable[object]]) -> object:
    answer = condition()
    return await answer if inspect.isawaitable(answer) else answer


async def until_a_thread(condition: Callable[[], object]) -> None:
    """Wait on a loop of virtual time for a thread, which takes real time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE} s"
        await asyncio.sleep(0)
        time.sleep(BETWEEN)  # noqa: ASYNC251 - a sleep of the loop would take no time at all


def for_ever() -> None:
    """Do nothing until this process is killed, or a signal raises an error."""
    threading.Event().wait()


async def never_ends() -> None:
    """Do nothing until cancelled."""
    await asyncio.Event().wait()
