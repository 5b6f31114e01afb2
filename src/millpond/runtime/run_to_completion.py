"""Through: what must not be left half done, though whoever asked for it is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


async def carried_through(task: asyncio.Task[Any], hurry: Callable[[], None] | None = None) -> None:
    """Wait for a task to its end, and only then be cancelled; `hurry` is called each time.

    The task is one that ends by itself before long.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
            if hurry is not None:
                hurry()
    if cancelled is None:
        task.result()
        return
    if not task.cancelled():
        # The cancellation is what the caller hears of; an error of the task is no longer its own.
        task.exception()
    raise cancelled
