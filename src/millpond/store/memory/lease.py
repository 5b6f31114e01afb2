"""Lease: the next tasks of a pool for a worker, within every limit in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core import rate as gcra
from millpond.core.lease import STARVED_FOR, LeaseAsk, Leased, Worker, may_hold
from millpond.core.lifecycle import Event
from millpond.core.plan import sooner
from millpond.core.task import Task
from millpond.store.protocol import LeaseAnswer

if TYPE_CHECKING:
    from millpond.store.memory.tables import PoolTable, Tables


def lease(tables: Tables, ask: LeaseAsk, now: float) -> LeaseAnswer:
    """Give a worker up to `ask.want` tasks."""
    worker = tables.workers.get(ask.worker)
    if worker is None:
        return LeaseAnswer(fenced=True)
    pool = tables.pools[ask.pool]
    # What this verb settled takes its place before what time made due, and that before the claim.
    pool.backlog.flush(now)
    pool.backlog.promote(now)
    _unpark(tables, pool, worker, ask.want, now)
    leased: list[Leased] = []
    token = tables.token()
    while len(leased) < ask.want and slots(pool, worker, now) > 0:
        task = _next(tables, pool, worker, now)
        if task is None:
            break
        _charge_rates(pool, task, now)
        tables.start(task, worker, token, now)
        leased.append(_leased(task))
    _note_starved(pool, worker, now, got=len(leased))
    return LeaseAnswer(leased=tuple(leased), next_at=next_moment(pool, worker, now))


def slots(pool: PoolTable, worker: Worker, now: float) -> int:
    """Return how many tasks more the limits of the pool let this worker start now."""
    if pool.paused or pool.not_before > now:
        return 0
    limit = pool.spec.max_concurrent
    starved = _others_starved(pool, worker, now)
    share = may_hold(limit, len(pool.holding.keys() | starved | {worker.id}), starved=bool(starved))
    return min(limit - pool.running, share - pool.holding.get(worker.id, 0))


def could_lease(pool: PoolTable, worker: Worker, now: float) -> bool:
    """Return whether `lease` would give this worker something; changes nothing."""
    if slots(pool, worker, now) < 1:
        return False
    return any(
        (worker.functions is None or task.new.call.function in worker.functions)
        and (task.expires_at is None or task.expires_at > now)
        and _rate_moment(pool, task, now) <= now
        for task in pool.backlog.startable(worker.owner, now)
    )


def next_moment(pool: PoolTable, worker: Worker, now: float) -> float | None:
    """Return when time alone may let this worker start more, or None."""
    if pool.paused or pool.running >= pool.spec.max_concurrent:
        return None
    if pool.not_before > now:
        return pool.not_before
    task = pool.backlog.peek(worker.owner)
    if task is None:
        return pool.backlog.next_moment()
    if slots(pool, worker, now) < 1:
        return min(pool.starved[one] for one in _others_starved(pool, worker, now)) + STARVED_FOR
    return sooner(_rate_moment(pool, task, now), pool.backlog.next_moment())


def _others_starved(pool: PoolTable, worker: Worker, now: float) -> set[str]:
    """Return the other workers that asked of late and got nothing because every slot was held."""
    recent = now - STARVED_FOR
    return {one for one, at in pool.starved.items() if at > recent and one != worker.id}


def _note_starved(pool: PoolTable, worker: Worker, now: float, *, got: int) -> None:
    held_up = not got and pool.running >= pool.spec.max_concurrent > 0
    if held_up and worker.id not in pool.holding and pool.backlog.peek(worker.owner) is not None:
        pool.starved[worker.id] = now
    else:
        pool.starved.pop(worker.id, None)


def _next(tables: Tables, pool: PoolTable, worker: Worker, now: float) -> Task | None:
    """Return the task to start now; what has expired or is unknown here is put aside."""
    while (task := pool.backlog.peek(worker.owner)) is not None:
        if task.expires_at is not None and task.expires_at <= now:
            task.reason = "expired"
            tables.move(task, Event.EXPIRE, now)
            pool.backlog.flush(now)
        elif worker.functions is not None and task.new.call.function not in worker.functions:
            tables.park(pool, task, now)
            pool.backlog.flush(now)
        elif _rate_moment(pool, task, now) > now:
            return None
        else:
            return task
    return None


def _unpark(tables: Tables, pool: PoolTable, worker: Worker, want: int, now: float) -> None:
    """Bring back parked tasks that this worker can run, as many as it asks for."""
    for function in [f for f in pool.parked if worker.functions is None or f in worker.functions]:
        for identifier in list(pool.parked[function])[:want]:
            tables.unpark(pool, tables.tasks[identifier], now)
    pool.backlog.flush(now)


def _rate_moment(pool: PoolTable, task: Task, now: float) -> float:
    """Return when the pool's rates let a task start: now or later."""
    moments = (
        gcra.ready_at(rate, tat, rate.cost(task.new.weight), now)
        for rate, tat in zip(pool.spec.rates, pool.tats, strict=True)
    )
    return max(moments, default=now)


def _charge_rates(pool: PoolTable, task: Task, now: float) -> None:
    pool.tats = [
        gcra.take(rate, tat, rate.cost(task.new.weight), now)
        for rate, tat in zip(pool.spec.rates, pool.tats, strict=True)
    ]


def _leased(task: Task) -> Leased:
    new = task.new
    return Leased(
        fence=task.fence,
        pool=new.pool,
        call=new.call,
        key=new.key,
        lane=task.lane,
        sequence=task.sequence,
        max_attempts=new.attempts,
        timeout=new.timeout,
        run=new.run,
        weight=new.weight,
        submitted_at=task.submitted_at,
        labels=new.labels,
        options=new.options,
    )
