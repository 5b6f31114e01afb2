"""The states and times of pools and tasks, as the command line and the dashboard show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.pool.snapshot import state_of

if TYPE_CHECKING:
    from millpond.core.task import Task
    from millpond.store.protocol import PoolView


def shown_state(view: PoolView, now: float) -> str:
    """Return the state of a pool in one word."""
    if view.paused or not view.spec.max_concurrent:
        return "paused"
    if view.held_until > now:
        return "held"
    if view.closed and not view.running and not view.queued:
        return "closed"
    if not view.running and view.parked and view.queued == view.scheduled + view.parked:
        return "parked"
    if not view.running and view.queued > view.scheduled:
        return "waiting"
    return str(state_of(view))


def shown_task_state(task: Task, now: float) -> str:
    """Return the status of a task; a queued one may be scheduled or parked."""
    if task.status is Status.QUEUED and task.parked:
        return "parked"
    if task.status is Status.QUEUED and task.due > now:
        return "scheduled"
    return str(task.status)


def waited(task: Task, now: float) -> float | None:
    """Return how long the latest attempt waited after it was due, or has waited so far."""
    if task.status is Status.QUEUED:
        return None if task.due > now else now - task.due
    return None if task.started_at is None else max(task.started_at - task.due, 0.0)


def ran(task: Task, now: float) -> float | None:
    """Return how long the latest attempt ran, or has run so far."""
    if task.started_at is None or task.status is Status.QUEUED:
        return None
    end = task.finished_at if task.finished_at is not None else now
    return max(end - task.started_at, 0.0)
