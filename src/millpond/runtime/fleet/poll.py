"""Polling: find what other processes did to a shared store.

Hints report most of it at once. A hint may be lost, so polling alone must be enough to find work,
room and ends. Where the store can say whether another process wrote, an idle process asks only
that. A process that gets every hint, and in which no code waits, polls less and less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.plan import Wake
from millpond.core.service import Service
from millpond.runtime.worker.queues import FAR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.runtime.environment import Environment
    from millpond.runtime.fleet.maintain import Maintenance
    from millpond.runtime.fleet.renew import Renewals
    from millpond.runtime.jobs.job import WorkerProtocol
    from millpond.runtime.observe.outage import Outages
    from millpond.runtime.submit import Submitter
    from millpond.runtime.waiting.progress import ProgressBoard
    from millpond.runtime.waiting.results import Waiting

log = logging.getLogger("millpond.poll")

POLL_FLOOR = 1.0
"""Seconds between two polls of a shared store, per process."""

IDLE_FLOOR = 10.0
"""The longest interval of a process that rests; it grows by doubling."""

ROOM_FLOOR = 0.02
"""The interval while a submitter waits for room: no hint reports room."""


class Polling(Service):
    """Polls a store that other processes use, whatever hints were lost."""

    _env: Environment
    _outages: Outages
    _workers: Sequence[WorkerProtocol]
    _submitter: Submitter
    _waiting: Waiting
    _progress: ProgressBoard
    _renewals: Renewals
    _maintenance: Maintenance
    _task: asyncio.Task[None] | None = None
    _polled_at: float = 0.0
    _all_polled_at: float = -POLL_FLOOR
    _behind: bool = False
    """Whether another process wrote something that this one has not read."""
    _urgent: bool = False
    """Whether a hint says so, and the poll should not wait."""
    _idle_floor: float = POLL_FLOOR
    """The interval while it rests."""

    def __post_init__(self) -> None:
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Begin, if other processes may use the store."""
        if self._env.shared and self._task is None:
            self._polled_at = self._env.steady()
            self._task = self._env.loop.create_task(self._main(), name="millpond poll")

    async def stop(self) -> None:
        """End; safe before start, and safe twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def poll_now(self) -> None:
        """Poll at once: a hint had no room for all that happened.

        A process that runs and awaits nothing, as one that only serves a dashboard, polls no more
        often for it.
        """
        self._behind = True
        if self.needs_hints:
            self._urgent = True
            self._wake.set()

    @property
    def needs_hints(self) -> bool:
        """Whether this process runs tasks, or its code waits for results or for room."""
        return bool(self._workers or self._waiting.any_waiting or self._submitter.has_lines)

    def stay_awake(self) -> None:
        """Do not rest for now: other processes are active."""
        self._idle_floor = POLL_FLOOR

    def poll_soon(self) -> None:
        """Poll more often: a submitter waits for room, which no hint reports but that of an end."""
        self._waiting.await_ends()
        if self._knows_changes:
            self._wake.set()

    @property
    def _knows_changes(self) -> bool:
        return self._env.shared_store.changed is not None

    def _next(self) -> float:
        """Return when to poll next."""
        if self._knows_changes and self._submitter.has_lines:
            return self._polled_at + ROOM_FLOOR
        return self._polled_at + (self._idle_floor if self._rests else POLL_FLOOR)

    @property
    def _rests(self) -> bool:
        """Whether hints report all that matters here.

        Not while code waits for an end: it must get it soon, whatever hint was lost. Not for the
        leader: no hint reports when tasks of other processes expire.
        """
        store = self._env.shared_store
        leads = store.elects and self._maintenance.leadership.leads
        return not leads and not self._waiting.any_waiting and store.receives_hints

    def _poll_less_often(self) -> None:
        longer = 2 * self._idle_floor if self._rests else POLL_FLOOR
        self._idle_floor = min(longer, max(IDLE_FLOOR, POLL_FLOOR))

    async def _main(self) -> None:
        steady, away = self._env.steady, False
        while True:
            delay = self._next() - steady()
            if delay > 0 and not self._urgent:
                # No event ends the rest: check again each second, which does not use the store.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(delay, POLL_FLOOR)):
                        await self._wake.wait()
                self._wake.clear()
                continue
            self._polled_at = steady()
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001 - the store is away; the next poll is soon
                if not self._outages.failed(self, error) and not away:
                    log.warning(
                        "polling the store failed (%s); trying again",
                        error,
                        extra=about("poll.failed", reason=type(error).__name__),
                    )
                away = True
                await asyncio.sleep(POLL_FLOOR)
            else:
                away = False
                self._outages.worked(self)
                self._poll_less_often()

    async def _round(self) -> None:
        self._waiting.rest()
        changed = self._env.shared_store.changed
        if changed is not None and not await changed() and not self._behind:
            return
        self._submitter.room_anywhere()
        if self._polled_at < self._all_polled_at + POLL_FLOOR and not self._urgent:
            # This poll was only for submitters in line; the rest can wait.
            self._behind = True
            return
        self._behind = self._urgent = False
        self._all_polled_at = self._polled_at
        try:
            await self._poll()
        except BaseException:
            self._behind = self._knows_changes
            raise

    async def _poll(self) -> None:
        """Find ends, and wake workers for the pools that have work."""
        self._maintenance.others_wrote()
        await self._waiting.look()
        await self._progress.look()
        if not self._workers:
            return
        if not self._env.shared_store.receives_hints:
            # Another process may have cancelled a job of this one: the answer to a renewal says so.
            self._renewals.hurry()
        # A process that polls only after a write must also learn what is due later.
        horizon = FAR if self._knows_changes else 0.0
        for pool in await self._env.view.due(now=self._env.clock() + horizon):
            for worker in self._workers:
                worker.woken(Wake(pool, 0.0))
