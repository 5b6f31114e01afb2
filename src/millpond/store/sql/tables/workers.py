"""Workers over rows, and what each of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.lease import Holding, Prefetched, RegisteredWorker
from millpond.store.sql.cached_rows import CachedRows
from millpond.store.sql.pool import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task
    from millpond.store.sql.codec import Row, TaskRow
    from millpond.store.sql.tables.pools import SqlPools
    from millpond.store.sql.unit_of_work import SqlTables

    _Known = tuple[frozenset[str] | None, dict[str, str]]
    """The functions of a worker, and their signatures."""


class SqlWorkers(CachedRows[str, RegisteredWorker, "Row"]):
    """The workers that were read."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self._all_read = False

    def look_at(self, key: str) -> RegisteredWorker | None:
        """Return a worker for reading only, or None; a query if it is not in memory."""
        return self._read.get(key) if self._all_read else super().look_at(key)

    def all(self) -> list[RegisteredWorker]:
        """Return every worker for change, in order of joining."""
        self._read_all()
        self._dirty.update(self._read)
        return sorted(self._read.values(), key=lambda worker: worker.number)

    def add(self, key: str, value: RegisteredWorker) -> None:
        """Add a new worker; its row is written with the others."""
        value.holding = SqlHolding(self._tables, key)
        value.ahead = SqlPrefetched(self._tables, key, 0)
        super().add(key, value)

    def forget(self) -> None:
        """Drop all workers: the server changed their rows."""
        super().forget()
        self._all_read = False

    def _read_all(self) -> None:
        if not self._all_read:
            for row in list(self._tables.ask("workers")):
                if row[0] not in self._stored:
                    self._take_in(row[0], row)
            self._all_read = True

    def _ask(self, key: str) -> Row | None:
        row: Row | None = self._tables.ask("worker", (key,)).fetchone()
        return row

    def _made(self, key: str, row: Row) -> RegisteredWorker:
        name, owner, expires_at, lease, number, functions, unknown, ahead = row
        anything: _Known = (None, {})
        known, signatures = readable(_functions, functions, anything, f"worker {name}")
        return RegisteredWorker(
            id=key,
            owner=owner,
            expires_at=expires_at,
            lease=lease,
            number=number,
            functions=known,
            signatures=signatures,
            unknown=readable(_names, unknown, set(), f"worker {name}"),
            holding=SqlHolding(self._tables, name),
            ahead=SqlPrefetched(self._tables, name, ahead),
        )

    def _row(self, _: str, value: RegisteredWorker) -> Row:
        return _worker_row(value)

    def write(self) -> None:
        """Write what has changed."""
        for name, _, row in self._changes():
            if row is None:
                self._tables.ask("drop_worker", (name,))
            else:
                self._tables.ask("save_worker", row)


def _worker_row(worker: RegisteredWorker) -> Row:
    return (
        worker.id,
        worker.owner,
        worker.expires_at,
        worker.lease,
        worker.number,
        _functions_text(worker),
        _text(sorted(worker.unknown)),
        worker.ahead.count if isinstance(worker.ahead, SqlPrefetched) else len(worker.ahead),
    )


_ANY = "~any"
"""In the stored functions of a worker: it takes any task, and the others are its signatures."""


def _functions_text(worker: RegisteredWorker) -> str | None:
    """Return the functions of a worker: names, or signatures by name; `jsonb ? name` reads both."""
    signatures = worker.signatures
    if worker.functions is None:
        return msgspec.json.encode({_ANY: "", **signatures}).decode() if signatures else None
    names = sorted(worker.functions)
    if not signatures:
        return _text(names)
    return msgspec.json.encode({name: signatures.get(name, "") for name in names}).decode()


_known = msgspec.json.Decoder(list[str] | dict[str, str]).decode


def _functions(stored: str | None) -> _Known:
    if stored is None:
        return None, {}
    known = _known(stored)
    if isinstance(known, list):
        return frozenset(known), {}
    signatures = {name: one for name, one in known.items() if one}
    return None if _ANY in known else frozenset(known), signatures


_names = msgspec.json.Decoder(set[str]).decode


def _text(names: list[str]) -> str:
    return msgspec.json.encode(names).decode()


class SqlHolding(Holding):
    """The running tasks of a worker: their own rows have this, so nothing is stored here."""

    __slots__ = ("_tables", "_worker")

    def __init__(self, tables: SqlTables, worker: str) -> None:
        super().__init__()
        self._tables = tables
        self._worker = worker

    def add(self, task: int, pool: str) -> None:
        """Do nothing: the row of the task has it."""

    def add_all(self, tasks: Sequence[Task]) -> None:
        """Do nothing: the rows of the tasks have it."""

    def discard(self, task: int) -> None:
        """Do nothing: the row of the task has it."""

    def discard_all(self, tasks: Sequence[Task]) -> None:
        """Do nothing: the rows of the tasks have it."""

    def _held(self) -> list[TaskRow]:
        self._tables.write_rows()
        return self._tables.read_live("held_by", (self._worker,))

    def ids(self) -> list[int]:
        """Return the ids of all; always a query, and all are read."""
        return [task.new.id for task in self._held()]

    def of_pool(self, pool: str) -> list[int]:
        """Return the ids of those of one pool; always a query."""
        return [task.new.id for task in self._held() if task.new.pool == pool]

    def __len__(self) -> int:
        return len(self._held())


class SqlPrefetched(Prefetched):
    """The prefetched tasks of a worker: all are read at the first use."""

    __slots__ = ("_all_read", "_count", "_of_newer", "_tables", "_worker")

    def __init__(self, tables: SqlTables, worker: str, count: int) -> None:
        super().__init__()
        self._tables = tables
        self._worker = worker
        self._count = count
        self._all_read = not count
        self._of_newer = 0
        """How many are of pools of a newer version: counted, not shown."""

    @property
    def count(self) -> int:
        """How many there are, also of pools of a newer version."""
        return len(self) + self._of_newer

    @property
    def specs(self) -> dict[int, PoolSpec]:
        """The settings by task, to be read; a query at the first use."""
        if not self._all_read:
            self._all_read = True
            self._load(self._tables.pools)
        return self._specs

    def _load(self, pools: SqlPools) -> None:
        rows = self._tables.ask("held_ahead_by", (self._worker,)).fetchall()
        for identifier, number, revision in rows:
            if pools.understands(number):
                self._specs[identifier] = pools.numbered(number).spec_at(revision)
            else:
                self._of_newer += 1

    def __len__(self) -> int:
        return len(self._specs) if self._all_read else self._count
