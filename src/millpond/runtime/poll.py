"""Polling: what other processes did to a shared store is found by asking, once per floor.

Hints (the wake-ups in a verb's answer) tell a process of its own doings at once. Of those of
others it may hear nothing, so a poll alone must be enough to find work, room and ends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.plan import Wake

if TYPE_CHECKING:
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.poll")

POLL_FLOOR = 1.0
"""The floor: seconds between two looks at a shared store, per process."""


class Polling:
    """Looks at a store that others use, whatever hints were lost."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if others may use the store."""
        if self._runtime.shared and self._task is None:
            self._task = self._runtime.loop.create_task(self._main(), name="millpond poll")

    async def stop(self) -> None:
        """End; safe before start, and safe twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _main(self) -> None:
        away = False
        while True:
            await asyncio.sleep(POLL_FLOOR)
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001 - the store is away; the next look is soon
                if not away:
                    log.warning("the store cannot be looked at (%s); it is tried again", error)
                away = True
            else:
                away = False

    async def _round(self) -> None:
        """Offer room, look for ends, and send workers where something due waits."""
        runtime = self._runtime
        runtime.submitter.room_anywhere()
        await runtime.waiting.look()
        if not runtime.workers:
            return
        for pool in await runtime.view.due(now=runtime.clock()):
            for worker in runtime.workers:
                worker.woken(Wake(pool, 0.0))
