"""Tasks come, change their status and end: `move` is the one place where that happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from millpond.core.admit import Reason
from millpond.core.audit import note_of, record
from millpond.core.lifecycle import Status, Transition, advance
from millpond.core.order.rank import rank, reranked
from millpond.core.settle import callback
from millpond.core.task import Task, key_of
from millpond.core.ticks import rounded
from millpond.store.verbs import budgets
from millpond.store.verbs.tables.pools import ended_tasks
from millpond.store.verbs.tables.runs import RunTables

if TYPE_CHECKING:
    from millpond.core.task import NewTask
    from millpond.store.verbs.tables.pools import PoolTable

# Looking up a member of an enumeration costs as much as a call: once is enough.
_QUEUED, _RUNNING = Status.QUEUED, Status.RUNNING
_SUBMIT = Transition.SUBMIT
_AS_SUBMITTED = advance(None, Transition.SUBMIT)


class TaskTables(RunTables):
    """Tasks from their submission to their end."""

    make_task: ClassVar[type[Task]] = Task

    def insert(self, new: NewTask, now: float, *, outside: bool, cause: int | None = None) -> Task:
        """Store a new task as queued."""
        pool = self.pools.require(new.pool)
        backlog = pool.backlog
        pool.next_seq = seq = pool.next_seq + 1
        lane, sequence = self._lane(pool, new, seq) if backlog.lanes else (None, seq)
        if not pool.live or lane is not None:
            self.endings.coming(pool, lane)
        pool.live += 1
        due = now
        if new.delay or new.run_at is not None:
            due = due_of(new, now)
        task = self.make_task(
            new=new,
            status=_AS_SUBMITTED,
            seq=seq,
            rank=rank(pool.spec.order, new.priority, now, seq),
            lane=lane,
            sequence=sequence,
            submitted_at=now,
            due=due,
            expires_at=None if new.expires_in is None else expiry_of(new, now),
            fresh=outside,
        )
        self.tasks.add(new.id, task)
        pool.arrivals.add(task)
        self._records.append((task, _SUBMIT, None, now, 0, 0, 0, None, due, outside, None, cause))
        if outside:
            pool.fresh.add(task)
        if new.owner is not None:
            self._own(new.owner)
        if new.run is None:
            self._enqueue(pool, task, now)
            return task
        run = self.runs.get(new.run)
        if run is not None:
            run.joined(counted=not new.is_callback)
            if not new.is_callback:
                run.remember((new.id,))
        self._enqueue(pool, task, now)
        if run is not None:
            self._keep_budget(run, task, now)
            self._stop_with_its_run(task, now)
        return task

    def refuse(self, new: NewTask, reason: str, now: float) -> None:
        """Record a task that was dropped before it was stored."""
        ghost = Task(
            new=new,
            status=advance(None, Transition.REFUSE),
            seq=0,
            rank=0,
            lane=None,
            sequence=0,
            submitted_at=now,
            due=now,
            reason=reason,
        )
        # As a record and not as a note: nothing else keeps dropped tasks.
        self._records.append(record(ghost, Transition.REFUSE, None, at=now))
        totals = self.pools.require(new.pool).totals
        totals[ghost.status] = totals.get(ghost.status, 0) + 1
        run = None if new.run is None else self.runs.get(new.run)
        if run is not None:
            run.dropped()

    def move(self, task: Task, event: Transition, now: float, *, cause: int | None = None) -> None:
        """Apply one transition to a task, with all its consequences."""
        pool = self.pools.require(task.new.pool)
        before = task.status
        task.status = after = advance(before, event)
        if pool.backlog.grouped:
            self._touched_pools[pool.name] = pool
        if before is _RUNNING:
            self._stop_running(pool, task, now)
        elif before is _QUEUED:
            self._dequeue(pool, task, now)
        self._records.append(note_of(task, event, before, now, cause))
        if after is _QUEUED:
            self._enqueue(pool, task, now)
        else:
            self._end(pool, task, now)
        if before is _RUNNING:
            task.worker = None
            if task.new.run is not None:
                self._stop_with_its_run(task, now)

    def release(self, task: Task, now: float) -> None:
        """Release a running task uncharged; cancel it if that was requested."""
        task.attempt -= 1
        if task.cancel_requested:
            task.reason = Reason.CANCELLED
        self.move(task, Transition.CANCEL if task.cancel_requested else Transition.RELEASE, now)

    def redrive(self, ended: Task, now: float) -> None:
        """Queue an ended task again: a new budget of attempts, at the tail."""
        new = ended.new
        pool = self.pools.require(new.pool)
        run = None if new.run is None else self.runs.get(new.run)
        if run is not None:
            run.revived(ended.status, counted=not new.is_callback)
        pool.next_seq = seq = pool.next_seq + 1
        lane, sequence = self._lane(pool, new, seq)
        self.endings.coming(pool, lane)
        pool.live += 1
        # Another object: notes of the audit, and where it stood among the ended, keep the old one.
        task = msgspec.structs.replace(
            ended,
            seq=seq,
            rank=rank(pool.spec.order, new.priority, now, seq),
            lane=lane,
            sequence=sequence,
            due=now,
            expires_at=expiry_of(new, now),
            attempt=0,
            first_started_at=None,
            fresh=False,
            cancel_requested=False,
            interrupt_requested=False,
            reason=None,
            result=None,
            error=None,
            finished_at=None,
            progress=None,
            steps=None,
            misfits=(),
        )
        self.tasks.add(new.id, task)
        ended.result = ended.error = ended.steps = None
        pool.redriven += 1
        pool.arrivals.add(task)
        self.move(task, Transition.REDRIVE, now)
        self._settle_key(pool, task)

    def update(
        self,
        old: Task,
        new: NewTask,
        now: float,
        detail: str,
        *,
        due: float,
        expires_at: float | None,
        again: bool,
    ) -> Task:
        """Change a waiting task; it keeps its sequence.

        `again`: it is new work, with a new budget of attempts. A parked task returns to the queue,
        and every worker may try it again.
        """
        pool = self.pools.require(new.pool)
        if old.parked:
            self.unpark(pool, old, now)
        pool.backlog.discard(old)
        self._forget_waiting(old)
        # Another object: notes of the audit, and entries that a queue skips, keep the old one.
        task = msgspec.structs.replace(
            old,
            new=new,
            rank=reranked(pool.spec.order, old.rank, old.new.priority, new.priority),
            due=due,
            expires_at=expires_at,
            misfits=(),
            reason=None,
        )
        if again:
            task.attempt, task.first_started_at = 0, None
            task.error = task.progress = task.steps = None
        self.tasks.add(new.id, task)
        pool.arrivals.exchange(task)
        said = record(task, Transition.UPDATE, _QUEUED, at=now)
        said = msgspec.structs.replace(said, detail=f"{detail} revision={new.revision}", by=self.by)
        self._records.append(said)
        known = pool.keys.get(key_of(new)) if new.idempotency_key is not None else None
        if known is not None and known.task == new.id:
            known.fingerprint = new.fingerprint
        self._enqueue(pool, task, now)
        return task

    def _stop_running(self, pool: PoolTable, task: Task, now: float) -> None:
        pool.running -= 1
        unit = task.lane if task.lane is not None else task.new.key
        if unit is not None:
            pool.backlog.finish(unit)
        worker = self.workers.get(task.worker or "")
        if worker is not None:
            worker.holding.discard(task.new.id)
            holding = pool.holding
            left = holding[worker.id] - 1
            if left:
                holding[worker.id] = left
            else:
                del holding[worker.id]
        if pool.spec.budgets:
            budgets.freed(self, pool, now)
        # This task itself is neither here nor there yet.
        if pool.live - pool.running > 1 and self._wakes.get(pool.name) != now:
            self.wake(pool.name, now)

    def _end(self, pool: PoolTable, task: Task, now: float) -> None:
        new, status = task.new, task.status
        task.finished_at = now
        pool.totals[status] = pool.totals.get(status, 0) + 1
        self._keep(pool, task)
        pool.live -= 1
        self.endings.over(pool, task)
        if new.owner is not None:
            self._disown(new.owner)
        if new.idempotency_key is not None:
            self._settle_key(pool, task)
        if new.on_complete is not None:
            self.insert(callback(task, self.token()), now, outside=False, cause=new.id)
        run = None if new.run is None else self.runs.get(new.run)
        if run is not None:
            self._leave_run(run, task, now)

    def _keep(self, pool: PoolTable, ended: Task) -> None:
        """Keep an ended task for as long as retention says."""
        ended_tasks(pool, ended.status).append(ended)

    def _settle_key(self, pool: PoolTable, task: Task) -> None:
        known = pool.keys.get(key_of(task.new)) if task.new.idempotency_key else None
        if known is None or known.task != task.new.id:
            return
        known.status = task.status
        if task.status is Status.REJECTED:
            pool.keys.remove(key_of(task.new))


def due_of(new: NewTask, now: float) -> float:
    """Return when a task that is submitted or replaced now is due."""
    return max(rounded(now + new.delay if new.run_at is None else new.run_at), now)


def expiry_of(new: NewTask, now: float) -> float | None:
    """Return when it is too late to start a task that is submitted or replaced now."""
    return None if new.expires_in is None else rounded(now + new.expires_in)
