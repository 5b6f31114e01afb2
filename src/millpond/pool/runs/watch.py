"""Watching a run to its end: its report, the error that stopped it, or Stuck."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.admit import Reason
from millpond.core.lifecycle import Status
from millpond.core.run import RunView
from millpond.errors import RunFailed, RunOverBudget, RunStopped, StoreClosed, Stuck
from millpond.pool.runs.opening import new_run, open_run
from millpond.pool.runs.progress_bar import ProgressBar
from millpond.pool.runs.report import RunReport, report_of
from millpond.runtime.error_info import read

if TYPE_CHECKING:
    from millpond.core.task import Task
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.task import BoundCall
    from millpond.runtime.runtime import Runtime

STUCK_AFTER = 5.0
"""Seconds for which no task of a run can start before it is called stuck."""
BETWEEN_DRAWINGS = 0.1
"""Seconds between two drawings of a progress bar."""


async def drain_run(
    pool: DeclaredPool,
    seed: Sequence[BoundCall[Any]],
    *,
    name: str | None,
    on_error: str,
    max_tasks: int | None,
    progress: bool,
    timeout: float | None,  # noqa: ASYNC109 - the drain's own limit
) -> RunReport:
    """Run a seed and all it submits; return when no task of it is queued or running."""
    view = await open_run(pool, new_run(pool, name, on_error, max_tasks), seed)
    if view.finished and view.resumed:
        return report_of(view)
    bar = ProgressBar() if progress else None
    async with asyncio.timeout(timeout):
        ended = await finish(pool, view.id, bar)
    return await concluded(pool, ended, max_tasks, resumed=view.resumed)


async def concluded(
    pool: DeclaredPool, view: RunView, max_tasks: int | None, *, resumed: bool
) -> RunReport:
    """Return the report of a run that has ended, or raise the error that stopped it."""
    report = msgspec.structs.replace(report_of(view), resumed=resumed)
    if view.stopped is None:
        return report
    where: dict[str, Any] = {"pool": pool.name, "run": view.name, "report": report}
    counts = f"{report.completed} of {report.total} tasks completed, the rest was cancelled"
    match view.stopped:
        case Reason.RUN_FAILED:
            why, cause = await _first_failure(pool.runtime, view)
            raise RunFailed(
                f"task {view.failed_task} of the run failed: {why}; {counts}",
                task_id=view.failed_task,
                **where,
            ) from cause
        case Reason.OVER_BUDGET:
            raise RunOverBudget(
                f"the run grew beyond max_tasks={max_tasks}; {counts}", max_tasks=max_tasks, **where
            )
        case _:
            raise RunStopped(f"the run was stopped ({view.stopped}); {counts}", **where)


async def _first_failure(runtime: Runtime, view: RunView) -> tuple[str, BaseException | None]:
    """Return why the task that stopped a run failed, and the exception if it was raised here."""
    task = await runtime.view.task(view.failed_task or 0)
    if task is None:
        return "it is no longer kept", None
    error = read(task.error)
    return str(error or task.reason or "unknown"), runtime.waiting.read(task).cause


async def finish(pool: DeclaredPool, run: int, bar: ProgressBar | None = None) -> RunView:
    """Wait for the end of a run; raise Stuck if no task of it can start any more."""
    runtime = pool.runtime
    over = asyncio.Event()
    runtime.waiting.on_run(run, over.set)
    unserved = runtime.unserved.watch(pool.spec.name)
    still: tuple[float, RunView] | None = None
    try:
        while True:
            view = await runtime.view.run(run)
            if view is None:
                raise runtime.waiting.unknown(run)
            if bar is not None:
                bar.draw(view.ended, view.total)
            if view.finished:
                return view
            runtime.must_be_open()
            if not await _is_stuck(runtime, view):
                still = None
            elif still is None or still[1] != view:
                still = runtime.steady(), view
            elif runtime.steady() - still[0] >= STUCK_AFTER:
                raise await _stuck(runtime, view)
            async with runtime.waits.waiting_for(await _queued_task(runtime, view)):
                await wait_at_most(over, STUCK_AFTER if not bar else BETWEEN_DRAWINGS)
            if over.is_set():
                over.clear()
                runtime.waiting.on_run(run, over.set)
    except StoreClosed:
        # The Millpond was closed during the call: every store raises the same error then.
        runtime.must_be_open()
        raise
    finally:
        runtime.waiting.forget_run(run, over.set)
        if unserved is not None:
            unserved.cancel()
        if bar is not None:
            bar.done()


async def _queued_task(runtime: Runtime, view: RunView) -> int | None:
    """Return a queued task of a run, if a handler is what waits for the run."""
    if runtime.waits.waiting_job() is None:
        return None
    left = await runtime.view.run_tasks(view.id, limit=50)
    return next((task.new.id for task in left if task.status is Status.QUEUED), None)


async def wait_at_most(over: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over.wait()


async def _is_stuck(runtime: Runtime, view: RunView) -> bool:
    """Return whether every task left of a run is paused, parked or without a worker.

    Most often one of the first few can start; only where none can, all of them are read.
    """
    seen, limit = 0, 50
    while seen < view.live:
        left = await runtime.view.run_tasks(view.id, limit=limit)
        for task in left[seen:]:
            if task.status is Status.RUNNING or not await _held_back(runtime, task):
                return False
        if len(left) < limit:
            return bool(left)
        seen, limit = len(left), 10 * limit
    return bool(seen)


async def _held_back(runtime: Runtime, task: Task) -> bool:
    view = await runtime.view.pool(task.new.pool, measured=False)
    if view is None or task.parked or view.paused or view.spec.max_concurrent == 0:
        return True
    if task.unit is not None and task.unit in view.paused_units:
        return True
    return not runtime.shared and not runtime.served(task.new.pool)


async def _stuck(runtime: Runtime, view: RunView) -> Stuck:
    left = await runtime.view.run_tasks(view.id, limit=5)
    named = tuple([f"{task.new.id} ({await _why(runtime, task)})" for task in left])
    return Stuck(
        f"the run cannot go on: {view.live} task(s) left and none can start: {', '.join(named)}; "
        "resume what is paused, or start a worker that knows them, and drain again under its name",
        pool=view.pool,
        run=view.name,
        tasks=named,
    )


async def _why(runtime: Runtime, task: Task) -> str:
    if task.parked and task.misfits:
        return f"its arguments do not fit function {task.new.call.function!r}: {read(task.error)}"
    if task.parked:
        return f"no worker knows function {task.new.call.function!r}"
    view = await runtime.view.pool(task.new.pool, measured=False)
    if view is not None and view.paused:
        return f"pool {task.new.pool!r} is paused"
    if view is not None and task.unit is not None and task.unit in view.paused_units:
        return f"{task.unit!r} of pool {task.new.pool!r} is paused"
    if view is not None and view.spec.max_concurrent == 0:
        return f"pool {task.new.pool!r} has max_concurrent=0"
    return f"no worker serves pool {task.new.pool!r}"
