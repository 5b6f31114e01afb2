"""Submit: admission, idempotency and the insert in one verb."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from millpond.core.admit import (
    Depth,
    Drop,
    Evict,
    Full,
    Known,
    Reason,
    Refusal,
    admit,
    answers_for,
    conflicts,
    known_by,
    may_replace,
    replacement,
    too_heavy,
    too_large,
)
from millpond.core.lifecycle import Status, Transition
from millpond.core.order.rank import lane_of
from millpond.core.run import NewRun, Run
from millpond.core.run import view as run_view
from millpond.core.spec import Backpressure, OnFull, OrderKind
from millpond.core.task import Dedupe, NewTask, Task, key_of
from millpond.store.protocol import Admission, BatchAnswer
from millpond.store.verbs import budgets
from millpond.store.verbs.tables import (
    PoolTable,
    Tables,
    due_of,
    expiry_of,
    lane_without_key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.store.protocol import Batch

_FIFO, _QUEUED = OrderKind.FIFO, Status.QUEUED

WHOLE = (OnFull.BLOCK_SUBMITTER, OnFull.FAIL_SUBMITTER, OnFull.FAIL_FAST)
"""The policies that accept a batch as a whole or not at all."""


def submit(tables: Tables, batch: Batch, now: float) -> BatchAnswer:
    """Accept one batch, or refuse all of it and change nothing."""
    pool = tables.pools.get(batch.tasks[0].pool) if batch.tasks else None
    plain = batch.run is None and not batch.again
    if pool is not None and plain and _nothing_to_decide(tables, pool, batch.tasks):
        return BatchAnswer(admissions=_take_plainly(tables, pool, batch.tasks, now))
    known = {new.id: _known(tables, new, again=batch.again) for new in batch.tasks}
    refusal = _conflict(tables, batch.tasks, known)
    run = tables.runs.get(_named_run(tables, batch.run)) if batch.run else None
    if run is not None and batch.run is not None:
        # A resumed run is not seeded a second time.
        if batch.run.holder is not None and not run.finished:
            run.holders.add(batch.run.holder)
        return BatchAnswer(run=run_view(run, resumed=True))
    fresh = _without_known(batch.tasks, known)
    refusal = refusal or _replaces_too_heavily(tables, batch.tasks, known)
    refusal = refusal or _refused(tables, fresh, batch.run, now)
    if refusal is not None:
        return BatchAnswer(refusal=refusal)
    opened = _open_run(tables, batch.run, now) if batch.run else None
    taken = [_take(tables, new, now, again=batch.again) for new in batch.tasks]
    if opened is not None:
        tables.touch_run(opened)
    # At the end: a later task of the batch may have evicted an earlier one.
    admissions = tuple([admission(tables, one) for one in taken])
    return BatchAnswer(admissions=admissions, run=run_view(opened) if opened else None)


# The usual case: nothing to decide


def _nothing_to_decide(tables: Tables, pool: PoolTable, tasks: Sequence[NewTask]) -> bool:
    """Return whether every task is new and can start, and the pool has no bound."""
    if pool.closed or pool.internal or pool.spec.backpressure is not None:
        return False
    if pool.buckets or pool.spec.budgets:
        return False
    stored, alive = tables.tasks.get, None
    for new in tasks:
        if new.idempotency_key is not None or new.run is not None or stored(new.id) is not None:
            return False
        if new.owner is not None and new.owner != alive:
            # Without rates no weight is too large.
            if pool.spec.strict or not tables.has_live_worker(new.owner):
                return False
            alive = new.owner
    return True


def _take_plainly(
    tables: Tables, pool: PoolTable, tasks: Sequence[NewTask], now: float
) -> tuple[Admission, ...]:
    """Insert tasks that cannot affect each other."""
    stored, admissions = tables.tasks.get, []
    for new in tasks:
        if stored(new.id) is not None:
            # Sent twice in one batch.
            admissions.append(admission(tables, _take(tables, new, now)))
            continue
        task = tables.insert(new, now, outside=True)
        admissions.append(
            Admission(
                task=new.id,
                status=task.status,
                lane=task.lane,
                sequence=task.sequence,
                position=_position(pool, task),
                depth=pool.queued,
            )
        )
    return tuple(admissions)


# Known keys


def _known(tables: Tables, new: NewTask, *, again: bool = False) -> Known | None:
    """Return the task that answers for `new`: itself, sent again, or the holder of its key."""
    itself = tables.tasks.get(new.id)
    if itself is not None:
        return known_by(itself.new, itself.status)
    pool = tables.pools.get(new.pool)
    holder = None
    if pool is not None and new.idempotency_key is not None:
        holder = holder_of_key(tables, pool, new, again=again)
    if holder is None and again and tables.was_removed(new.id):
        # How it ended is not stored; the sender only needs to know that it was accepted.
        return known_by(new, _QUEUED)
    return holder


def holder_of_key(
    tables: Tables, pool: PoolTable, new: NewTask, *, again: bool = False
) -> Known | None:
    """Return the entry of an idempotency key, if it still answers under this dedupe mode.

    `again`: the submit is repeated, and a task that it replaced before answers in any case.
    """
    known = pool.keys.get(key_of(new))
    if known is None:
        return None
    if again and new.dedupe is Dedupe.REPLACE:
        task = tables.tasks.get(known.task)
        if task is not None and task.new.source == new.id:
            return known
    return known if still_answers(tables, known, new.dedupe) else None


def still_answers(tables: Tables, known: Known, dedupe: Dedupe) -> bool:
    """Return whether the task of an idempotency key answers for it under a dedupe mode."""
    if not dedupe.of_waiting:
        return answers_for(dedupe, known.status)
    task = tables.tasks.get(known.task)
    return answers_for(dedupe, known.status, held=task is None or not task.waits)


def _conflict(
    tables: Tables, tasks: Sequence[NewTask], known: dict[int, Known | None]
) -> Refusal | None:
    seen: dict[tuple[str, int | None], NewTask] = {}
    for new in tasks:
        if new.idempotency_key is None:
            continue
        holder = known[new.id]
        other = seen.setdefault(key_of(new), new)
        standing = holder or known_by(other, Status.QUEUED)
        if _differs(tables, standing, other if holder is None else None, new):
            return Refusal(
                reason=Reason.CONFLICT,
                pool=new.pool,
                task=standing.task,
                key=new.idempotency_key,
            )
    return None


def _differs(tables: Tables, known: Known, old: NewTask | None, new: NewTask) -> bool:
    """Return whether a task cannot be answered with the one that its key stands for."""
    task = tables.tasks.get(known.task) if old is None and new.dedupe is Dedupe.REPLACE else None
    if task is not None:
        old = task.new
    if old is None or new.dedupe is not Dedupe.REPLACE:
        return conflicts(known, new)
    return not may_replace(old, new)


def _replaces_too_heavily(
    tables: Tables, tasks: Sequence[NewTask], known: dict[int, Known | None]
) -> Refusal | None:
    """Return the refusal of the first replacement that could never start, or None."""
    replacing = [new for new in tasks if new.dedupe is Dedupe.REPLACE and known[new.id] is not None]
    return _hopeless(tables, tables.pools.require(tasks[0].pool), replacing) if replacing else None


def _without_known(tasks: Sequence[NewTask], known: dict[int, Known | None]) -> list[NewTask]:
    """Return the new tasks, without known keys and repeats within the batch."""
    fresh: dict[object, NewTask] = {}
    for new in tasks:
        if known[new.id] is None:
            fresh.setdefault(key_of(new) if new.idempotency_key else new.id, new)
    return list(fresh.values())


# Refusals


def _refused(
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
    refusal = _hopeless(tables, pool, fresh) or _run_refuses(tables, fresh, run)
    if refusal is not None:
        return refusal
    policy = pool.spec.backpressure
    if policy is None or policy.on_full not in WHOLE:
        return None
    if policy.on_full is OnFull.FAIL_FAST:
        return _no_capacity(tables, pool, fresh, now)
    return _full(pool, fresh)


def _hopeless(tables: Tables, pool: PoolTable, fresh: Sequence[NewTask]) -> Refusal | None:
    """Return the refusal of the first task that could never start, or None."""
    rated, fine = bool(pool.buckets or pool.spec.budgets), None
    for new in fresh:
        if not rated and (new.owner is None or new.owner == fine):
            continue
        reason = _never_starts(tables, new)
        if reason is not None:
            bound = _too_heavy(tables, pool, new)
            return Refusal(reason=reason, pool=pool.name, bound=bound)
        fine = new.owner
    return None


def _run_refuses(
    tables: Tables, fresh: Sequence[NewTask], opening: NewRun | None
) -> Refusal | None:
    """Return the refusal of a run that accepts no more: ended, or over budget."""
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
    return Depth(len(pool.fresh), of_key, pool.fresh.of_lane(_lane_for(pool, key)))


def _lane_for(pool: PoolTable, key: str | None) -> str:
    """Return the lane of the next task."""
    lanes = pool.spec.lanes or 1
    if key is not None:
        return lane_of(key, lanes)
    return str(lane_without_key(pool, pool.next_lane) % lanes)


# Inserting


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """What `_take` did with one task; its admission is made when the batch is complete."""

    task: int
    duplicate: bool = False
    position: int | None = None
    depth: int | None = None
    known: Status = _QUEUED
    reason: str | None = None


def _take(tables: Tables, new: NewTask, now: float, *, again: bool = False) -> Accepted:
    """Accept one task of a batch: a duplicate, a drop or an insert."""
    if again or new.idempotency_key is not None or tables.tasks.get(new.id) is not None:
        known = _known(tables, new, again=again)
        if known is not None:
            _replace(tables, known, new, now)
            return Accepted(known.task, known.task != new.id, known=known.status)
    pool = tables.pools.require(new.pool)
    if pool.spec.backpressure is not None:
        verdict = admit(pool.spec, depth(pool, new.key))
        if isinstance(verdict, Drop):
            tables.refuse(new, verdict.reason, now)
            return Accepted(new.id, depth=pool.queued, known=Status.REJECTED, reason=verdict.reason)
        if isinstance(verdict, Evict):
            _evict(tables, pool, new, verdict, now)
    task = store(tables, new, now, outside=True)
    return Accepted(new.id, False, _position(pool, task), pool.queued)


def _position(pool: PoolTable, task: Task) -> int | None:
    """Return how many tasks wait ahead of a new one: in its lane, or in a fifo pool."""
    backlog = pool.backlog
    if backlog.lanes and (unit := task.unit) is not None:
        return backlog.live_in(unit) - backlog.running_in(unit) - 1
    if pool.spec.order.kind is not _FIFO:
        return None
    return len(backlog) + pool.parked_apart - 1


def store(tables: Tables, new: NewTask, now: float, *, outside: bool) -> Task:
    """Insert a task, with its idempotency key."""
    task = tables.insert(new, now, outside=outside)
    if new.idempotency_key is not None:
        tables.pools.require(new.pool).keys.add(key_of(new), known_by(new, task.status))
    return task


def _replace(tables: Tables, known: Known, new: NewTask, now: float) -> Task | None:
    """Let a waiting task take over the call and options of a submit, if that says so."""
    task = tables.tasks.get(known.task) if new.dedupe is Dedupe.REPLACE else None
    if task is None or not task.waits or new.id in (known.task, task.new.source):
        return None
    due, expires_at = due_of(new, now), expiry_of(new, now)
    replaced = replacement(task.new, new)
    return tables.update(task, replaced, now, "replace", due=due, expires_at=expires_at, again=True)


def follow_up(tables: Tables, new: NewTask, now: float) -> Accepted:
    """Store a follow-up of a completed attempt: never refused, not counted by a bound."""
    known = _known(tables, new)
    if known is not None:
        conflict = Reason.CONFLICT if _take_over(tables, known, new, now) else None
        return Accepted(known.task, known.task != new.id, known=known.status, reason=conflict)
    task = store(tables, new, now, outside=False)
    _end_if_hopeless(tables, task, now)
    return Accepted(new.id)


def _take_over(tables: Tables, known: Known, new: NewTask, now: float) -> bool:
    """Replace the task of a known key, if the submit says so; return whether they conflict.

    It is too late to refuse the submit: a task that cannot start with it is cancelled.
    """
    if _differs(tables, known, None, new):
        return True
    replaced = _replace(tables, known, new, now)
    if replaced is not None:
        _end_if_hopeless(tables, replaced, now)
    return False


def take_committed(tables: Tables, new: NewTask, now: float) -> None:
    """Store a task that a caller submitted and committed in its own transaction.

    The transaction accepted it, so a pool that is full or closed by now still takes it. What the
    transaction could not check (a duplicate, a bound) may end the task, and its handle shows that.
    """
    if tables.tasks.get(new.id) is not None:
        return
    pool = tables.pools.require(new.pool)
    known = None if new.idempotency_key is None else holder_of_key(tables, pool, new)
    if known is not None:
        replaces = new.dedupe is Dedupe.REPLACE
        differs = replaces and _take_over(tables, known, new, now)
        reason = Reason.CONFLICT if differs else Reason.DUPLICATE
        _reject(tables, new, reason, now, cause=known.task)
        return
    verdict = admit(pool.spec, depth(pool, new.key))
    if isinstance(verdict, Drop):
        _reject(tables, new, verdict.reason, now)
        return
    if isinstance(verdict, Evict):
        _evict(tables, pool, new, verdict, now)
    task = store(tables, new, now, outside=True)
    _end_if_hopeless(tables, task, now)


def _reject(
    tables: Tables, new: NewTask, reason: Reason, now: float, *, cause: int | None = None
) -> None:
    """Store an accepted task and reject it at once; it gets no idempotency key."""
    task = tables.insert(new, now, outside=True)
    task.reason = reason
    tables.move(task, Transition.EVICT, now, cause=cause)


def _end_if_hopeless(tables: Tables, task: Task, now: float) -> None:
    """Cancel a task that could never start: it is too late to refuse it."""
    hopeless = _never_starts(tables, task.new)
    if hopeless is not None and task.status is Status.QUEUED:
        task.reason = hopeless
        tables.move(task, Transition.CANCEL, now)


def _never_starts(tables: Tables, new: NewTask) -> Reason | None:
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


def _evict(tables: Tables, pool: PoolTable, new: NewTask, verdict: Evict, now: float) -> None:
    """Evict the oldest never-claimed task."""
    fresh = pool.fresh
    if verdict.of_lane:
        oldest = tables.tasks.require(fresh.oldest_of_lane(_lane_for(pool, new.key)))
    else:
        oldest = tables.tasks.require(
            fresh.oldest_of(new.key) if verdict.of_key else fresh.oldest()
        )
    oldest.reason = verdict.reason
    tables.move(oldest, Transition.EVICT, now, cause=new.id)


def admission(tables: Tables, taken: Accepted) -> Admission:
    task = tables.tasks.get(taken.task)
    if task is None:
        return Admission(
            task=taken.task,
            status=taken.known,
            duplicate=taken.duplicate,
            depth=taken.depth,
            reason=taken.reason,
        )
    return Admission(
        task=taken.task,
        status=task.status,
        duplicate=taken.duplicate,
        lane=task.lane,
        sequence=task.sequence,
        position=taken.position,
        depth=taken.depth,
        reason=taken.reason or task.reason,
    )


# Runs


def _named_run(tables: Tables, new: NewRun) -> int:
    """Return the id of a run: that of its name, if the name is known."""
    if new.name is None or tables.runs.get(new.id) is not None:
        return new.id
    named = tables.runs.named(new.pool, new.name)
    return new.id if named is None else named


def _open_run(tables: Tables, new: NewRun, now: float) -> Run:
    run = Run(new=new, opened_at=now, holders={new.holder} if new.holder else set())
    tables.runs.add(new.id, run)
    return run
