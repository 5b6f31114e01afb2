"""Lease: the next tasks of a pool for a worker, within every limit in force."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from millpond.core.admit import Reason
from millpond.core.bucket import charge, ready_at
from millpond.core.lease import (
    NO_STEPS,
    STARVED_FOR,
    Leased,
    LeaseRequest,
    RegisteredWorker,
    knows,
    may_hold,
)
from millpond.core.lifecycle import Transition
from millpond.core.plan import sooner
from millpond.core.task import UNREADABLE, Fence, Task
from millpond.core.ticks import rounded
from millpond.store.protocol import LeaseAnswer
from millpond.store.verbs import budgets
from millpond.store.verbs import bulk as plain
from millpond.store.verbs import prefetch as ahead

if TYPE_CHECKING:
    from millpond.store.verbs.tables import PoolTable, Tables

MOST_UNKNOWN = 10
"""How many unknown functions one answer names."""


def lease(tables: Tables, ask: LeaseRequest, now: float) -> LeaseAnswer:
    """Give a worker up to `ask.want` tasks."""
    worker = tables.workers.get(ask.worker)
    if worker is None:
        return LeaseAnswer(fenced=True)
    if worker.expires_at <= now:
        # Its lease expired and was not taken: it is alive, so renew it.
        tables.renew(worker, worker.lease, now)
    pool = tables.pools.require(ask.pool)
    # First apply what this verb settled, then what became due, then claim.
    if pool.backlog.grouped:
        pool.backlog.flush(now)
    pool.backlog.promote(now)
    if pool.parked.count:
        _unpark(tables, pool, worker, ask.want + ask.ahead, now)
    leased: list[Leased] = []
    token = tables.token()
    # Each start takes one slot; nothing else here takes or frees one.
    free = slots(pool, worker, now)
    if pool.spec.budgets and free > 0:
        free = min(free, budgets.room(tables, pool, now))
    room = free if free < ask.want else ask.want  # noqa: FURB136 - min costs a call
    if worker.ahead:
        room -= _start_claims(tables, pool, worker, room, leased, now)
    if room > 0:
        started = plain.start(tables, pool, worker, room, token, now)
        leased += [_leased(task) for task in started]
        room -= len(started)
    for _ in range(room):
        task = _next(tables, pool, worker, now)
        if task is None:
            break
        if pool.spec.has_flow_control:
            _charge(tables, pool, task, now)
        tables.start(pool, task, worker, token, now)
        leased.append(_leased(task))
        if pool.live == pool.running:
            break
    claimed = _claim_ahead(tables, pool, worker, ask, token, now) if ask.ahead else ()
    if pool.spec.budgets and ask.want > 0:
        _note_waiting(tables, pool, worker, now, got=len(leased))
    if ask.want > 0 and (pool.starved or pool.hungry or not leased):
        _note_starved(tables, pool, worker, now, got=len(leased))
        if pool.claimed or pool.hungry:
            idle = not leased and slots(pool, worker, now) > 0
            ahead.note_hungry(pool, worker, now, wanting=idle)
    return LeaseAnswer(
        leased=tuple(leased),
        claimed=claimed,
        give_back=bool(worker.ahead) and ahead.wanted_back(pool, worker, now),
        next_at=next_moment(tables, pool, worker, now),
        drained=pool.live == pool.running,
        unknown=_unknown(pool, worker) if pool.parked.count and not worker.closures_only else (),
    )


def _unknown(pool: PoolTable, worker: RegisteredWorker) -> tuple[str, ...]:
    """Return functions of parked tasks that this worker does not know."""
    names = sorted(function for function in pool.parked.functions() if not knows(worker, function))
    return tuple(names[:MOST_UNKNOWN])


def _start_claims(
    tables: Tables,
    pool: PoolTable,
    worker: RegisteredWorker,
    most: int,
    leased: list[Leased],
    now: float,
) -> int:
    """Start prefetched tasks of a worker: they come before queued ones."""
    before = len(leased)
    while len(leased) - before < most:
        claim = ahead.startable(tables, pool, worker, now)
        if claim is None:
            break
        tables.start_claim(claim, now)
        leased.append(_leased(claim))
    return len(leased) - before


def _claim_ahead(
    tables: Tables,
    pool: PoolTable,
    worker: RegisteredWorker,
    ask: LeaseRequest,
    token: int,
    now: float,
) -> tuple[Leased, ...]:
    """Prefetch tasks for a worker, unless other workers wait for work."""
    claimed: list[Leased] = []
    # Only the claims themselves change the room.
    room = 0 if _starved_before(pool, worker, now) else ahead.room(pool, worker, now)
    while (
        len(claimed) < min(ask.ahead, room)
        and (task := _next(tables, pool, worker, now)) is not None
    ):
        _charge(tables, pool, task, now)
        tables.claim(task, worker, token, now)
        claimed.append(_leased(task))
    return tuple(claimed)


def slots(pool: PoolTable, worker: RegisteredWorker, now: float) -> int:
    """Return how many more tasks the limits of the pool let this worker start now."""
    if pool.paused or pool.not_before > now:
        return 0
    limit = pool.spec.max_concurrent
    starved = _starved_before(pool, worker, now) if pool.starved else None
    if not starved:
        return limit - pool.running
    # Reserve a slot for each starved worker; the others get at most an even share.
    share = may_hold(limit, len(pool.holding.keys() | starved | {worker.id}), starved=True)
    return min(limit - pool.running - len(starved), share - pool.holding.get(worker.id, 0))


def could_lease(tables: Tables, pool: PoolTable, worker: RegisteredWorker, now: float) -> bool:
    """Return whether `lease` would give this worker something; changes nothing.

    It may return False too often: under a rate by weight the heaviest startable task decides.
    """
    if slots(pool, worker, now) < 1:
        return False
    if pool.spec.budgets and budgets.room(tables, pool, now) < 1:
        return False
    if ahead.startable(tables, pool, worker, now) is not None:
        return True
    parked = (
        tables.tasks.require(identifier)
        for function in _parked_for(pool, worker)
        for identifier in pool.parked.of(function)
    )
    apart = (task for task in parked if pool.backlog.would_open(task.unit, now))
    in_line = (
        task
        for task in pool.backlog.startable(worker.owner, now)
        if task.new.owner is not None or (not worker.closures_only and knows(worker, task.need))
    )
    due = (
        task
        for task in chain(apart, in_line)
        if (task.expires_at is None or task.expires_at > now) and task.due <= now
    )
    if not pool.spec.rates and not pool.spec.budgets:
        return any(True for _ in due)
    allowed = [rate_moment(tables, pool, task, now) <= now for task in due]
    return bool(allowed) and all(allowed)


def next_moment(
    tables: Tables, pool: PoolTable, worker: RegisteredWorker, now: float
) -> float | None:
    """Return when time alone may let this worker start more tasks, or None."""
    if pool.paused or pool.running >= pool.spec.max_concurrent:
        return None
    if pool.not_before > now:
        return pool.not_before
    if pool.parked.count and _parked_for(pool, worker):
        # More tasks are parked than this request unparked.
        return now
    if pool.live == pool.running and not pool.backlog.grouped:
        return None
    task = pool.backlog.peek(worker.owner, own_only=worker.closures_only)
    claim_at = ahead.next_start(tables, pool, worker, now) if worker.ahead else None
    if task is None and claim_at is None:
        return pool.backlog.next_moment()
    if slots(pool, worker, now) < 1:
        last = min(pool.starved[one][1] for one in _starved_before(pool, worker, now))
        return rounded(last + STARVED_FOR)
    if pool.spec.budgets and task is not None and budgets.room(tables, pool, now) < 1:
        # A task that its own rates hold back does not wait for a budget yet.
        own = ready_at(pool.spec.rates, pool.buckets, task.new.weight, now)
        return own if own > now else budgets.next_room(tables, pool, now)
    moment = sooner(claim_at, pool.backlog.next_moment())
    return moment if task is None else sooner(rate_moment(tables, pool, task, now), moment)


def _starved_before(pool: PoolTable, worker: RegisteredWorker, now: float) -> set[str]:
    """Return the recently starved workers that have waited longer than this one."""
    own = pool.starved.get(worker.id)
    waiting_since = own[0] if own is not None and _is_recent(own[1], now) else now
    return {
        one
        for one, (since, last) in pool.starved.items()
        if one != worker.id and _is_recent(last, now) and (since < waiting_since or own is None)
    }


def _is_recent(asked_at: float, now: float) -> bool:
    return rounded(asked_at + STARVED_FOR) > now


def _note_starved(
    tables: Tables, pool: PoolTable, worker: RegisteredWorker, now: float, *, got: int
) -> None:
    """Note a worker that holds nothing and got nothing although tasks were ready."""
    before = pool.starved.pop(worker.id, None)
    wanting = not got and worker.id not in pool.holding and not pool.paused
    waits = pool.backlog.peek(worker.owner, own_only=worker.closures_only) or ahead.startable(
        tables, pool, worker, now
    )
    if wanting and waits is not None and slots(pool, worker, now) < 1:
        since, last = before or (now, now)
        pool.starved[worker.id] = (since if _is_recent(last, now) else now, now)
    if before is not None and pool.starved.get(worker.id, (None,))[0] != before[0]:
        # Its place in the queue of waiters is free.
        tables.wake(pool.spec.name, now)


def _next(tables: Tables, pool: PoolTable, worker: RegisteredWorker, now: float) -> Task | None:
    """Return the task to start now; fail expired ones and park unknown ones on the way."""
    picky = worker.functions is not None or worker.unknown
    own_only = worker.closures_only
    while (task := pool.backlog.peek(worker.owner, own_only=own_only)) is not None:
        if task.expires_at is not None and task.expires_at <= now:
            task.reason = Reason.EXPIRED
            tables.move(task, Transition.EXPIRE, now)
            pool.backlog.flush(now)
        elif task.new.call.function == UNREADABLE:
            task.reason = Reason.CORRUPT
            tables.move(task, Transition.CORRUPT, now)
            pool.backlog.flush(now)
        elif (picky or task.misfits) and task.new.owner is None and not knows(worker, task.need):
            tables.park(pool, task, now)
            pool.backlog.flush(now)
        elif pool.spec.has_flow_control and rate_moment(tables, pool, task, now) > now:
            return None
        else:
            return task
    return None


def _parked_for(pool: PoolTable, worker: RegisteredWorker) -> list[str]:
    """Return the functions of parked tasks that a worker knows."""
    return [function for function in pool.parked.functions() if knows(worker, function)]


def _unpark(
    tables: Tables, pool: PoolTable, worker: RegisteredWorker, want: int, now: float
) -> None:
    """Unpark tasks that this worker can run, as many as it wants."""
    for function in _parked_for(pool, worker):
        for first in pool.parked.firsts(function, want):
            tables.unpark(pool, tables.tasks.require(first), now)
    pool.backlog.flush(now)


def rate_moment(tables: Tables, pool: PoolTable, task: Task, now: float) -> float:
    """Return when the rates of a pool and its budgets allow a start: now or later."""
    own = ready_at(pool.spec.rates, pool.buckets, task.new.weight, now)
    if not pool.spec.budgets:
        return own
    return max(own, budgets.ready_at(tables, pool, task.new.weight, now))


def _charge(tables: Tables, pool: PoolTable, task: Task, now: float) -> None:
    """Charge a start, or a claim, to the rates of its pool and of its budgets."""
    charge(pool.spec.rates, pool.buckets, task.new.weight, now)
    if pool.spec.budgets:
        budgets.charge(tables, pool, task.new.weight, now)


def _note_waiting(
    tables: Tables, pool: PoolTable, worker: RegisteredWorker, now: float, *, got: int
) -> None:
    """Note whether the pool could start more tasks if its budgets allowed it."""
    task = pool.backlog.peek(worker.owner, own_only=worker.closures_only)
    stopped = pool.paused or pool.not_before > now or pool.running >= pool.spec.max_concurrent
    if not stopped and pool.live > pool.running and (task is None or slots(pool, worker, now) < 1):
        # Other workers may have tasks to start: the pool keeps its place.
        if got:
            budgets.note_served(tables, pool, now)
        return
    if stopped or (
        task is not None and ready_at(pool.spec.rates, pool.buckets, task.new.weight, now) > now
    ):
        task = None
    budgets.note_waiting(tables, pool, task, now, got=got)


def _leased(task: Task) -> Leased:
    new = task.new
    return Leased(
        fence=Fence(new.id, task.attempt + task.claimed, task.token),
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
        first_started_at=task.first_started_at,
        due=task.due,
        labels=new.labels,
        options=new.options,
        steps=dict(task.steps) if task.steps else NO_STEPS,
    )
