"""The facts about one task that decide when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lease import knows
from millpond.core.lifecycle import Status
from millpond.core.spec import OrderKind
from millpond.core.why import Facts
from millpond.store.verbs import budgets
from millpond.store.verbs.lease import rate_moment

if TYPE_CHECKING:
    from millpond.core.lease import RegisteredWorker
    from millpond.core.task import Task
    from millpond.store.verbs.tables import PoolTable, Tables


def facts_about(tables: Tables, task: Task, now: float, most: int | None = None) -> Facts:
    """Return the facts about a task.

    Counting the tasks before it reads the whole queue; one of more than `most` is not read.
    """
    pool, unit = tables.pools.require(task.new.pool), task.unit
    short = most is None or pool.queued <= most
    held_until, rate_at = pool.backlog.holds(unit, now)
    waits = task.status is Status.QUEUED
    return Facts(
        task=task.new.id,
        pool=task.new.pool,
        status=task.status,
        reason=task.reason,
        function=task.new.call.function,
        attempt=task.attempt,
        attempts=task.new.attempts,
        error=task.error,
        worker=task.worker,
        started_at=task.started_at,
        timeout=task.new.timeout,
        cancel_requested=task.cancel_requested,
        interrupt_requested=task.interrupt_requested,
        due=task.due,
        parked=task.parked,
        misfit=bool(task.misfits),
        closure_of=task.new.owner,
        workers=sum(_could_run(worker, task) for worker in tables.workers.all()),
        paused=pool.paused,
        held_until=pool.not_before,
        running=pool.running,
        max_concurrent=pool.spec.max_concurrent,
        full_budgets=budgets.full(tables, pool) if pool.spec.budgets else (),
        unit=unit,
        in_lane=task.lane is not None,
        unit_paused=unit in pool.paused_units(),
        unit_held_until=held_until,
        unit_running=0 if unit is None else pool.backlog.running_in(unit),
        unit_limit=None if unit is None else pool.spec.unit_limit,
        behind=_behind(pool, task) if waits else None,
        ahead=_ahead(pool, task, now) if waits and short else 0,
        among=0 if short or not waits else pool.queued,
        rate_at=max(rate_at, rate_moment(tables, pool, task, now)) if waits else 0.0,
    )


def _could_run(worker: RegisteredWorker, task: Task) -> bool:
    if task.new.owner is not None:
        return worker.owner == task.new.owner
    return knows(worker, task.need)


def _behind(pool: PoolTable, task: Task) -> int | None:
    """Return the sequence number at the head of a strict lane, if it is another task."""
    if not pool.backlog.strict(task.unit):
        return None
    head = next(other for other in pool.arrivals if other.lane == task.lane)
    return None if head is task else head.sequence


def _ahead(pool: PoolTable, task: Task, now: float) -> int:
    own = (task.rank, task.seq)
    return sum(
        1
        for other in pool.arrivals
        if other.status is Status.QUEUED
        and not other.claimed
        and not other.parked
        and other.due <= now
        and (other.rank, other.seq) < own
        and _same_share(pool, other, task)
    )


def _same_share(pool: PoolTable, one: Task, other: Task) -> bool:
    if pool.spec.order.kind is not OrderKind.FAIR:
        return True
    return one.unit == other.unit if pool.spec.strict else one.new.share == other.new.share
