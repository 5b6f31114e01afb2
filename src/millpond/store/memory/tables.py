"""The tables of the memory store, and `move`: the one place where a task changes its status."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, TypeVar

from millpond.core.admit import Known, Reason
from millpond.core.audit import Record, order_record, record
from millpond.core.heap import LazyHeap
from millpond.core.lease import Worker, tokens
from millpond.core.lifecycle import Event, Status, advance
from millpond.core.moment import rounded
from millpond.core.order import Backlog, lane_of, rank
from millpond.core.plan import Wake
from millpond.core.quantiles import SAMPLES
from millpond.core.run import OnError, Run
from millpond.core.settle import callback
from millpond.core.task import NewTask, Task, key_of
from millpond.store.memory.endings import Endings
from millpond.store.memory.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.spec import PoolSpec


class PoolTable:
    """One pool: its settings, its queue and its counts."""

    def __init__(self, spec: PoolSpec, created_at: float = 0.0) -> None:
        self.created_at = created_at
        self.declared = spec
        self.spec = spec
        self.revision = 1
        self.paused = False
        self.closed = False
        self.not_before = 0.0
        self.backlog = Backlog(spec)
        self.fresh: OrderedDict[int, None] = OrderedDict()
        self.fresh_by_key: dict[str | None, OrderedDict[int, None]] = {}
        self.parked: dict[str, LazyHeap[int]] = {}
        self.parked_apart = 0
        """Parked tasks outside the backlog; the head of a strict lane blocks it from within."""
        self.running = 0
        self.holding: dict[str, int] = {}
        self.starved: dict[str, tuple[float, float]] = {}
        """Workers that got nothing although there was work: since when, and when last."""
        self.tats = [0] * len(spec.rates)
        self.operator_limit: int | None = None
        """What an operator set by resize; it stays until reset, whatever is declared."""
        self.next_seq = 0
        self.lane_sequences: dict[str, int] = {}
        self.lane_processed: dict[str, int] = {}
        self.next_lane = 0
        self.keys: dict[tuple[str, int | None], Known] = {}
        self.live: dict[str | None, OrderedDict[int, None]] = {}
        """Queued and running tasks by lane or key."""
        self.succeeded: OrderedDict[int, None] = OrderedDict()
        self.unsuccessful: OrderedDict[int, None] = OrderedDict()
        self.old_keys: OrderedDict[tuple[str, int | None], float] = OrderedDict()
        """Keys of forgotten tasks, by when those ended."""
        self.totals: dict[str, int] = {}
        self.stale_settles = 0
        self.paused_units: set[str] = set()
        self.shelf = Shelf(spec.name)
        self.live_shelf = Shelf(spec.name, live=True)
        self.scheduled: LazyHeap[int] = LazyHeap()
        """Queued tasks that were not due when last looked at."""
        self.waits: deque[float] = deque(maxlen=SAMPLES)
        self.run_times: deque[float] = deque(maxlen=SAMPLES)

    @property
    def queued(self) -> int:
        """How many tasks wait: ready, scheduled or parked."""
        return len(self.backlog) + self.parked_apart


class Tables:
    """Everything the store keeps."""

    def __init__(self, *, audit_limit: int | None) -> None:
        self.pools: dict[str, PoolTable] = {}
        self.tasks: dict[int, Task] = {}
        self.removed: OrderedDict[int, None] = OrderedDict()
        """Ids of tasks that retention removed, the latest of them."""
        self.latest = float("-inf")
        """The latest moment of a verb; time does not go back behind it."""
        self.workers: dict[str, Worker] = {}
        self.workers_joined = 0
        self.expiring_workers: LazyHeap[str] = LazyHeap()
        self.expiring_tasks: LazyHeap[int] = LazyHeap()
        self.parked_since: LazyHeap[int] = LazyHeap()
        self.owned: dict[str, OrderedDict[int, None]] = {}
        self.runs: dict[int, Run] = {}
        self.open_runs: dict[int, Run] = {}
        self.runs_by_name: dict[tuple[str, str], int] = {}
        self.run_queued: dict[int, OrderedDict[int, None]] = {}
        self.run_live: dict[int, OrderedDict[int, None]] = {}
        self.records: list[Record] = []
        self.records_dropped = 0
        self._audit_limit = audit_limit
        self._wakes: dict[str, float] = {}
        self._finished_runs: list[int] = []
        self._touched_runs: dict[int, Run] = {}
        self._touched_pools: dict[str, PoolTable] = {}
        self._tokens: Iterator[int] = iter(())
        self.endings = Endings()

    # One verb

    def begin(self, entropy: int) -> None:
        """Start a verb: nothing is woken yet, and chance is what the caller gave."""
        self._wakes = {}
        self._finished_runs = []
        self._touched_runs = {}
        self._touched_pools = {}
        self._tokens = tokens(entropy)
        self.endings = Endings()

    def end(self, now: float) -> None:
        """End a verb: only now, when all of it has happened, does it take its place and effect."""
        for pool in self._touched_pools.values():
            pool.backlog.flush(now)
        for run in self._touched_runs.values():
            if run.close_if_done(now):
                self.open_runs.pop(run.new.id, None)
                self._finished_runs.append(run.new.id)
                self._audit(order_record(run.new.pool, "run finished", at=now, run=run.new.id))

    def token(self) -> int:
        """Draw the next number of this verb's entropy."""
        return next(self._tokens)

    def wakes(self) -> tuple[Wake, ...]:
        """Return which pools this verb gave something to start, and when."""
        return tuple(Wake(pool, at) for pool, at in self._wakes.items())

    def finished_runs(self) -> tuple[int, ...]:
        """Return the runs that ended with this verb."""
        return tuple(self._finished_runs)

    def touch(self, pool: PoolTable) -> None:
        """Note that the queue of a pool was changed by this verb."""
        self._touched_pools[pool.spec.name] = pool

    def wake(self, pool: str, at: float) -> None:
        """Note that a pool may have something to start at `at`."""
        before = self._wakes.get(pool)
        self._wakes[pool] = at if before is None else min(before, at)

    def renew(self, worker: Worker, lease: float, now: float) -> None:
        """Keep everything a worker holds for `lease` seconds from now."""
        worker.expires_at = rounded(now + lease)
        self.expiring_workers.set(worker.id, (worker.expires_at, worker.number))

    def lives(self, owner: str, *, besides: Worker | None = None) -> bool:
        """Return whether a process has a worker (but for one) that may hold leases."""
        return any(w.owner == owner for w in self.workers.values() if w is not besides)

    # Tasks come and go

    def insert(self, new: NewTask, now: float, *, outside: bool, cause: int | None = None) -> Task:
        """Store a new task as queued."""
        pool = self.pools[new.pool]
        self.touch(pool)
        pool.next_seq += 1
        seq = pool.next_seq
        lane, sequence = self._lane(pool, new, seq)
        task = Task(
            new=new,
            status=advance(None, Event.SUBMIT),
            seq=seq,
            rank=rank(pool.spec.order, new.priority, now, seq),
            lane=lane,
            sequence=sequence,
            submitted_at=now,
            due=max(rounded(now + new.delay if new.run_at is None else new.run_at), now),
            expires_at=None if new.expires_in is None else rounded(now + new.expires_in),
            fresh=outside,
        )
        self.tasks[new.id] = task
        if new.run in self.runs:
            self.runs[new.run].joined(counted=not new.is_callback)
        if new.owner is not None:
            self.owned.setdefault(new.owner, OrderedDict())[new.id] = None
        self._bring_to_life(pool, task)
        self._audit(record(task, Event.SUBMIT, None, at=now, cause=cause))
        self._enqueue(pool, task, now)
        self._keep_budget(task, now)
        self._stop_with_its_run(task, now)
        return task

    def refuse(self, new: NewTask, reason: str, now: float) -> None:
        """Record a task that was dropped before it was stored."""
        ghost = Task(
            new=new,
            status=advance(None, Event.REFUSE),
            seq=0,
            rank=0,
            lane=None,
            sequence=0,
            submitted_at=now,
            due=now,
            reason=reason,
        )
        self._audit(record(ghost, Event.REFUSE, None, at=now))
        totals = self.pools[new.pool].totals
        totals[ghost.status] = totals.get(ghost.status, 0) + 1

    def move(self, task: Task, event: Event, now: float, *, cause: int | None = None) -> None:
        """Take one arrow of the lifecycle, with everything that hangs on it."""
        pool = self.pools[task.new.pool]
        self.touch(pool)
        before = task.status
        task.status = advance(before, event)
        if before is Status.QUEUED and event is not Event.LEASE:
            self._dequeue(pool, task, now)
        elif before is Status.RUNNING:
            self._stop_running(pool, task, now)
        self._audit(record(task, event, before, at=now, cause=cause))
        if task.status is Status.QUEUED:
            self._enqueue(pool, task, now)
        elif task.status.terminal:
            self._end(pool, task, now)
        if before is Status.RUNNING:
            task.worker = None
            self._stop_with_its_run(task, now)

    def start(self, task: Task, worker: Worker, token: int, now: float) -> None:
        """Take the arrow from queued to running: charge the attempt and make a new fence."""
        pool = self.pools[task.new.pool]
        self._forget_waiting(pool, task)
        pool.backlog.start(task, now)
        pool.running += 1
        pool.holding[worker.id] = pool.holding.get(worker.id, 0) + 1
        worker.holding[task.new.id] = task.new.pool
        task.attempt += 1
        task.runs += 1
        task.fresh = False
        task.token = token
        task.worker = worker.id
        task.started_at = now
        self.move(task, Event.LEASE, now)

    def release(self, task: Task, now: float) -> None:
        """Give a running task back: recorded, not charged; a cancelled one is not run again."""
        task.attempt -= 1
        if task.cancel_requested:
            task.reason = Reason.CANCELLED
        self.move(task, Event.CANCEL if task.cancel_requested else Event.RELEASE, now)

    def redrive(self, task: Task, now: float) -> None:
        """Queue an ended task again: a new budget of attempts, at the tail."""
        pool = self.pools[task.new.pool]
        pool.shelf.left(self.tasks)
        del _ended(pool, task.status)[task.new.id]
        if task.new.run in self.runs:
            self.runs[task.new.run].revived(task.status, counted=not task.new.is_callback)
            self.open_runs[task.new.run] = self.runs[task.new.run]
        pool.next_seq += 1
        task.seq = pool.next_seq
        task.rank = rank(pool.spec.order, task.new.priority, now, task.seq)
        task.lane, task.sequence = self._lane(pool, task.new, task.seq)
        task.due = now
        lasts = task.new.expires_in
        task.expires_at = None if lasts is None else rounded(now + lasts)
        task.attempt = 0
        task.fresh = task.cancel_requested = False
        task.reason = task.result = task.error = task.finished_at = None
        task.progress = task.steps = None
        self._bring_to_life(pool, task)
        self.move(task, Event.REDRIVE, now)
        self._settle_key(pool, task)

    def park(self, pool: PoolTable, task: Task, now: float) -> None:
        """Set a queued task aside until a worker comes that knows its function."""
        waiting = pool.parked.setdefault(task.new.call.function, LazyHeap())
        waiting.set(task.new.id, (task.rank, task.seq))
        self.parked_since.set(task.new.id, (now, task.new.id))
        task.parked = True
        if pool.backlog.strict(task.unit):
            pool.backlog.block(task.unit, blocked=True)
        else:
            pool.backlog.discard(task)
            pool.parked_apart += 1

    def unpark(self, pool: PoolTable, task: Task, now: float) -> None:
        """Put a parked task back at its place in the queue."""
        waiting = pool.parked[task.new.call.function]
        waiting.discard(task.new.id)
        if not waiting:
            del pool.parked[task.new.call.function]
        self.parked_since.discard(task.new.id)
        task.parked = False
        if pool.backlog.strict(task.unit):
            pool.backlog.block(task.unit, blocked=False)
        else:
            pool.parked_apart -= 1
            pool.backlog.add(task, now)

    # What hangs on an arrow

    def _bring_to_life(self, pool: PoolTable, task: Task) -> None:
        """Count a task among the live ones of its lane or key."""
        live = pool.live.get(task.unit)
        if live is None:
            self.endings.filled(pool, task.unit)
            live = pool.live[task.unit] = OrderedDict()
        live[task.new.id] = None
        pool.shelf.add(task)
        pool.live_shelf.add(task)
        if task.new.run is not None:
            self.run_live.setdefault(task.new.run, OrderedDict())[task.new.id] = None

    def _lane(self, pool: PoolTable, new: NewTask, seq: int) -> tuple[str | None, int]:
        """Return the lane of a new task and its gap-free number there."""
        if not pool.spec.strict:
            return None, seq
        lane = new.key
        if pool.spec.lanes is not None:
            if new.key is None:
                lane = str(pool.next_lane % pool.spec.lanes)
                pool.next_lane += 1
            else:
                lane = lane_of(new.key, pool.spec.lanes)
        if lane is None:
            return None, seq
        sequence = pool.lane_sequences.get(lane, 0) + 1
        pool.lane_sequences[lane] = sequence
        return lane, sequence

    def _enqueue(self, pool: PoolTable, task: Task, now: float) -> None:
        identifier = task.new.id
        if task.fresh:
            pool.fresh[identifier] = None
            pool.fresh_by_key.setdefault(task.new.key, OrderedDict())[identifier] = None
        if task.expires_at is not None:
            self.expiring_tasks.set(identifier, (task.expires_at, identifier))
        if task.new.run is not None and not task.new.is_callback:
            self.run_queued.setdefault(task.new.run, OrderedDict())[identifier] = None
        if task.due > now:
            pool.scheduled.set(identifier, (task.due, task.seq))
        pool.backlog.add(task, now)
        if task.parked:
            self.park(pool, task, now)
        elif pool.running < pool.spec.max_concurrent and not pool.paused:
            self.wake(task.new.pool, max(task.due, now))

    def _dequeue(self, pool: PoolTable, task: Task, now: float) -> None:
        self._forget_waiting(pool, task)
        if task.parked:
            self.unpark(pool, task, now)
        pool.backlog.discard(task)
        if pool.running < pool.spec.max_concurrent and not pool.paused:
            # Cancelling the head of a lane lets the next one start.
            self.wake(task.new.pool, now)

    def _forget_waiting(self, pool: PoolTable, task: Task) -> None:
        identifier = task.new.id
        if task.fresh:
            del pool.fresh[identifier]
            same_key = pool.fresh_by_key[task.new.key]
            del same_key[identifier]
            if not same_key:
                del pool.fresh_by_key[task.new.key]
        self.expiring_tasks.discard(identifier)
        if pool.scheduled:
            pool.scheduled.discard(identifier)
        if task.new.run is not None:
            _drop(self.run_queued, task.new.run, identifier)

    def _stop_running(self, pool: PoolTable, task: Task, now: float) -> None:
        pool.running -= 1
        pool.backlog.finish(task.unit)
        worker = self.workers.get(task.worker or "")
        if worker is not None:
            worker.holding.pop(task.new.id, None)
            pool.holding[worker.id] -= 1
            if not pool.holding[worker.id]:
                del pool.holding[worker.id]
        self.wake(task.new.pool, now)

    def _end(self, pool: PoolTable, task: Task, now: float) -> None:
        task.finished_at = now
        pool.totals[task.status] = pool.totals.get(task.status, 0) + 1
        _ended(pool, task.status)[task.new.id] = None
        _drop(pool.live, task.unit, task.new.id)
        self.endings.over(pool, task)
        pool.live_shelf.left(self.tasks)
        if task.new.run is not None:
            _drop(self.run_live, task.new.run, task.new.id)
        if task.new.owner is not None:
            _drop(self.owned, task.new.owner, task.new.id)
        self._settle_key(pool, task)
        if task.new.on_complete is not None:
            self.insert(callback(task, self.token()), now, outside=False, cause=task.new.id)
        if task.new.run in self.runs:
            self._leave_run(self.runs[task.new.run], task, now)

    def _settle_key(self, pool: PoolTable, task: Task) -> None:
        known = pool.keys.get(key_of(task.new)) if task.new.idempotency_key else None
        if known is None or known.task != task.new.id:
            return
        known.status = task.status
        if task.status is Status.REJECTED:
            del pool.keys[key_of(task.new)]

    def _leave_run(self, run: Run, task: Task, now: float) -> None:
        run.left(task.status, counted=not task.new.is_callback)
        self.touch_run(run)
        failed = task.status is Status.FAILED and not task.new.is_callback
        if failed and run.new.on_error is OnError.FAIL and run.stopped is None:
            run.failed_task = task.new.id
            self.stop_run(run, Reason.RUN_FAILED, now, cause=task.new.id)

    def stop_run(self, run: Run, reason: Reason, now: float, *, cause: int | None = None) -> None:
        """Let a run come to its end: what waits is cancelled, what runs may finish."""
        run.stopped = reason
        waiting = (self.tasks[identifier] for identifier in self.run_queued.get(run.new.id, ()))
        for task in sorted(waiting, key=in_order):
            task.reason = reason
            self.move(task, Event.CANCEL, now, cause=cause)

    def _keep_budget(self, task: Task, now: float) -> None:
        """Stop a run that has just grown beyond its budget: never in silence."""
        run = self.runs.get(task.new.run) if task.new.run is not None else None
        room = run.room() if run is not None else None
        if run is not None and room is not None and room < 0 and run.stopped is None:
            self.stop_run(run, Reason.OVER_BUDGET, now, cause=task.new.id)

    def _stop_with_its_run(self, task: Task, now: float) -> None:
        """Cancel a task that was queued for a run which takes nothing more."""
        run = self.runs.get(task.new.run) if task.new.run is not None else None
        if run is None or task.status is not Status.QUEUED or task.new.is_callback:
            return
        if run.stopped is not None:
            task.reason = run.stopped
            self.move(task, Event.CANCEL, now)

    def touch_run(self, run: Run) -> None:
        """Note that a run may be over at the end of this verb."""
        self._touched_runs[run.new.id] = run

    # Audit

    def order(
        self,
        pool: str,
        detail: str,
        now: float,
        *,
        task: int | None = None,
        run: int | None = None,
    ) -> None:
        """Record an operator's order."""
        self._audit(order_record(pool, detail, at=now, task=task, run=run))

    def _audit(self, entry: Record) -> None:
        self.records.append(entry)
        limit = self._audit_limit
        if limit is not None and len(self.records) > 2 * limit:
            surplus = len(self.records) - limit
            del self.records[:surplus]
            self.records_dropped += surplus


def in_order(task: Task) -> tuple[str, int]:
    """Sort key: what happens to several tasks in one step happens by pool and place."""
    return task.new.pool, task.seq


def _ended(pool: PoolTable, status: Status) -> OrderedDict[int, None]:
    """Return the list of ended tasks that retention keeps a `status` in."""
    return pool.succeeded if status is Status.COMPLETED else pool.unsuccessful


Key = TypeVar("Key")


def _drop(index: dict[Key, OrderedDict[int, None]], at: Key, identifier: int) -> None:
    """Take one id out of an index, and the entry with its last id."""
    entries = index.get(at)
    if entries is None:
        return
    entries.pop(identifier, None)
    if not entries:
        del index[at]
