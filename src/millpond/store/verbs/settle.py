"""Settle: end attempts, each only with its current fence."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from millpond.core.admit import Reason
from millpond.core.lifecycle import Status, Transition
from millpond.core.settle import (
    Settled,
    Settlement,
    ends_the_only_attempt,
    event_in_force,
    is_charged,
)
from millpond.core.task import with_misfit
from millpond.core.ticks import rounded
from millpond.store.verbs import prefetch as ahead
from millpond.store.verbs.flow import adapt, apply_to_others
from millpond.store.verbs.submit import Accepted, follow_up

if TYPE_CHECKING:
    from millpond.core.lease import RegisteredWorker
    from millpond.core.task import Fence, Task
    from millpond.store.verbs.tables import Tables

_RUNNING, _COMPLETE = Status.RUNNING, Transition.COMPLETE
_APPLIED, _STALE = Settled.APPLIED, Settled.STALE

GIVEN_BACK = (Transition.RELEASE, Transition.CORRUPT, Transition.STALE)
"""Transitions of attempts that did not run to an end: they are not measured."""

_WHY: dict[Transition, str] = {Transition.CANCEL: Reason.CANCELLED, Transition.STALE: Reason.STALE}


Ended: TypeAlias = tuple[Settled, Status | None, tuple[Accepted, ...], Settled | None]
"""The answer to a settlement, the status of its task, its follow-ups, and its successor."""

APPLIED_PLAINLY: Ended = (_APPLIED, Status.COMPLETED, (), None)


def settle(tables: Tables, settlement: Settlement, now: float) -> Ended:
    """Apply one settlement or report that its fence is stale; then start its successor."""
    if settlement.successor is not None:
        return _hand_over(tables, settlement, settlement.successor, now)
    task = tables.known(settlement.fence.task)
    if task is None:
        return _STALE, None, (), None
    if task.claimed:
        if settlement.event in GIVEN_BACK and ahead.is_claim(task, settlement.fence):
            if ends_the_only_attempt(task, settlement) and not task.cancel_requested:
                # Its worker had started it, and the store did not accept the start.
                ahead.end_begun(tables, task, settlement.reason, now)
            else:
                _return_claim(tables, task, settlement, now)
            return _APPLIED, task.status, (), None
    elif is_current(task, settlement.fence):
        taken = _apply(tables, task, settlement, now)
        return _APPLIED, task.status, taken, None
    tables.pools.require(task.new.pool).stale_settles += 1
    return _STALE, None, (), None


def _hand_over(tables: Tables, settlement: Settlement, successor: Fence, now: float) -> Ended:
    """Apply a settlement, and start the prefetched task that took the slot of its attempt."""
    task = tables.known(settlement.fence.task)
    slot = (task.new.pool, task.worker) if task and task.status is _RUNNING else None
    alone = msgspec.structs.replace(settlement, successor=None)
    settled, after, taken, _ = settle(tables, alone, now)
    runs = ahead.begin(tables, successor, slot if settled is _APPLIED else None, now)
    return settled, after, taken, _APPLIED if runs else _STALE


def is_current(task: Task, fence: Fence) -> bool:
    """Return whether a fence is the current one of its task."""
    if task.status is not _RUNNING or task.token != fence.token:
        return False
    return task.attempt == fence.attempt and task.new.id == fence.task


def holds(tables: Tables, fence: Fence) -> bool:
    """Return whether a settlement with this fence would be applied now."""
    task = tables.known(fence.task)
    return task is not None and not task.claimed and is_current(task, fence)


def _apply(tables: Tables, task: Task, settlement: Settlement, now: float) -> tuple[Accepted, ...]:
    event = event_in_force(task, settlement)
    started = task.started_at
    known = not tables.begun or task.new.id not in tables.begun
    stopped = event is Transition.FAIL and settlement.event is Transition.RELEASE
    if known and started is not None and not stopped and event not in GIVEN_BACK:
        pool = tables.pools.require(task.new.pool)
        pool.measure(started - task.due, now - started)
        if pool.limiter is not None:
            adapt(tables, pool, event, settlement, now - started, now)
    task.result = settlement.result
    task.error = settlement.error
    taken: tuple[Accepted, ...] = ()
    if settlement.follow_ups and event is _COMPLETE:
        taken = tuple([follow_up(tables, new, now) for new in settlement.follow_ups])
    if settlement.weight is not None or settlement.hold is not None:
        apply_to_others(tables, task, settlement, now)
    if not is_charged(settlement, event):
        task.attempt -= 1
    if event is _COMPLETE:
        tables.move(task, event, now)
    else:
        _apply_other(tables, task, event, settlement, now)
    return taken


def _apply_other(
    tables: Tables, task: Task, event: Transition, settlement: Settlement, now: float
) -> None:
    match event:
        case Transition.CORRUPT:
            tables.move(task, Transition.RELEASE, now)
            if task.status is Status.QUEUED:
                task.reason = Reason.CORRUPT
                tables.move(task, Transition.CORRUPT, now)
        case Transition.RETRY:
            task.due = rounded(now + settlement.delay)
            tables.move(task, event, now)
        case Transition.RELEASE:
            _give_back(tables, task, settlement, now)
        case _:
            reason = settlement.reason
            if reason is None and settlement.event is Transition.RELEASE:
                reason = Reason.STOPPED
            task.reason = _WHY.get(event, reason)
            tables.move(task, event, now)


def _give_back(tables: Tables, task: Task, settlement: Settlement, now: float) -> None:
    """Release a task; if its worker cannot run it, park it for another worker."""
    task.parked = settlement.parked
    worker = tables.workers.get(task.worker or "")
    if task.parked and worker is not None:
        _note_unfit(task, worker, settlement)
    if task.parked:
        # Another worker may be able to run it.
        tables.wake(task.new.pool, now)
    tables.move(task, Transition.RELEASE, now)


def _note_unfit(task: Task, worker: RegisteredWorker, settlement: Settlement) -> None:
    """Note that a worker does not know a function, or that its signature does not fit a task."""
    function = task.new.call.function
    if settlement.misfit:
        task.misfits = with_misfit(task.misfits, worker.signatures.get(function, ""))
    else:
        worker.unknown.add(function)


def _return_claim(tables: Tables, task: Task, settlement: Settlement, now: float) -> None:
    """Return a prefetched task that its worker did not or could not start."""
    worker = tables.workers.require(task.worker or "")
    ahead.give_back(tables, task, now)
    if settlement.event is Transition.CORRUPT and task.status is Status.QUEUED:
        task.reason, task.error = Reason.CORRUPT, settlement.error
        tables.move(task, Transition.CORRUPT, now)
    if settlement.parked and task.new.owner is None:
        if settlement.misfit:
            task.error = settlement.error
        _note_unfit(task, worker, settlement)
        if task.status is Status.QUEUED:
            tables.park(tables.pools.require(task.new.pool), task, now)
