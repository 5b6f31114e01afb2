"""Attempts: tasks start, are prefetched, and complete, one by one or in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from millpond.core.audit import note_of
from millpond.core.lifecycle import Status, Transition, advance
from millpond.store.verbs.tables.pools import ended_tasks
from millpond.store.verbs.tables.tasks import TaskTables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.lease import RegisteredWorker
    from millpond.core.task import Task
    from millpond.store.verbs.tables.pools import PoolTable

# Looking up a member of an enumeration costs as much as a call: once is enough.
_QUEUED, _RUNNING, _COMPLETED = Status.QUEUED, Status.RUNNING, Status.COMPLETED
_LEASE = Transition.LEASE
_AS_LEASED = advance(Status.QUEUED, Transition.LEASE)


class AttemptTables(TaskTables):
    """Starts, claims and completions."""

    closures_in_bulk: ClassVar[bool] = True
    """Whether closures start and complete in bulk, as other plain tasks do."""

    def start(
        self, pool: PoolTable, task: Task, worker: RegisteredWorker, token: int, now: float
    ) -> None:
        """Start a queued task: charge the attempt and make a new fence."""
        before = task.status
        task.status = _AS_LEASED if before is _QUEUED else advance(before, _LEASE)
        new = task.new
        backlog = pool.backlog
        if backlog.grouped:
            self._touched_pools[pool.name] = pool
        if task.fresh:
            pool.fresh.remove(task)
        if task.expires_at is not None or new.run is not None:
            self._forget_waiting(task)
        backlog.start(task, now)
        pool.running += 1
        holding = pool.holding
        holding[worker.id] = holding.get(worker.id, 0) + 1
        worker.holding.add(new.id, new.pool)
        task.attempt = attempt = task.attempt + 1
        task.runs = runs = task.runs + 1
        task.fresh = False
        task.token = token
        task.worker = worker.id
        task.started_at = now
        if task.first_started_at is None:
            task.first_started_at = now
        self._records.append(
            (
                task,
                _LEASE,
                before,
                now,
                attempt,
                runs,
                token,
                worker.id,
                task.due,
                False,
                task.reason,
                None,
            )
        )

    def start_all(
        self,
        pool: PoolTable,
        tasks: Sequence[Task],
        worker: RegisteredWorker,
        token: int,
        now: float,
    ) -> None:
        """Start plain tasks that were removed from the queue, like `start` in bulk."""
        name, fresh = worker.id, 0
        for task in tasks:
            fresh += task.fresh
            task.status = _AS_LEASED
            task.attempt += 1
            task.runs += 1
            task.fresh = False
            task.token = token
            task.worker = name
            task.started_at = now
            if task.first_started_at is None:
                task.first_started_at = now
        pool.fresh.remove_some(fresh)
        pool.running += len(tasks)
        pool.holding[name] = pool.holding.get(name, 0) + len(tasks)
        worker.holding.add_all(tasks)
        self._note_all(tasks, _LEASE, _QUEUED, name, now)

    def complete_all(
        self, pool: PoolTable, tasks: Sequence[Task], worker: str | None, now: float
    ) -> None:
        """Complete plain tasks of one worker, like `move` in bulk."""
        count = len(tasks)
        pool.running -= count
        pool.live -= count
        holder = self.workers.get(worker or "")
        if holder is not None:
            holder.holding.discard_all(tasks)
            left = pool.holding[holder.id] - count
            if left:
                pool.holding[holder.id] = left
            else:
                del pool.holding[holder.id]
        pool.measure_all([(task.started_at - task.due, now - task.started_at) for task in tasks])  # type: ignore[operator]
        self._note_all(tasks, Transition.COMPLETE, _RUNNING, worker, now)
        for task in tasks:
            task.finished_at = now
            task.worker = None
            new = task.new
            if new.key is not None:
                pool.backlog.finish(new.key)
            if new.owner is not None:
                self._disown(new.owner)
        pool.totals[_COMPLETED] = pool.totals.get(_COMPLETED, 0) + count
        self._keep_all(pool, tasks)
        self.endings.all_over(pool, tasks)
        if pool.live > pool.running:
            self.wake(pool.name, now)

    def claim(self, task: Task, worker: RegisteredWorker, token: int, now: float) -> None:
        """Prefetch a queued task for a worker: out of the queue, with a fence, not charged."""
        pool = self.pools.require(task.new.pool)
        self.touch(pool)
        if task.fresh:
            pool.fresh.remove(task)
        self._forget_waiting(task)
        pool.backlog.start(task, now)
        pool.claimed += 1
        worker.ahead.add(task.new.id, pool.spec)
        task.fresh = False
        task.token = token
        task.worker = worker.id
        task.claimed = True
        task.status = advance(task.status, Transition.CLAIM)
        self._records.append(note_of(task, Transition.CLAIM, Status.QUEUED, now))

    def start_claim(self, task: Task, now: float) -> None:
        """Start a prefetched task: now it is charged and counts as running."""
        pool, worker = self.pools.require(task.new.pool), self.workers.require(task.worker or "")
        worker.ahead.remove(task.new.id)
        pool.claimed -= 1
        pool.running += 1
        pool.holding[worker.id] = pool.holding.get(worker.id, 0) + 1
        worker.holding.add(task.new.id, task.new.pool)
        task.claimed = False
        task.attempt += 1
        task.runs += 1
        task.started_at = now
        if task.first_started_at is None:
            task.first_started_at = now
        task.reason = None
        self.begun.add(task.new.id)
        task.status = advance(task.status, _LEASE)
        self._records.append(note_of(task, _LEASE, _QUEUED, now))

    def drop_claim(self, task: Task, now: float, *, rate: bool) -> None:
        """Return a prefetched task to the queue; the caller makes the transition."""
        pool, worker = self.pools.require(task.new.pool), self.workers.require(task.worker or "")
        self.touch(pool)
        worker.ahead.remove(task.new.id)
        pool.claimed -= 1
        task.claimed = False
        pool.backlog.put_back(task.unit, rate=rate)
        pool.backlog.add(task, now)

    def _keep_all(self, pool: PoolTable, ended: Sequence[Task]) -> None:
        ended_tasks(pool, _COMPLETED).extend(ended)
