"""Decide when a worker with `--once` is idle.

It is idle when no task of its pools runs on any worker, and no due task can start. Scheduled,
paused and parked tasks do not count; tasks that only wait for a rate do.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.task import CALLBACKS

if TYPE_CHECKING:
    from millpond.runtime.worker.worker import Worker
    from millpond.store.protocol import PoolView

log = logging.getLogger("millpond.cli")

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two polls while other workers are busy: first and longest, doubling."""


async def until_idle(worker: Worker) -> None:
    """Return when no task is left that this worker could run."""
    pause, away = FIRST_PAUSE, False
    while True:
        if not is_quiet(worker):
            pause = FIRST_PAUSE
        else:
            try:
                if await nothing_left(worker):
                    return
                away = False
            except Exception as error:  # noqa: BLE001 - a store that cannot be reached is not idle
                if not away:
                    log.warning(
                        "cannot read the store (%s); trying again",
                        error,
                        extra=about("store.unreachable", reason=str(error)),
                    )
                away = True
            pause = min(pause * 2, LONGEST_PAUSE)
        await asyncio.sleep(pause)


def is_quiet(worker: Worker) -> bool:
    """Return whether a worker that may lease holds no task."""
    return worker.may_lease and not worker.held() and not worker.in_turn and not worker.scheduled


async def nothing_left(worker: Worker) -> bool:
    """Return whether no pool has work. A turn of the worker in between means False."""
    turns = worker.turns
    for declared in list(worker.services.specs):
        for pool in (declared, declared + CALLBACKS):
            if worker.serves(pool) and await _has_work(worker, pool):
                return False
    return is_quiet(worker) and worker.turns == turns


async def _has_work(worker: Worker, pool: str) -> bool:
    env = worker.env
    now = env.clock()
    view = await env.view.pool(pool, now=now)
    if view is None:
        return False
    if view.running or view.claimed:
        return True
    if view.queued == view.scheduled:
        return False
    return await env.view.ready(pool, worker.name, now=now) or _waits_for_a_rate(view)


def _waits_for_a_rate(view: PoolView) -> bool:
    """Return whether due tasks wait only for a rate."""
    if view.paused or view.paused_units or not (view.spec.rates or view.spec.rate_per_key):
        return False
    return view.queued > view.scheduled + view.parked
