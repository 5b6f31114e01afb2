"""What the verbs ask of each table, beyond `Rows`; and runs in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millpond.core.lease import RegisteredWorker
from millpond.core.rows import ListedRows, Rows
from millpond.core.run import Run
from millpond.core.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class TaskRows(Rows[int, Task], Protocol):
    """Tasks by id."""

    def peek(self, key: int, /) -> Task | None:
        """Return a task for reading only; None = unknown, or not in memory. Never a query."""

    def remove(self, key: int, /) -> None:
        """Remove a task."""


class WorkerRows(ListedRows[str, RegisteredWorker], Protocol):
    """Workers by name."""

    def remove(self, key: str, /) -> None:
        """Remove a worker."""


class RunRows(Rows[int, Run], Protocol):
    """Runs by id and by name."""

    def named(self, pool: str, name: str) -> int | None:
        """Return the id of the run with a name, or None."""

    def unfinished(self) -> Iterable[Run]:
        """Return the runs that are not over."""

    def prune(self, pool: str, before: float) -> None:
        """Remove the runs of a pool that finished before a moment."""


class Deadlines(Protocol):
    """Waiting tasks, each with a moment."""

    def lowest(self) -> tuple[float, ...] | None:
        """Return the first moment, and more; None = no task waits."""

    def until(self, key: float, most: int) -> Iterator[int]:
        """Yield tasks whose moment is not after `key`, the first first."""


class DictRuns:
    """Runs in memory."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._named: dict[tuple[str, str], int] = {}
        self.get = self._runs.get
        self.require = self._runs.__getitem__

    def named(self, pool: str, name: str) -> int | None:
        """Return the id of the run with a name, or None."""
        return self._named.get((pool, name))

    def unfinished(self) -> Iterable[Run]:
        """Return the runs that are not over."""
        return [run for run in self._runs.values() if not run.finished]

    def of_pool(self, pool: str) -> list[Run]:
        """Return the runs of a pool."""
        return [run for run in self._runs.values() if run.new.pool == pool]

    def add(self, identifier: int, run: Run) -> None:
        """Add a run."""
        self._runs[identifier] = run
        if run.new.name is not None:
            self._named[run.new.pool, run.new.name] = identifier

    def prune(self, pool: str, before: float) -> None:
        """Remove the runs of a pool that finished before a moment."""
        for run in self.of_pool(pool):
            if run.finished_at is not None and run.finished_at < before:
                del self._runs[run.new.id]
                if run.new.name is not None:
                    del self._named[pool, run.new.name]
