"""Delayed tasks: each waits for its moment outside the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millpond.core.order.heap import LazyHeap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.task import Task, TaskId


class Delayed(Protocol):
    """What a backlog asks of its delayed tasks."""

    count: int
    """How many there are."""

    def add(self, task: Task) -> None:
        """Add a task that is not due."""

    def discard(self, task: Task) -> bool:
        """Remove a task; return whether it was here."""

    def next_due(self) -> float | None:
        """Return when the first is due, or None."""

    def pop_due(self, now: float) -> Task | None:
        """Remove and return the first task that is due, or None."""

    def all(self) -> Iterable[Task]:
        """Return every delayed task."""


class DelayedTasks:
    """Delayed tasks in memory."""

    __slots__ = ("_tasks", "_timers", "count")

    def __init__(self) -> None:
        self._tasks: dict[TaskId, Task] = {}
        self._timers: LazyHeap[TaskId] = LazyHeap()
        self.count = 0

    def add(self, task: Task) -> None:
        """Add a task that is not due."""
        self._tasks[task.new.id] = task
        self._timers.set(task.new.id, (task.due, task.seq))
        self.count += 1

    def discard(self, task: Task) -> bool:
        """Remove a task; return whether it was here."""
        if self._tasks.pop(task.new.id, None) is None:
            return False
        self._timers.discard(task.new.id)
        self.count -= 1
        return True

    def next_due(self) -> float | None:
        """Return when the first is due, or None."""
        first = self._timers.lowest()
        return None if first is None else first[0]

    def pop_due(self, now: float) -> Task | None:
        """Remove and return the first task that is due, or None."""
        first = self._timers.lowest()
        if first is None or first[0] > now:
            return None
        self.count -= 1
        return self._tasks.pop(self._timers.pop())

    def all(self) -> Iterable[Task]:
        """Return every delayed task."""
        return self._tasks.values()
