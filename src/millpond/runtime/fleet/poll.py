"""Polling: what other processes did to a shared store is found by asking, once per floor.

Hints tell a process of its own doings, and of most that others do, at once. One may be lost, so a
poll alone must be enough to find work, room and ends. Where the store can tell whether others
wrote at all, an idle process asks nothing else. One that is sure to be told, and for which nobody
waits, asks less and less often: then it looks only for what nobody could tell any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from millpond.core.plan import Wake

if TYPE_CHECKING:
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.poll")

POLL_FLOOR = 1.0
"""The floor: seconds between two looks at a shared store, per process."""

IDLE_FLOOR = 10.0
"""What the floor grows to, doubling, while a process rests."""

ROOM_FLOOR = 0.02
"""The same while somebody stands in line for room, which is made without a word."""

FAR = 3e8
"""Seconds in which everything that waits is due: ten years."""


class Polling:
    """Looks at a store that others use, whatever hints were lost."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._looked_at = 0.0
        self._all_looked_at = -POLL_FLOOR
        self._behind = False
        """Whether something was written that nobody here has looked at."""
        self._told = False
        """Whether somebody said so, and it should not wait."""
        self._idle_floor = POLL_FLOOR
        """The floor while it rests."""

    def start(self) -> None:
        """Begin, if others may use the store."""
        if self._runtime.shared and self._task is None:
            self._looked_at = self._runtime.steady()
            self._task = self._runtime.loop.create_task(self._main(), name="millpond poll")

    async def stop(self) -> None:
        """End; safe before start, and safe twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def look_now(self) -> None:
        """There is more to see than could be told."""
        self._behind = self._told = True
        self._stirred.set()

    def stirred(self) -> None:
        """Something is going on: do not rest for now."""
        self._idle_floor = POLL_FLOOR

    def hurry(self) -> None:
        """Somebody waits for what nobody tells of: look more often."""
        if self._can_tell:
            self._stirred.set()

    @property
    def _can_tell(self) -> bool:
        return self._runtime.abilities.changed is not None

    def _next(self) -> float:
        """Return when to look next."""
        if self._can_tell and self._runtime.submitter.has_lines:
            return self._looked_at + ROOM_FLOOR
        return self._looked_at + (self._idle_floor if self._rests else POLL_FLOOR)

    @property
    def _rests(self) -> bool:
        """Whether all that matters here would be told.

        Not to those who wait for an end or for news: they are to see it soon, whatever was lost.
        Not to whoever leads: what will expire of what others submit is told to nobody.
        """
        runtime, can = self._runtime, self._runtime.abilities
        leads = can.elects and runtime.maintenance.leadership.leads
        return not leads and not runtime.waiting.anybody and can.hears

    def _look_less_often(self) -> None:
        longer = 2 * self._idle_floor if self._rests else POLL_FLOOR
        self._idle_floor = min(longer, max(IDLE_FLOOR, POLL_FLOOR))

    async def _main(self) -> None:
        steady, away = self._runtime.steady, False
        while True:
            delay = self._next() - steady()
            if delay > 0 and not self._told:
                # Nobody says when the rest is over: see for oneself, which costs the store nothing.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(delay, POLL_FLOOR)):
                        await self._stirred.wait()
                self._stirred.clear()
                continue
            self._looked_at = steady()
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001 - the store is away; the next look is soon
                if not self._runtime.outages.failed(self, error) and not away:
                    log.warning("the store cannot be looked at (%s); it is tried again", error)
                away = True
                await asyncio.sleep(POLL_FLOOR)
            else:
                away = False
                self._runtime.outages.worked(self)
                self._look_less_often()

    async def _round(self) -> None:
        runtime = self._runtime
        changed = runtime.abilities.changed
        if changed is not None and not await changed() and not self._behind:
            return
        runtime.submitter.room_anywhere()
        if self._looked_at < self._all_looked_at + POLL_FLOOR and not self._told:
            # It was only for those who stand in line; the rest has its time.
            self._behind = True
            return
        self._behind = self._told = False
        self._all_looked_at = self._looked_at
        try:
            await self._look()
        except BaseException:
            self._behind = self._can_tell
            raise

    async def _look(self) -> None:
        """Look for ends, and send workers where something waits."""
        runtime = self._runtime
        runtime.maintenance.others_wrote()
        await runtime.waiting.look()
        await runtime.progress.look()
        if not runtime.workers:
            return
        if not runtime.abilities.hears:
            # Somebody may have cancelled what runs here: only a renewal says so.
            runtime.renewals.hurry()
        # Who asks only when something was written must hear of what is due later, too.
        horizon = FAR if self._can_tell else 0.0
        for pool in await runtime.view.due(now=runtime.clock() + horizon):
            for worker in runtime.workers:
                worker.woken(Wake(pool, 0.0))
