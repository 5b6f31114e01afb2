"""Workers over rows, and what each of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.lease import RegisteredWorker
from millpond.core.spec import PoolSpec
from millpond.store.sql.pool import readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables

    _Known = tuple[frozenset[str] | None, dict[str, str]]
    """The functions of a worker, and their signatures."""


class SqlWorkers(dict[str, RegisteredWorker]):
    """The workers that were read."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self._stored: dict[str, Row | None] = {}
        self.handed: set[str] = set()
        """Workers that a verb may have changed."""
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
        """Drop all workers: the server changed their rows."""
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
        """Write what has changed."""
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
    """Return the functions of a worker: names, or signatures by name; `jsonb ? name` reads both."""
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
    """The running tasks of a worker: their own rows have this, so nothing is stored here."""

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
    """The prefetched tasks of a worker: all are read at the first use, first claimed first."""

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
