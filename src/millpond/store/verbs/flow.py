"""Flow control: what the end of an attempt means for other tasks: holds, rates, the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.bucket import correct
from millpond.core.lifecycle import Transition
from millpond.core.ticks import rounded
from millpond.store.verbs import budgets

if TYPE_CHECKING:
    from millpond.core.settle import Settlement
    from millpond.core.task import Task
    from millpond.store.verbs.tables import PoolTable, Tables


def apply_to_others(tables: Tables, task: Task, settlement: Settlement, now: float) -> None:
    """Apply the parts of a settlement that concern other tasks: its weight and its hold."""
    pool = tables.pools.require(task.new.pool)
    if settlement.weight is not None:
        settle_weight(tables, pool, task, settlement.weight, now)
    if settlement.hold == "pool":
        hold(tables, pool, None, rounded(now + settlement.hold_for), now)
    elif settlement.hold == "key" and task.unit is not None:
        hold(tables, pool, task.unit, rounded(now + settlement.hold_for), now)


def adapt(
    tables: Tables,
    pool: PoolTable,
    event: Transition,
    settlement: Settlement,
    ran: float,
    now: float,
) -> None:
    """Adapt the limit of a pool to how long an attempt ran, and whether it failed."""
    postponed = event is Transition.RETRY and not settlement.spend and settlement.hold is None
    if pool.limiter is None or pool.operator_limit is not None or postponed:
        return
    if event is Transition.CANCEL and settlement.hold is None:
        # A cancelled attempt says nothing about the peer.
        return
    failed = event is not Transition.COMPLETE
    limit = pool.limiter.observe(now, ran, in_flight=pool.running, failed=failed)
    if limit == pool.spec.max_concurrent:
        return
    raised = limit > pool.spec.max_concurrent
    pool.spec = msgspec.structs.replace(pool.spec, max_concurrent=limit)
    tables.record_command(pool.name, f"adapt max_concurrent={limit}", now)
    if raised:
        tables.wake(pool.name, now)


def settle_weight(tables: Tables, pool: PoolTable, task: Task, actual: int, now: float) -> None:
    """Refund or charge the difference between the weight of a task and its actual weight."""
    shared = pool.spec.budgets and budgets.weigh(tables, pool)
    if not (pool.spec.weighs or shared):
        return
    # A prefetched task was charged at its claim; that moment is not stored.
    since = task.due if pool.spec.prefetch else task.started_at or now
    weight = task.new.weight
    correct(pool.spec.rates, pool.buckets, weight, actual, since=since, now=now)
    if shared:
        budgets.settle_weight(tables, pool, task, actual, since=since, now=now)
    tables.record_command(pool.name, "weight", now, task=task.new.id, weight=actual)
    if actual < weight:
        tables.wake(pool.name, now)


def hold(tables: Tables, pool: PoolTable, unit: str | None, until: float, now: float) -> None:
    """Start no task of a pool, or of one lane or key, before a moment."""
    if unit is None:
        pool.not_before = max(pool.not_before, until)
    else:
        pool.backlog.hold(unit, until)
        tables.touch(pool)
    tables.record_command(pool.name, f"hold {unit or 'pool'}", now, unit=unit, until=until)
    tables.wake(pool.name, until)
