"""Submit: admission, idempotency and the insert in one verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.admit import (
    Drop,
    Evict,
    Known,
    Reason,
    Refusal,
    admit,
    answers_for,
    conflicts,
    known_by,
    may_replace,
    replacement,
)
from millpond.core.lifecycle import Status, Transition
from millpond.core.run import NewRun, Run
from millpond.core.run import view as run_view
from millpond.core.spec import OrderKind
from millpond.core.task import Dedupe, NewTask, Task, key_of
from millpond.store.protocol import Admission, BatchAnswer
from millpond.store.verbs.refusals import depth, hopeless, lane_for, never_starts, refused
from millpond.store.verbs.tables import (
    PoolTable,
    Tables,
    due_of,
    expiry_of,
)

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from millpond.store.protocol import Batch

_FIFO, _QUEUED = OrderKind.FIFO, Status.QUEUED


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
    refusal = refusal or refused(tables, fresh, batch.run, now)
    if refusal is not None:
        return BatchAnswer(refusal=refusal)
    opened = _open_run(tables, batch.run, now) if batch.run else None
    checked = {new.id for new in fresh}
    taken = [_take(tables, new, now, checked, again=batch.again) for new in batch.tasks]
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
            admissions.append(admission(tables, _take(tables, new, now, {new.id})))
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
    return hopeless(tables, tables.pools.require(tasks[0].pool), replacing) if replacing else None


def _without_known(tasks: Sequence[NewTask], known: dict[int, Known | None]) -> list[NewTask]:
    """Return the new tasks, without known keys and repeats within the batch."""
    fresh: dict[object, NewTask] = {}
    for new in tasks:
        if known[new.id] is None:
            fresh.setdefault(key_of(new) if new.idempotency_key else new.id, new)
    return list(fresh.values())


# Inserting


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """What `_take` did with one task; its admission is made when the batch is complete."""

    task: int
    duplicate: bool = False
    position: int | None = None
    depth: int | None = None
    known: Status = _QUEUED
    reason: str | None = None


def _take(
    tables: Tables, new: NewTask, now: float, checked: Container[int], *, again: bool = False
) -> Accepted:
    """Accept one task of a batch: a duplicate, a drop or an insert.

    A task that is not `checked` had a known key. A task before it in the batch may have evicted the
    holder of that key.
    """
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
    accepted = Accepted(new.id, False, _position(pool, task), pool.queued)
    if new.id not in checked:
        _end_if_hopeless(tables, task, now)
    return accepted


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
    hopeless = never_starts(tables, task.new)
    if hopeless is not None and task.status is Status.QUEUED:
        task.reason = hopeless
        tables.move(task, Transition.CANCEL, now)


def _evict(tables: Tables, pool: PoolTable, new: NewTask, verdict: Evict, now: float) -> None:
    """Evict the oldest never-claimed task."""
    fresh = pool.fresh
    if verdict.of_lane:
        oldest = tables.tasks.require(fresh.oldest_of_lane(lane_for(pool, new.key)))
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
