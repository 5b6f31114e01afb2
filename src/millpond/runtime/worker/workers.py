"""Questions to all workers of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.why import span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.runtime.jobs.job import Job, WorkerProtocol

SLOTS_NAMED = 3
"""How many of the tasks that hold slots are named."""


def served(workers: Iterable[WorkerProtocol], pool: str) -> bool:
    """Return whether a worker of this process serves a pool."""
    return any(worker.serves(pool) for worker in workers)


def no_slot(workers: Iterable[WorkerProtocol], pool: str, now: float) -> str | None:
    """Return which tasks hold the slots that a pool waits for in this process; None if one is free.

    Only this process knows which of its handlers have timed out and go on.
    """
    serving = [(worker, worker.holders(pool)) for worker in workers if worker.serves(pool)]
    if not serving or not all(jobs for _, jobs in serving):
        return None
    holders = [_holder(worker, job, now) for worker, jobs in serving for job in jobs]
    if len(holders) == 1:
        return f"the only slot of this process is held by {holders[0]}"
    more = f" and {len(holders) - SLOTS_NAMED} more" if len(holders) > SLOTS_NAMED else ""
    return f"all slots of this process are held by {', '.join(holders[:SLOTS_NAMED])}{more}"


def _holder(worker: WorkerProtocol, job: Job, now: float) -> str:
    """Return which task holds a slot, and since when its handler is stuck."""
    name = f"task {job.id} ({job.leased.call.function or 'a closure'})"
    since = worker.stuck_since.get(job)
    if since is None:
        return name
    return f"{name}, which is stuck: its time was over {span(now - since)} ago, its handler goes on"
