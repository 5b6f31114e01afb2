"""Queued tasks: their lane, their place, parking, and the live tasks of a pool."""

from __future__ import annotations

from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, TypeVar

from millpond.core.order.rank import lane_of
from millpond.store.verbs.tables.pools import PoolTable, lane_without_key
from millpond.store.verbs.tables.workers import WorkerTables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.spec import PoolSpec
    from millpond.core.task import NewTask, Task


class QueueTables(WorkerTables):
    """What joins and leaves the queues."""

    def add_pool(self, spec: PoolSpec, now: float) -> PoolTable:
        """Add a pool that was just declared."""
        pool = PoolTable(spec, now)
        self.pools.add(spec.name, pool)
        return pool

    def park(self, pool: PoolTable, task: Task, now: float) -> None:
        """Set a queued task aside until a worker comes that knows its function."""
        self._note_parked(pool, task, now)
        task.parked = True
        if pool.backlog.strict(task.unit):
            pool.backlog.block(task.unit, blocked=True)
        else:
            pool.backlog.discard(task)
            pool.parked_apart += 1

    def unpark(self, pool: PoolTable, task: Task, now: float) -> None:
        """Put a parked task back at its place in the queue."""
        self._note_unparked(pool, task)
        task.parked = False
        if pool.backlog.strict(task.unit):
            pool.backlog.block(task.unit, blocked=False)
        else:
            pool.parked_apart -= 1
            pool.backlog.add(task, now)

    def _note_parked(self, pool: PoolTable, task: Task, now: float) -> None:
        pool.parked.add(task, now)
        self._parked_since.set(task.new.id, (now, task.new.id))

    def _note_unparked(self, pool: PoolTable, task: Task) -> None:
        pool.parked.remove(task)
        self._parked_since.discard(task.new.id)

    def _lane(self, pool: PoolTable, new: NewTask, seq: int) -> tuple[str | None, int]:
        """Return the lane of a new task and its gap-free number there."""
        if not pool.backlog.lanes:
            return None, seq
        lane = new.key
        if pool.spec.lanes is not None:
            if new.key is None:
                number = lane_without_key(pool, pool.next_lane)
                lane = str(number % pool.spec.lanes)
                pool.next_lane = number + 1
            else:
                lane = lane_of(new.key, pool.spec.lanes)
        if lane is None:
            return None, seq
        return lane, pool.lanes.next_sequence(lane)

    def _enqueue(self, pool: PoolTable, task: Task, now: float) -> None:
        new = task.new
        if task.expires_at is not None or new.run is not None:
            self._note_waiting(task)
        backlog = pool.backlog
        backlog.add(task, now)
        if backlog.grouped:
            self._touched_pools[pool.name] = pool
        if task.parked:
            self.park(pool, task, now)
        elif (
            pool.running < pool.spec.max_concurrent or pool.claimed < pool.spec.prefetch
        ) and not pool.paused:
            due = task.due
            if due > now:
                self.wake(pool.name, due)
            elif self._wakes.get(pool.name) != now:
                self.wake(pool.name, now)

    def _dequeue(self, pool: PoolTable, task: Task, now: float) -> None:
        if task.fresh:
            pool.fresh.remove(task)
        self._forget_waiting(task)
        if task.parked:
            self.unpark(pool, task, now)
        pool.backlog.discard(task)
        if pool.running < pool.spec.max_concurrent and not pool.paused:
            # Cancelling the head of a lane lets the next one start.
            self.wake(pool.name, now)

    def _note_waiting(self, task: Task) -> None:
        new = task.new
        if task.expires_at is not None:
            self._expiring.set(new.id, (task.expires_at, new.id))
        if new.run is not None and not new.is_callback:
            self._run_queued.setdefault(new.run, {})[new.id] = None

    def _forget_waiting(self, task: Task) -> None:
        new = task.new
        if task.expires_at is not None:
            self._expiring.discard(new.id)
        if new.run is not None:
            _drop_from_index(self._run_queued, new.run, new.id)

    def live(self, pool: PoolTable) -> Iterable[Task]:
        """Return the queued and running tasks of a pool, in no order that means anything."""
        parked = (
            self.tasks.require(identifier)
            for function in pool.parked.functions()
            for identifier in pool.parked.of(function)
        )
        # The parked head of a strict lane is in the backlog, too.
        apart = (task for task in parked if not pool.backlog.strict(task.unit))
        running = (
            self.tasks.require(identifier)
            for name in pool.holding
            for identifier in self.workers.require(name).holding.of_pool(pool.name)
        )
        claimed = (
            self.tasks.require(identifier)
            for worker in (self.workers.all() if pool.claimed else ())
            for identifier in worker.ahead.of_pool(pool.name)
        )
        return chain(pool.backlog, apart, running, claimed)

    def live_page(self, pool: PoolTable, after: int, upto: int, limit: int) -> list[Task]:
        """Return the first queued and running tasks of a pool behind a place, up to another."""
        found = takewhile(lambda task: task.seq <= upto, pool.arrivals.behind(after))
        return list(islice(found, limit))

    def waiting_of_run(self, run: int) -> list[Task]:
        """Return the queued tasks of a run that no worker has prefetched, without its callbacks."""
        return [self.tasks.require(task) for task in self._run_queued.get(run, ())]

    def of_run(self, run: int) -> Iterable[Task]:
        """Return the queued and running tasks of a run, its callbacks too, in no order."""
        running = (
            self.tasks.require(identifier)
            for worker in self.workers.all()
            for identifier in (*worker.holding.ids(), *worker.ahead.specs)
            if self.tasks.require(identifier).new.run == run
        )
        callbacks = (
            task
            for pool in self.pools.all()
            if pool.internal
            for task in pool.backlog
            if task.new.run == run
        )
        return chain(self.waiting_of_run(run), running, callbacks)


Key = TypeVar("Key")


def _drop_from_index(index: dict[Key, dict[int, None]], at: Key, identifier: int) -> None:
    """Take one id out of an index, and the entry with its last id."""
    entries = index.get(at)
    if entries is None:
        return
    entries.pop(identifier, None)
    if not entries:
        del index[at]
