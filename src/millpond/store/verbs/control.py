"""Control: carry out commands of operators, workers and maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from millpond.core import retention
from millpond.core import validation as check
from millpond.core.adaptive import Limiter
from millpond.core.admit import Reason
from millpond.core.bucket import taken_over
from millpond.core.control import (
    AttemptCommand,
    CallWhenOver,
    Cancel,
    CancelAll,
    CancelRun,
    ClaimLeadership,
    Close,
    Command,
    CommandPage,
    Declare,
    DeclareBudget,
    DeclareDead,
    Deregister,
    Disown,
    Hold,
    Pause,
    PoolCommand,
    Progress,
    Prune,
    Purge,
    Redrive,
    Register,
    Resize,
    ResizeBudget,
    Resume,
    SaveStep,
    Seal,
    UnpagedCommand,
    Update,
)
from millpond.core.lifecycle import LIFECYCLE, Status, Transition
from millpond.core.spec import PoolSpec, changed_fixed_field, fifo
from millpond.core.task import CALLBACKS, Call, Task, key_of
from millpond.core.ticks import rounded
from millpond.errors import (
    ConfigConflict,
    ConfigError,
    NotWaiting,
    StaleRevision,
    UnknownPool,
    UnknownTask,
)
from millpond.store.verbs import budgets
from millpond.store.verbs.flow import hold
from millpond.store.verbs.settle import is_current
from millpond.store.verbs.tables import (
    PoolTable,
    Tables,
    by_pool_and_place,
    due_of,
    expiry_of,
)
from millpond.store.verbs.workers import claim_leadership, worker_command

if TYPE_CHECKING:
    from collections.abc import Iterable


REVISIONS_KEPT = 100
"""How many former settings of a pool are kept in memory; a database keeps all of them."""


def control(tables: Tables, command: Command, now: float) -> tuple[int, int, CommandPage | None]:
    """Carry out a command; return how many tasks it changed, the revision, and the next page."""
    if isinstance(command, Purge | CancelAll):
        pool = pool_named(tables, command.pool)
        if command.by is not None and command.page is None:
            word = "purge" if isinstance(command, Purge) else "cancel all"
            tables.record_command(command.pool, word, now, unit=command.unit)
        count, left = _cancel_page(tables, pool, command, now)
        return count, pool.revision, left
    return *_unpaged_command(tables, command, now), None


def _unpaged_command(tables: Tables, command: UnpagedCommand, now: float) -> tuple[int, int]:
    match command:
        case Declare(spec):
            return _declare(tables, spec, now)
        case DeclareBudget():
            return budgets.declare(tables, command, now), 0
        case ResizeBudget():
            return budgets.resize(tables, command, now), 0
        case Register() | Deregister() | DeclareDead() | Disown():
            return worker_command(tables, command, now), 0
        case ClaimLeadership():
            return claim_leadership(tables, command, now)
        case Cancel(_, interrupt):
            known = _named_tasks(tables, command, now)
            return sum(cancel(tables, task, now, interrupt=interrupt) for task in known), 0
        case Redrive():
            known = _named_tasks(tables, command, now)
            return sum(_redrive(tables, task.new.id, now) for task in known), 0
        case Update():
            return _update(tables, command, now)
        case Progress() | SaveStep():
            return _attempt_command(tables, command), 0
        case Seal(run, holder):
            return _seal(tables, run, holder), 0
        case CallWhenOver(run, call):
            return _call_when_over(tables, run, call), 0
        case CancelRun(run):
            return _cancel_run(tables, run, now), 0
        case _:
            pool = pool_named(tables, command.pool)
            return _pool_command(tables, pool, command, now), pool.revision


def pool_named(tables: Tables, name: str) -> PoolTable:
    """Return a pool, or raise UnknownPool."""
    try:
        return tables.pools.require(name)
    except KeyError:
        message = f"no pool named {name!r} was declared; declare it first"
        raise UnknownPool(message, pool=name) from None


# Pools


def _pool_command(tables: Tables, pool: PoolTable, command: PoolCommand, now: float) -> int:
    match command:
        case Pause(unit=unit) | Resume(unit=unit):
            return _set_paused(tables, pool, unit, now, paused=isinstance(command, Pause))
        case Resize(max_concurrent=limit, revision=revision):
            return _resize(tables, pool, limit, revision, now)
        case Hold(seconds=seconds, unit=unit):
            hold(tables, pool, unit, rounded(now + seconds), now)
            return 1
        case Close():
            pool.closed = True
            tables.record_command(pool.spec.name, "close", now)
            return 1
        case Prune():
            return _prune(tables, pool, command)
        case Declare():
            return 0
        case _:
            assert_never(command)


def _declare(tables: Tables, spec: PoolSpec, now: float) -> tuple[int, int]:
    """Create a pool, or apply a declaration that differs from the last one."""
    if spec.name.endswith(CALLBACKS):
        raise ConfigError("name", spec.name, "is reserved for the callbacks of a pool")
    budgets.check_known(tables, spec)
    pool = tables.pools.get(spec.name)
    if pool is None:
        if spec.keep is not None and spec.keep.shorten:
            spec = msgspec.structs.replace(
                spec, keep=msgspec.structs.replace(spec.keep, shorten=False)
            )
        pool = tables.add_pool(spec, now)
        tables.add_pool(_callback_spec(spec), now)
        if spec.budgets:
            budgets.share(tables, pool, None, now)
        tables.record_command(spec.name, f"declare max_concurrent={spec.max_concurrent}", now)
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
    companion = tables.pools.require(spec.name + CALLBACKS)
    if companion.declared != _callback_spec(spec):
        companion.declared = _callback_spec(spec)
        limited = _with_limit(companion.declared, companion.operator_limit)
        _respec(tables, companion, limited, now)
    tables.record_command(spec.name, f"declare max_concurrent={in_force.max_concurrent}", now)
    return 1, pool.revision


def _check_keep(pool: PoolTable, spec: PoolSpec) -> None:
    """Refuse a declaration that would remove tasks and keys sooner than promised."""
    stored, given = retention.in_force(pool.declared.keep), spec.keep
    if given is None or not given.given or given.shorten or not given.shorter(stored):
        return
    if not pool.next_seq:
        return
    raise ConfigConflict(
        f"pool {spec.name!r} is stored with keep={stored}, and this declaration shortens it: "
        f"keep={given}. Declare the same values, omit keep to use the stored ones, or declare "
        "Keep(..., shorten=True) to shorten it for every process",
        pool=spec.name,
        field="keep",
        stored=stored,
        declared=given,
    )


def _with_limit(spec: PoolSpec, limit: int | None) -> PoolSpec:
    """Return a spec with the limit of an operator, if one is set."""
    return spec if limit is None else msgspec.structs.replace(spec, max_concurrent=limit)


def _in_force(pool: PoolTable, declared: PoolSpec) -> PoolSpec:
    """Return a declaration with the limit of an operator, or the adapted one."""
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
            pool.forget_pauses()
    pool.spec = spec
    pool.backlog.respec(spec)
    pool.fresh.respec(spec, tables.live(pool))
    tables.touch(pool)
    tables.wake(spec.name, now)


def _resize(
    tables: Tables, pool: PoolTable, limit: int | None, revision: int | None, now: float
) -> int:
    if limit is not None:
        check.integer("max_concurrent", limit, least=0)
    if revision is not None and revision <= pool.revision:
        message = (
            f"revision={revision} of pool {pool.spec.name!r} is not above {pool.revision}, "
            "the current one: read the settings again first"
        )
        raise StaleRevision(message, name=pool.spec.name, given=revision, current=pool.revision)
    pool.operator_limit = limit
    in_force = _in_force(pool, pool.declared)
    _respec(tables, pool, in_force, now, revision)
    word = "resize" if limit is not None else "reset"
    tables.record_command(pool.spec.name, f"{word} max_concurrent={in_force.max_concurrent}", now)
    return 1


def _set_paused(
    tables: Tables, pool: PoolTable, unit: str | None, now: float, *, paused: bool
) -> int:
    if unit is None:
        pool.paused = paused
        if not paused:
            # A resume also ends a hold.
            pool.not_before = 0.0
    else:
        pool.backlog.pause(unit, paused=paused)
        pool.pause(unit, paused=paused)
        tables.touch(pool)
    word = "pause" if paused else "resume"
    tables.record_command(pool.spec.name, word if unit is None else f"{word} {unit}", now)
    if not paused or pool.claimed:
        # Prefetched tasks must go back: wake their workers.
        tables.wake(pool.spec.name, now)
    return 1


def _prune(tables: Tables, pool: PoolTable, command: Prune) -> int:
    """Remove ended tasks of a pool and its callbacks, oldest first; keys stay longer."""
    gone = 0
    for table in (pool, tables.pools.get(pool.spec.name + CALLBACKS)):
        if table is not None:
            left = command.limit - gone
            gone += tables.prune(table, command.completed_before, left, completed=True)
            left = command.limit - gone
            gone += tables.prune(table, command.failed_before, left, completed=False)
    if command.keys_before is not None:
        tables.prune_keys(pool, command.keys_before)
    if command.audit_before is not None:
        tables.prune_audit(command.audit_before)
    return gone


# Tasks


def _named_tasks(tables: Tables, command: Cancel | Redrive, now: float) -> list[Task]:
    """Return the tasks that a command names and the store knows, of its pool if it has one.

    Where the command has a `by`, the audit gets an order for each of them. A running task gets its
    order elsewhere.
    """
    known = [task for i in command.tasks if (task := tables.tasks.get(i)) is not None]
    if command.of is not None:
        known = [task for task in known if task.new.pool.removesuffix(CALLBACKS) == command.of]
    if command.by is not None:
        word = "cancel" if isinstance(command, Cancel) else "redrive"
        for task in known:
            if task.worker is None:
                tables.record_command(task.new.pool, word, now, task=task.new.id)
    return known


def cancel(tables: Tables, task: Task, now: float, *, interrupt: bool = False) -> int:
    """Cancel a waiting task; request the stop of a running one. Repeats change nothing."""
    match task.status:
        case Status.QUEUED:
            # Waiting, or prefetched by a worker that may be starting it just now.
            return _cancel_waiting(tables, [task], Reason.CANCELLED, now, interrupt=interrupt)
        case Status.RUNNING:
            return int(tables.request_stop(task, now, interrupt=interrupt))
        case _:
            return 0


def _cancel_waiting(
    tables: Tables, tasks: Iterable[Task], reason: Reason, now: float, *, interrupt: bool = False
) -> int:
    count = 0
    for task in [task for task in tasks if task.status is Status.QUEUED]:
        if task.claimed:
            count += tables.request_return(task, reason, now, interrupt=interrupt)
            continue
        task.reason = reason
        tables.move(task, Transition.CANCEL, now)
        count += 1
    return count


def _cancel_page(
    tables: Tables, pool: PoolTable, command: Purge | CancelAll, now: float
) -> tuple[int, CommandPage | None]:
    """Cancel one page of a pool's tasks, oldest first; return how many, and the next page."""
    after, upto = command.page or (0, pool.next_seq)
    check.integer("limit", command.limit, least=1)
    found = tables.live_page(pool, after, upto, command.limit)
    left = (found[-1].seq, upto) if len(found) == command.limit else None
    chosen = [task for task in found if command.unit is None or task.unit == command.unit]
    if isinstance(command, Purge):
        return _cancel_waiting(tables, chosen, Reason.PURGED, now), left
    before = command.before
    chosen_before = [task for task in chosen if before is None or task.submitted_at < before]
    return sum(
        cancel(tables, task, now, interrupt=command.interrupt) for task in chosen_before
    ), left


def _redrive(tables: Tables, identifier: int, now: float) -> int:
    """Queue an ended task again, unless its code is lost or another task has its key."""
    task = tables.tasks.get(identifier)
    if task is not None and task.parked:
        return _try_again(tables, task, now)
    if (
        task is None
        or (task.status, Transition.REDRIVE) not in LIFECYCLE
        or task.new.owner is not None
    ):
        return 0
    holder = tables.pools.require(task.new.pool).keys.get(key_of(task.new))
    if task.new.idempotency_key is not None and holder is not None and holder.task != identifier:
        return 0
    tables.redrive(task, now)
    return 1


def _try_again(tables: Tables, task: Task, now: float) -> int:
    """Return a parked task to the queue, for every worker."""
    pool = tables.pools.require(task.new.pool)
    tables.unpark(pool, task, now)
    task.misfits = ()
    pool.backlog.flush(now)
    tables.wake(pool.spec.name, now)
    return 1


def _update(tables: Tables, command: Update, now: float) -> tuple[int, int]:
    """Change a waiting task; return its new revision."""
    task = tables.tasks.get(command.task)
    if task is None or command.of not in (None, task.new.pool.removesuffix(CALLBACKS)):
        message = f"task {command.task} is unknown: it never existed, or retention removed it"
        raise UnknownTask(message, task_id=command.task)
    _check_update(task, command)
    updated = command.applied_to(task.new)
    tables.update(
        task,
        updated,
        now,
        command.changes,
        due=due_of(updated, now) if command.moves else task.due,
        expires_at=task.expires_at if command.expires_in is None else expiry_of(updated, now),
        again=command.call is not None,
    )
    return 1, updated.revision


def _check_update(task: Task, command: Update) -> None:
    """Raise for a task that does not wait, a stale revision, or another place in the queue."""
    new, call = task.new, command.call
    if not task.waits:
        status = "prefetched by a worker" if task.claimed else task.status
        message = f"task {new.id} is {status}: only a task that waits can be changed"
        raise NotWaiting(message, task_id=new.id, status=str(task.status))
    if command.revision not in (None, new.revision):
        message = (
            f"revision={command.revision} of task {new.id} is stale, {new.revision} is current: "
            "read the task again first"
        )
        raise StaleRevision(message, name=str(new.id), given=command.revision, current=new.revision)
    if call is None:
        return
    if new.owner is not None or call.function != new.call.function:
        raise ConfigError("call", call.function, f"is not the function of task {new.id}")
    if (command.key, command.share) != (new.key, new.share):
        raise ConfigError(
            "call", command.key, f"would change the key of task {new.id}: cancel it, submit another"
        )


def _attempt_command(tables: Tables, command: AttemptCommand) -> int:
    """Store the report of a running attempt; without the current fence nothing changes."""
    task = tables.known(command.fence.task)
    if task is None or not is_current(task, command.fence):
        return 0
    if isinstance(command, Progress):
        task.progress = (command.fraction, command.text)
        return 1
    steps = task.steps if task.steps is not None else {}
    if command.name in steps:
        return 0
    steps[command.name] = command.value
    task.steps = steps
    return 1


# Runs


def _seal(tables: Tables, identifier: int, holder: str) -> int:
    run = tables.runs.get(identifier)
    if run is None or holder not in run.holders:
        return 0
    run.holders.discard(holder)
    tables.touch_run(run)
    return 1


def _call_when_over(tables: Tables, identifier: int, call: Call) -> int:
    """Set the callback of a run that has not ended; it gets the results of what lives now, too."""
    run = tables.runs.get(identifier)
    if run is None or run.finished or run.callback is not None:
        # Also one that a redriven task opened again: it has called back.
        return int(run is not None and run.new.on_complete == call)
    is_first = run.new.on_complete is None
    run.new = msgspec.structs.replace(run.new, on_complete=call)
    if is_first:
        live = (task for task in tables.of_run(identifier) if not task.new.is_callback)
        run.remember(task.new.id for task in sorted(live, key=by_pool_and_place))
    return 1


def _cancel_run(tables: Tables, identifier: int, now: float) -> int:
    """Stop an open run: cancel its waiting tasks, ask running ones to stop; callbacks go on."""
    run = tables.runs.get(identifier)
    if run is None or run.finished:
        return 0
    count = len(tables.waiting_of_run(identifier))
    held = [
        task
        for task in tables.of_run(identifier)
        if task.worker is not None and not task.new.is_callback
    ]
    if run.stopped is None:
        tables.record_command(run.new.pool, "cancel run", now, run=identifier)
    count += sum(cancel(tables, task, now) for task in sorted(held, key=by_pool_and_place))
    if run.stopped is None:
        tables.stop_run(run, Reason.CANCELLED, now)
    return count
