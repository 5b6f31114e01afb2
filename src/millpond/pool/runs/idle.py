"""Draining without a seed: wait until a pool is idle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.core.task import CALLBACKS
from millpond.errors import StoreClosed, WouldDeadlock
from millpond.pool.runs.report import RunReport
from millpond.pool.runs.watch import STUCK_AFTER, wait_at_most
from millpond.runtime.waiting.deadlock import job_that_waits

if TYPE_CHECKING:
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.waiting.task_result import TaskResult

BETWEEN_READS = 0.02
"""Seconds between two reads of a pool that other processes use."""


async def drain_idle(pool: DeclaredPool, timeout: float | None) -> RunReport:  # noqa: ASYNC109
    """Wait until no task of a pool is queued or running, its callbacks included."""
    runtime = pool.runtime
    job = job_that_waits(runtime)
    if job is not None and job.leased.pool.removesuffix(CALLBACKS) == pool.spec.name:
        message = (
            f"task {job.id} waits for pool {pool.name!r} to be idle, but the task itself runs in "
            "that pool; drain it from outside"
        )
        raise WouldDeadlock(message, pool=pool.spec.name, task_id=job.id, awaited=job.id)
    before = await runtime.view.pool(pool.spec.name, measured=False)
    totals = dict(before.totals) if before is not None else {}
    changed = asyncio.Event()
    key = object()

    def on_end(_task: int, _end: TaskResult | None) -> None:
        changed.set()

    runtime.waiting.listen(key, on_end)
    try:
        async with asyncio.timeout(timeout):
            while await _busy(runtime, pool.spec.name):
                await wait_at_most(changed, STUCK_AFTER)
                changed.clear()
                if runtime.shared:
                    # Other processes end tasks all the time: this bounds how often it is read.
                    await asyncio.sleep(BETWEEN_READS)
                runtime.must_be_open()
    except StoreClosed:
        runtime.must_be_open()
        raise
    finally:
        runtime.waiting.listen(key, None)
    after = await runtime.view.pool(pool.spec.name, measured=False)
    now = dict(after.totals) if after is not None else {}
    ended = {status: now.get(status, 0) - totals.get(status, 0) for status in now}
    return RunReport(
        pool=pool.spec.name,
        name=None,
        total=sum(ended.values()),
        completed=ended.get(Status.COMPLETED, 0),
        failed=ended.get(Status.FAILED, 0),
        cancelled=ended.get(Status.CANCELLED, 0),
        rejected=ended.get(Status.REJECTED, 0),
    )


async def _busy(runtime: Runtime, name: str) -> bool:
    for one in (name, name + CALLBACKS):
        view = await runtime.view.pool(one, measured=False)
        if view is not None and view.queued + view.running:
            return True
    return False
