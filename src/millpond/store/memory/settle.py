"""Settle: end attempts, each only with its current fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.admit import Reason
from millpond.core.lifecycle import Event, Status
from millpond.core.moment import rounded
from millpond.core.settle import Settled, Settlement, event_in_force
from millpond.store.memory.submit import Taken, follow_up

if TYPE_CHECKING:
    from millpond.core.task import Fence, Task
    from millpond.store.memory.tables import Tables


GIVEN_BACK = (Event.RELEASE, Event.CORRUPT)
"""The ends of attempts that never really ran: they are not measured."""


def settle(
    tables: Tables, settlement: Settlement, now: float
) -> tuple[Settled, Status | None, tuple[Taken, ...]]:
    """Apply one settlement and tell what it made of its task, or that its fence is stale."""
    task = tables.tasks.get(settlement.fence.task)
    if task is None:
        return Settled.STALE, None, ()
    if not is_current(task, settlement.fence):
        tables.pools[task.new.pool].stale_settles += 1
        return Settled.STALE, None, ()
    taken = _apply(tables, task, settlement, now)
    return Settled.APPLIED, task.status, taken


def is_current(task: Task, fence: Fence) -> bool:
    """Return whether a fence still gives the right to write for its task."""
    return task.status is Status.RUNNING and task.fence == fence


def _apply(tables: Tables, task: Task, settlement: Settlement, now: float) -> tuple[Taken, ...]:
    event = event_in_force(task, settlement)
    if event not in GIVEN_BACK:
        _measure(tables, task, now)
    task.result = settlement.result
    task.error = settlement.error
    taken: tuple[Taken, ...] = ()
    if event is Event.COMPLETE:
        taken = tuple(follow_up(tables, new, now) for new in settlement.follow_ups)
    if not settlement.spend:
        task.attempt -= 1
    match event:
        case Event.CORRUPT:
            tables.move(task, Event.RELEASE, now)
            if task.status is Status.QUEUED:
                task.reason = Reason.CORRUPT
                tables.move(task, Event.CORRUPT, now)
        case Event.RETRY:
            task.due = rounded(now + settlement.delay)
            tables.move(task, event, now)
        case Event.RELEASE:
            _give_back(tables, task, settlement, now)
        case _:
            task.reason = Reason.CANCELLED if event is Event.CANCEL else settlement.reason
            tables.move(task, event, now)
    return taken


def _measure(tables: Tables, task: Task, now: float) -> None:
    """Note how long a task had waited for its start, and how long it ran."""
    pool, started = tables.pools[task.new.pool], task.started_at
    if started is not None:
        pool.waits.append(rounded(started - task.due))
        pool.run_times.append(rounded(now - started))


def _give_back(tables: Tables, task: Task, settlement: Settlement, now: float) -> None:
    """Release a task; one that its worker does not know waits for another worker."""
    # A closure has its code with it: there is no other worker to wait for.
    task.parked = settlement.parked and task.new.owner is None
    worker = tables.workers.get(task.worker or "")
    if task.parked and worker is not None:
        worker.unknown.add(task.new.call.function)
    tables.move(task, Event.RELEASE, now)
