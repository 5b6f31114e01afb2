"""Refusals: why a pool does not take a batch of new tasks, or a task that could never start."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millpond.core.admit import (
    Depth,
    Full,
    Reason,
    Refusal,
    admit,
    too_heavy,
    too_large,
)
from millpond.core.order.rank import lane_of
from millpond.core.run import NewRun
from millpond.core.spec import Backpressure, OnFull
from millpond.core.task import NewTask
from millpond.store.verbs import budgets
from millpond.store.verbs.tables import (
    PoolTable,
    Tables,
    lane_without_key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


WHOLE = (OnFull.BLOCK_SUBMITTER, OnFull.FAIL_SUBMITTER, OnFull.FAIL_FAST)
"""The policies that accept a batch as a whole or not at all."""


def refused(
    tables: Tables, fresh: Sequence[NewTask], run: NewRun | None, now: float
) -> Refusal | None:
    """Return why a batch is refused, or None."""
    if not fresh:
        return None
    name = fresh[0].pool
    pool = tables.pools.get(name)
    if pool is None or pool.internal:
        return Refusal(reason=Reason.UNKNOWN_POOL, pool=name)
    if pool.closed:
        return Refusal(reason=Reason.CLOSED, pool=name)
    refusal = hopeless(tables, pool, fresh) or _run_refuses(tables, fresh, run)
    if refusal is not None:
        return refusal
    policy = pool.spec.backpressure
    if policy is None or policy.on_full not in WHOLE:
        return None
    if policy.on_full is OnFull.FAIL_FAST:
        return _no_capacity(tables, pool, fresh, now)
    return _full(pool, fresh)


def hopeless(tables: Tables, pool: PoolTable, fresh: Sequence[NewTask]) -> Refusal | None:
    """Return the refusal of the first task that could never start, or None."""
    rated, fine = bool(pool.buckets or pool.spec.budgets), None
    for new in fresh:
        if not rated and (new.owner is None or new.owner == fine):
            continue
        reason = never_starts(tables, new)
        if reason is not None:
            bound = _too_heavy(tables, pool, new)
            return Refusal(reason=reason, pool=pool.name, bound=bound)
        fine = new.owner
    return None


def _run_refuses(
    tables: Tables, fresh: Sequence[NewTask], opening: NewRun | None
) -> Refusal | None:
    """Return the refusal of a run that is closed: ended, or over budget."""
    runs = [new.run for new in fresh if new.run is not None]
    reason = _shut(tables, runs, opening) if runs else None
    return None if reason is None else Refusal(reason=reason, pool=fresh[0].pool)


def _shut(tables: Tables, runs: list[int], opening: NewRun | None) -> Reason | None:
    for identifier, count in Counter(runs).items():
        if opening is not None and opening.id == identifier:
            room = opening.max_tasks
        else:
            run = tables.runs.get(identifier)
            if run is None or run.finished or run.stopped is not None:
                return Reason.RUN_NOT_OPEN
            room = run.room()
        if room is not None and count > room:
            return Reason.OVER_BUDGET
    return None


def _full(pool: PoolTable, fresh: Sequence[NewTask]) -> Refusal | None:
    """Return why a bounded pool has no room for a whole batch, or None."""
    name = pool.spec.name
    per_key = Counter(new.key for new in fresh)
    largest = max((count for key, count in per_key.items() if key is not None), default=0)
    bound = too_large(pool.spec, len(fresh), largest)
    if bound is not None:
        return Refusal(reason=Reason.BATCH_TOO_LARGE, pool=name, bound=bound, depth=len(fresh))
    for key, count in per_key.items():
        counted = depth(pool, key)
        of_key = 0 if key is None else counted.key + count - 1
        # `_lane_full` checks lanes: a batch without keys goes to several.
        after = Depth(counted.pool + len(fresh) - 1, of_key)
        verdict = admit(pool.spec, after)
        if isinstance(verdict, Full):
            return _queue_full(pool, counted, key if verdict.of_key else None)
    return _lane_full(pool, fresh)


def _lane_full(pool: PoolTable, fresh: Sequence[NewTask]) -> Refusal | None:
    """Return why a lane has no room for its tasks of a batch, or None."""
    policy, lanes = pool.spec.backpressure, pool.spec.lanes
    if policy is None or policy.per_lane is None or lanes is None:
        return None
    keyed = Counter(lane_of(new.key, lanes) for new in fresh if new.key is not None)
    largest = max(keyed.values(), default=0)
    bound = too_large(pool.spec, len(fresh), 0, max(largest, -(-len(fresh) // lanes)))
    if bound is not None:
        name = pool.spec.name
        return Refusal(reason=Reason.BATCH_TOO_LARGE, pool=name, bound=bound, depth=len(fresh))
    coming: dict[str, int] = {}
    turn = pool.next_lane
    for new in fresh:
        if new.key is None:
            number = lane_without_key(pool, turn, coming)
            lane, turn = str(number % lanes), number + 1
        else:
            lane = lane_of(new.key, lanes)
        there = pool.fresh.of_lane(lane)
        verdict = admit(pool.spec, Depth(0, 0, there + coming.get(lane, 0)))
        if isinstance(verdict, Full):
            return Refusal(
                reason=Reason.QUEUE_FULL,
                pool=pool.spec.name,
                lane=lane,
                depth=there,
                bound=policy.per_lane,
                may_wait=policy.on_full is OnFull.BLOCK_SUBMITTER,
                in_lane=True,
            )
        coming[lane] = coming.get(lane, 0) + 1
    return None


def _queue_full(pool: PoolTable, counted: Depth, key: str | None) -> Refusal:
    policy = pool.spec.backpressure or Backpressure(on_full=OnFull.FAIL_SUBMITTER)
    of_key = key is not None
    return Refusal(
        reason=Reason.QUEUE_FULL,
        pool=pool.spec.name,
        lane=key,
        depth=counted.key if of_key else counted.pool,
        bound=policy.per_key if of_key else policy.depth,
        may_wait=policy.on_full is OnFull.BLOCK_SUBMITTER,
    )


def _no_capacity(
    tables: Tables, pool: PoolTable, fresh: Sequence[NewTask], now: float
) -> Refusal | None:
    """Return why not every task of a batch could start now in a fail-fast pool, or None."""
    busy = pool.running + pool.claimed + pool.backlog.ready
    stopped = pool.paused or pool.not_before > now
    if (
        not stopped
        and busy + len(fresh) <= pool.spec.max_concurrent
        and _units_have_room(tables, pool, fresh, now)
        and _rates_have_room(pool, fresh, now)
        and (not pool.spec.budgets or budgets.have_room_for(tables, pool, fresh, now))
    ):
        return None
    return Refusal(
        reason=Reason.NO_CAPACITY, pool=pool.spec.name, depth=busy, bound=pool.spec.max_concurrent
    )


def _units_have_room(tables: Tables, pool: PoolTable, fresh: Sequence[NewTask], now: float) -> bool:
    limit = pool.spec.unit_limit
    for unit, count in Counter(_unit(pool, new) for new in fresh).items():
        if not pool.backlog.may_start_now(unit, now):
            return False
        if unit is None or limit is None:
            continue
        if _live_in(tables, pool, unit) + count > limit:
            return False
    return True


def _live_in(tables: Tables, pool: PoolTable, unit: str) -> int:
    """Return how many tasks of a lane or key wait or run, parked ones too."""
    if not pool.parked_apart:
        return pool.backlog.live_in(unit)
    return sum(task.unit == unit for task in tables.live(pool))


def _unit(pool: PoolTable, new: NewTask) -> str | None:
    """Return the lane or key that limits a task; None while its lane is not chosen."""
    if pool.spec.lanes is None or new.key is None:
        return new.key
    return lane_of(new.key, pool.spec.lanes)


def _rates_have_room(pool: PoolTable, fresh: Sequence[NewTask], now: float) -> bool:
    for rate, bucket in zip(pool.spec.rates, pool.buckets, strict=True):
        # Waiting tasks are charged first.
        cost = pool.backlog.ready + sum(rate.cost(new.weight) for new in fresh)
        if cost > rate.depth or bucket.ready_at(rate, cost, now) > now:
            return False
    return True


def depth(pool: PoolTable, key: str | None) -> Depth:
    """Return the counts that a bound compares."""
    policy = pool.spec.backpressure
    of_key = 0 if key is None else pool.fresh.of_key(key)
    if policy is None or policy.per_lane is None:
        return Depth(len(pool.fresh), of_key)
    return Depth(len(pool.fresh), of_key, pool.fresh.of_lane(lane_for(pool, key)))


def lane_for(pool: PoolTable, key: str | None) -> str:
    """Return the lane of the next task."""
    lanes = pool.spec.lanes or 1
    if key is not None:
        return lane_of(key, lanes)
    return str(lane_without_key(pool, pool.next_lane) % lanes)


def never_starts(tables: Tables, new: NewTask) -> Reason | None:
    """Return why a task could never start in its pool, or None."""
    pool = tables.pools.require(new.pool)
    if new.owner is not None and pool.spec.strict:
        return Reason.CLOSURE_IN_LANES
    if new.owner is not None and not tables.has_live_worker(new.owner):
        return Reason.OWNER_GONE
    return Reason.WEIGHT_LIMIT if _too_heavy(tables, pool, new) is not None else None


def _too_heavy(tables: Tables, pool: PoolTable, new: NewTask) -> int | None:
    """Return the burst, of the pool or of a budget, that the weight of a task exceeds."""
    own = too_heavy(pool.spec, new)
    if own is not None or not pool.spec.budgets:
        return own
    return budgets.too_heavy(tables, pool, new)
