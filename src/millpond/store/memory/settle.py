"""Settle: end attempts, each only with its current fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Event, Status
from millpond.core.settle import Settled, Settlement, event_in_force
from millpond.store.memory.submit import follow_up

if TYPE_CHECKING:
    from millpond.core.task import Fence, Task
    from millpond.store.memory.tables import Tables


def settle(tables: Tables, settlement: Settlement, now: float) -> Settled:
    """Apply one settlement, or report that its fence is not the current one."""
    task = tables.tasks.get(settlement.fence.task)
    if task is None:
        return Settled.STALE
    if not is_current(task, settlement.fence):
        tables.pools[task.new.pool].stale_settles += 1
        return Settled.STALE
    _apply(tables, task, settlement, now)
    return Settled.APPLIED


def is_current(task: Task, fence: Fence) -> bool:
    """Return whether a fence still gives the right to write for its task."""
    return task.status is Status.RUNNING and task.fence == fence


def _apply(tables: Tables, task: Task, settlement: Settlement, now: float) -> None:
    event = event_in_force(task, settlement)
    task.result = settlement.result
    task.error = settlement.error
    if event is Event.COMPLETE:
        for new in settlement.follow_ups:
            follow_up(tables, new, now)
    if not settlement.spend:
        task.attempt -= 1
    match event:
        case Event.CORRUPT:
            tables.move(task, Event.RELEASE, now)
            task.reason = "corrupt"
            tables.move(task, Event.CORRUPT, now)
        case Event.RETRY:
            task.due = now + settlement.delay
            tables.move(task, event, now)
        case Event.RELEASE:
            task.parked = settlement.parked
            tables.move(task, event, now)
        case _:
            if event is Event.CANCEL:
                task.reason = "cancelled"
            tables.move(task, event, now)
