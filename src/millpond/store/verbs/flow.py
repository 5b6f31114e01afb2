"""Flow: what the end of an attempt tells all others: hold back, or that less was used."""

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


def tell_others(tables: Tables, task: Task, settlement: Settlement, now: float) -> None:
    """Apply what a settlement says beyond its own task; its fence is current."""
    pool = tables.pools[task.new.pool]
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
    """Let how long an attempt ran, and whether it failed, move a limit that adapts."""
    postponed = event is Transition.RETRY and not settlement.spend and settlement.hold is None
    if pool.limiter is None or pool.operator_limit is not None or postponed:
        return
    if event is Transition.CANCEL and settlement.hold is None:
        # It ended because somebody wanted it to: that says nothing about the peer.
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
    """Refund what an attempt was charged beyond what it used, or charge the difference."""
    shared = pool.spec.budgets and budgets.weigh(tables, pool)
    if not (pool.spec.weighs or shared):
        return
    # A claim held ahead was charged when it was made; when that was is not known any more.
    since = task.due if pool.spec.prefetch else task.started_at or now
    weight = task.new.weight
    correct(pool.spec.rates, pool.buckets, weight, actual, since=since, now=now)
    if shared:
        budgets.settle_weight(tables, pool, task, actual, since=since, now=now)
    tables.record_command(pool.name, "weight", now, task=task.new.id, weight=actual)
    if actual < weight:
        tables.wake(pool.name, now)


def hold(tables: Tables, pool: PoolTable, unit: str | None, until: float, now: float) -> None:
    """Start nothing of a pool, or of one lane or key, before a moment."""
    if unit is None:
        pool.not_before = max(pool.not_before, until)
    else:
        pool.backlog.hold(unit, until)
        tables.touch(pool)
    tables.record_command(pool.name, f"hold {unit or 'pool'}", now, unit=unit, until=until)
    tables.wake(pool.name, until)
