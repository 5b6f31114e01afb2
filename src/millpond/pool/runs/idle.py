"""Draining without a seed: wait until a pool is idle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.core.task import CALLBACKS
from millpond.errors import StoreClosed, WouldDeadlock
from millpond.pool.runs.report import RunReport
from millpond.pool.runs.watch import BETWEEN_DRAWINGS, STUCK_AFTER, wait_at_most

if TYPE_CHECKING:
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.runs.progress_bar import ProgressBar
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.waiting.task_result import TaskResult
    from millpond.store.protocol import PoolView

BETWEEN_READS = 0.02
"""Seconds between two reads of a pool that other processes use."""


async def drain_idle(
    pool: DeclaredPool,
    timeout: float | None,  # noqa: ASYNC109 - the drain's own limit
    bar: ProgressBar | None = None,
) -> RunReport:
    """Wait until no task of a pool is queued or running, its callbacks included."""
    runtime = pool.runtime
    job = runtime.waits.waiting_job()
    if job is not None and job.leased.pool.removesuffix(CALLBACKS) == pool.spec.name:
        message = (
            f"task {job.id} waits for pool {pool.name!r} to be idle, but the task itself runs in "
            "that pool; drain it from outside"
        )
        raise WouldDeadlock(message, pool=pool.spec.name, task_id=job.id, awaited=job.id)
    name = pool.spec.name
    before = await runtime.view.pool(name, measured=False)
    changed = asyncio.Event()
    key = object()

    def on_end(_task: int, _end: TaskResult | None) -> None:
        changed.set()

    runtime.waiting.listen(key, on_end)
    try:
        async with asyncio.timeout(timeout):
            while await _busy(runtime, name):
                if bar is not None:
                    await _draw(bar, runtime, name, before)
                await wait_at_most(changed, STUCK_AFTER if bar is None else BETWEEN_DRAWINGS)
                changed.clear()
                if runtime.shared:
                    # Other processes end tasks all the time: this bounds how often it is read.
                    await asyncio.sleep(BETWEEN_READS)
                runtime.must_be_open()
            if bar is not None:
                await _draw(bar, runtime, name, before)
    except StoreClosed:
        runtime.must_be_open()
        raise
    finally:
        runtime.waiting.listen(key, None)
        if bar is not None:
            bar.done()
    ended = _ended_since(before, await runtime.view.pool(name, measured=False))
    return RunReport(
        pool=name,
        name=None,
        total=sum(ended.values()),
        completed=ended.get(Status.COMPLETED, 0),
        failed=ended.get(Status.FAILED, 0),
        cancelled=ended.get(Status.CANCELLED, 0),
        rejected=ended.get(Status.REJECTED, 0),
    )


def _ended_since(before: PoolView | None, after: PoolView | None) -> dict[str, int]:
    """Return how many tasks ended between two views of a pool, by status."""
    was = {} if before is None else before.totals
    now = {} if after is None else after.totals
    return {status: count - was.get(status, 0) for status, count in now.items()}


async def _draw(bar: ProgressBar, runtime: Runtime, name: str, before: PoolView | None) -> None:
    """Draw what has ended since `before`, of that and all that is queued or running."""
    view = await runtime.view.pool(name, measured=False)
    ended = _ended_since(before, view)
    live = 0 if view is None else view.queued + view.running
    bar.draw(ended, sum(ended.values()) + live)


async def _busy(runtime: Runtime, name: str) -> bool:
    for one in (name, name + CALLBACKS):
        view = await runtime.view.pool(one, measured=False)
        if view is not None and view.queued + view.running:
            return True
    return False
