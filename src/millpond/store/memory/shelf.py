"""A shelf: the tasks of a pool in the order of their places, to be read a page at a time."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from millpond.core.task import Task

_SLACK = 64


class Shelf:
    """Tasks by seq, which only ever grows, so a new one is put at the end.

    What leaves stays behind as a dead entry (an entry is dead for good: a redriven task gets a
    new place). Dead entries are passed over, and swept out when they outnumber the living.
    """

    __slots__ = ("_dead", "_first", "_ids", "_live", "_pool", "_seqs")

    def __init__(self, pool: str, *, live: bool = False) -> None:
        self._pool = pool
        self._live = live
        """Whether tasks that have ended have left."""
        self._seqs: list[int] = []
        self._ids: list[int] = []
        self._dead = 0
        self._first = 0
        """Before it everything is dead: where work is done in order, that is nearly all of it."""

    def add(self, task: Task) -> None:
        """Put a task that was given the next seq at the end."""
        self._seqs.append(task.seq)
        self._ids.append(task.new.id)

    def left(self, tasks: Mapping[int, Task]) -> None:
        """Note that one task has left; `tasks` are those that are kept."""
        self._dead += 1
        if self._dead > len(self._ids) // 2 + _SLACK:
            self._sweep(tasks)

    def after(self, seq: int, tasks: Mapping[int, Task]) -> Iterator[Task]:
        """Yield the tasks behind a place, in order."""
        while self._first < len(self._ids) and self._at(self._first, tasks) is None:
            self._first += 1
        for index in range(max(bisect_right(self._seqs, seq), self._first), len(self._ids)):
            task = self._at(index, tasks)
            if task is not None:
                yield task

    def _at(self, index: int, tasks: Mapping[int, Task]) -> Task | None:
        task = tasks.get(self._ids[index])
        if task is None or task.seq != self._seqs[index] or task.new.pool != self._pool:
            return None
        return None if self._live and task.status.terminal else task

    def _sweep(self, tasks: Mapping[int, Task]) -> None:
        kept = [i for i in range(self._first, len(self._ids)) if self._at(i, tasks) is not None]
        self._seqs = [self._seqs[index] for index in kept]
        self._ids = [self._ids[index] for index in kept]
        self._dead = self._first = 0
