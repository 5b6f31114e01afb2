"""Claims ahead: tasks that a worker holds beyond what it runs. They show as queued.

A claim is as exact as a start: it is made in order, within the limit of its key and the rates, and
has a fence. It is not charged and does not count as running: it takes the slot that an attempt of
its worker leaves (`begin`), or goes back to its place as if it had never been claimed.
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
"""A place to run in: one of a pool's, in the hands of a worker."""


def is_claim(task: Task, fence: Fence) -> bool:
    """Return whether a fence is that of the claim which holds a task ahead."""
    return task.claimed and task.fence == fence


def held(tables: Tables, pool: PoolTable, worker: RegisteredWorker) -> Iterator[Task]:
    """Yield what a worker holds ahead of a pool, first claimed first."""
    name = pool.spec.name
    return (tables.tasks[i] for i, spec in worker.ahead.items() if spec.name == name)


def room(pool: PoolTable, worker: RegisteredWorker, now: float) -> int:
    """Return how many claims more a worker may hold ahead of a pool."""
    if not pool.spec.prefetch or wanted_back(pool, worker, now):
        return 0
    name = pool.spec.name
    return pool.spec.prefetch - sum(spec.name == name for spec in worker.ahead.values())


def wanted_back(pool: PoolTable, worker: RegisteredWorker, now: float) -> bool:
    """Return whether a worker should give back what it holds ahead of a pool.

    Nothing of the pool may start, more run than may, or another worker has nothing to do for it.
    """
    stopped = pool.paused or pool.not_before > now or not pool.spec.max_concurrent
    waiting = any(until > now for one, until in pool.hungry.items() if one != worker.id)
    return stopped or waiting or pool.running > pool.spec.max_concurrent


def wanted_pools(tables: Tables, worker: RegisteredWorker, now: float) -> tuple[str, ...]:
    """Return the pools of which a worker's claims ahead are wanted back, by name."""
    wanted = set()
    for name in {spec.name for spec in worker.ahead.values()}:
        pool = tables.pools[name]
        halted = any(_halted_until(pool, task, now) != now for task in held(tables, pool, worker))
        if halted or wanted_back(pool, worker, now):
            wanted.add(name)
    return tuple(sorted(wanted))


def startable(tables: Tables, pool: PoolTable, worker: RegisteredWorker, now: float) -> Task | None:
    """Return the first claim of a worker that nothing but a slot keeps from starting, or None."""
    if not worker.ahead:
        return None
    claims = (task for task in held(tables, pool, worker) if not task.cancel_requested)
    return next((task for task in claims if _halted_until(pool, task, now) == now), None)


def next_start(
    tables: Tables, pool: PoolTable, worker: RegisteredWorker, now: float
) -> float | None:
    """Return when time alone lets one of a worker's claims start: now or later, or None."""
    moment: float | None = None
    for task in held(tables, pool, worker):
        if not task.cancel_requested:
            moment = sooner(moment, _halted_until(pool, task, now))
            if moment == now:
                break
    return moment


def _halted_until(pool: PoolTable, task: Task, now: float) -> float | None:
    """Return until when the key of a claim may start nothing: now if it may, None if paused."""
    if task.unit in pool.paused_units:
        return None
    return max(pool.backlog.holds(task.unit, now)[0], now)


def note_hungry(pool: PoolTable, worker: RegisteredWorker, now: float, *, wanting: bool) -> None:
    """Remember a worker that found nothing in the queue while others held some of it ahead."""
    pool.hungry.pop(worker.id, None)
    own = sum(spec.name == pool.spec.name for spec in worker.ahead.values())
    if wanting and not own and pool.claimed:
        pool.hungry[worker.id] = now + worker.lease


def begin(tables: Tables, fence: Fence, slot: Slot | None, now: float) -> bool:
    """Start a claim in the slot that an attempt has just left; tell whether it runs.

    That slot is its own, whatever was ordered since: its worker has started it in good faith. Any
    other start needs room, as a lease does.
    """
    task = tables.known(fence.task)
    if task is None or not is_claim(task, fence):
        return task is not None and task.status is Status.RUNNING and task.fence == fence
    pool = tables.pools[task.new.pool]
    if slot != (task.new.pool, task.worker):
        halted = pool.paused or pool.not_before > now or _halted_until(pool, task, now) != now
        if halted or pool.running >= pool.spec.max_concurrent:
            return False
        if pool.spec.budgets and budgets.room(tables, pool, now) < 1:
            return False
    tables.start_claim(task, now)
    return True


def give_back(tables: Tables, task: Task, now: float) -> None:
    """Take a claim back that was never started: to its place, its rate's tokens returned."""
    pool = tables.pools[task.new.pool]
    made = tables.workers[task.worker or ""].ahead[task.new.id]
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
    """End a claim that its worker began, of a task that has no attempt but this one."""
    charge(tables, task, now)
    task.reason = reason or Reason.STOPPED
    task.due = now
    tables.move(task, Transition.EXHAUST, now)
    task.worker = None


def charge(tables: Tables, task: Task, now: float) -> None:
    """Charge a claim whose worker is lost as the attempt it may have become."""
    tables.drop_claim(task, now, rate=False)
    task.attempt += 1
    task.runs += 1
    task.reason = None
