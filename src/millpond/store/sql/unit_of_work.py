"""The tables over rows: one unit of work inside one transaction.

Whatever a verb asks for is read when it asks, once, and is the same object from then on. What the
verbs changed is found by comparing, and written before the transaction ends. A question that only
the file can answer has everything written first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from millpond.core import bounds
from millpond.core.audit import AuditNote, Record
from millpond.core.lease import RegisteredWorker, tokens
from millpond.core.lifecycle import Status, Transition
from millpond.core.task import key_of
from millpond.errors import NewerPool
from millpond.store.sql.audit import Notes, encoded
from millpond.store.sql.budget import SqlBudgets
from millpond.store.sql.codec import (
    ENDED_ID,
    SEQ_BITS,
    TaskRow,
    body_of,
    new_of,
    place_of,
)
from millpond.store.sql.pool import SqlPool
from millpond.store.sql.statements import Statements
from millpond.store.sql.store_time import clock_text, timeline_of
from millpond.store.sql.tables.changes import write_tasks
from millpond.store.sql.tables.pools import SqlPools
from millpond.store.sql.tables.runs import SqlRuns
from millpond.store.sql.tables.tasks import SqlTasks
from millpond.store.sql.tables.timers import SqlDeadlines
from millpond.store.sql.tables.workers import SqlWorkers
from millpond.store.verbs.endings import Endings
from millpond.store.verbs.tables import Leader, Tables, by_expiry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millpond.core.spec import PoolSpec
    from millpond.core.store_time import Timeline
    from millpond.core.task import NewTask, Task
    from millpond.store.sql.codec import LeasedBodies, Row
    from millpond.store.sql.database import Connection, Dialect
    from millpond.store.verbs.tables import PoolTable, StopRequests


_QUEUED, _RUNNING, _COMPLETED = Status.QUEUED, Status.RUNNING, Status.COMPLETED
_LIVE = (_QUEUED, _RUNNING)


_PAGE = 1000

_RUNNING_IN = 13
"""The column of a pool with its running tasks."""

_OF_TIME = (0, 8, 9)
"""Columns of `meta` that change with time alone: they cause no write."""


def _lasting(meta: Row) -> Row:
    """Return the columns of `meta` whose change must be written."""
    return tuple(value for column, value in enumerate(meta) if column not in _OF_TIME)


def _gained(behind: float, before: float) -> bool:
    """Return whether the correction of store time has changed so much that it must be stored."""
    return abs(behind - before) > _GAINED or (behind == 0.0) != (before == 0.0)


_GAINED = 0.1
"""Seconds."""

REMOVED_KEPT = 20_000
"""How many ids of removed tasks are kept, so that their status is "expired" and not "unknown"."""


class SqlTables(Statements, Tables):
    """One unit of work: the tables that the verbs of one transaction read and write."""

    make_task: ClassVar[type[Task]] = TaskRow
    # A record of the audit that several tasks share has no place for their owner.
    closures_in_bulk: ClassVar[bool] = False
    pools: SqlPools
    budgets: SqlBudgets
    tasks: SqlTasks
    workers: SqlWorkers
    runs: SqlRuns
    timeline: Timeline
    _next_group: int
    _next_claim: int
    _record_count: int

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        entropy: int,
        bodies: LeasedBodies | None = None,
        *,
        meta: Row | None = None,
        readonly: bool = False,
    ) -> None:
        Statements.__init__(self, connection, dialect)
        self._readonly = readonly
        self.version = 0
        """The version of the store when this unit began."""
        self.on_commit: Callable[[SqlTables], None] | None = None
        self.bodies: LeasedBodies = {} if bodies is None else bodies
        """Bodies of tasks that this process leased; they never change."""
        self.written = False
        """Whether it has written since the last commit."""
        if not readonly:
            self._take_in_meta(meta or self._stored_meta())
        self.pools = SqlPools(self)
        self.budgets = SqlBudgets(self)
        self.tasks = SqlTasks(self)
        self.workers = SqlWorkers(self)
        self.expiring_tasks = SqlDeadlines(self, "first_expiring", "expiring_until")
        self.parked_since = SqlDeadlines(self, "first_parked_since", "parked_until")
        self._left_to_newer: set[str] = set()
        """Workers that hold tasks of a newer version."""
        self.owned = {}
        self.runs = SqlRuns(self)
        self._records: list[AuditNote | Notes | Record] = []  # type: ignore[assignment]
        self.records_dropped = 0
        self._audit_limit = None
        self._wakes = {}
        self._finished_runs = []
        self._touched_runs = {}
        self._touched_pools = {}
        self._own_tokens = tokens(entropy)
        self._tokens = self._own_tokens
        self.endings = Endings()
        self.begun = set()
        self._stop_requests = {}

    def read_meta(self) -> None:
        """Read the row `meta`: the latest moment, the next numbers, the leader.

        A unit that only reads does so when it needs one of these, which it seldom does.
        """
        self._take_in_meta(self._stored_meta())

    def _stored_meta(self) -> Row:
        meta: Row | None = self.ask("meta").fetchone()
        return self._new_meta() if meta is None else meta

    def _take_in_meta(self, meta: Row) -> None:
        self._meta = meta
        self._changes = self.connection.total_changes
        self.latest = meta[0]
        self.workers_joined = meta[1]
        self._next_group, self._next_claim, self._record_count = meta[2:5]
        self.leader = Leader(*meta[5:8])
        self.timeline = timeline_of(meta)

    def _new_meta(self) -> Row:
        """Insert the missing row `meta`, and recount what it counts."""
        if self._readonly:
            return (0.0, 0, 0, 0, 0, "", 0.0, 0, 0.0, 0.0, "")
        self.ask("new_meta")
        meta: Row = self.ask("meta").fetchone()
        return meta

    def read_record_count(self) -> int:
        """Return how many audit records were ever written."""
        self.read_meta()
        return self._record_count

    def task_row(self, place: int, new: NewTask) -> Row:
        """Return the row of a task's body."""
        return place, new.id, body_of(new)

    def body_row(self, task: TaskRow) -> Row:
        """Return the arguments that write the body of an updated task."""
        return body_of(task.new), task.stored_at

    # Reading

    def look_at_live(self, name: str, arguments: Sequence[Any]) -> list[TaskRow]:
        """Return the live tasks that a statement finds, for reading only.

        Those of pools that only a newer version understands are passed over.
        """
        tasks, numbered = self.tasks, self.pools.numbered
        rows = self.ask(name, arguments).fetchall()
        try:
            return [tasks.taken_in(row, numbered(row[2]).name) for row in rows]
        except NewerPool:
            rows = self._of_known_pools(rows, 1, 2)
            return [tasks.taken_in(row, numbered(row[2]).name) for row in rows]

    def _of_known_pools(self, rows: list[Row], task: int, pool: int) -> list[Row]:
        """Return the rows of pools that this version understands; note the tasks of the others."""
        known, pools = [], self.pools
        for row in rows:
            if pools.understands(row[pool]):
                known.append(row)
            else:
                self.tasks.of_newer[row[task]] = pools.newer[row[pool]]
        return known

    def listed_ids(self, identifiers: Sequence[int]) -> object:
        """Return ids of tasks as one argument, without those that no task can have."""
        return self.listed([one for one in identifiers if _may_be_an_id(one)])

    def left_alone(self) -> object:
        """Return the ids of pools that only a newer version understands, as one argument."""
        return self.listed(list(self.pools.newer))

    def known(self, identifier: int) -> Task | None:
        """Return a task, or None if it is unknown or of a pool of a newer version."""
        try:
            return self.tasks.get(identifier)
        except NewerPool:
            return None

    def all_known(self, identifiers: Sequence[int]) -> list[Task]:
        """Return those of these tasks that are known, in this order, read at once."""
        self.tasks.load(identifiers)
        return super().all_known(identifiers)

    def running_in(self, pool: str) -> int:
        """Return how many tasks of a pool run, also of a newer version."""
        try:
            return self.pools.require(pool).running
        except NewerPool:
            running: int = self.ask("pool", (pool,)).fetchone()[_RUNNING_IN]
            return running

    def leave_to_newer(self, worker: RegisteredWorker, owner: str | None) -> bool:
        """Return whether a worker holds tasks (or `owner` closures) of pools of a newer version.

        Asked when all else was taken from it, so what is there is theirs.
        """
        if not self.pools.newer:
            return False
        self.write_rows()
        nothing = self.listed([])
        left = bool(self.ask("holds_something", (worker.id,)).fetchone()[0])
        if not left and owner is not None:
            left = bool(self.ask("owns_something", (owner, nothing)).fetchone()[0])
        if left:
            self._left_to_newer.add(worker.id)
        return left

    def renew(self, worker: RegisteredWorker, lease: float, now: float) -> None:
        """Renew all leases of a worker for `lease` seconds from now."""
        super().renew(worker, lease, now)
        self._left_to_newer.discard(worker.id)

    def first_expiring(self) -> RegisteredWorker | None:
        """Return the worker whose lease ends first, of those that this version may remove."""
        if not self._left_to_newer:
            return super().first_expiring()
        workers = [one for one in self.workers.all() if one.id not in self._left_to_newer]
        return min(workers, key=by_expiry, default=None)

    def _has_room(self, name: str) -> bool:
        try:
            return super()._has_room(name)
        except NewerPool:  # those who understand it will see
            return True

    def read_live(self, name: str, arguments: Sequence[Any]) -> list[TaskRow]:
        """Return the live tasks that a statement finds."""
        found = self.look_at_live(name, arguments)
        for task in found:
            self.tasks.dirty[task.new.id] = task
        return found

    def read_ended(self, name: str, arguments: Sequence[Any]) -> list[TaskRow]:
        """Return the ended tasks that a statement finds."""
        tasks, numbered = self.tasks, self.pools.numbered
        rows = self.ask(name, arguments).fetchall()
        try:
            return [tasks.taken_in_ended(row, numbered(row[1]).name) for row in rows]
        except NewerPool:
            rows = self._of_known_pools(rows, ENDED_ID, 1)
            return [tasks.taken_in_ended(row, numbered(row[1]).name) for row in rows]

    def find_share(self, task: TaskRow) -> None:
        """Read the share of a damaged task from its group."""
        row = self.ask("share_of_group", (task.grp,)).fetchone()
        if row is not None and row[0]:
            task.new = msgspec.structs.replace(task.new, share=row[0])

    def next_group(self) -> int:
        """Return a number for a new group."""
        number: int = self._next_group
        self._next_group += 1
        return number

    # What hangs on an arrow, where a row says it already

    def _note_waiting(self, task: Task) -> None:
        pass

    def _forget_waiting(self, task: Task) -> None:
        pass

    def _own(self, owner: str) -> None:
        pass

    def _disown(self, owner: str) -> None:
        pass

    def _keep(self, pool: PoolTable, ended: Task) -> None:
        assert isinstance(pool, SqlPool)  # noqa: S101
        pool.kept += 1
        pool.dead += ended.status is Status.FAILED

    def _keep_all(self, pool: PoolTable, ended: Sequence[Task]) -> None:
        assert isinstance(pool, SqlPool)  # noqa: S101
        pool.kept += len(ended)
        pool.dead += sum(task.status is Status.FAILED for task in ended)

    def add_pool(self, spec: PoolSpec, now: float) -> SqlPool:
        """Add a pool that was just declared."""
        pool = SqlPool.declared_now(self, self.pools.next_number(), spec, now)
        self.pools.add(spec.name, pool)
        return pool

    def start_all(
        self,
        pool: PoolTable,
        tasks: Sequence[Task],
        worker: RegisteredWorker,
        token: int,
        now: float,
    ) -> None:
        """Start plain tasks that were taken out of the queue."""
        super().start_all(pool, tasks, worker, token, now)
        self.tasks.mark_dirty_alike(tasks)

    def complete_all(
        self, pool: PoolTable, tasks: Sequence[Task], worker: str | None, now: float
    ) -> None:
        """End plain tasks of one worker that were marked as completed."""
        super().complete_all(pool, tasks, worker, now)
        self.tasks.mark_dirty_alike(tasks)

    def _note_all(
        self,
        tasks: Sequence[Task],
        event: Transition,
        before: Status,
        worker: str | None,
        now: float,
    ) -> None:
        self._records.append(Notes(tasks, event, before, worker, now))

    def _note_parked(self, pool: PoolTable, task: Task, now: float) -> None:
        pool.parked.add(task, now)

    def _note_unparked(self, pool: PoolTable, task: Task) -> None:
        pool.parked.remove(task)

    def claim(self, task: Task, worker: RegisteredWorker, token: int, now: float) -> None:
        """Prefetch a queued task for a worker."""
        assert isinstance(task, TaskRow)  # noqa: S101
        super().claim(task, worker, token, now)
        task.claim = self._next_claim
        task.claim_revision = self.pools.require(task.new.pool).revision
        self._next_claim += 1

    def start_claim(self, task: Task, now: float) -> None:
        """Start a prefetched task."""
        assert isinstance(task, TaskRow)  # noqa: S101
        super().start_claim(task, now)
        task.claim = task.claim_revision = None

    def drop_claim(self, task: Task, now: float, *, rate: bool) -> None:
        """Return a prefetched task to the queue."""
        assert isinstance(task, TaskRow)  # noqa: S101
        super().drop_claim(task, now, rate=rate)
        task.claim = task.claim_revision = None

    def redrive(self, ended: Task, now: float) -> None:
        """Queue an ended task again."""
        pool = self.pools.require(ended.new.pool)
        pool.kept -= 1
        pool.dead -= ended.status is Status.FAILED
        super().redrive(ended, now)

    def update(self, old: Task, new: NewTask, now: float, detail: str, **given: Any) -> Task:  # noqa: ANN401 - as above
        """Change a waiting task."""
        task = super().update(old, new, now, detail, **given)
        assert isinstance(task, TaskRow)  # noqa: S101
        task.updated = True
        return task

    def stop_requests_of(self, worker: RegisteredWorker) -> StopRequests:
        """Return the worker's tasks that should stop, by pool and place."""
        self.write_rows()
        rows = self.ask("asked_to_stop", (worker.id,)).fetchall()
        return tuple([row[0] for row in rows]), tuple([row[0] for row in rows if row[1] > 1])

    # Looking through what is kept

    def live(self, pool: PoolTable) -> Iterator[Task]:
        """Yield the queued and running tasks of a pool."""
        assert isinstance(pool, SqlPool)  # noqa: S101
        self.write_rows()
        last, high = pool.number << SEQ_BITS, (pool.number + 1) << SEQ_BITS
        while page := self.read_live("live_of_pool", (last, high, _PAGE)):
            last = last - (last & ((1 << SEQ_BITS) - 1)) | page[-1].seq
            yield from (task for task in page if task.status in _LIVE)

    def live_page(self, pool: PoolTable, after: int, upto: int, limit: int) -> list[Task]:
        """Return the first queued and running tasks of a pool behind a place, up to another."""
        assert isinstance(pool, SqlPool)  # noqa: S101
        self.write_rows()
        arguments = (place_of(pool.number, after), place_of(pool.number, upto), limit)
        return list(self.read_live("live_of_pool", arguments))

    def waiting_of_run(self, run: int) -> list[Task]:
        """Return the queued tasks of a run that no worker has prefetched, without its callbacks."""
        return [
            task
            for task in self.of_run(run)
            if task.status is _QUEUED and not task.claimed and not task.new.is_callback
        ]

    def was_removed(self, identifier: int) -> bool:
        """Return whether retention removed a task, as far as that is remembered."""
        return self.ask("was_removed", (self.listed_ids([identifier]),)).fetchone() is not None

    def of_run(self, run: int) -> list[Task]:
        """Return the queued and running tasks of a run, its callbacks too."""
        self.write_rows()
        found = self.read_live("live_of_run", (run,))
        return [task for task in found if task.status in _LIVE]

    def has_closures(self, owner: str) -> bool:
        """Return whether a process has queued or running closures."""
        self.write_rows()
        return bool(self.ask("owns_something", (owner, self.left_alone())).fetchone()[0])

    def closures_of(self, owner: str) -> list[Task]:
        """Return the queued and running closures of a process."""
        self.write_rows()
        found = self.read_live("live_of_owner", (owner,))
        return [task for task in found if task.status in _LIVE]

    # Retention

    def prune(self, pool: PoolTable, before: float, limit: int, *, completed: bool) -> int:
        """Forget tasks that ended before a moment, oldest first; return how many."""
        assert isinstance(pool, SqlPool)  # noqa: S101
        self.write_rows()
        arguments = (pool.number, int(completed), before, max(limit, 0))
        old = self.ask("old_ended", arguments).fetchall()
        places = [(place,) for place, *_ in old]
        self.send("drop_ended", places)
        self.send("drop_task", places)
        self.send("add_removed", [(row[2],) for row in old])
        if old:
            self.ask("cut_removed", (REMOVED_KEPT,))
        aged = []
        for _, finished_at, identifier, body, _ in old:
            self.tasks.remove(identifier)
            new = new_of(body, identifier, pool.name)
            if new.idempotency_key is not None:
                key, run = key_of(new)
                aged.append((finished_at, pool.number, key, run or 0, identifier))
        self.send("age_key", aged)
        pool.kept -= len(old)
        pool.dead -= sum(status == Status.FAILED for *_, status in old)
        return len(old)

    def prune_keys(self, pool: PoolTable, before: float) -> None:
        """Forget the keys of forgotten tasks, and runs that are over, once they are old enough."""
        assert isinstance(pool, SqlPool)  # noqa: S101
        self.write_rows()
        self.ask("drop_old_keys", (pool.number, before))
        pool.keys.forget()
        self.runs.prune(pool.name, before)

    def prune_audit(self, before: float) -> None:
        """Remove audit records older than a moment."""
        self.ask("drop_audit", (before,))

    # Writing

    def write(self) -> None:
        """Write everything that changed; the transaction may then be committed."""
        self.write_rows()
        if self._records:
            self._write_audit()
        meta = (
            self.latest,
            self.workers_joined,
            self._next_group,
            self._next_claim,
            self._record_count,
            self.leader.owner,
            self.leader.until,
            self.leader.generation,
            self.timeline.behind,
            self.timeline.since,
            clock_text(self.timeline),
        )
        # A verb that found nothing to do need not store when that was: it then writes nothing.
        if (
            _lasting(meta) != _lasting(self._meta)
            or self.connection.total_changes != self._changes
            or _gained(meta[8], self._meta[8])
        ):
            self.ask("save_meta", meta)
            self._meta = meta
            self.written = True

    def committed(self) -> None:
        """Note that the transaction was committed."""
        self._changes = self.connection.total_changes
        if self.on_commit is not None:
            self.on_commit(self)
        self.written = False

    def trimmed(self) -> int:
        """Drop what the next transaction hardly needs; return how many rows stay in memory."""
        self.tasks.let_go()
        self._left_to_newer.clear()
        self.workers.let_go()
        self.runs.let_go()
        return len(self.tasks) + len(self.runs) + self.pools.trimmed()

    def _write_audit(self) -> None:
        entry, at, count = encoded(self._records)
        self._record_count += count
        self.ask("add_audit", (self._record_count, count, at, entry))
        self._records = []

    def write_rows(self) -> None:
        """Write every changed row, so that queries see it."""
        if self._readonly:
            return
        write_tasks(self)
        for pool in self.pools.dirty.values():
            pool.write()
        self.budgets.write()
        self.workers.write()
        self.runs.write()


def _may_be_an_id(given: object) -> bool:
    """Return whether a column of ids can hold what a caller arguments for."""
    return isinstance(given, int) and 0 <= given <= bounds.MAX_NUMBER
