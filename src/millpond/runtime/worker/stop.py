"""Stopping: let a worker finish, interrupt what is left, and deregister it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.runtime.jobs.job import CancelReason
from millpond.runtime.worker.state import STUCK_AFTER
from millpond.runtime.worker.turn import Quiet

if TYPE_CHECKING:
    from millpond.runtime.executors.executors import Executors
    from millpond.runtime.jobs.job import WorkerProtocol
    from millpond.runtime.worker.attempts import Attempts
    from millpond.runtime.worker.lease_guard import LeaseGuard
    from millpond.runtime.worker.queues import Queues
    from millpond.runtime.worker.schedule import TurnSchedule
    from millpond.runtime.worker.settle import Settling
    from millpond.runtime.worker.slots import Slots
    from millpond.runtime.worker.state import WorkerState
    from millpond.runtime.worker.turn import Turns

log = logging.getLogger("millpond.worker")

STOP_WITHIN = 5.0
"""Seconds for which a worker that stops tries to settle what has ended in a failing store."""


class Stopping(Service):
    """Stops one worker."""

    _worker: WorkerProtocol
    _state: WorkerState
    _schedule: TurnSchedule
    _queues: Queues
    _slots: Slots
    _attempts: Attempts
    _settling: Settling
    _turns: Turns
    _guard: LeaseGuard
    _executors: Executors
    _quiet: Quiet
    _in_grace: bool = False

    def __post_init__(self) -> None:
        self._env = self._state.env

    async def wind_down(self, grace: float) -> None:
        """Start nothing more, give running jobs `grace` seconds, interrupt the rest.

        Handlers that do not stop may be left after this; those are in `jobs`.
        """
        state = self._state
        if not state.joined:
            return
        state.stopping = True
        self._queues.cancel_timer()
        self._settling.give_back_prefetched()
        if grace > 0 and state.jobs:
            self._in_grace = True
            await self._quiet.wait(grace)
            self._in_grace = False
        self._attempts.stop_all(CancelReason.STOP)
        if state.jobs:
            await self._quiet.wait(STUCK_AFTER)

    async def leave_when_quiet(self) -> None:
        """Hold the tasks of handlers that do not stop until they end, or until `hurry`; leave."""
        state = self._state
        for job in state.jobs.values():
            log.warning(
                "worker %s has stopped, but the handler of task %d of pool %s has not: the task "
                "stays running, and no other worker gets it, until it ends or the Millpond closes",
                state.name,
                job.id,
                job.leased.pool,
                extra=about(
                    "task.outlives_worker", pool=job.leased.pool, task=job.id, worker=state.name
                ),
            )
        self._in_grace = True
        await self._quiet.wait(None)
        self._in_grace = False
        await self.leave()

    def hurry(self) -> None:
        """Give running jobs no more time, and do not wait for them."""
        if self._in_grace:
            self._quiet.reached()

    async def leave(self) -> None:
        """Settle what is left without its handlers, and deregister."""
        state, services = self._state, self._state.services
        if not state.joined:
            return
        for job in list(state.jobs.values()):
            self._settling.settle_running(job)
        await self._settle_the_rest()
        state.joined = False
        services.registrar.stop_renewing(self._worker)
        self._guard.stop()
        await self._end_tasks()
        self._turns.watchdog.stop()
        services.outages.gone(self._worker)
        await self._executors.close()
        try:
            await services.registrar.deregister(self._worker)
        except Exception as error:  # noqa: BLE001 - the store sees it when its lease ends
            log.warning(
                "could not deregister worker %s (%s)",
                state.name,
                error,
                extra=about(
                    "worker.deregister_failed", worker=state.name, reason=type(error).__name__
                ),
            )

    async def _end_tasks(self) -> None:
        """Cancel the driver and the slots; wait for those that run no handler."""
        driver, slots = self._turns.driver, self._slots
        if driver is not None:
            driver.cancel()
        for slot in list(slots.all):
            slot.task.cancel()
        await asyncio.gather(
            *([driver] if driver else []),
            *(slot.task for slot in slots.all if slot.job is None),
            return_exceptions=True,
        )

    async def _settle_the_rest(self) -> None:
        """Settle what has ended, after the turn under way; try a failing store some times."""
        until = self._env.steady() + STOP_WITHIN
        while True:
            if self._schedule.turning:
                await self._turns.until_over()
                continue
            if not self._state.ended or self._env.steady() >= until:
                return
            await asyncio.sleep(self._schedule.pause)
            await self._turns.turn()
