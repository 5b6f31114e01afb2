"""The ended tasks of a run, in the order of their ends, whichever process ended them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.task import CALLBACKS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.core.audit import Record
    from millpond.core.task import Task
    from millpond.runtime.runtime import Runtime
    from millpond.store.view import View

PAGE = 1000

REMEMBERED = 10 * PAGE
"""How many of the latest ends are remembered."""


class EndedTasks:
    """Reads the audit forward and yields each ended task of one run once."""

    def __init__(self, runtime: Runtime, run: int) -> None:
        self._view = runtime.view
        self.run = run
        self._position = 0
        self._yielded: dict[tuple[int, float | None], None] = {}
        """The latest ends: the audit has two records for a task that was redriven meanwhile."""

    async def begin(self) -> None:
        """Begin at the end of the audit: earlier ends are not yielded."""
        self._position = await end_of_audit(self._view)

    async def more(self) -> AsyncIterator[Task]:
        """Yield the tasks that have ended since the last call."""
        while True:
            page = await self._view.audit(after=self._position, limit=PAGE)
            if not page.records:
                return
            self._position = page.next
            ended = [record.task for record in page.records if self._is_end(record)]
            for one in dict.fromkeys(ended):
                task = None if one is None else await self._view.task(one)
                if task is not None and task.status.terminal and self._is_new(task):
                    yield task

    def _is_end(self, record: Record) -> bool:
        """Return whether a record is the end of one of the run's own tasks."""
        over = record.after is not None and record.after.terminal
        return over and record.run == self.run and not record.pool.endswith(CALLBACKS)

    def _is_new(self, task: Task) -> bool:
        known = (task.new.id, task.finished_at)
        if known in self._yielded:
            return False
        self._yielded[known] = None
        if len(self._yielded) > REMEMBERED:
            del self._yielded[next(iter(self._yielded))]
        return True


async def end_of_audit(view: View) -> int:
    """Return the position behind the last audit record, by bisection."""
    high = 1
    while (await view.audit(after=high, limit=1)).records:
        high *= 2
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        if (await view.audit(after=middle, limit=1)).records:
            low = middle + 1
        else:
            high = middle
    return low
