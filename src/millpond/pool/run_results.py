"""Ends of a run: which of its tasks have ended, wherever they ran, in the order of their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.task import CALLBACKS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.core.audit import Record
    from millpond.core.task import Task
    from millpond.runtime.runtime import Runtime
    from millpond.store.protocol import View

PAGE = 1000

REMEMBERED = 10 * PAGE


class RunEnds:
    """Reads the audit on from where it was: each end of a task of one run is told once."""

    def __init__(self, runtime: Runtime, run: int) -> None:
        self._view = runtime.view
        self.run = run
        self._position = 0
        self._told: dict[tuple[int, float | None], None] = {}
        """The latest ends that were told: one that was redriven meanwhile is met twice."""

    async def begin(self) -> None:
        """Begin here: what has ended before is not told."""
        self._position = await end_of_audit(self._view)

    async def more(self) -> AsyncIterator[Task]:
        """Yield what has ended since it was last asked."""
        while True:
            page = await self._view.audit(after=self._position, limit=PAGE)
            if not page.records:
                return
            self._position = page.next
            ended = [record.task for record in page.records if self._tells_an_end(record)]
            for one in dict.fromkeys(ended):
                task = None if one is None else await self._view.task(one)
                if task is not None and task.status.terminal and self._is_news(task):
                    yield task

    def _tells_an_end(self, record: Record) -> bool:
        """Return whether a record is that of an end of one of the run's own tasks."""
        over = record.after is not None and record.after.terminal
        return over and record.run == self.run and not record.pool.endswith(CALLBACKS)

    def _is_news(self, task: Task) -> bool:
        known = (task.new.id, task.finished_at)
        if known in self._told:
            return False
        self._told[known] = None
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]
        return True


async def end_of_audit(view: View) -> int:
    """Return the position behind the last audit record, by halving: nobody reads all of them."""
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
