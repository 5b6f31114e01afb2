"""What the verbs ask of each table, and the answers from memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millpond.core.lease import RegisteredWorker
from millpond.core.order.heap import LazyHeap
from millpond.core.rows import ListedRows, RemovableRows, Rows
from millpond.core.run import Run
from millpond.core.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from millpond.core.admit import Known


class TaskRows(RemovableRows[int, Task], Protocol):
    """Tasks by id."""

    def peek(self, key: int, /) -> Task | None:
        """Return a task for reading only; None = unknown, or not in memory. Never a query."""


class WorkerRows(ListedRows[str, RegisteredWorker], RemovableRows[str, RegisteredWorker], Protocol):
    """Workers by name."""


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


class KeyRows(Protocol):
    """The idempotency keys of a pool: (key, run) -> the task that holds it."""

    def get(self, key: tuple[str, int | None], /) -> Known | None:
        """Return the entry of a key, or None."""

    def add(self, key: tuple[str, int | None], known: Known, /) -> None:
        """Let a task hold a key."""

    def remove(self, key: tuple[str, int | None], /) -> None:
        """Remove a key that must be there."""


class LaneRows(Protocol):
    """What a pool keeps of its lanes for ever."""

    def next_sequence(self, lane: str) -> int:
        """Return the next number of a lane, without gaps."""

    def processed(self, lane: str) -> int:
        """Return how many tasks of a lane were completed or failed."""

    def count_processed(self, lane: str) -> None:
        """Count one more of them."""


class ParkedRows(Protocol):
    """The parked tasks of a pool, by the function that they need."""

    count: int
    """How many there are."""

    def add(self, task: Task, now: float) -> None:
        """Add a task."""

    def remove(self, task: Task) -> None:
        """Remove a task."""

    def functions(self) -> list[str]:
        """Return the functions for which tasks wait."""

    def of(self, function: str) -> Iterable[int]:
        """Return the tasks that need a function."""

    def firsts(self, function: str, most: int) -> Iterator[int]:
        """Yield the first tasks that need a function; the caller unparks each."""


class DictKeys:
    """Idempotency keys in memory."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, int | None], Known] = {}

    def get(self, key: tuple[str, int | None]) -> Known | None:
        """Return the entry of a key, or None."""
        return self._known.get(key)

    def add(self, key: tuple[str, int | None], known: Known) -> None:
        """Let a task hold a key."""
        self._known[key] = known

    def remove(self, key: tuple[str, int | None]) -> None:
        """Remove a key that must be there."""
        del self._known[key]


class DictLanes:
    """The numbers of lanes in memory."""

    __slots__ = ("_processed", "_sequences")

    def __init__(self) -> None:
        self._sequences: dict[str, int] = {}
        self._processed: dict[str, int] = {}

    def next_sequence(self, lane: str) -> int:
        """Return the next number of a lane, without gaps."""
        sequence = self._sequences[lane] = self._sequences.get(lane, 0) + 1
        return sequence

    def processed(self, lane: str) -> int:
        """Return how many tasks of a lane were completed or failed."""
        return self._processed.get(lane, 0)

    def count_processed(self, lane: str) -> None:
        """Count one more of them."""
        self._processed[lane] = self._processed.get(lane, 0) + 1


class DictParked:
    """Parked tasks in memory."""

    __slots__ = ("_waiting", "count")

    def __init__(self) -> None:
        self._waiting: dict[str, LazyHeap[int]] = {}
        self.count = 0

    def add(self, task: Task, now: float) -> None:  # noqa: ARG002 - a row has the moment
        """Add a task."""
        self._waiting.setdefault(task.need, LazyHeap()).set(task.new.id, (task.rank, task.seq))
        self.count += 1

    def remove(self, task: Task) -> None:
        """Remove a task."""
        waiting = self._waiting[task.need]
        waiting.discard(task.new.id)
        if not waiting:
            del self._waiting[task.need]
        self.count -= 1

    def functions(self) -> list[str]:
        """Return the functions for which tasks wait."""
        return list(self._waiting)

    def of(self, function: str) -> Iterable[int]:
        """Return the tasks that need a function."""
        return self._waiting[function]

    def firsts(self, function: str, most: int) -> Iterator[int]:
        """Yield the first tasks that need a function; the caller unparks each."""
        return self._waiting[function].firsts(most)


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
