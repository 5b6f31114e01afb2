"""Prefetched tasks: claims that a worker holds beyond the tasks it runs. They are queued.

A prefetch follows the same rules as a start: order, the limit of the key, the rates, a fence. It is
not charged and does not count as running: the task takes the slot that an attempt of its worker
leaves (`begin`), or returns to its place as if it had never been claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from millpond.core.admit import Reason
from millpond.core.lifecycle import Status, Transition
from millpond.core.plan import sooner
from millpond.core.settle import event_of_return
from millpond.store.verbs import budgets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.lease import RegisteredWorker
    from millpond.core.task import Fence, Task
    from millpond.store.verbs.tables import PoolTable, Tables


Slot: TypeAlias = tuple[str, str | None]
"""A slot of a pool that a worker holds: (pool, worker)."""


def is_claim(task: Task, fence: Fence) -> bool:
    """Return whether a fence is that of the prefetch of a task."""
    return task.claimed and task.fence == fence


def held(tables: Tables, pool: PoolTable, worker: RegisteredWorker) -> Iterator[Task]:
    """Yield the prefetched tasks of a worker in a pool, first claimed first."""
    return (tables.tasks.require(task) for task in worker.ahead.of_pool(pool.name))


def room(pool: PoolTable, worker: RegisteredWorker, now: float) -> int:
    """Return how many more tasks of a pool a worker may prefetch."""
    if not pool.spec.prefetch or wanted_back(pool, worker, now):
        return 0
    return pool.spec.prefetch - len(worker.ahead.of_pool(pool.name))


def wanted_back(pool: PoolTable, worker: RegisteredWorker, now: float) -> bool:
    """Return whether a worker should return its prefetched tasks of a pool.

    The pool may start nothing, runs more than its limit, or another worker has nothing to do.
    """
    stopped = pool.paused or pool.not_before > now or not pool.spec.max_concurrent
    waiting = any(until > now for one, until in pool.hungry.items() if one != worker.id)
    return stopped or waiting or pool.running > pool.spec.max_concurrent


def wanted_pools(tables: Tables, worker: RegisteredWorker, now: float) -> tuple[str, ...]:
    """Return the pools whose prefetched tasks a worker should return, by name."""
    wanted = set()
    for name in worker.ahead.pools():
        pool = tables.pools.require(name)
        halted = any(_halted_until(pool, task, now) != now for task in held(tables, pool, worker))
        if halted or wanted_back(pool, worker, now):
            wanted.add(name)
    return tuple(sorted(wanted))


def startable(tables: Tables, pool: PoolTable, worker: RegisteredWorker, now: float) -> Task | None:
    """Return the first prefetched task of a worker that needs only a slot to start, or None."""
    if not worker.ahead:
        return None
    claims = (task for task in held(tables, pool, worker) if not task.cancel_requested)
    return next((task for task in claims if _halted_until(pool, task, now) == now), None)


def next_start(
    tables: Tables, pool: PoolTable, worker: RegisteredWorker, now: float
) -> float | None:
    """Return when one of a worker's prefetched tasks can start: now or later, or None."""
    moment: float | None = None
    for task in held(tables, pool, worker):
        if not task.cancel_requested:
            moment = sooner(moment, _halted_until(pool, task, now))
            if moment == now:
                break
    return moment


def _halted_until(pool: PoolTable, task: Task, now: float) -> float | None:
    """Return until when the key of a task is held back: now if it is not, None if paused."""
    if task.unit in pool.paused_units():
        return None
    return max(pool.backlog.holds(task.unit, now)[0], now)


def note_hungry(pool: PoolTable, worker: RegisteredWorker, now: float, *, wanting: bool) -> None:
    """Note a worker that found nothing in the queue while others had prefetched tasks."""
    pool.hungry.pop(worker.id, None)
    if wanting and pool.claimed and not worker.ahead.of_pool(pool.name):
        pool.hungry[worker.id] = now + worker.lease


def begin(tables: Tables, fence: Fence, slot: Slot | None, now: float) -> bool:
    """Start a prefetched task in the slot that an attempt has just left; return whether it runs.

    Its worker has started it already, so it may use that slot even after a pause. Any other start
    needs room, like a lease.
    """
    task = tables.known(fence.task)
    if task is None or not is_claim(task, fence):
        return task is not None and task.status is Status.RUNNING and task.fence == fence
    pool = tables.pools.require(task.new.pool)
    if slot != (task.new.pool, task.worker):
        halted = pool.paused or pool.not_before > now or _halted_until(pool, task, now) != now
        if halted or pool.running >= pool.spec.max_concurrent:
            return False
        if pool.spec.budgets and budgets.room(tables, pool, now) < 1:
            return False
    tables.start_claim(task, now)
    return True


def give_back(tables: Tables, task: Task, now: float) -> None:
    """Return an unstarted prefetched task to its place, and its cost to the rates."""
    pool = tables.pools.require(task.new.pool)
    made = tables.workers.require(task.worker or "").ahead.specs[task.new.id]
    for rate, bucket in zip(pool.spec.rates, pool.buckets, strict=True):
        if rate in made.rates:
            bucket.give_back(rate, rate.cost(task.new.weight))
    tables.drop_claim(task, now, rate=made.rate_per_key == pool.spec.rate_per_key)
    event = event_of_return(task)
    if event is Transition.CANCEL:
        task.reason = task.reason or Reason.CANCELLED
    tables.move(task, event, now)
    task.worker = None


def end_begun(tables: Tables, task: Task, reason: str | None, now: float) -> None:
    """End a prefetched task that its worker began, where that was the only attempt."""
    charge(tables, task, now)
    task.reason = reason or Reason.STOPPED
    task.due = now
    tables.move(task, Transition.EXHAUST, now)
    task.worker = None


def charge(tables: Tables, task: Task, now: float) -> None:
    """Charge the prefetched task of a lost worker as an attempt: it may have started."""
    tables.drop_claim(task, now, rate=False)
    task.attempt += 1
    task.runs += 1
    task.reason = None
