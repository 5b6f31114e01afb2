"""Run to completion: wait for a task to its end, though the caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


async def run_to_completion(
    task: asyncio.Task[Any], hurry: Callable[[], None] | None = None
) -> None:
    """Wait for a task to its end, and only then raise a cancellation; each one calls `hurry`.

    The task ends by itself before long.
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
        # The caller gets the cancellation; the error of the task is dropped.
        task.exception()
    raise cancelled
