"""Runs over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.run import NewRun, Run
from millpond.store.sql.pool import readable

if TYPE_CHECKING:
    from millpond.store.sql.unit_of_work import SqlTables

# As JSON: the functions of a server count in it, too.
_encode_run = msgspec.json.Encoder(order="deterministic").encode
_decode_run = msgspec.json.Decoder(Run).decode


class SqlRuns(dict[int, Run]):
    """The runs that were read."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self._stored: dict[int, bytes | None] = {}
        self.handed: set[int] = set()
        """Runs that a verb may have changed."""

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
        """Return a run whose stored state is damaged: its counts are lost."""
        pool, name, finished_at, live = self._tables.ask("rest_of_run", (identifier,)).fetchone()
        new = NewRun(id=identifier, pool=pool, name=name)
        return Run(new=new, opened_at=0.0, live=live, total=live, finished_at=finished_at)

    def forget_all(self) -> None:
        """Read everything again from now on."""
        self.clear()
        self._stored.clear()
        self.handed.clear()

    def write(self) -> None:
        """Write what has changed."""
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
        """Do nothing: the row of the run has its end."""
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
        """Return a throwaway dict: the row of the task has it."""
        return {}

    def get(self, run: int, default: Any = None) -> Any:  # noqa: ANN401, ARG002 - as dict's
        """Return the queued tasks of a run that no worker has prefetched."""
        return {
            task.new.id: None
            for task in self._tables.of_run(run)
            if task.status is Status.QUEUED and not task.claimed and not task.new.is_callback
        }
