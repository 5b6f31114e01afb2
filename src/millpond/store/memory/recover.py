"""Recover: what time alone does to tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Event
from millpond.core.settle import event_of_loss

if TYPE_CHECKING:
    from millpond.core.heap import LazyHeap
    from millpond.core.lease import Worker
    from millpond.core.task import Task
    from millpond.store.memory.tables import Tables

UNKNOWN_AFTER = 86_400.0
"""Seconds for which a task may wait for a worker that knows its function."""


def recover(tables: Tables, limit: int, now: float) -> int:
    """Lose the leases of workers that stopped renewing; fail what expired or nobody knows."""
    moved = 0
    while moved < limit and (worker := _expired_worker(tables, now)) is not None:
        moved += 1 + bury(tables, worker, now)
    while moved < limit and (task := _first(tables, tables.expiring_tasks, now)) is not None:
        moved += _fail(tables, task, Event.EXPIRE, "expired", now)
    forgotten = now - UNKNOWN_AFTER
    while moved < limit and (task := _first(tables, tables.parked_since, forgotten)) is not None:
        moved += _fail(tables, task, Event.UNKNOWN, "unknown_function", now)
    return moved


def bury(tables: Tables, worker: Worker, now: float) -> int:
    """Lose every lease of a dead worker; each loss was charged when it was claimed."""
    held = [tables.tasks[identifier] for identifier in list(worker.holding)]
    for task in held:
        lose(tables, task, now)
    remove(tables, worker)
    return len(held) + _abandon_closures(tables, worker.owner, now)


def lose(tables: Tables, task: Task, now: float) -> None:
    """Take the lease of one task away: back to the queue, or the end of its budget."""
    event = event_of_loss(task)
    if event is not Event.LOSE:
        task.reason = {Event.STALE: "stale", Event.CANCEL: "cancelled"}.get(event, "lease_lost")
    task.due = now
    tables.move(task, event, now)


def remove(tables: Tables, worker: Worker) -> None:
    """Forget a worker that holds nothing any more."""
    del tables.workers[worker.id]
    tables.expiring_workers.discard(worker.id)
    for pool in tables.pools.values():
        pool.starved.pop(worker.id, None)


def _abandon_closures(tables: Tables, owner: str | None, now: float) -> int:
    """Fail the queued closures of a process whose last worker is gone: their code is gone."""
    if owner is None or tables.lives(owner):
        return 0
    for run in [run for run in tables.runs.values() if owner in run.holders]:
        run.holders.discard(owner)
        tables.touch_run(run)
    failed = 0
    # One at a time: the failure of one may cancel others, where their run says so.
    while closures := tables.owned.get(owner):
        failed += _fail(tables, tables.tasks[next(iter(closures))], Event.STALE, "stale", now)
    return failed


def _fail(tables: Tables, task: Task, event: Event, reason: str, now: float) -> int:
    task.reason = reason
    tables.move(task, event, now)
    return 1


def _expired_worker(tables: Tables, now: float) -> Worker | None:
    soonest = tables.expiring_workers.lowest()
    if soonest is None or soonest[0] > now:
        return None
    return tables.workers[tables.expiring_workers.peek() or ""]


def _first(tables: Tables, index: LazyHeap[int], until: float) -> Task | None:
    soonest = index.lowest()
    if soonest is None or soonest[0] > until:
        return None
    return tables.tasks[index.peek() or 0]
