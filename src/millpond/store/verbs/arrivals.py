"""Arrivals: the live tasks of a pool in the order of their places."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.task import Task

_SLACK = 64
_QUEUED, _RUNNING = Status.QUEUED, Status.RUNNING


class Arrivals:
    """Tasks by seq, which only ever grows, so a new one is put at the end.

    What has ended stays behind until it outnumbers the living: then it is swept out together, at a
    cost that new arrivals have paid for. (A task that is redriven is another object.)
    """

    __slots__ = ("_most", "_tasks")

    def __init__(self) -> None:
        self._tasks: list[Task] | None = None
        self._most = _SLACK

    def add(self, task: Task) -> None:
        """Put a task that was given the next seq at the end."""
        tasks = self._tasks
        if tasks is None:
            tasks = self._tasks = []
        elif len(tasks) >= self._most:
            # Before it comes: one that is redriven has yet to take the arrow that revives it.
            tasks = self._tasks = [one for one in tasks if _lives(one)]
            self._most = 2 * len(tasks) + _SLACK
        tasks.append(task)

    def __iter__(self) -> Iterator[Task]:
        """Yield the live tasks in order."""
        tasks = self._tasks or []
        ended = next((i for i, task in enumerate(tasks) if _lives(task)), len(tasks))
        # Where work is done in order, nearly all that has ended stands in front.
        del tasks[:ended]
        return (task for task in tasks if _lives(task))

    def behind(self, seq: int) -> Iterator[Task]:
        """Yield the live tasks behind a place, in order."""
        tasks = self._tasks or []
        first = bisect_right(tasks, seq, key=_seq)
        return (tasks[i] for i in range(first, len(tasks)) if _lives(tasks[i]))


def _seq(task: Task) -> int:
    return task.seq


def _lives(task: Task) -> bool:
    status = task.status
    return status is _QUEUED or status is _RUNNING
