"""Runs over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.run import NewRun, Run
from millpond.store.sql.cached_rows import RequiredRows
from millpond.store.sql.pool import readable

if TYPE_CHECKING:
    from millpond.store.sql.unit_of_work import SqlTables

# As JSON: the functions of a server count in it, too.
_encode_run = msgspec.json.Encoder(order="deterministic").encode
_decode_run = msgspec.json.Decoder(Run).decode


class SqlRuns(RequiredRows[int, Run]):
    """The runs that were read, and which of them a verb may have changed."""

    def __init__(self, tables: SqlTables) -> None:
        self._tables = tables
        self._read: dict[int, Run] = {}
        self._stored: dict[int, bytes] = {}
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._read)

    def get(self, identifier: int) -> Run | None:
        """Return a run for change, or None; a query if it is not in memory."""
        self._dirty.add(identifier)
        found = self._read.get(identifier)
        if found is not None:
            return found
        row = self._tables.ask("run", (identifier,)).fetchone()
        return None if row is None else self.take_in(identifier, row[0])

    def named(self, pool: str, name: str) -> int | None:
        """Return the id of the run with a name, or None; always a query."""
        self._tables.write_rows()
        row = self._tables.ask("run_named", (pool, name)).fetchone()
        return None if row is None else row[0]

    def unfinished(self) -> list[Run]:
        """Return the runs that are not over, for change; always a query."""
        self._tables.write_rows()
        rows = self._tables.ask("open_runs").fetchall()
        return [self.take_in(identifier, state) for identifier, state in rows]

    def add(self, identifier: int, run: Run) -> None:
        """Add a new run; its row is written with the others."""
        self._dirty.add(identifier)
        self._read[identifier] = run

    def prune(self, pool: str, before: float) -> None:
        """Remove the runs of a pool that finished before a moment; read all again from now on."""
        self._tables.ask("drop_old_runs", (pool, before))
        self._read.clear()
        self._stored.clear()
        self._dirty.clear()

    def take_in(self, identifier: int, state: bytes) -> Run:
        """Return the run of a row for change, the same object each time."""
        self._dirty.add(identifier)
        found = self._read.get(identifier)
        if found is None:
            made = self._rebuilt
            found = readable(_decode_run, state, None, f"run {identifier}") or made(identifier)
            self._stored[identifier] = state
            self._read[identifier] = found
        return found

    def _rebuilt(self, identifier: int) -> Run:
        """Return a run whose stored state is damaged: its counts are lost."""
        pool, name, finished_at, live = self._tables.ask("rest_of_run", (identifier,)).fetchone()
        new = NewRun(id=identifier, pool=pool, name=name)
        return Run(new=new, opened_at=0.0, live=live, total=live, finished_at=finished_at)

    def let_go(self) -> None:
        """Forget which runs may have changed: all are written."""
        self._dirty = set()

    def write(self) -> None:
        """Write what has changed."""
        rows = []
        for identifier in self._dirty:
            run = self._read.get(identifier)
            if run is None:
                continue
            state = _encode_run(run)
            if state != self._stored.get(identifier):
                self._stored[identifier] = state
                rows.append((identifier, run.new.pool, run.new.name, run.finished_at, state))
        if rows:
            self._tables.send("save_run", rows)
