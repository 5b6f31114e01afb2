"""Recover: lose expired leases, fail expired and long-parked tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.admit import Reason
from millpond.core.lifecycle import Status, Transition
from millpond.core.settle import event_of_loss
from millpond.core.ticks import rounded
from millpond.store.verbs.prefetch import charge
from millpond.store.verbs.tables import by_pool_and_place

if TYPE_CHECKING:
    from millpond.core.lease import RegisteredWorker
    from millpond.core.task import Task
    from millpond.store.verbs.tables import Deadlines, Tables

_WHY = {Transition.STALE: Reason.STALE, Transition.CANCEL: Reason.CANCELLED}

UNKNOWN_AFTER = 86_400.0
"""Seconds for which a parked task waits for a worker that can run it."""


def recover(tables: Tables, limit: int, now: float) -> int:
    """Lose the leases of workers that stopped renewing; fail expired and long-parked tasks."""
    moved = 0
    while moved < limit and (worker := _expired_worker(tables, now)) is not None:
        moved += remove_dead(tables, worker, now, limit - moved)
    expiring, parked = tables.expiring_tasks, tables.parked_since
    moved += _fail_those(tables, expiring, now, Transition.EXPIRE, now, limit - moved)
    forgotten = rounded(now - UNKNOWN_AFTER)
    return moved + _fail_those(tables, parked, forgotten, Transition.UNKNOWN, now, limit - moved)


def _fail_those(
    tables: Tables,
    index: Deadlines,
    until: float,
    event: Transition,
    now: float,
    limit: int,
) -> int:
    """Fail the waiting tasks whose moment has passed; return how many."""
    failed = found = 0
    while failed < limit:
        before = found
        for identifier in index.until(until, limit - failed):
            found += 1
            task = tables.tasks.require(identifier)
            # The failure of one may have cancelled others, where their run says so.
            if task.status is Status.QUEUED:
                failed += _fail(tables, task, event, _reason(task, event), now)
        if found == before:
            break
    return failed


def _reason(task: Task, event: Transition) -> Reason:
    if event is Transition.EXPIRE:
        return Reason.EXPIRED
    return Reason.UNFIT_ARGUMENTS if task.misfits else Reason.UNKNOWN_FUNCTION


def more(tables: Tables, now: float) -> bool:
    """Return whether `recover` has more to do."""
    return (
        _expired_worker(tables, now) is not None
        or _is_due(tables.expiring_tasks, now)
        or _is_due(tables.parked_since, rounded(now - UNKNOWN_AFTER))
    )


def next_recovery(tables: Tables, now: float) -> float | None:
    """Return when `recover` has something to do next: now or later, or None."""
    worker, expiring = tables.first_expiring(), tables.expiring_tasks.lowest()
    parked = tables.parked_since.lowest()
    moments = [] if worker is None else [worker.expires_at]
    if expiring is not None:
        moments.append(expiring[0])
    if parked is not None:
        moments.append(rounded(parked[0] + UNKNOWN_AFTER))
    return max(min(moments), now) if moments else None


def remove_dead(
    tables: Tables, worker: RegisteredWorker, now: float, limit: int | None = None
) -> int:
    """Lose the leases of a dead worker and fail its closures, up to `limit`; then remove it."""
    held = everything_held(tables, worker)
    for task in held[:limit]:
        lose(tables, task, now)
    moved = len(held[:limit])
    left = None if limit is None else limit - moved
    if worker.holding or worker.ahead:
        return moved
    last = worker.owner is not None and not tables.has_live_worker(worker.owner, besides=worker)
    if last:
        moved += _abandon_closures(tables, worker.owner or "", now, left)
    if last and tables.has_closures(worker.owner or ""):
        return moved
    if tables.leave_to_newer(worker, worker.owner if last else None):
        # A newer version handles the rest, and sees the worker as expired.
        worker.expires_at = min(worker.expires_at, now)
    else:
        remove(tables, worker, now)
    if last:
        _let_go_of_runs(tables, worker.owner or "")
    return moved


def everything_held(tables: Tables, worker: RegisteredWorker) -> list[Task]:
    """Return the running and prefetched tasks of a worker, by pool and place."""
    held = (
        tables.tasks.require(identifier)
        for identifier in (*worker.holding.ids(), *worker.ahead.specs)
    )
    return sorted(held, key=by_pool_and_place)


def _let_go_of_runs(tables: Tables, owner: str) -> None:
    """Release the runs that a dead process held open."""
    for run in [run for run in tables.runs.unfinished() if owner in run.holders]:
        run.holders.discard(owner)
        tables.touch_run(run)


def lose(tables: Tables, task: Task, now: float) -> None:
    """Lose the lease of one task: queue it again, or fail it on its last attempt."""
    if task.claimed:
        charge(tables, task, now)
    event = event_of_loss(task)
    if event is not Transition.LOSE:
        task.reason = _WHY.get(event, Reason.LEASE_LOST)
    else:
        tables.endings.lose(task)
    task.due = now
    tables.move(task, event, now)
    task.worker = None


def remove(tables: Tables, worker: RegisteredWorker, now: float) -> None:
    """Remove a worker that holds no tasks."""
    tables.workers.remove(worker.id)
    for pool in tables.pools.all():
        pool.hungry.pop(worker.id, None)
        if pool.starved.pop(worker.id, None) is not None:
            # A slot may have been reserved for it.
            tables.wake(pool.spec.name, now)


def _abandon_closures(tables: Tables, owner: str, now: float, limit: int | None) -> int:
    """Fail the queued closures of a process whose last worker is dead: their code is lost."""
    failed = 0
    for task in sorted(tables.closures_of(owner), key=by_pool_and_place)[:limit]:
        # The failure of one may have cancelled others, where their run says so.
        if task.status is Status.QUEUED:
            failed += _fail(tables, task, Transition.STALE, Reason.STALE, now)
    return failed


def _fail(tables: Tables, task: Task, event: Transition, reason: Reason, now: float) -> int:
    task.reason = reason
    tables.move(task, event, now)
    return 1


def _expired_worker(tables: Tables, now: float) -> RegisteredWorker | None:
    worker = tables.first_expiring()
    return None if worker is None or worker.expires_at > now else worker


def _is_due(index: Deadlines, now: float) -> bool:
    soonest = index.lowest()
    return soonest is not None and soonest[0] <= now
