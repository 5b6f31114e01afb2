"""The tables in rows: one unit of work over one connection, inside one transaction.

Whatever a verb asks for is read when it asks, once, and is the same object from then on. What the
verbs changed is found by comparing, and written before the transaction ends. A question that only
the file can answer has everything written first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from millpond.core.audit import AuditNote, Record
from millpond.core.lease import RegisteredWorker, tokens
from millpond.core.lifecycle import Status, Transition
from millpond.core.order.heap import LazyHeap
from millpond.core.run import NewRun, Run
from millpond.core.spec import PoolSpec
from millpond.core.task import UNREADABLE, key_of
from millpond.errors import NewerPool
from millpond.store.sql.audit import Notes, encoded
from millpond.store.sql.budget import SqlBudgets
from millpond.store.sql.codec import (
    CHANGING,
    ENDED_ID,
    SEQ_BITS,
    SEQS,
    TaskRow,
    body_of,
    ended_row,
    ended_task,
    live_row,
    live_state,
    live_task,
    new_of,
    only_claimed,
    only_ended,
    only_ran,
    only_started,
    place_of,
    untouched_row,
    untouched_state,
    waits_untouched,
)
from millpond.store.sql.database import miscounted
from millpond.store.sql.pool import SqlPool, readable
from millpond.store.sql.store_time import clock_text, timeline_of
from millpond.store.verbs.endings import Endings
from millpond.store.verbs.tables import Leader, PoolTable, Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millpond.core.task import NewTask, Task
    from millpond.store.sql.codec import Row
    from millpond.store.sql.database import Connection, Cursor, Dialect
    from millpond.store.verbs.tables import StopRequests

    _Known = tuple[frozenset[str] | None, dict[str, str]]
    """The functions of a worker, and their signatures."""

_QUEUED, _RUNNING, _COMPLETED = Status.QUEUED, Status.RUNNING, Status.COMPLETED
_LIVE = (_QUEUED, _RUNNING)

_encode_run = msgspec.msgpack.Encoder().encode
_decode_run = msgspec.msgpack.Decoder(Run).decode

_OF_NO_POOL = frozenset(
    {
        "latest",
        "timeline",
        "workers_joined",
        "_next_group",
        "_next_claim",
        "_record_count",
        "leader",
    }
)

_PAGE = 1000

_FINDS_EACH = frozenset(
    {"drop_task", "change_live", "tell_result", "drop_ended", "drop_key", "drop_unit", "drop_group"}
    | {"change_group", "drop_seat"}
)
"""What changes or removes one row for each that it is given: those were read before."""

_RUNNING_IN = 13
"""Which column of a pool says how many of its tasks run."""

_OF_TIME = (0, 8, 9)
"""Columns of `meta` that change with time alone: nobody writes because of them."""


def _lasting(meta: Row) -> Row:
    """Return what of `meta` must be written when it changes."""
    return tuple(value for column, value in enumerate(meta) if column not in _OF_TIME)


def _gained(behind: float, before: float) -> bool:
    """Return whether store time is by now so much nearer to the clock that others must know."""
    return abs(behind - before) > _GAINED or (behind == 0.0) != (before == 0.0)


_GAINED = 0.1
"""Seconds."""

REMOVED_KEPT = 20_000
"""How many ids of tasks that retention removed are told from ids that never were."""


class SqlTasks(dict[int, TaskRow]):
    """The tasks that were mentioned, by id."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self._absent: set[int] = set()
        self.handed: dict[int, TaskRow] = {}
        """Those that a verb has in its hands, and may have changed."""

        self.of_newer: dict[int, NewerPool] = {}
        """Those of pools that only a newer version understands: who asks for one is told so."""

        self.changed_alike: list[Sequence[TaskRow]] = []
        """Those that were started or completed together, and in no verb's hands otherwise."""
        self._ended_alike: list[Sequence[TaskRow]] = []

    def get(self, identifier: int, default: TaskRow | None = None) -> TaskRow | None:  # type: ignore[override]
        """Return a task, or None."""
        found = super().get(identifier)
        if found is None:
            if identifier not in self._absent:
                self.read((identifier,))
            found = super().get(identifier)
            if found is None:
                if identifier in self.of_newer:
                    raise self.of_newer[identifier]
                return default
        self.handed[identifier] = found
        return found

    def __getitem__(self, identifier: int) -> TaskRow:
        found = self.get(identifier)
        if found is None:
            raise KeyError(identifier)
        return found

    def __contains__(self, identifier: object) -> bool:
        return self.get(identifier) is not None  # type: ignore[arg-type]

    def __setitem__(self, identifier: int, task: TaskRow) -> None:
        self._absent.discard(identifier)
        self.handed[identifier] = task
        super().__setitem__(identifier, task)

    def read(self, identifiers: Iterable[int]) -> None:
        """Read several tasks at once; what is not there is remembered as not there."""
        here, absent = super().keys(), self._absent
        wanted = [i for i in identifiers if i not in here and i not in absent]
        if not wanted:
            return
        asked = (self._tables.listed(wanted),)
        missing = dict.fromkeys(wanted)
        for task in self._tables.look_at_live("live_tasks", asked):
            missing.pop(task.new.id, None)
        if missing:
            self._tables.read_ended("ended_tasks", asked)
        self._absent.update(i for i in missing if not super(SqlTasks, self).__contains__(i))

    def expect_new(self, identifiers: Sequence[int]) -> None:
        """Find out at once which of these ids are known: hardly ever one is."""
        asked = (self._tables.listed(identifiers),)
        known = {row[0] for row in self._tables.ask("known_ids", asked)}
        here = super().keys()
        self._absent.update(i for i in identifiers if i not in known and i not in here)

    def taken_in(self, row: Row, pool: str) -> TaskRow:
        """Return the task of a live row, the same object each time."""
        found = super().get(row[1])
        if found is None:
            found = live_task(row, pool, self._tables.bodies)
            if found.new.call.function == UNREADABLE:
                self._tables.find_share(found)
            super().__setitem__(row[1], found)
        return found

    def taken_in_ended(self, row: Row, pool: str) -> TaskRow:
        """Return the task of an ended row, the same object each time."""
        identifier = row[ENDED_ID]
        found = super().get(identifier)
        if found is None:
            found = ended_task(row, pool)
            super().__setitem__(identifier, found)
        return found

    def let_go(self) -> None:
        """Know the tasks that have ended no more; whoever asks for one reads it."""
        for identifier, task in self.handed.items():
            if not task.stored_live:
                super().__delitem__(identifier)
        for tasks in self._ended_alike:
            for task in tasks:
                super().pop(task.new.id, None)
        self.handed, self._ended_alike = {}, []
        self._absent.clear()
        self.of_newer.clear()

    def sort_out_alike(self, change: Changes) -> None:
        """Say what became of tasks that changed together; one that changed twice is handed over."""
        batches, self.changed_alike = self.changed_alike, []
        several = len(batches) > 1 and _share_some(batches)
        for tasks in batches:
            named = {task.new.id: task for task in tasks}
            if several or not self.handed.keys().isdisjoint(named):
                self.handed.update(named)
            elif tasks[0].status is _RUNNING:
                change.start_all(tasks)
            else:
                change.complete_all(tasks)
                self._ended_alike.append(tasks)

    def forget(self, identifier: int) -> None:
        """Know a task no more: its rows are gone."""
        super().pop(identifier, None)
        self.handed.pop(identifier, None)
        self._absent.add(identifier)


def _share_some(batches: list[Sequence[TaskRow]]) -> bool:
    """Return whether a task stands in more than one of them."""
    named = {task.new.id for tasks in batches for task in tasks}
    return len(named) < sum(map(len, batches))


class SqlPools(dict[str, PoolTable]):
    """The pools that were mentioned, by name."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self.by_id: dict[int, SqlPool] = {}
        self.handed: dict[int, SqlPool] = {}
        """Those that a verb has in its hands, and may have changed."""
        self._absent: set[str] = set()
        self.newer: dict[int, NewerPool] = {}
        """Pools that only a newer version understands, as far as they were met."""
        self._newer: dict[str, NewerPool] = {}
        """The same by name: who asks for one is told so."""
        self._all_read = False
        self._kept: dict[int, int] = {}
        """How many rows of each pool are in memory."""
        self._kept_of_all = 0
        self._last = 0
        """The highest number that was given to a pool, as far as that was asked for."""

    def get(self, name: str, default: PoolTable | None = None) -> PoolTable | None:  # type: ignore[override]
        """Return a pool, or None."""
        found: SqlPool | None = super().get(name)  # type: ignore[assignment]
        if found is None:
            if name in self._newer:
                raise self._newer[name]
            if self._all_read or name in self._absent:
                return default
            row = self._tables.ask("pool", (name,)).fetchone()
            if row is None:
                self._absent.add(name)
                return default
            found = self._take_in(row)
        self.handed[found.number] = found
        return found

    def __getitem__(self, name: str) -> PoolTable:
        if name in self:
            pool: SqlPool = super().__getitem__(name)  # type: ignore[assignment]
            self.handed[pool.number] = pool
            return pool
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def numbered(self, identifier: int) -> SqlPool:
        """Return the pool of a number."""
        found = self.by_id.get(identifier)
        if found is None:
            if identifier in self.newer:
                raise self.newer[identifier]
            row = self._tables.ask("pool_by_id", (identifier,)).fetchone()
            found = self._take_in(row)
        return found

    def understands(self, identifier: int) -> bool:
        """Return whether the pool of a number is one that this version understands."""
        try:
            self.numbered(identifier)
        except NewerPool:
            return False
        return True

    def __setitem__(self, name: str, made: PoolTable) -> None:
        """Keep a pool that was just declared."""
        self._last = max(self._tables.ask("last_pool").fetchone()[0], self._last) + 1
        number = self._last
        pool = SqlPool.declared_now(self._tables, number, made)
        self.by_id[number] = self.handed[number] = pool
        super().__setitem__(name, pool)

    def items(self) -> Any:  # noqa: ANN401 - as dict's
        """Return every pool."""
        if not self._all_read:
            for row in list(self._tables.ask("pools")):
                if row[0] not in self.by_id:
                    self._understood(row)
            self._all_read = True
        self.handed.update(self.by_id)
        return sorted(super().items(), key=_by_number)

    def values(self) -> Any:  # noqa: ANN401 - as dict's
        """Return every pool."""
        return [pool for _, pool in self.items()]

    def with_queued(self) -> list[SqlPool]:
        """Return the pools in which something is queued; the others are not read."""
        found = []
        for row in self._tables.ask("queued_pools").fetchall():
            known = self.by_id.get(row[0]) or self._understood(row)
            if known is not None:
                found.append(known)
        return found

    def _understood(self, row: Row) -> SqlPool | None:
        """Take in a pool; None if only a newer version understands it."""
        try:
            return self._take_in(row)
        except NewerPool:
            return None

    def trimmed(self) -> int:
        """Let go of what the next transaction will hardly ask for; return how much is left."""
        kept = self._kept
        for number, pool in self.handed.items():
            rows = pool.trimmed()
            self._kept_of_all += rows - kept.get(number, 0)
            kept[number] = rows
        self.handed = {}
        return self._kept_of_all

    def _take_in(self, row: Row) -> SqlPool:
        try:
            pool = SqlPool.read(self._tables, row)
            self._tables.budgets.must_know(pool.spec)
        except NewerPool as error:
            self.newer[row[0]] = self._newer[row[1]] = error
            raise
        self.by_id[pool.number] = pool
        super().__setitem__(pool.name, pool)
        return pool


def _by_number(item: tuple[str, PoolTable]) -> int:
    pool = item[1]
    assert isinstance(pool, SqlPool)  # noqa: S101 - every pool of these tables is
    return pool.number


class SqlWorkers(dict[str, RegisteredWorker]):
    """The workers that were mentioned."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self._stored: dict[str, Row | None] = {}
        self.handed: set[str] = set()
        """Those that a verb has in its hands, and may have changed."""
        self._all_read = False

    def get(self, name: str, default: RegisteredWorker | None = None) -> RegisteredWorker | None:  # type: ignore[override]
        """Return a worker, or None."""
        self.handed.add(name)
        found = super().get(name)
        if found is not None or self._all_read or name in self._stored:
            return found or default
        row = self._tables.ask("worker", (name,)).fetchone()
        self._stored[name] = row
        return default if row is None else self._take_in(row)

    def __getitem__(self, name: str) -> RegisteredWorker:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None  # type: ignore[arg-type]

    def __setitem__(self, name: str, worker: RegisteredWorker) -> None:
        self._stored.setdefault(name, None)
        self.handed.add(name)
        worker.holding = SqlHolding(self._tables, name)
        worker.ahead = SqlAhead(self._tables, name, 0)
        super().__setitem__(name, worker)

    def __delitem__(self, name: str) -> None:
        self.handed.add(name)
        super().__delitem__(name)

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return super().__iter__()

    def values(self) -> Any:  # noqa: ANN401 - as dict's
        """Return every worker, in order of joining."""
        self._read_all()
        self.handed.update(super().keys())
        return sorted(super().values(), key=lambda worker: worker.number)

    def forget(self) -> None:
        """Let go of what was read: it is written in ways that nobody here is told of."""
        super().clear()
        self._stored, self._all_read = {}, False

    def _read_all(self) -> None:
        if not self._all_read:
            for row in list(self._tables.ask("workers")):
                if row[0] not in self._stored:
                    self._stored[row[0]] = row
                    self._take_in(row)
            self._all_read = True

    def _take_in(self, row: Row) -> RegisteredWorker:
        name, owner, expires_at, lease, number, functions, unknown, ahead = row
        anything: _Known = (None, {})
        known, signatures = readable(_functions, functions, anything, f"worker {name}")
        worker = RegisteredWorker(
            id=name,
            owner=owner,
            expires_at=expires_at,
            lease=lease,
            number=number,
            functions=known,
            signatures=signatures,
            unknown=readable(_names, unknown, set(), f"worker {name}"),
            holding=SqlHolding(self._tables, name),
            ahead=SqlAhead(self._tables, name, ahead),
        )
        super().__setitem__(name, worker)
        return worker

    def write(self) -> None:
        """Send what has changed to the file."""
        ask = self._tables.ask
        for name in self.handed:
            worker, stored = super().get(name), self._stored.get(name)
            row = None if worker is None else _worker_row(worker)
            if row == stored:
                continue
            if row is None:
                ask("drop_worker", (name,))
            else:
                ask("save_worker", row)
            self._stored[name] = row


def _worker_row(worker: RegisteredWorker) -> Row:
    return (
        worker.id,
        worker.owner,
        worker.expires_at,
        worker.lease,
        worker.number,
        _functions_text(worker),
        _text(sorted(worker.unknown)),
        worker.ahead.count if isinstance(worker.ahead, SqlAhead) else len(worker.ahead),
    )


def _functions_text(worker: RegisteredWorker) -> str | None:
    """Return what a worker knows: names, or a signature by name; `jsonb ? name` reads both."""
    if worker.functions is None:
        return None
    names = sorted(worker.functions)
    if not worker.signatures:
        return _text(names)
    known = {name: worker.signatures.get(name, "") for name in names}
    return msgspec.json.encode(known).decode()


_known = msgspec.json.Decoder(list[str] | dict[str, str]).decode


def _functions(stored: str | None) -> _Known:
    if stored is None:
        return None, {}
    known = _known(stored)
    signatures = known if isinstance(known, dict) else {}
    return frozenset(known), {name: one for name, one in signatures.items() if one}


_names = msgspec.json.Decoder(set[str]).decode


def _text(names: list[str]) -> str:
    return msgspec.json.encode(names).decode()


class SqlHolding(dict[int, str]):
    """What a worker runs: it is written on each task, so here is nothing to note."""

    def __init__(self, tables: SqlTables, worker: str) -> None:
        super().__init__()
        self._tables = tables
        self._worker = worker

    def __setitem__(self, identifier: int, pool: str) -> None:
        pass

    def pop(self, identifier: int, default: object = None) -> object:  # type: ignore[override]  # noqa: ARG002
        """Take nothing out."""
        return None

    def __iter__(self) -> Iterator[int]:
        self._tables.write_rows()
        held = list(self._tables.read_live("held_by", (self._worker,)))
        return iter([task.new.id for task in held])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return len(self) > 0


class SqlAhead(dict[int, PoolSpec]):
    """What a worker holds ahead: read at once when anybody looks, first claimed first."""

    def __init__(self, tables: SqlTables, worker: str, count: int) -> None:
        super().__init__()
        self._tables = tables
        self._worker = worker
        self._count = count
        self._all_read = not count
        self._of_newer = 0
        """How many are of pools that are left alone: they are counted, and not shown."""

    @property
    def count(self) -> int:
        """How many there are, also of pools that are left alone."""
        return len(self) + self._of_newer

    def _read(self) -> None:
        if self._all_read:
            return
        self._all_read = True
        tables = self._tables
        for identifier, number, revision in list(tables.ask("held_ahead_by", (self._worker,))):
            if tables.pools.understands(number):
                spec = tables.pools.numbered(number).spec_at(revision)
                super().__setitem__(identifier, spec)
            else:
                self._of_newer += 1

    def __len__(self) -> int:
        return super().__len__() if self._all_read else self._count

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[int]:
        self._read()
        return super().__iter__()

    def items(self) -> Any:  # noqa: ANN401 - as dict's
        """Return the ids and the settings under which they were claimed."""
        self._read()
        return super().items()

    def values(self) -> Any:  # noqa: ANN401 - as dict's
        """Return the settings under which they were claimed."""
        self._read()
        return super().values()

    def __getitem__(self, identifier: int) -> PoolSpec:
        self._read()
        return super().__getitem__(identifier)

    def __setitem__(self, identifier: int, spec: PoolSpec) -> None:
        self._read()
        super().__setitem__(identifier, spec)

    def __delitem__(self, identifier: int) -> None:
        self._read()
        super().__delitem__(identifier)


class SqlRuns(dict[int, Run]):
    """The runs that were mentioned."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self._stored: dict[int, bytes | None] = {}
        self.handed: set[int] = set()
        """Those that a verb has in its hands, and may have changed."""

    def get(self, identifier: int, default: Run | None = None) -> Run | None:  # type: ignore[override]
        """Return a run, or None."""
        self.handed.add(identifier)
        found = super().get(identifier)
        if found is not None or identifier in self._stored:
            return found or default
        row = self._tables.ask("run", (identifier,)).fetchone()
        return default if row is None else self.take_in(identifier, row[0])

    def __setitem__(self, identifier: int, run: Run) -> None:
        self.handed.add(identifier)
        super().__setitem__(identifier, run)

    def __getitem__(self, identifier: int) -> Run:
        found = self.get(identifier)
        if found is None:
            raise KeyError(identifier)
        return found

    def __contains__(self, identifier: object) -> bool:
        return identifier is not None and self.get(identifier) is not None  # type: ignore[arg-type]

    def take_in(self, identifier: int, state: bytes) -> Run:
        """Return the run of a row, the same object each time."""
        self.handed.add(identifier)
        found = super().get(identifier)
        if found is None:
            made = self._made_anew
            found = readable(_decode_run, state, None, f"run {identifier}") or made(identifier)
            self._stored[identifier] = state
            super().__setitem__(identifier, found)
        return found

    def _made_anew(self, identifier: int) -> Run:
        """Return a run of which only its row is left: what it has counted is lost."""
        pool, name, finished_at, live = self._tables.ask("rest_of_run", (identifier,)).fetchone()
        new = NewRun(id=identifier, pool=pool, name=name)
        return Run(new=new, opened_at=0.0, live=live, total=live, finished_at=finished_at)

    def forget_all(self) -> None:
        """Read everything anew that is asked for from now on."""
        self.clear()
        self._stored.clear()
        self.handed.clear()

    def write(self) -> None:
        """Send what has changed to the file."""
        rows = []
        for identifier in self.handed:
            run = super().get(identifier)
            if run is None:
                continue
            state = _encode_run(run)
            if state != self._stored.get(identifier):
                self._stored[identifier] = state
                rows.append((identifier, run.new.pool, run.new.name, run.finished_at, state))
        if rows:
            self._tables.send("save_run", rows)


class SqlOpenRuns(dict[int, Run]):
    """The runs that are not over: a view of the rows."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables

    def __setitem__(self, identifier: int, run: Run) -> None:
        pass

    def pop(self, identifier: int, default: object = None) -> object:  # type: ignore[override]  # noqa: ARG002
        """Take nothing out: that it is over is written on the run."""
        return None

    def values(self) -> Any:  # noqa: ANN401 - as dict's
        """Return the runs that are not over."""
        tables = self._tables
        tables.write_rows()
        rows = list(tables.ask("open_runs"))
        return [tables.runs.take_in(identifier, state) for identifier, state in rows]


class SqlRunNames(dict[tuple[str, str], int]):
    """Runs by name: a view of the rows."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables

    def __setitem__(self, named: tuple[str, str], identifier: int) -> None:
        pass

    def get(self, named: tuple[str, str], default: Any = None) -> Any:  # noqa: ANN401 - as dict's
        """Return the run of a name, or the default."""
        self._tables.write_rows()
        row = self._tables.ask("run_named", named).fetchone()
        return default if row is None else row[0]


class SqlRunQueued(dict[int, dict[int, None]]):
    """The queued tasks of each run: a view of the rows."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables

    def setdefault(self, run: int, default: Any = None) -> Any:  # noqa: ANN401, ARG002 - as dict's
        """Return a place to note what is written on the task anyway."""
        return {}

    def get(self, run: int, default: Any = None) -> Any:  # noqa: ANN401, ARG002 - as dict's
        """Return the queued tasks of a run that nobody holds."""
        return {
            task.new.id: None
            for task in self._tables.of_run(run)
            if task.status is _QUEUED and not task.claimed and not task.new.is_callback
        }


class SqlExpiring(LazyHeap[int]):
    """Tasks by a moment written on each of them."""

    def __init__(self, tables: SqlTables, statement: str, those_until: str) -> None:
        super().__init__()
        self._tables = tables
        self._statement = statement
        self._those_until = those_until

    def set(self, item: int, key: tuple[float, ...]) -> None:
        """Note nothing."""

    def discard(self, item: int) -> None:
        """Note nothing."""

    def _first(self) -> Row | None:
        tables = self._tables
        tables.write_rows()
        while True:
            row: Row | None = tables.ask(self._statement, (tables.left_alone(),)).fetchone()
            if row is None or tables.pools.understands(row[2]):
                return row

    def lowest(self) -> tuple[float, ...] | None:
        """Return the first moment."""
        return self._first()

    def peek(self) -> int | None:
        """Return whose moment it is."""
        row = self._first()
        return None if row is None else row[1]

    def until(self, key: float, most: int) -> Iterator[int]:
        """Yield those whose moment has come, as it stands now; they are read at once."""
        tables = self._tables
        tables.write_rows()
        while True:
            rows = tables.ask(self._those_until, (key, tables.left_alone(), most)).fetchall()
            if all(tables.pools.understands(pool) for pool in {row[1] for row in rows}):
                break
        found = [row[0] for row in rows]
        tables.tasks.read(found)
        return iter(found)


class SqlExpiringWorkers(LazyHeap[str]):
    """Workers by when their leases end: there are few."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self.left: set[str] = set()
        """Those of whom only a newer version understands what they hold."""

    def set(self, item: str, key: tuple[float, ...]) -> None:
        """Note nothing: it is written on the worker."""
        del key
        self.left.discard(item)

    def discard(self, item: str) -> None:
        """Note nothing."""

    def _first(self) -> RegisteredWorker | None:
        workers = self._tables.workers.values()
        if self.left:
            workers = [one for one in workers if one.id not in self.left]
        return min(workers, key=lambda one: (one.expires_at, one.number), default=None)

    def lowest(self) -> tuple[float, ...] | None:
        """Return when the first of them expires."""
        first = self._first()
        return None if first is None else (first.expires_at, first.number)

    def peek(self) -> str | None:
        """Return which expires first."""
        first = self._first()
        return None if first is None else first.id


class SqlRemoved(dict[int, None]):
    """The ids of tasks that retention removed."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables

    def __contains__(self, identifier: object) -> bool:
        asked = (self._tables.listed([cast("int", identifier)]),)
        return self._tables.ask("was_removed", asked).fetchone() is not None


class SqlTables(Tables):
    """One unit of work: what the verbs of one transaction see, and what they leave behind."""

    make_task: ClassVar[type[Task]] = TaskRow
    pools: SqlPools
    budgets: SqlBudgets
    tasks: SqlTasks  # type: ignore[assignment]
    workers: SqlWorkers
    runs: SqlRuns
    expiring_workers: SqlExpiringWorkers

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        entropy: int,
        bodies: dict[int, NewTask] | None = None,
        *,
        meta: Row | None = None,
        readonly: bool = False,
    ) -> None:
        self.connection = connection
        self.dialect = dialect
        self._sql = dialect.sql
        self.listed = dialect.listed
        """Makes one argument of many ids or names."""
        self._readonly = readonly
        self.version = 0
        """What the connection said of the writes of others when this was begun."""
        self.on_commit: Callable[[SqlTables], None] | None = None
        self.bodies: dict[int, NewTask] = {} if bodies is None else bodies
        """Bodies of tasks that this process leased: they never change, so they need no reading."""
        self.written = False
        """Whether it has sent something to the file since it was last committed."""
        if not readonly:
            self._take_in_meta(meta or self._stored_meta())
        self.pools = SqlPools(self)
        self.budgets = SqlBudgets(self)
        self.tasks = SqlTasks(self)
        self.removed = SqlRemoved(self)
        self.workers = SqlWorkers(self)
        self.expiring_workers = SqlExpiringWorkers(self)
        self.expiring_tasks = SqlExpiring(self, "first_expiring", "expiring_until")
        self.parked_since = SqlExpiring(self, "first_parked_since", "parked_until")
        self.owned = {}
        self.runs = SqlRuns(self)
        self.open_runs = SqlOpenRuns(self)
        self.runs_by_name = SqlRunNames(self)
        self.run_queued = SqlRunQueued(self)
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
        self._asked = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever that is
        """Read what belongs to no pool when it is first asked for: who only reads seldom does."""
        if name not in _OF_NO_POOL or "_meta" in self.__dict__:
            raise AttributeError(name)
        self.read_meta()
        return self.__dict__[name]

    def read_meta(self) -> None:
        """Read what belongs to no pool: the latest moment, the next numbers, the leader."""
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
        """Make the row anew of which there must be one; what is counted there is counted again."""
        if self._readonly:
            return (0.0, 0, 0, 0, 0, "", 0.0, 0, 0.0, 0.0, "")
        self.ask("new_meta")
        meta: Row = self.ask("meta").fetchone()
        return meta

    @property
    def record_count(self) -> int:
        """How many records of the audit there ever were."""
        count: int = self._record_count
        return count

    # Statements, by name

    def ask(self, name: str, asked: Sequence[Any] = ()) -> Cursor:
        """Execute a statement."""
        return self.connection.execute(self._sql[name], asked)

    def send(self, name: str, rows: Sequence[Row]) -> None:
        """Execute a statement for each row; one that must find each row notices if it did not."""
        done = self.connection.executemany(self._sql[name], rows)
        if name in _FINDS_EACH:
            self._must_touch(done, name, len(rows))

    def change(self, name: str, asked: Sequence[Any], count: int) -> None:
        """Execute a statement that must touch so many rows."""
        self._must_touch(self.ask(name, asked), name, count)

    def _must_touch(self, done: Any, name: str, count: int) -> None:  # noqa: ANN401 - a cursor
        # A server's cursor does not know yet; mending, which uses it so, recounts by itself.
        touched = getattr(done, "rowcount", count)
        if touched != count:
            raise miscounted(name, count, touched)

    def task_row(self, place: int, new: NewTask) -> Row:
        """Return the row of a task's body."""
        return place, new.id, body_of(new)

    # Reading

    def look_at_live(self, name: str, asked: Sequence[Any]) -> list[TaskRow]:
        """Return the live tasks that a statement finds, to be looked at and not changed.

        Those of pools that only a newer version understands are passed over.
        """
        tasks, numbered = self.tasks, self.pools.numbered
        rows = self.ask(name, asked).fetchall()
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

    def left_alone(self) -> object:
        """Return the pools that only a newer version understands, as one argument."""
        return self.listed(list(self.pools.newer))

    def known(self, identifier: int) -> Task | None:
        """Return a task, or None if it is unknown, or of a pool that is to be left alone."""
        try:
            return self.tasks.get(identifier)
        except NewerPool:
            return None

    def running_in(self, pool: str) -> int:
        """Return how many tasks of a pool run, also of one that is to be left alone."""
        try:
            return self.pools[pool].running
        except NewerPool:
            running: int = self.ask("pool", (pool,)).fetchone()[_RUNNING_IN]
            return running

    def leave_to_newer(self, worker: RegisteredWorker, owner: str | None) -> bool:
        """Return whether a worker holds tasks (or `owner` closures) of pools that are left alone.

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
            self.expiring_workers.left.add(worker.id)
        return left

    def _has_room(self, name: str) -> bool:
        try:
            return super()._has_room(name)
        except NewerPool:  # those who understand it will see
            return True

    def read_live(self, name: str, asked: Sequence[Any]) -> list[TaskRow]:
        """Return the live tasks that a statement finds."""
        found = self.look_at_live(name, asked)
        for task in found:
            self.tasks.handed[task.new.id] = task
        return found

    def read_ended(self, name: str, asked: Sequence[Any]) -> list[TaskRow]:
        """Return the ended tasks that a statement finds."""
        tasks, numbered = self.tasks, self.pools.numbered
        rows = self.ask(name, asked).fetchall()
        try:
            return [tasks.taken_in_ended(row, numbered(row[1]).name) for row in rows]
        except NewerPool:
            rows = self._of_known_pools(rows, ENDED_ID, 1)
            return [tasks.taken_in_ended(row, numbered(row[1]).name) for row in rows]

    def find_share(self, task: TaskRow) -> None:
        """Read the share of a task that cannot tell it from the group it is queued in."""
        row = self.ask("share_of_group", (task.grp,)).fetchone()
        if row is not None and row[0]:
            task.new = msgspec.structs.replace(task.new, share=row[0])

    def next_group(self) -> int:
        """Return a number for a new group."""
        number: int = self._next_group
        self._next_group += 1
        return number

    def expect(self, new: Sequence[NewTask]) -> None:
        """Read at once what the submit of these tasks will ask for."""
        if not new:
            return
        self.tasks.expect_new([one.id for one in new])
        by_pool: dict[str, list[NewTask]] = {}
        for one in new:
            by_pool.setdefault(one.pool, []).append(one)
        for name, of_pool in by_pool.items():
            pool = self.pools.get(name)
            if not isinstance(pool, SqlPool):
                continue
            keys = [one.idempotency_key for one in of_pool if one.idempotency_key is not None]
            if keys:
                pool.known_keys.read(keys)
            if pool.sql_backlog.grouped and not pool.spec.strict:
                pool.sql_backlog.read_units((one.key, one.share) for one in of_pool)

    def expect_ends(self, identifiers: Iterable[int]) -> None:
        """Read at once what the settlements of these tasks will ask for."""
        tasks = self.tasks
        tasks.read(identifiers)
        grouped = {pool.name for pool in self.pools.by_id.values() if pool.sql_backlog.grouped}
        if not grouped:
            return
        ending: dict[str, list[Task]] = {}
        for identifier in identifiers:
            task = dict.get(tasks, identifier)
            if task is not None and task.stored_live and task.new.pool in grouped:
                ending.setdefault(task.new.pool, []).append(task)
        for name, ends in ending.items():
            pool = self.pools[name]
            assert isinstance(pool, SqlPool)  # noqa: S101
            pool.sql_backlog.expect_ends(ends)

    # What hangs on an arrow, where a row says it already

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

    def _hold_all(self, worker: RegisteredWorker, tasks: Sequence[Task]) -> None:
        pass

    def _let_go_all(self, worker: RegisteredWorker, tasks: Sequence[Task]) -> None:
        pass

    def peek(self, identifier: int) -> Task | None:
        """Return a task to be looked at, if it was read."""
        return dict.get(self.tasks, identifier)

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
        self.tasks.changed_alike.append(tasks)  # type: ignore[arg-type]

    def complete_all(
        self, pool: PoolTable, tasks: Sequence[Task], worker: str | None, now: float
    ) -> None:
        """End plain tasks of one worker that were marked as completed."""
        super().complete_all(pool, tasks, worker, now)
        self.tasks.changed_alike.append(tasks)  # type: ignore[arg-type]

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
        assert isinstance(pool, SqlPool)  # noqa: S101
        assert isinstance(task, TaskRow)  # noqa: S101
        pool.parked_count += 1
        task.parked_at = now

    def _note_unparked(self, pool: PoolTable, task: Task) -> None:
        assert isinstance(pool, SqlPool)  # noqa: S101
        assert isinstance(task, TaskRow)  # noqa: S101
        pool.parked_count -= 1
        task.parked_at = None

    def claim(self, task: Task, worker: RegisteredWorker, token: int, now: float) -> None:
        """Let a worker hold a queued task ahead."""
        assert isinstance(task, TaskRow)  # noqa: S101
        super().claim(task, worker, token, now)
        task.claim = self._next_claim
        task.claim_revision = self.pools[task.new.pool].revision
        self._next_claim += 1

    def start_claim(self, task: Task, now: float) -> None:
        """Take the arrow from queued to running for a claim."""
        assert isinstance(task, TaskRow)  # noqa: S101
        super().start_claim(task, now)
        task.claim = task.claim_revision = None

    def drop_claim(self, task: Task, now: float, *, rate: bool) -> None:
        """Put a claim back into the queue."""
        assert isinstance(task, TaskRow)  # noqa: S101
        super().drop_claim(task, now, rate=rate)
        task.claim = task.claim_revision = None

    def redrive(self, ended: Task, now: float) -> None:
        """Queue an ended task again."""
        pool = self.pools[ended.new.pool]
        assert isinstance(pool, SqlPool)  # noqa: S101
        pool.kept -= 1
        pool.dead -= ended.status is Status.FAILED
        super().redrive(ended, now)

    def stop_requests_of(self, worker: RegisteredWorker) -> StopRequests:
        """Return what a worker holds of which the end was asked for, by pool and place."""
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
        asked = (place_of(pool.number, after), place_of(pool.number, upto), limit)
        return list(self.read_live("live_of_pool", asked))

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
        asked = (pool.number, int(completed), before, max(limit, 0))
        old = self.ask("old_ended", asked).fetchall()
        places = [(place,) for place, *_ in old]
        self.send("drop_ended", places)
        self.send("drop_task", places)
        self.send("add_removed", [(row[2],) for row in old])
        if old:
            self.ask("cut_removed", (REMOVED_KEPT,))
        aged = []
        for _, finished_at, identifier, body, _ in old:
            self.tasks.forget(identifier)
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
        self.ask("drop_old_runs", (pool.name, before))
        pool.known_keys.forget_all()
        self.runs.forget_all()

    def prune_audit(self, before: float) -> None:
        """Forget records that are older than a moment."""
        self.ask("drop_audit", (before,))

    # Writing

    def write(self) -> None:
        """Send everything that changed to the file; the transaction may then be committed."""
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
        # A verb that found nothing to do need not tell when that was: it then writes nothing.
        if (
            _lasting(meta) != _lasting(self._meta)
            or self.connection.total_changes != self._changes
            or _gained(meta[8], self._meta[8])
        ):
            self.ask("save_meta", meta)
            self._meta = meta
            self.written = True

    def committed(self) -> None:
        """Hear that everything is stored for good."""
        self._changes = self.connection.total_changes
        if self.on_commit is not None:
            self.on_commit(self)
        self.written = False

    def trimmed(self) -> int:
        """Let go of what the next transaction will hardly ask for; return how much is left."""
        self.tasks.let_go()
        self.expiring_workers.left.clear()
        self.workers.handed = set()
        self.runs.handed = set()
        return len(self.tasks) + len(self.runs) + self.pools.trimmed()

    def _write_audit(self) -> None:
        told, at, count = encoded(self._records)
        self._record_count += count
        self.ask("add_audit", (self._record_count, count, at, told))
        self._records = []

    def write_rows(self) -> None:
        """Send every row that changed to the file, so that a question can be asked of it."""
        if self._readonly:
            return
        self._write_tasks()
        for pool in self.pools.handed.values():
            pool.write()
        self.budgets.write()
        self.workers.write()
        self.runs.write()

    def _write_tasks(self) -> None:
        """Sort out what became of each task, and send it, one statement for each kind."""
        change = Changes()
        if self.tasks.changed_alike:
            self.tasks.sort_out_alike(change)
        numbers: dict[str, int] = {}
        for task in self.tasks.handed.values():
            status = task.status
            if task.stored is not None and task.stored_at & SEQS != task.seq:
                change.move(task)
            if task.stored is None:
                pass
            elif task.stored_live:
                # These are the busiest of all changes.
                if status is _RUNNING and only_started(task):
                    change.start(task)
                    continue
                if status is _COMPLETED:
                    if only_ended(task):
                        change.complete(task)
                        continue
                    if only_ran(task):
                        change.run(task)
                        continue
                elif task.claimed and only_claimed(task):
                    change.claim(task)
                    continue
            else:
                # It stands among the ended, and was not redriven.
                continue
            name = task.new.pool
            number = numbers.get(name)
            if number is None:
                pool = self.pools[name]
                assert isinstance(pool, SqlPool)  # noqa: S101
                number = numbers[name] = pool.number
            if status is _QUEUED or status is _RUNNING:
                change.live(task, number)
            else:
                change.end(task, number)
        change.send(self)


class Changes:
    """What the tasks of one unit of work came to, by the statement that says it."""

    def __init__(self) -> None:
        self._bodies: list[tuple[int, NewTask]] = []
        self._queued: list[Row] = []
        self._new: list[Row] = []
        self._started: dict[Row, list[int]] = {}
        self._claimed: dict[Row, list[TaskRow]] = {}
        self._changed: list[Row] = []
        self._left: list[int] = []
        self._moved: list[Row] = []
        self._redriven: list[Row] = []
        self._completed: dict[Row, list[TaskRow]] = {}
        self._ran: dict[Row, list[TaskRow]] = {}
        self._ended: list[Row] = []

    def start(self, task: TaskRow) -> None:
        """Take in a task to which nothing but its start has happened."""
        moment = task.started_at
        started = (task.token, task.worker, moment, moment, task.reason)
        places = self._started.get(started)
        if places is None:
            places = self._started[started] = []
        places.append(task.stored_at)
        task.stored_started = True

    def start_all(self, tasks: Sequence[TaskRow]) -> None:
        """Take in tasks that were started together, and to which nothing else has happened."""
        first = tasks[0]
        moment = first.started_at
        started = (first.token, first.worker, moment, moment, None)
        self._started.setdefault(started, []).extend([task.stored_at for task in tasks])
        for task in tasks:
            task.stored_started = True

    def complete_all(self, tasks: Sequence[TaskRow]) -> None:
        """Take in tasks that were completed together, and to which nothing else has happened."""
        self._completed.setdefault((tasks[0].finished_at, None), []).extend(tasks)
        for task in tasks:
            task.stored_live = False

    def complete(self, task: TaskRow) -> None:
        """Take in a task that was completed, and to which nothing else has happened."""
        end = (task.finished_at, task.reason)
        tasks = self._completed.get(end)
        if tasks is None:
            tasks = self._completed[end] = []
        tasks.append(task)
        task.stored_live = False

    def run(self, task: TaskRow) -> None:
        """Take in a task that was started and completed, and to which nothing else has happened."""
        moment = task.started_at
        self._ran.setdefault(
            (task.finished_at, task.reason, task.token, moment, moment), []
        ).append(task)
        task.stored_live = False

    def claim(self, task: TaskRow) -> None:
        """Take in a queued task that is held ahead, and to which nothing else has happened."""
        claimed = (task.claim_revision, task.token, task.worker)
        self._claimed.setdefault(claimed, []).append(task)
        task.stored = live_state(task)

    def move(self, task: TaskRow) -> None:
        """Take in that a task was redriven: it stands at the tail now, and not where it stood.

        It may have ended in this very unit of work, and then still stands among the living.
        """
        self._moved.append((task.stored_at,))
        if task.stored_live:
            self._left.append(task.stored_at)
        else:
            self._redriven.append((task.stored_at,))
        task.stored = None

    def live(self, task: TaskRow, pool: int) -> None:
        """Take in a task that waits or runs."""
        if task.stored is None:
            self._add(task, pool)
            return
        state = live_state(task)
        if task.stored_started or state != task.stored:
            self._changed.append((*state, task.stored_at))
            task.stored, task.stored_started = state, False

    def _add(self, task: TaskRow, pool: int) -> None:
        """Take in a task that stands in no table."""
        if waits_untouched(task):
            row = untouched_row(task, pool)
            self._queued.append(row)
            task.stored = untouched_state(task)
        else:
            row = live_row(task, pool)
            self._new.append(row)
            task.stored = row[CHANGING:]
        self._bodies.append((row[0], task.new))
        task.stored_at, task.stored_live, task.stored_started = row[0], True, False

    def _depart(self, task: TaskRow) -> None:
        """Let a task leave the place where it stood."""
        if task.stored is not None:
            self._redriven.append((task.stored_at,))
            if task.stored_live:
                self._left.append(task.stored_at)

    def end(self, task: TaskRow, pool: int) -> None:
        """Take in a task that has ended."""
        row = ended_row(task, pool)
        if task.stored is None:
            self._bodies.append((row[0], task.new))
        else:
            self._left.append(task.stored_at)
        self._ended.append(row)
        task.stored, task.stored_at, task.stored_live = row, row[0], False

    def send(self, tables: SqlTables) -> None:
        """Send everything to the file."""
        send = tables.send
        if self._redriven:
            send("drop_ended", self._redriven)
        if self._moved:
            send("drop_task", self._moved)
        if self._bodies:
            send("add_task", [tables.task_row(place, new) for place, new in self._bodies])
        if self._queued:
            send("add_queued", self._queued)
        if self._new:
            send("add_live", self._new)
        for started, places in self._started.items():
            _at_places(tables, "start", started, places)
        for claimed, tasks in self._claimed.items():
            self._send_claimed(tables, claimed, tasks)
        if self._changed:
            send("change_live", self._changed)
        for end, tasks in self._completed.items():
            self._send_completed(tables, "complete", end, tasks)
        for end, tasks in self._ran.items():
            self._send_completed(tables, "run", end, tasks)
        if self._left:
            _at_places(tables, "drop", (), self._left)
        if self._ended:
            send("add_ended", self._ended)

    def _send_claimed(self, tables: SqlTables, claimed: Row, tasks: list[TaskRow]) -> None:
        """Tell of claims; those of one lease are numbered without a gap."""
        tasks.sort(key=_by_claim)
        first, last = tasks[0].claim or 0, tasks[-1].claim or 0
        if last - first == len(tasks) - 1:
            places = tables.listed([task.stored_at for task in tasks])
            tables.change("claim_live", (first, *claimed, places), len(tasks))
        else:
            self._changed += [(*live_state(task), task.stored_at) for task in tasks]

    def _send_completed(self, tables: SqlTables, how: str, end: Row, tasks: list[TaskRow]) -> None:
        """Move rows from the live to the ended, with the result that most have, then the others."""
        places = [task.stored_at for task in tasks]
        common = tasks[0].result
        _at_places(tables, how, (*end[:2], common, *end[2:]), places)
        self._left += places
        others = [(task.result, task.stored_at) for task in tasks if task.result != common]
        if others:
            tables.send("tell_result", others)


def _by_claim(task: TaskRow) -> int:
    return task.claim or 0


def _at_places(tables: SqlTables, what: str, told: Row, places: list[int]) -> None:
    """Do something to the live rows at some places, with one statement.

    Each that is stepped through lets other threads in. Those of a claim mostly stand side by side.
    """
    first, last = min(places), max(places)
    if last - first == len(places) - 1:
        tables.change(f"{what}_span", (*told, first, last), len(places))
    else:
        tables.change(f"{what}_live", (*told, tables.listed(places)), len(places))
