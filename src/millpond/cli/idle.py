"""Idle: when a worker that serves only until then has nothing left to do.

Nothing of its pools runs, here or elsewhere, and nothing that is due could start. What is due
later, paused, or parked does not keep it; what only waits for a rate does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.task import CALLBACKS

if TYPE_CHECKING:
    from millpond.runtime.worker.worker import Worker
    from millpond.store.protocol import PoolView

log = logging.getLogger("millpond.cli")

FIRST_LOOK, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two looks at a store in which others are at work, doubling."""


async def until_idle(worker: Worker) -> None:
    """Return when nothing is left that this worker could do."""
    pause, away = FIRST_LOOK, False
    while True:
        if not is_quiet(worker):
            pause = FIRST_LOOK
        else:
            try:
                if await nothing_left(worker):
                    return
                away = False
            except Exception as error:  # noqa: BLE001 - a store that is away is not one without work
                if not away:
                    log.warning("the store cannot be looked at (%s); it is tried again", error)
                away = True
            pause = min(pause * 2, LONGEST_PAUSE)
        await asyncio.sleep(pause)


def is_quiet(worker: Worker) -> bool:
    """Return whether a worker that could work has nothing in hand."""
    return worker.may_lease and not worker.held() and not worker.in_turn and not worker.scheduled


async def nothing_left(worker: Worker) -> bool:
    """Look at every pool; what the worker does meanwhile makes that an old story."""
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
    """Return whether what is due will start by itself, when a rate lets it."""
    if view.paused or view.paused_units or not (view.spec.rates or view.spec.rate_per_key):
        return False
    return view.queued > view.scheduled + view.parked
