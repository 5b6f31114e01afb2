"""The story of a task: which parts of the audit are read for it, and when they are complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Transition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond.core.audit import Record
    from millpond.core.task import Task

MOST_RECORDS = 1000
"""Records behind its submit that are searched for those of a task."""

MOST_CANDIDATES = 100
"""Tasks that were submitted when it ended, and that are read to find its follow-ups."""

MOST_FOLLOW_UPS = 50


class History:
    """The records of one task that a search has found, by their positions."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.found: dict[int, Record] = {}
        self._reached_end = False

    def search(self, read: Callable[[float, float, int], bool]) -> None:
        """Search the audit by `read`, which takes moments `since` and `until` and how much to read.

        It adds to `found`, and returns whether it reached the end of the audit.
        """
        task = self.task
        self._reached_end = read(task.submitted_at, float("inf"), MOST_RECORDS)
        if self._reached_end or self.has_end:
            self._reached_end = True
            return
        for moment in (task.started_at, task.finished_at):
            if moment is not None and not self.has_end:
                read(moment, moment, MOST_RECORDS)

    @property
    def has_end(self) -> bool:
        """Whether the end of the task is among its records."""
        ended = self.task.finished_at
        return ended is not None and any(
            one.at == ended and one.after is self.task.status for one in self.found.values()
        )

    @property
    def records(self) -> tuple[Record, ...]:
        """The records that were found, oldest first."""
        return tuple(self.found[position] for position in sorted(self.found))

    @property
    def complete(self) -> bool:
        """Whether nothing can be missing: a submit, and a start and an end of every run."""
        if self._reached_end:
            return True
        events = [record.event for record in self.found.values()]
        every = 2 * self.task.runs + 1
        return self.has_end and Transition.SUBMIT in events and len(events) >= every

    def nearest(self, submitted: Iterable[tuple[int, int]]) -> list[int]:
        """Return tasks out of pairs of a position and a task: those next to the task's end."""
        ends = [at for at, one in self.found.items() if one.at == self.task.finished_at]
        if not ends:
            return []
        end = max(ends)
        by_distance = sorted(submitted, key=lambda one: abs(one[0] - end))
        return [task for _, task in by_distance[:MOST_CANDIDATES]]


def follow_ups(task: Task, candidates: Iterable[Task]) -> list[Task]:
    """Return the candidates that a task submitted, or that its end called."""
    parent = f"task:{task.new.id}"
    found = [one for one in candidates if one.new.submitted_by == parent]
    return sorted(found, key=lambda one: one.new.id)[:MOST_FOLLOW_UPS]
