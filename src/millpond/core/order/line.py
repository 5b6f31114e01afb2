"""A line of tasks: lowest (rank, seq) first, cheap when tasks arrive in that order.

Most tasks are the last of their line when they arrive, so a plain list holds them, and taking the
first is O(1). A task that belongs further ahead (a retry, a higher priority) goes into a heap. A
task removed from the middle leaves a dead entry, noted by its identity (an updated task is another
object with the same seq): skipped when it comes first, swept out when dead entries outnumber the
live ones.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.core.task import Task

_SLACK = 32
_TAKEN: Any = None
"""Stands in the list for a task that was taken, until the list is cut."""


class Head(Protocol):
    """The place of a task, and when it is due."""

    @property
    def rank(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def due(self) -> float: ...


class Line(Protocol):
    """Tasks by (rank, seq): what a backlog asks of a line."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Task]: ...

    def add(self, task: Task) -> None:
        """Put a task at its place."""

    def first(self) -> Task | None:
        """Return the task that is next, or None."""

    def head(self) -> Head | None:
        """Return the place of the next task without reading the task itself, or None."""

    def remove(self, task: Task) -> None:
        """Remove a task."""

    def take(self, most: int, fits: Callable[[Task], bool]) -> list[Task]:
        """Remove and return first tasks while each fits; none where `first` must be asked."""


class TaskLine:
    """Tasks of one pool by (rank, seq), neither of which may change while a task is in it."""

    __slots__ = ("_gone", "_head", "_heap", "_row")

    def __init__(self) -> None:
        self._row: list[Task] = []
        self._head = 0
        self._heap: list[tuple[int, int, int, Task]] | None = None
        self._gone: set[int] | None = None

    def __len__(self) -> int:
        count = len(self._row) - self._head
        if self._heap:
            count += len(self._heap)
        return count - len(self._gone) if self._gone else count

    def __iter__(self) -> Iterator[Task]:
        gone = self._gone or ()
        yield from (task for task in self._row[self._head :] if id(task) not in gone)
        yield from (task for _, _, entry, task in self._heap or () if entry not in gone)

    def add(self, task: Task) -> None:
        """Put a task at its place; a task that was removed before returns to its old place."""
        gone = self._gone
        if gone and id(task) in gone:
            gone.remove(id(task))
            return
        row = self._row
        if row:
            last, rank = row[-1], task.rank
            if rank < last.rank or (rank == last.rank and task.seq < last.seq):
                if self._heap is None:
                    self._heap = []
                heappush(self._heap, (rank, task.seq, id(task), task))
                return
        row.append(task)

    def first(self) -> Task | None:
        """Return the task that is next, or None."""
        if self._gone:
            self._skip_dead(self._gone)
        row, heap = self._row, self._heap
        if not heap:
            return row[self._head] if row else None
        rank, seq, _, task = heap[0]
        if row:
            head = row[self._head]
            if head.rank < rank or (head.rank == rank and head.seq < seq):
                return head
        return task

    def head(self) -> Head | None:
        """Return the place of the next task without reading the task itself, or None."""
        return self.first()

    def remove(self, task: Task) -> None:
        """Remove a task: at once if it is the first, else it is skipped later."""
        row, heap = self._row, self._heap
        head = self._head
        if row and row[head] is task:
            head += 1
            if head == len(row):
                self._row = []
                self._head = 0
            elif head > _SLACK and 2 * head > len(row):
                del row[:head]
                self._head = 0
            else:
                row[head - 1] = _TAKEN
                self._head = head
        elif heap and heap[0][3] is task:
            heappop(heap)
        else:
            if self._gone is None:
                self._gone = set()
            self._gone.add(id(task))
            if len(self._gone) > len(self) + _SLACK:
                self._sweep(self._gone)

    def take(self, most: int, fits: Callable[[Task], bool]) -> list[Task]:
        """Remove and return the first tasks while each fits; none if heap or dead entries exist."""
        if self._gone or self._heap:
            return []
        head = self._head
        taken = list(takewhile(fits, islice(self._row, head, head + most)))
        head += len(taken)
        if head == len(self._row):
            self._row, self._head = [], 0
        elif head > _SLACK and 2 * head > len(self._row):
            del self._row[:head]
            self._head = 0
        else:
            self._row[self._head : head] = [_TAKEN] * len(taken)
            self._head = head
        return taken

    def _skip_dead(self, gone: set[int]) -> None:
        while self._row and id(dead := self._row[self._head]) in gone:
            gone.remove(id(dead))
            self.remove(dead)
        heap = self._heap
        while heap and heap[0][2] in gone:
            gone.remove(heappop(heap)[2])

    def _sweep(self, gone: set[int]) -> None:
        self._row = [task for task in self._row[self._head :] if id(task) not in gone]
        self._head = 0
        if self._heap:
            self._heap = [entry for entry in self._heap if entry[2] not in gone]
            heapify(self._heap)
        self._gone = None
