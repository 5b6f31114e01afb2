"""Follow-ups: calls that a handler submits as part of its own outcome."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from millpond.core.task import CALLBACKS
from millpond.errors import ConfigError
from millpond.pool.internals import internals_of
from millpond.pool.new_task import new_task
from millpond.pool.submitted_task import SubmittedTask
from millpond.pool.task import BoundCall
from millpond.runtime.observe.probe import submission
from millpond.runtime.runtime_of_job import runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.task import NewTask
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.registered import Invocation
    from millpond.runtime.jobs.job import Job


def invocations(works: Iterable[object]) -> list[Invocation]:
    """Return the calls to follow; refuse anything but calls, which alone can be stored."""
    calls = []
    for work in works:
        if not isinstance(work, BoundCall):
            raise ConfigError("work", work, "must be a call: ctx.submit stores it with the outcome")
        calls.append(internals_of(work))
    return calls


def follow_ups(job: Job, calls: list[Invocation], pool: DeclaredPool | None) -> list[SubmittedTask]:
    """Add calls to the attempt and return their tasks; the store gets them when it completes."""
    if job.settled or job.committed:
        raise ConfigError("ctx", job.id, "belongs to an attempt that has ended; nothing was stored")
    made: list[NewTask] = []
    tasks: list[SubmittedTask] = []
    for target, group in groupby(calls, partial(_target, job, pool)):
        same_pool = list(group)
        with submission(runtime_of(job).hooks.probes, target.spec.name, len(same_pool)) as watched:
            for call in same_pool:
                new = new_task(target, call, {"submitted_by": f"task:{job.id}"}, run=job.leased.run)
                made.append(new)
                tasks.append(SubmittedTask(target, new, call.registered.signature.decode_result))
            watched.made(made[-len(same_pool) :])
    # Only now: if one call cannot be made into a task, none of them follows.
    job.follow_ups = [*(job.follow_ups or ()), *made]
    job.on_stored = [*(job.on_stored or ()), *(task.admitted for task in tasks)]
    return tasks


def undeclared(job: Job, calls: list[Invocation], pool: DeclaredPool | None) -> list[DeclaredPool]:
    """Return the pools of follow-ups that the store does not know yet."""
    targets = {one.spec.name: one for one in (_target(job, pool, call) for call in calls)}
    return [one for name, one in targets.items() if name not in runtime_of(job).declarations.specs]


def _target(job: Job, pool: DeclaredPool | None, call: Invocation) -> DeclaredPool:
    """Return the named pool, else the function's own, else the pool of the attempt."""
    registered = call.registered
    return pool or registered.pool or registered.find_pool(job.leased.pool.removesuffix(CALLBACKS))
