"""Workers in the store: they register, leave, are declared dead, and one of them leads."""

from __future__ import annotations

from millpond.core.admit import Reason
from millpond.core.control import (
    ClaimLeadership,
    DeclareDead,
    Deregister,
    Disown,
    Register,
    WorkerCommand,
)
from millpond.core.lease import RegisteredWorker
from millpond.core.lifecycle import Transition
from millpond.core.settle import event_of_leaving
from millpond.core.task import Task
from millpond.core.ticks import rounded
from millpond.store.verbs.prefetch import end_begun, give_back
from millpond.store.verbs.recover import everything_held, remove_dead
from millpond.store.verbs.tables import Tables


def worker_command(tables: Tables, command: WorkerCommand, now: float) -> int:
    """Carry out a command of or about a worker; return how many tasks it changed."""
    if isinstance(command, Register):
        return _register(tables, command, now)
    worker = tables.workers.get(command.worker)
    if worker is None:
        return 0
    if isinstance(command, DeclareDead):
        if command.expires_at not in (None, worker.expires_at):
            return 0
        return remove_dead(tables, worker, now)
    known = command.tasks if isinstance(command, Disown) else ()
    held = [task for task in everything_held(tables, worker) if task.new.id not in known]
    for task in held:
        if isinstance(command, Deregister):
            _left_with(tables, task, now)
        elif task.claimed:
            give_back(tables, task, now)
        else:
            tables.release(task, now)
    return len(held) + (remove_dead(tables, worker, now) if isinstance(command, Deregister) else 0)


def _left_with(tables: Tables, task: Task, now: float) -> None:
    """Release a task of a worker that deregistered without settling it: it may have begun."""
    event = event_of_leaving(task)
    if event is Transition.FAIL and task.claimed:
        end_begun(tables, task, Reason.STOPPED, now)
    elif event is Transition.FAIL:
        task.reason = Reason.STOPPED
        tables.move(task, event, now)
    elif task.claimed:
        give_back(tables, task, now)
    else:
        tables.release(task, now)


def _register(tables: Tables, command: Register, now: float) -> int:
    known = None if command.functions is None else frozenset(command.functions)
    before = tables.workers.get(command.worker)
    if before is not None:
        return _register_again(tables, before, known, command.signatures, now)
    tables.workers_joined += 1
    worker = RegisteredWorker(
        id=command.worker,
        owner=command.owner,
        expires_at=now,
        lease=command.lease,
        number=tables.workers_joined,
        functions=known,
        signatures=dict(command.signatures),
    )
    tables.workers.add(worker.id, worker)
    tables.renew(worker, command.lease, now)
    _wake_parked(tables, now)
    return 1


def _register_again(
    tables: Tables,
    worker: RegisteredWorker,
    known: frozenset[str] | None,
    signatures: dict[str, str],
    now: float,
) -> int:
    """Register a known worker again: it may know more functions than before."""
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
    """Wake the pools that have parked tasks."""
    for pool in tables.pools.all():
        if pool.parked.count:
            tables.wake(pool.name, now)


def claim_leadership(tables: Tables, command: ClaimLeadership, now: float) -> tuple[int, int]:
    """Let a process lead unless another holds an unexpired lead and is alive."""
    leader = tables.leader
    if leader.owner != command.owner:
        if leader.until > now and tables.has_live_worker(leader.owner):
            return 0, leader.generation
        leader.owner = command.owner
        leader.generation += 1
    leader.until = rounded(now + command.lease)
    return 1, leader.generation


def leads(tables: Tables, generation: int, now: float) -> bool:
    """Return whether a generation is the one that leads, and its time is not over.

    A verb that was on its way for longer than that knows nothing of what happened meanwhile.
    """
    leader = tables.leader
    return leader.generation == generation and leader.until > now
