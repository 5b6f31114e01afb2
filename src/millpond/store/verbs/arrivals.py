"""The live tasks of a pool in the order of their places."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.task import Task

_SLACK = 64
_QUEUED, _RUNNING = Status.QUEUED, Status.RUNNING


class Arrivals:
    """Tasks by seq, which only grows, so a new task goes to the end.

    Ended tasks stay until they outnumber the live ones and are then swept out together: O(1) per
    task, amortised. (A redriven task is another object.)
    """

    __slots__ = ("_most", "_tasks")

    def __init__(self) -> None:
        self._tasks: list[Task] | None = None
        self._most = _SLACK

    def add(self, task: Task) -> None:
        """Append a task, which has the highest seq."""
        tasks = self._tasks
        if tasks is None:
            tasks = self._tasks = []
        elif len(tasks) >= self._most:
            # Before the append: a redriven task is not live until its transition.
            tasks = self._tasks = [one for one in tasks if _is_live(one)]
            self._most = 2 * len(tasks) + _SLACK
        tasks.append(task)

    def exchange(self, task: Task) -> None:
        """Put an updated task in the place of the old one."""
        tasks = self._tasks or []
        at = bisect_left(tasks, task.seq, key=_seq)
        tasks[at] = task

    def __iter__(self) -> Iterator[Task]:
        """Yield the live tasks in order."""
        tasks = self._tasks or []
        ended = next((i for i, task in enumerate(tasks) if _is_live(task)), len(tasks))
        # Where tasks run in order, nearly all ended ones are in front.
        del tasks[:ended]
        return (task for task in tasks if _is_live(task))

    def behind(self, seq: int) -> Iterator[Task]:
        """Yield the live tasks behind a place, in order."""
        tasks = self._tasks or []
        first = bisect_right(tasks, seq, key=_seq)
        return (tasks[i] for i in range(first, len(tasks)) if _is_live(tasks[i]))


def _seq(task: Task) -> int:
    return task.seq


def _is_live(task: Task) -> bool:
    status = task.status
    return status is _QUEUED or status is _RUNNING
