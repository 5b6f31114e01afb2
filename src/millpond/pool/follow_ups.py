"""Follow-ups: what a handler submits as part of its own outcome."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.core.task import CALLBACKS
from millpond.errors import ConfigError
from millpond.pool.handle import Handle
from millpond.runtime.observe.probe import submission
from millpond.runtime.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.task import NewTask
    from millpond.pool.pool import Pool
    from millpond.pool.task import BoundCall
    from millpond.runtime.jobs.job import Job

T = TypeVar("T")


def follow_ups(job: Job, works: Iterable[BoundCall[T]], pool: Pool | None) -> list[Handle[T]]:
    """Note calls with the attempt and return their handles; they are stored when it completes."""
    from millpond.pool.submit import new_task  # noqa: PLC0415 - submit knows tasks and contexts

    if job.settled or job.committed:
        raise ConfigError("ctx", job.id, "belongs to an attempt that has ended; nothing was stored")
    made: list[NewTask] = []
    handles: list[Handle[T]] = []
    for target, calls in groupby(works, partial(_target, job, pool)):
        group = list(calls)
        with submission(runtime_of(job), target.spec.name, len(group)) as watched:
            for work in group:
                new = new_task(
                    target,
                    work,
                    {"submitted_by": f"task:{job.id}"},
                    run=job.leased.run,
                )
                made.append(new)
                handles.append(Handle(target, new, work.function.signature.decode_result))
            watched.made(made[-len(group) :])
    # Only now: one call that cannot be is none of them.
    job.follow_ups = [*(job.follow_ups or ()), *made]
    job.on_stored = [*(job.on_stored or ()), *(handle.admitted for handle in handles)]
    return handles


def undeclared(job: Job, works: Iterable[BoundCall[Any]], pool: Pool | None) -> list[Pool]:
    """Return the pools that follow-ups go to and that the store does not know yet."""
    calls = [work for work in works if hasattr(work, "encoded")]
    targets = {
        target.spec.name: target for target in (pool or _pool_of(job, call) for call in calls)
    }
    return [one for name, one in targets.items() if name not in runtime_of(job).declarations.specs]


def _target(job: Job, pool: Pool | None, work: BoundCall[Any]) -> Pool:
    """Return the pool that was named, or that a follow-up goes to by itself."""
    if not hasattr(work, "encoded"):
        raise ConfigError("work", work, "must be a call: ctx.submit stores it with the outcome")
    return pool or _pool_of(job, work)


def _pool_of(job: Job, work: BoundCall[Any]) -> Pool:
    """Return where a follow-up goes: the function's own pool, else the one it was made in."""
    own = work.function.own_pool
    if own is not None:
        return own
    return work.function.mp.get_pool(job.leased.pool.removesuffix(CALLBACKS))
