"""The tables the verbs work on, and `move`: the one place where a task changes its status.

They are kept in dictionaries here. A store on disk keeps the same tables in rows: what it hands to
the verbs looks the same, is read when it is asked for, and is written when the verb is over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypeVar

import msgspec

from millpond.core.adaptive import Limiter
from millpond.core.admit import Known, Reason
from millpond.core.audit import Note, Record, note, order_record, record, told
from millpond.core.bucket import fresh as fresh_buckets
from millpond.core.lease import Worker, tokens
from millpond.core.lifecycle import Event, Status, advance
from millpond.core.order.backlog import Backlog, lane_of, rank
from millpond.core.order.heap import LazyHeap
from millpond.core.plan import Wake
from millpond.core.run import OnError, Run
from millpond.core.settle import callback
from millpond.core.task import CALLBACKS, Call, NewTask, Task, key_of
from millpond.core.ticks import rounded
from millpond.store.verbs import budgets
from millpond.store.verbs.arrivals import Arrivals
from millpond.store.verbs.endings import Endings
from millpond.store.verbs.unclaimed import Fresh

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from millpond.core.spec import PoolSpec
    from millpond.store.verbs.budgets import BudgetTable

# Looking up a member of an enumeration costs as much as a call: once is enough.
_QUEUED, _RUNNING, _COMPLETED = Status.QUEUED, Status.RUNNING, Status.COMPLETED
REMOVED_KEPT = 100_000
"""How many ids of tasks that retention removed are told from ids that never were."""

_SUBMIT, _LEASE = Event.SUBMIT, Event.LEASE
_AS_SUBMITTED = advance(None, Event.SUBMIT)
_AS_LEASED = advance(Status.QUEUED, Event.LEASE)


_NO_UNITS: set[str] = set()

MEASURED = 1_000
"""How many settled attempts the percentiles of a pool look back."""


Asked: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Tasks of which the end was asked for, and those of them that are to be interrupted."""


class Leader(msgspec.Struct):
    """Who leads maintenance: the generation only grows."""

    owner: str = ""
    until: float = 0.0
    generation: int = 0


class PoolTable:
    """One pool: its settings, its queue and its counts."""

    __slots__ = (
        "arrivals",
        "backlog",
        "buckets",
        "claimed",
        "closed",
        "created_at",
        "declared",
        "fresh",
        "holding",
        "hungry",
        "internal",
        "keys",
        "lane_processed",
        "lane_sequences",
        "limiter",
        "live",
        "name",
        "next_lane",
        "next_seq",
        "not_before",
        "old_keys",
        "operator_limit",
        "parked",
        "parked_apart",
        "paused",
        "paused_units",
        "redriven",
        "revision",
        "revisions",
        "run_times",
        "running",
        "spec",
        "stale_settles",
        "starved",
        "succeeded",
        "totals",
        "unsuccessful",
        "waits",
    )

    def __init__(self, spec: PoolSpec, now: float) -> None:
        self.created_at = now
        self.name = spec.name
        self.internal = spec.name.endswith(CALLBACKS)
        """Whether it holds the callbacks of another pool: nothing from outside."""
        self.declared = spec
        self.spec = spec
        self.revision = 1
        self.revisions: dict[int, PoolSpec] = {}
        """Settings that were in force before, by revision."""
        self.paused = False
        self.paused_units: set[str] = _NO_UNITS
        self.closed = False
        self.not_before = 0.0
        self.backlog = Backlog(spec)
        self.fresh = Fresh(spec)
        self.parked: dict[str, LazyHeap[int]] = {}
        self.parked_apart = 0
        """Parked tasks outside the backlog; the head of a strict lane blocks it from within."""
        self.live = 0
        """How many tasks wait or run."""
        self.running = 0
        self.claimed = 0
        """Queued tasks that workers hold ahead: out of the backlog, not running."""
        self.hungry: dict[str, float] = {}
        """Workers that found nothing while others held some ahead, and until when that counts."""
        self.holding: dict[str, int] = {}
        self.starved: dict[str, tuple[float, float]] = {}
        """Workers that got nothing although there was work: since when, and when last."""
        self.buckets = fresh_buckets(spec.rates)
        """The state of its rates, in their order."""
        self.operator_limit: int | None = None
        """What an operator set by resize; it stays until reset, whatever is declared."""
        self.limiter: Limiter | None = Limiter(spec.adaptive) if spec.adaptive else None
        """What moves its limit, if that adapts and no operator has set it."""
        self.next_seq = 0
        self.lane_sequences: dict[str, int] = {}
        self.lane_processed: dict[str, int] = {}
        """How many tasks of each lane were completed or failed."""
        self.next_lane = 0
        self.keys: dict[tuple[str, int | None], Known] = {}
        self.succeeded: deque[Task] | None = None
        self.unsuccessful: deque[Task] | None = None
        """Ended tasks, oldest first; one that was redriven since is skipped."""
        self.redriven = 0
        """How many of those were redriven since."""
        self.old_keys: dict[tuple[str, int | None], float] = {}
        """Keys of forgotten tasks, by when those ended."""
        self.totals: dict[str, int] = {}
        self.stale_settles = 0
        self.waits: deque[float] | None = None
        self.run_times: deque[float] | None = None
        """Seconds of the last settled attempts; none before the first."""
        self.arrivals = Arrivals()

    @property
    def queued(self) -> int:
        """How many tasks wait: ready, scheduled, parked or claimed ahead."""
        return self.live - self.running

    def measure(self, waited: float, ran: float) -> None:
        """Note how long a task had waited for its start, and how long it ran."""
        if self.waits is None or self.run_times is None:
            self.waits, self.run_times = deque(maxlen=MEASURED), deque(maxlen=MEASURED)
        self.waits.append(waited)
        self.run_times.append(ran)

    def measure_all(self, times: list[tuple[float, float]]) -> None:
        """Note the same of several."""
        for waited, ran in times:
            self.measure(waited, ran)

    def pause(self, unit: str, *, paused: bool) -> None:
        """Remember which lanes and keys are paused."""
        if paused:
            self.paused_units = {*self.paused_units, unit}
        else:
            self.paused_units = self.paused_units - {unit}


class Tables:
    """Everything the store keeps."""

    make_task: ClassVar[type[Task]] = Task

    def __init__(self, *, audit_limit: int | None, entropy: int) -> None:
        self.pools: dict[str, PoolTable] = {}
        self.budgets: dict[str, BudgetTable] = {}
        self.tasks: dict[int, Task] = {}
        self.removed: dict[int, None] = {}
        """Ids of tasks that retention removed, the latest of them."""
        self.latest = float("-inf")
        """The latest moment of a verb; time does not go back behind it."""
        self.leader = Leader()
        self.workers: dict[str, Worker] = {}
        self.workers_joined = 0
        self.expiring_workers: LazyHeap[str] = LazyHeap()
        self.expiring_tasks: LazyHeap[int] = LazyHeap()
        self.parked_since: LazyHeap[int] = LazyHeap()
        self.owned: dict[str, int] = {}
        """How many queued and running closures each process has."""
        self.runs: dict[int, Run] = {}
        self.open_runs: dict[int, Run] = {}
        self.runs_by_name: dict[tuple[str, str], int] = {}
        self.run_queued: dict[int, dict[int, None]] = {}
        self._records: list[Note | Record] = []
        self.records_dropped = 0
        self._audit_limit = audit_limit
        self._wakes: dict[str, float] = {}
        self._finished_runs: list[int] = []
        self._touched_runs: dict[int, Run] = {}
        self._touched_pools: dict[str, PoolTable] = {}
        self._own_tokens = tokens(entropy)
        self._tokens: Iterator[int] = self._own_tokens
        self.endings = Endings()
        self._asked: dict[int, bool] = {}
        """Whose end this verb asked for -> whether by an interrupt."""
        self.begun: set[int] = set()
        """Claims ahead whose start was reported in this verb: when they started is not known."""

    by: str | None = None
    """Who gave the order that is carried out, where that is known."""

    # One verb

    def begin(self, entropy: int | None) -> None:
        """Start a verb: nothing is woken yet, and chance is what the caller gave, or our own."""
        if self._wakes:
            self._wakes = {}
        if self._finished_runs:
            self._finished_runs = []
        if self._touched_runs:
            self._touched_runs = {}
        if self._touched_pools:
            self._touched_pools = {}
        self._tokens = self._own_tokens if entropy is None else tokens(entropy)
        self.endings.begin()
        if self.begun:
            self.begun = set()
        if self._asked:
            self._asked = {}

    def end(self, now: float) -> None:
        """End a verb: only now, when all of it has happened, does it take its place and effect."""
        if self._touched_pools:
            for pool in self._touched_pools.values():
                pool.backlog.flush(now)
        if self._touched_runs:
            self._close_runs(now)
        if self._audit_limit is not None and len(self._records) > 2 * self._audit_limit:
            self._cut_audit(self._audit_limit)

    def _close_runs(self, now: float) -> None:
        for run in self._touched_runs.values():
            if run.close_if_done(now):
                self.open_runs.pop(run.new.id, None)
                self._finished_runs.append(run.new.id)
                self._records.append(
                    order_record(run.new.pool, "run finished", at=now, run=run.new.id)
                )

    def token(self) -> int:
        """Draw the next number of this verb's entropy."""
        return next(self._tokens)

    @property
    def has_news(self) -> bool:
        """Whether this verb woke a pool or ended anything."""
        return bool(self._wakes or self._finished_runs or self.endings)

    def wakes(self) -> tuple[Wake, ...]:
        """Return which pools this verb gave something to start, and when."""
        if not self._wakes:
            return ()
        return tuple([Wake(pool, at) for pool, at in self._wakes.items() if self._has_room(pool)])

    def _has_room(self, name: str) -> bool:
        """Return whether anybody could start or claim something: what frees a slot wakes again."""
        pool = self.pools[name]
        spec = pool.spec
        return pool.running < spec.max_concurrent or pool.claimed < spec.prefetch

    def finished_runs(self) -> tuple[int, ...]:
        """Return the runs that ended with this verb."""
        return tuple(self._finished_runs) if self._finished_runs else ()

    def touch(self, pool: PoolTable) -> None:
        """Note that the queue of a pool was changed by this verb."""
        self._touched_pools[pool.name] = pool

    def wake(self, pool: str, at: float) -> None:
        """Note that a pool may have something to start at `at`."""
        before = self._wakes.get(pool)
        if before is None or at < before:
            self._wakes[pool] = at

    def renew(self, worker: Worker, lease: float, now: float) -> None:
        """Keep everything a worker holds for `lease` seconds from now."""
        worker.expires_at = rounded(now + lease)
        self.expiring_workers.set(worker.id, (worker.expires_at, worker.number))

    def known(self, identifier: int) -> Task | None:
        """Return a task, or None if it is unknown, or of a pool that is to be left alone."""
        return self.tasks.get(identifier)

    def running_in(self, pool: str) -> int:
        """Return how many tasks of a pool run, also of one that is to be left alone."""
        return self.pools[pool].running

    def leave_to_newer(self, worker: Worker, owner: str | None) -> bool:  # noqa: ARG002
        """Return whether a worker holds tasks (or `owner` closures) of pools that are left alone.

        Here no pool is: each was declared by this very version.
        """
        return False

    def lives(self, owner: str, *, besides: Worker | None = None) -> bool:
        """Return whether a process has a worker (but for one) that may hold leases."""
        for worker in self.workers.values():
            if worker.owner == owner and worker is not besides:
                return True
        return False

    def asked_to_stop(self, worker: Worker) -> Asked:
        """Return what a worker holds of which the end was asked for, by pool and place."""
        held = (self.tasks[identifier] for identifier in (*worker.holding, *worker.ahead))
        asked = [task for task in sorted(held, key=in_order) if task.cancel_requested]
        return (
            tuple(task.new.id for task in asked),
            tuple(task.new.id for task in asked if task.interrupt_requested),
        )

    # Tasks come and go

    def insert(self, new: NewTask, now: float, *, outside: bool, cause: int | None = None) -> Task:
        """Store a new task as queued."""
        pool = self.pools[new.pool]
        backlog = pool.backlog
        pool.next_seq = seq = pool.next_seq + 1
        lane, sequence = self._lane(pool, new, seq) if backlog.lanes else (None, seq)
        if not pool.live or lane is not None:
            self.endings.coming(pool, lane)
        pool.live += 1
        due = now
        if new.delay or new.run_at is not None:
            due = max(rounded(now + new.delay if new.run_at is None else new.run_at), now)
        task = self.make_task(
            new=new,
            status=_AS_SUBMITTED,
            seq=seq,
            rank=rank(pool.spec.order, new.priority, now, seq),
            lane=lane,
            sequence=sequence,
            submitted_at=now,
            due=due,
            expires_at=None if new.expires_in is None else rounded(now + new.expires_in),
            fresh=outside,
        )
        self.tasks[new.id] = task
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
        self._enqueue(pool, task, now)
        if run is not None:
            self._keep_budget(run, task, now)
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
        # As a record and not as a note: nothing else needs to keep what was dropped.
        self._records.append(record(ghost, Event.REFUSE, None, at=now))
        totals = self.pools[new.pool].totals
        totals[ghost.status] = totals.get(ghost.status, 0) + 1

    def move(self, task: Task, event: Event, now: float, *, cause: int | None = None) -> None:
        """Take one arrow of the lifecycle, with everything that hangs on it."""
        pool = self.pools[task.new.pool]
        before = task.status
        task.status = after = advance(before, event)
        if pool.backlog.grouped:
            self._touched_pools[pool.name] = pool
        if before is _RUNNING:
            self._stop_running(pool, task, now)
        elif before is _QUEUED:
            self._dequeue(pool, task, now)
        self._records.append(note(task, event, before, now, cause))
        if after is _QUEUED:
            self._enqueue(pool, task, now)
        else:
            self._end(pool, task, now)
        if before is _RUNNING:
            task.worker = None
            if task.new.run is not None:
                self._stop_with_its_run(task, now)

    def start(self, pool: PoolTable, task: Task, worker: Worker, token: int, now: float) -> None:
        """Take the arrow from queued to running: charge the attempt and make a new fence."""
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
        worker.holding[new.id] = new.pool
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
        self, pool: PoolTable, tasks: Sequence[Task], worker: Worker, token: int, now: float
    ) -> None:
        """Start plain tasks that were taken out of the queue, all as `start` does one."""
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
        self._hold_all(worker, tasks)
        self._note_all(tasks, _LEASE, _QUEUED, name, now)

    def complete_all(
        self, pool: PoolTable, tasks: Sequence[Task], worker: str | None, now: float
    ) -> None:
        """End plain tasks of one worker that were marked as completed, all as `move` does one."""
        count = len(tasks)
        pool.running -= count
        pool.live -= count
        holder = self.workers.get(worker or "")
        if holder is not None:
            self._let_go_all(holder, tasks)
            left = pool.holding[holder.id] - count
            if left:
                pool.holding[holder.id] = left
            else:
                del pool.holding[holder.id]
        pool.measure_all([(task.started_at - task.due, now - task.started_at) for task in tasks])  # type: ignore[operator]
        self._note_all(tasks, Event.COMPLETE, _RUNNING, worker, now)
        for task in tasks:
            task.finished_at = now
            task.worker = None
            if task.new.key is not None:
                pool.backlog.finish(task.new.key)
        pool.totals[_COMPLETED] = pool.totals.get(_COMPLETED, 0) + count
        self._keep_all(pool, tasks)
        self.endings.all_over(pool, tasks)
        if pool.live > pool.running:
            self.wake(pool.name, now)

    def glance(self, identifier: int) -> Task | None:
        """Return a task to be looked at; None = it is not known, or not without reading it."""
        return self.tasks.get(identifier)

    def _hold_all(self, worker: Worker, tasks: Sequence[Task]) -> None:
        worker.holding.update([(task.new.id, task.new.pool) for task in tasks])

    def _let_go_all(self, worker: Worker, tasks: Sequence[Task]) -> None:
        for task in tasks:
            worker.holding.pop(task.new.id, None)

    def _keep_all(self, pool: PoolTable, ended: Sequence[Task]) -> None:
        _ended(pool, _COMPLETED).extend(ended)

    def _note_all(
        self,
        tasks: Sequence[Task],
        event: Event,
        before: Status,
        worker: str | None,
        now: float,
    ) -> None:
        """Record the same arrow of several plain tasks that have or had the same worker."""
        self._records += [
            (
                *(task, event, before, now, task.attempt, task.runs, task.token, worker),
                *(task.due, False, None, None),
            )
            for task in tasks
        ]

    def claim(self, task: Task, worker: Worker, token: int, now: float) -> None:
        """Let a worker hold a queued task ahead: out of the queue, with a fence, not charged."""
        pool = self.pools[task.new.pool]
        self.touch(pool)
        if task.fresh:
            pool.fresh.remove(task)
        self._forget_waiting(task)
        pool.backlog.start(task, now)
        pool.claimed += 1
        worker.ahead[task.new.id] = pool.spec
        task.fresh = False
        task.token = token
        task.worker = worker.id
        task.claimed = True
        task.status = advance(task.status, Event.CLAIM)
        self._records.append(note(task, Event.CLAIM, Status.QUEUED, now))

    def start_claim(self, task: Task, now: float) -> None:
        """Take the arrow from queued to running for a claim: now it is charged and counts."""
        pool, worker = self.pools[task.new.pool], self.workers[task.worker or ""]
        del worker.ahead[task.new.id]
        pool.claimed -= 1
        pool.running += 1
        pool.holding[worker.id] = pool.holding.get(worker.id, 0) + 1
        worker.holding[task.new.id] = task.new.pool
        task.claimed = False
        task.attempt += 1
        task.runs += 1
        task.started_at = now
        if task.first_started_at is None:
            task.first_started_at = now
        task.reason = None
        self.begun.add(task.new.id)
        task.status = advance(task.status, _LEASE)
        self._records.append(note(task, _LEASE, _QUEUED, now))

    def drop_claim(self, task: Task, now: float, *, rate: bool) -> None:
        """Put a claim back into the queue, as if it had not been made; an arrow follows."""
        pool, worker = self.pools[task.new.pool], self.workers[task.worker or ""]
        self.touch(pool)
        del worker.ahead[task.new.id]
        pool.claimed -= 1
        task.claimed = False
        pool.backlog.put_back(task.unit, rate=rate)
        pool.backlog.add(task, now)

    def ask_back(self, task: Task, reason: Reason, now: float, *, interrupt: bool = False) -> bool:
        """Ask for the end of a task that a worker holds ahead: it may just be starting it."""
        if not task.cancel_requested:
            task.reason = reason
        return self.ask_to_stop(task, now, interrupt=interrupt)

    def ask_to_stop(self, task: Task, now: float, *, interrupt: bool) -> bool:
        """Let whoever holds a task know that its end is wanted; tell whether that is news.

        An interrupt is more than a word, and may follow one; a word after an interrupt is nothing.
        """
        if task.interrupt_requested or (task.cancel_requested and not interrupt):
            return False
        task.cancel_requested = True
        task.interrupt_requested = interrupt
        self._asked[task.new.id] = interrupt
        word = "interrupt" if interrupt else "cancel"
        self.order(task.new.pool, f"{word} requested", now, task=task.new.id)
        return True

    def asked(self) -> Asked:
        """Return the tasks in somebody's hands of which this verb asked for the end."""
        if not self._asked:
            return (), ()
        return tuple(self._asked), tuple(task for task, hard in self._asked.items() if hard)

    def release(self, task: Task, now: float) -> None:
        """Give a running task back: recorded, not charged; a cancelled one is not run again."""
        task.attempt -= 1
        if task.cancel_requested:
            task.reason = Reason.CANCELLED
        self.move(task, Event.CANCEL if task.cancel_requested else Event.RELEASE, now)

    def redrive(self, ended: Task, now: float) -> None:
        """Queue an ended task again: a new budget of attempts, at the tail."""
        new = ended.new
        pool = self.pools[new.pool]
        if new.run in self.runs:
            self.runs[new.run].revived(ended.status, counted=not new.is_callback)
            self.open_runs[new.run] = self.runs[new.run]
        pool.next_seq = seq = pool.next_seq + 1
        lane, sequence = self._lane(pool, new, seq)
        self.endings.coming(pool, lane)
        pool.live += 1
        # Another object: notes of the audit, and where it stood among the ended, keep the old one.
        task = self.tasks[new.id] = msgspec.structs.replace(
            ended,
            seq=seq,
            rank=rank(pool.spec.order, new.priority, now, seq),
            lane=lane,
            sequence=sequence,
            due=now,
            expires_at=None if new.expires_in is None else rounded(now + new.expires_in),
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
        ended.result = ended.error = ended.steps = None
        pool.redriven += 1
        pool.arrivals.add(task)
        self.move(task, Event.REDRIVE, now)
        self._settle_key(pool, task)

    def prune(self, pool: PoolTable, before: float, limit: int, *, completed: bool) -> int:
        """Forget tasks that ended before a moment, oldest first; return how many."""
        ended = pool.succeeded if completed else pool.unsuccessful
        old = [] if ended is None or limit <= 0 else self._old(pool, ended, before, limit)
        if ended is not None:
            ended.extendleft(reversed(old[limit:]))
        for task in old[:limit]:
            self.forget(task)
            known = pool.keys.get(key_of(task.new)) if task.new.idempotency_key else None
            if known is not None and known.task == task.new.id:
                pool.old_keys[key_of(task.new)] = task.finished_at or 0.0
        return len(old[:limit])

    def _old(self, pool: PoolTable, ended: deque[Task], before: float, limit: int) -> list[Task]:
        """Take out what ended before a moment, oldest first and those of one moment by place.

        At least `limit` of them, and all that ended at the same moment as the last: who of these
        goes first is then the same on every store.
        """
        old: list[Task] = []
        while ended:
            task, finished_at = ended[0], ended[0].finished_at or 0.0
            if self.tasks.get(task.new.id) is task:
                enough = len(old) >= limit and finished_at > (old[-1].finished_at or 0.0)
                if finished_at >= before or enough:
                    break
                old.append(task)
            else:
                pool.redriven -= 1
            ended.popleft()
        return sorted(old, key=lambda task: (task.finished_at or 0.0, task.seq))

    def prune_keys(self, pool: PoolTable, before: float) -> None:
        """Forget the keys of forgotten tasks, and runs that are over, once they are old enough."""
        for key in [key for key, ended_at in pool.old_keys.items() if ended_at < before]:
            del pool.old_keys[key]
            known = pool.keys.get(key)
            if known is not None and known.task not in self.tasks:
                del pool.keys[key]
        over = [
            run
            for run in self.runs.values()
            if run.new.pool == pool.name
            and run.finished_at is not None
            and run.finished_at < before
        ]
        for run in over:
            del self.runs[run.new.id]
            if run.new.name is not None:
                self.runs_by_name.pop((run.new.pool, run.new.name), None)

    def prune_audit(self, before: float) -> None:
        """Forget records that are older than a moment; here their number is what bounds them."""

    def forget(self, task: Task) -> None:
        """Let go of an ended task; its notes in the audit keep only what they tell."""
        new = task.new
        del self.tasks[new.id]
        self.removed[new.id] = None
        if len(self.removed) > 2 * REMOVED_KEPT:
            self.removed = dict.fromkeys(list(self.removed)[-REMOVED_KEPT:])
        task.result = task.error = task.steps = None
        if new.call.payload or new.options or new.labels:
            task.new = msgspec.structs.replace(
                new, call=Call(new.call.function), options=b"", labels={}
            )

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
        waiting = pool.parked.setdefault(task.need, LazyHeap())
        waiting.set(task.new.id, (task.rank, task.seq))
        self.parked_since.set(task.new.id, (now, task.new.id))

    def _note_unparked(self, pool: PoolTable, task: Task) -> None:
        waiting = pool.parked[task.need]
        waiting.discard(task.new.id)
        if not waiting:
            del pool.parked[task.need]
        self.parked_since.discard(task.new.id)

    # What hangs on an arrow

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
        sequence = pool.lane_sequences.get(lane, 0) + 1
        pool.lane_sequences[lane] = sequence
        return lane, sequence

    def _enqueue(self, pool: PoolTable, task: Task, now: float) -> None:
        new = task.new
        if task.expires_at is not None:
            self.expiring_tasks.set(new.id, (task.expires_at, new.id))
        if new.run is not None and not new.is_callback:
            self.run_queued.setdefault(new.run, {})[new.id] = None
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

    def _forget_waiting(self, task: Task) -> None:
        new = task.new
        if task.expires_at is not None:
            self.expiring_tasks.discard(new.id)
        if new.run is not None:
            _drop(self.run_queued, new.run, new.id)

    def _stop_running(self, pool: PoolTable, task: Task, now: float) -> None:
        pool.running -= 1
        unit = task.lane if task.lane is not None else task.new.key
        if unit is not None:
            pool.backlog.finish(unit)
        worker = self.workers.get(task.worker or "")
        if worker is not None:
            worker.holding.pop(task.new.id, None)
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
        if new.run is not None and new.run in self.runs:
            self._leave_run(self.runs[new.run], task, now)

    def _keep(self, pool: PoolTable, ended: Task) -> None:
        """Keep an ended task for as long as retention says."""
        _ended(pool, ended.status).append(ended)

    def _own(self, owner: str) -> None:
        self.owned[owner] = self.owned.get(owner, 0) + 1

    def _disown(self, owner: str) -> None:
        left = self.owned[owner] - 1
        if left:
            self.owned[owner] = left
        else:
            del self.owned[owner]

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
        held = (task for task in self.of_run(run.new.id) if task.claimed)
        for task in sorted(held, key=in_order):
            self.ask_back(task, reason, now)

    def _keep_budget(self, run: Run, task: Task, now: float) -> None:
        """Stop a run that has just grown beyond its budget: never in silence."""
        room = run.room()
        if room is not None and room < 0 and run.stopped is None:
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

    # What is kept, looked through

    def live(self, pool: PoolTable) -> Iterable[Task]:
        """Return the queued and running tasks of a pool, in no order that means anything."""
        parked = (
            self.tasks[identifier] for waiting in pool.parked.values() for identifier in waiting
        )
        # The parked head of a strict lane is in the backlog, too.
        apart = (task for task in parked if not pool.backlog.strict(task.unit))
        running = (
            self.tasks[identifier]
            for name in pool.holding
            for identifier, where in self.workers[name].holding.items()
            if where == pool.name
        )
        claimed = (
            self.tasks[identifier]
            for worker in (self.workers.values() if pool.claimed else ())
            for identifier, spec in worker.ahead.items()
            if spec.name == pool.name
        )
        return chain(pool.backlog, apart, running, claimed)

    def live_page(self, pool: PoolTable, after: int, upto: int, limit: int) -> list[Task]:
        """Return the first queued and running tasks of a pool behind a place, up to another."""
        found = takewhile(lambda task: task.seq <= upto, pool.arrivals.behind(after))
        return list(islice(found, limit))

    def of_run(self, run: int) -> Iterable[Task]:
        """Return the queued and running tasks of a run, its callbacks too, in no order."""
        waiting = (self.tasks[identifier] for identifier in self.run_queued.get(run, ()))
        running = (
            self.tasks[identifier]
            for worker in self.workers.values()
            for identifier in (*worker.holding, *worker.ahead)
            if self.tasks[identifier].new.run == run
        )
        callbacks = (
            task
            for pool in self.pools.values()
            if pool.internal
            for task in pool.backlog
            if task.new.run == run
        )
        return chain(waiting, running, callbacks)

    def has_closures(self, owner: str) -> bool:
        """Return whether a process has queued or running closures."""
        return owner in self.owned

    def closures_of(self, owner: str) -> list[Task]:
        """Return the queued and running closures of a process: O(tasks), for its end."""
        if owner not in self.owned:
            return []
        return [task for task in self.tasks.values() if _is_live_closure(task, owner)]

    # Audit

    def order(
        self,
        pool: str,
        detail: str,
        now: float,
        *,
        task: int | None = None,
        run: int | None = None,
        weight: int = 1,
        unit: str | None = None,
        until: float = 0.0,
    ) -> None:
        """Record an operator's order, or what an attempt asked for on everybody's account."""
        self._records.append(
            order_record(
                pool,
                detail,
                at=now,
                task=task,
                run=run,
                weight=weight,
                unit=unit,
                until=until,
                by=self.by,
            )
        )

    @property
    def records_kept(self) -> int:
        """How many records are kept."""
        return len(self._records)

    def records_before(self, moment: float) -> int:
        """Return how many of the records that are kept were written before a moment."""
        return bisect_left(
            self._records, moment, key=lambda one: one[3] if isinstance(one, tuple) else one.at
        )

    def records(self, start: int, limit: int) -> tuple[Record, ...]:
        """Return the records that are kept, from the `start`th of them on."""
        kept = self._records[start : start + limit]
        return tuple([told(one) if isinstance(one, tuple) else one for one in kept])

    def _cut_audit(self, limit: int) -> None:
        """Keep `limit` to twice as many records: what is cut off is cut off in one go."""
        count = len(self._records)
        surplus = count - limit - (count - 2 * limit - 1) % (limit + 1)
        del self._records[:surplus]
        self.records_dropped += surplus


def in_order(task: Task) -> tuple[str, int]:
    """Sort key: what happens to several tasks in one step happens by pool and place."""
    return task.new.pool, task.seq


def _ended(pool: PoolTable, status: Status) -> deque[Task]:
    """Return the list of ended tasks that retention keeps a `status` in."""
    if status is _COMPLETED:
        if pool.succeeded is None:
            pool.succeeded = deque()
        return pool.succeeded
    if pool.unsuccessful is None:
        pool.unsuccessful = deque()
    return pool.unsuccessful


def _is_live_closure(task: Task, owner: str) -> bool:
    return task.new.owner == owner and (task.status is _QUEUED or task.status is _RUNNING)


Key = TypeVar("Key")


def _drop(index: dict[Key, dict[int, None]], at: Key, identifier: int) -> None:
    """Take one id out of an index, and the entry with its last id."""
    entries = index.get(at)
    if entries is None:
        return
    entries.pop(identifier, None)
    if not entries:
        del index[at]


def lane_without_key(pool: PoolTable, first: int, coming: Mapping[str, int] | None = None) -> int:
    """Return the number of the lane for a task without a key: from `first` on, but for full ones.

    `coming` is how many of the same batch come to each lane before it. The number is that of the
    turn: the lane is its remainder.
    """
    lanes, policy = pool.spec.lanes or 1, pool.spec.backpressure
    if policy is None or policy.per_lane is None:
        return first
    for number in range(first, first + lanes):
        lane = str(number % lanes)
        if pool.fresh.of_lane(lane) + (coming or {}).get(lane, 0) < policy.per_lane:
            return number
    return first
