"""Control: orders from operators, workers and the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from millpond.core import retention
from millpond.core import validation as check
from millpond.core.adaptive import Limiter
from millpond.core.admit import Reason
from millpond.core.bucket import taken_over
from millpond.core.control import (
    AttemptOrder,
    Bury,
    Cancel,
    CancelAll,
    CancelRun,
    Close,
    Declare,
    DeclareBudget,
    Disown,
    Hold,
    Join,
    Lead,
    Leave,
    Order,
    Page,
    Pause,
    PoolOrder,
    Progress,
    Prune,
    Purge,
    Redrive,
    Remember,
    Resize,
    ResizeBudget,
    Resume,
    Seal,
    WholeOrder,
    WorkerOrder,
)
from millpond.core.lease import Worker
from millpond.core.lifecycle import LIFECYCLE, Event, Status
from millpond.core.settle import event_of_leaving
from millpond.core.spec import PoolSpec, changed_fixed_field, fifo
from millpond.core.task import CALLBACKS, Task, key_of
from millpond.core.ticks import rounded
from millpond.errors import ConfigConflict, ConfigError, StaleRevision, UnknownPool
from millpond.store.verbs import budgets
from millpond.store.verbs.flow import hold
from millpond.store.verbs.prefetch import end_begun, give_back
from millpond.store.verbs.recover import bury, everything_held
from millpond.store.verbs.settle import is_current
from millpond.store.verbs.tables import PoolTable, Tables, in_order

if TYPE_CHECKING:
    from collections.abc import Iterable


REVISIONS_KEPT = 100
"""How many former settings of a pool are kept in memory; a database keeps all of them."""


def control(tables: Tables, order: Order, now: float) -> tuple[int, int, Page | None]:
    """Carry out an order; return how much it touched, the revision in force, and what is left."""
    if isinstance(order, Purge | CancelAll):
        pool = pool_named(tables, order.pool)
        if order.by is not None and order.page is None:
            word = "purge" if isinstance(order, Purge) else "cancel all"
            tables.order(order.pool, word, now, unit=order.unit)
        count, left = _cancel_page(tables, pool, order, now)
        return count, pool.revision, left
    return *_whole_order(tables, order, now), None


def _whole_order(tables: Tables, order: WholeOrder, now: float) -> tuple[int, int]:
    match order:
        case Declare(spec):
            return _declare(tables, spec, now)
        case DeclareBudget():
            return budgets.declare(tables, order, now), 0
        case ResizeBudget():
            return budgets.resize(tables, order, now), 0
        case Join() | Leave() | Bury() | Disown():
            return _worker_order(tables, order, now), 0
        case Lead():
            return _lead(tables, order, now)
        case Cancel(_, interrupt):
            known = _meant(tables, order, now)
            return sum(cancel(tables, task, now, interrupt=interrupt) for task in known), 0
        case Redrive():
            meant = _meant(tables, order, now)
            return sum(_redrive(tables, task.new.id, now) for task in meant), 0
        case Progress() | Remember():
            return _attempt_order(tables, order), 0
        case Seal(run, holder):
            return _seal(tables, run, holder), 0
        case CancelRun(run):
            return _cancel_run(tables, run, now), 0
        case _:
            pool = pool_named(tables, order.pool)
            return _pool_order(tables, pool, order, now), pool.revision


def pool_named(tables: Tables, name: str) -> PoolTable:
    """Return a pool, or say which one is unknown."""
    try:
        return tables.pools[name]
    except KeyError:
        message = f"no pool named {name!r} was declared; declare it first"
        raise UnknownPool(message, pool=name) from None


# Pools


def _pool_order(tables: Tables, pool: PoolTable, order: PoolOrder, now: float) -> int:
    match order:
        case Pause(unit=unit) | Resume(unit=unit):
            return _set_paused(tables, pool, unit, now, paused=isinstance(order, Pause))
        case Resize(max_concurrent=limit, revision=revision):
            return _resize(tables, pool, limit, revision, now)
        case Hold(seconds=seconds, unit=unit):
            hold(tables, pool, unit, rounded(now + seconds), now)
            return 1
        case Close():
            pool.closed = True
            tables.order(pool.spec.name, "close", now)
            return 1
        case Prune():
            return _prune(tables, pool, order)
        case Declare():
            return 0
        case _:
            assert_never(order)


def _declare(tables: Tables, spec: PoolSpec, now: float) -> tuple[int, int]:
    """Create a pool, or take over a declaration that differs from the last one."""
    if spec.name.endswith(CALLBACKS):
        raise ConfigError("name", spec.name, "is kept for the callbacks of a pool")
    budgets.check_known(tables, spec)
    pool = tables.pools.get(spec.name)
    if pool is None:
        if spec.keep is not None and spec.keep.shorten:
            spec = msgspec.structs.replace(
                spec, keep=msgspec.structs.replace(spec.keep, shorten=False)
            )
        tables.pools[spec.name] = PoolTable(spec, now)
        tables.pools[spec.name + CALLBACKS] = PoolTable(_callback_spec(spec), now)
        if spec.budgets:
            budgets.share(tables, tables.pools[spec.name], None, now)
        tables.order(spec.name, f"declare max_concurrent={spec.max_concurrent}", now)
        return 1, 1
    _check_keep(pool, spec)
    kept = retention.taken_over(pool.declared.keep, spec.keep)
    if kept is not spec.keep:
        spec = msgspec.structs.replace(spec, keep=kept)
    if pool.declared == spec:
        return 0, pool.revision
    changed = changed_fixed_field(pool.declared, spec)
    if changed is not None and (pool.queued or pool.running):
        field, stored, declared = changed
        message = (
            f"{field} of pool {spec.name!r} cannot change from {stored} to {declared} while "
            f"{pool.queued + pool.running} of its tasks wait or run: let them end first, or give "
            "the new pool another name"
        )
        raise ConfigConflict(message, pool=spec.name, field=field, stored=stored, declared=declared)
    if pool.declared.adaptive != spec.adaptive:
        pool.limiter = None if spec.adaptive is None else Limiter(spec.adaptive)
    in_force = _in_force(pool, spec)
    before, pool.declared = pool.spec, spec
    _respec(tables, pool, in_force, now)
    if before.budgets != spec.budgets:
        budgets.share(tables, pool, before, now)
    companion = tables.pools[spec.name + CALLBACKS]
    if companion.declared != _callback_spec(spec):
        companion.declared = _callback_spec(spec)
        limited = _with_limit(companion.declared, companion.operator_limit)
        _respec(tables, companion, limited, now)
    tables.order(spec.name, f"declare max_concurrent={in_force.max_concurrent}", now)
    return 1, pool.revision


def _check_keep(pool: PoolTable, spec: PoolSpec) -> None:
    """Object to a declaration that would take tasks and keys away sooner than was promised."""
    stored, given = retention.in_force(pool.declared.keep), spec.keep
    if given is None or not given.given or given.shorten or not given.shorter(stored):
        return
    if not pool.next_seq:
        return
    raise ConfigConflict(
        f"pool {spec.name!r} is stored with keep={stored}, and this declaration would forget "
        f"sooner: keep={given}. Give the same values, leave keep out to take over what is stored, "
        "or say Keep(..., shorten=True) to shorten it for everybody",
        pool=spec.name,
        field="keep",
        stored=stored,
        declared=given,
    )


def _with_limit(spec: PoolSpec, limit: int | None) -> PoolSpec:
    """Return what is in force: as declared, but for the limit that an operator set."""
    return spec if limit is None else msgspec.structs.replace(spec, max_concurrent=limit)


def _in_force(pool: PoolTable, declared: PoolSpec) -> PoolSpec:
    """Return a declaration with the limit that an operator set, or that it has adapted to."""
    if pool.operator_limit is None and pool.limiter is not None:
        return _with_limit(declared, pool.limiter.limit)
    return _with_limit(declared, pool.operator_limit)


def _callback_spec(spec: PoolSpec) -> PoolSpec:
    return PoolSpec(name=spec.name + CALLBACKS, max_concurrent=spec.max_callbacks, order=fifo())


def _respec(
    tables: Tables, pool: PoolTable, spec: PoolSpec, now: float, revision: int | None = None
) -> None:
    pool.buckets = taken_over(pool.spec.rates, pool.buckets, spec.rates, now)
    pool.revisions[pool.revision] = pool.spec
    if len(pool.revisions) > REVISIONS_KEPT:
        del pool.revisions[min(pool.revisions)]
    pool.revision = pool.revision + 1 if revision is None else revision
    if changed_fixed_field(pool.spec, spec) is not None:
        pool.backlog = pool.backlog.rebuilt(spec)
        if pool.spec.lanes != spec.lanes:
            # The lanes that were paused are no more.
            pool.paused_units = set()
    pool.spec = spec
    pool.backlog.respec(spec)
    pool.fresh.respec(spec, tables.live(pool))
    tables.touch(pool)
    tables.wake(spec.name, now)


def _resize(
    tables: Tables, pool: PoolTable, limit: int | None, revision: int | None, now: float
) -> int:
    if limit is not None:
        check.whole("max_concurrent", limit, least=0)
    if revision is not None and revision <= pool.revision:
        message = (
            f"revision={revision} of pool {pool.spec.name!r} is not above {pool.revision}, "
            "which is in force: read its settings again and decide anew"
        )
        raise StaleRevision(message, name=pool.spec.name, given=revision, current=pool.revision)
    pool.operator_limit = limit
    in_force = _in_force(pool, pool.declared)
    _respec(tables, pool, in_force, now, revision)
    word = "resize" if limit is not None else "reset"
    tables.order(pool.spec.name, f"{word} max_concurrent={in_force.max_concurrent}", now)
    return 1


def _set_paused(
    tables: Tables, pool: PoolTable, unit: str | None, now: float, *, paused: bool
) -> int:
    if unit is None:
        pool.paused = paused
        if not paused:
            # A hold is a pause that ends by itself: an operator who resumes ends it now.
            pool.not_before = 0.0
    else:
        pool.backlog.pause(unit, paused=paused)
        pool.pause(unit, paused=paused)
        tables.touch(pool)
    word = "pause" if paused else "resume"
    tables.order(pool.spec.name, word if unit is None else f"{word} {unit}", now)
    if not paused or pool.claimed:
        # What is held ahead of a pause is wanted back, and whoever asks is told.
        tables.wake(pool.spec.name, now)
    return 1


def _prune(tables: Tables, pool: PoolTable, order: Prune) -> int:
    """Forget ended tasks of a pool and its callbacks, oldest first; keys stay known for longer."""
    gone = 0
    for table in (pool, tables.pools.get(pool.spec.name + CALLBACKS)):
        if table is not None:
            left = order.limit - gone
            gone += tables.prune(table, order.completed_before, left, completed=True)
            left = order.limit - gone
            gone += tables.prune(table, order.failed_before, left, completed=False)
    if order.keys_before is not None:
        tables.prune_keys(pool, order.keys_before)
    if order.audit_before is not None:
        tables.prune_audit(order.audit_before)
    return gone


# Tasks


def _meant(tables: Tables, order: Cancel | Redrive, now: float) -> list[Task]:
    """Return the tasks that an order names, as far as they are known and of its pool.

    Where it says who gave it, the audit tells that of each of them; of one in the hands of a worker
    it does so anyway.
    """
    known = [task for i in order.tasks if (task := tables.tasks.get(i)) is not None]
    if order.of is not None:
        known = [task for task in known if task.new.pool.removesuffix(CALLBACKS) == order.of]
    if order.by is not None:
        word = "cancel" if isinstance(order, Cancel) else "redrive"
        for task in known:
            if task.worker is None:
                tables.order(task.new.pool, word, now, task=task.new.id)
    return known


def cancel(tables: Tables, task: Task, now: float, *, interrupt: bool = False) -> int:
    """Cancel a waiting task at once; tell a running one. Asking twice changes nothing."""
    match task.status:
        case Status.QUEUED:
            # Waiting, or held ahead by a worker that may be starting it just now.
            return _cancel_waiting(tables, [task], Reason.CANCELLED, now, interrupt=interrupt)
        case Status.RUNNING:
            return int(tables.ask_to_stop(task, now, interrupt=interrupt))
        case _:
            return 0


def _cancel_waiting(
    tables: Tables, tasks: Iterable[Task], reason: Reason, now: float, *, interrupt: bool = False
) -> int:
    count = 0
    for task in [task for task in tasks if task.status is Status.QUEUED]:
        if task.claimed:
            count += tables.ask_back(task, reason, now, interrupt=interrupt)
            continue
        task.reason = reason
        tables.move(task, Event.CANCEL, now)
        count += 1
    return count


def _cancel_page(
    tables: Tables, pool: PoolTable, order: Purge | CancelAll, now: float
) -> tuple[int, Page | None]:
    """Cancel a page of a pool's tasks, oldest first; return how many, and where to go on."""
    after, upto = order.page or (0, pool.next_seq)
    check.whole("limit", order.limit, least=1)
    found = tables.live_page(pool, after, upto, order.limit)
    left = (found[-1].seq, upto) if len(found) == order.limit else None
    chosen = [task for task in found if order.unit is None or task.unit == order.unit]
    if isinstance(order, Purge):
        return _cancel_waiting(tables, chosen, Reason.PURGED, now), left
    before = order.before
    meant = [task for task in chosen if before is None or task.submitted_at < before]
    return sum(cancel(tables, task, now, interrupt=order.interrupt) for task in meant), left


def _redrive(tables: Tables, identifier: int, now: float) -> int:
    """Queue an ended task again, unless its code is gone or its key has passed to another."""
    task = tables.tasks.get(identifier)
    if task is not None and task.parked:
        return _try_again(tables, task, now)
    if task is None or (task.status, Event.REDRIVE) not in LIFECYCLE or task.new.owner is not None:
        return 0
    holder = tables.pools[task.new.pool].keys.get(key_of(task.new))
    if task.new.idempotency_key is not None and holder is not None and holder.task != identifier:
        return 0
    tables.redrive(task, now)
    return 1


def _try_again(tables: Tables, task: Task, now: float) -> int:
    """Put a parked task back into the queue, whatever could not read it before."""
    pool = tables.pools[task.new.pool]
    tables.unpark(pool, task, now)
    task.misfits = ()
    pool.backlog.flush(now)
    tables.wake(pool.spec.name, now)
    return 1


def _attempt_order(tables: Tables, order: AttemptOrder) -> int:
    """Note what a running attempt says of itself; without the current fence nothing changes."""
    task = tables.known(order.fence.task)
    if task is None or not is_current(task, order.fence):
        return 0
    if isinstance(order, Progress):
        task.progress = (order.fraction, order.text)
        return 1
    steps = task.steps if task.steps is not None else {}
    if order.name in steps:
        return 0
    steps[order.name] = order.value
    task.steps = steps
    return 1


# Workers and runs


def _worker_order(tables: Tables, order: WorkerOrder, now: float) -> int:
    if isinstance(order, Join):
        return _join(tables, order, now)
    worker = tables.workers.get(order.worker)
    if worker is None:
        return 0
    if isinstance(order, Bury):
        return bury(tables, worker, now)
    known = order.tasks if isinstance(order, Disown) else ()
    held = [task for task in everything_held(tables, worker) if task.new.id not in known]
    for task in held:
        if isinstance(order, Leave):
            _left_with(tables, task, now)
        elif task.claimed:
            give_back(tables, task, now)
        else:
            tables.release(task, now)
    return len(held) + (bury(tables, worker, now) if isinstance(order, Leave) else 0)


def _left_with(tables: Tables, task: Task, now: float) -> None:
    """Take back what a worker held when it left and had said nothing of: it may have begun."""
    event = event_of_leaving(task)
    if event is Event.FAIL and task.claimed:
        end_begun(tables, task, Reason.STOPPED, now)
    elif event is Event.FAIL:
        task.reason = Reason.STOPPED
        tables.move(task, event, now)
    elif task.claimed:
        give_back(tables, task, now)
    else:
        tables.release(task, now)


def _join(tables: Tables, order: Join, now: float) -> int:
    known = None if order.functions is None else frozenset(order.functions)
    before = tables.workers.get(order.worker)
    if before is not None:
        return _learn(tables, before, known, order.signatures, now)
    tables.workers_joined += 1
    worker = tables.workers[order.worker] = Worker(
        id=order.worker,
        owner=order.owner,
        expires_at=now,
        lease=order.lease,
        number=tables.workers_joined,
        functions=known,
        signatures=dict(order.signatures),
    )
    tables.renew(worker, order.lease, now)
    _wake_parked(tables, now)
    return 1


def _learn(
    tables: Tables,
    worker: Worker,
    known: frozenset[str] | None,
    signatures: dict[str, str],
    now: float,
) -> int:
    """Take in that a worker presents itself again: it may know more functions than before."""
    before = worker.functions
    if before is None:
        worker.signatures = {**worker.signatures, **signatures}
    if not before or not known or known <= before:
        return 0
    worker.functions = before | known
    worker.signatures = {**worker.signatures, **signatures}
    worker.unknown -= known - before
    _wake_parked(tables, now)
    return 1


def _wake_parked(tables: Tables, now: float) -> None:
    """Let somebody look at pools where tasks wait for a worker that knows their function."""
    for name, pool in tables.pools.items():
        if pool.parked:
            tables.wake(name, now)


def _lead(tables: Tables, order: Lead, now: float) -> tuple[int, int]:
    """Let a process lead if nobody does: nobody else holds an unexpired lead, or it is buried."""
    leader = tables.leader
    if leader.owner != order.owner:
        if leader.until > now and tables.lives(leader.owner):
            return 0, leader.generation
        leader.owner = order.owner
        leader.generation += 1
    leader.until = rounded(now + order.lease)
    return 1, leader.generation


def leads(tables: Tables, generation: int, now: float) -> bool:
    """Return whether a generation is the one that leads, and its time is not over.

    A verb that was on its way for longer than that knows nothing of what happened meanwhile.
    """
    leader = tables.leader
    return leader.generation == generation and leader.until > now


def _seal(tables: Tables, identifier: int, holder: str) -> int:
    run = tables.runs.get(identifier)
    if run is None or holder not in run.holders:
        return 0
    run.holders.discard(holder)
    tables.touch_run(run)
    return 1


def _cancel_run(tables: Tables, identifier: int, now: float) -> int:
    """Stop an open run: cancel what waits of it, tell what runs; its callbacks go on."""
    run = tables.runs.get(identifier)
    if run is None or run.finished:
        return 0
    count = len(tables.run_queued.get(identifier, ()))
    held = [
        task
        for task in tables.of_run(identifier)
        if task.worker is not None and not task.new.is_callback
    ]
    if run.stopped is None:
        tables.order(run.new.pool, "cancel run", now, run=identifier)
    count += sum(cancel(tables, task, now) for task in sorted(held, key=in_order))
    if run.stopped is None:
        tables.stop_run(run, Reason.CANCELLED, now)
    return count
