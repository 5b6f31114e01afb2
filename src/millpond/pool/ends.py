"""Ends of a run: which of its tasks have ended, wherever they ran, in the order of their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.task import CALLBACKS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.core.task import Task
    from millpond.runtime.runtime import Runtime
    from millpond.store.protocol import View

PAGE = 1000

REMEMBERED = 10 * PAGE


class RunEnds:
    """Reads on from where it was: each end of a task of one run is told once.

    Of a store that can list them it asks for those of the run. Of any other it reads the audit.
    """

    def __init__(self, runtime: Runtime, run: int) -> None:
        self._view: Any = runtime.view
        self._lists = hasattr(self._view, "run_ends")
        self.run = run
        self._position = 0
        self._told: dict[tuple[int, float | None], None] = {}
        """The latest ends that were told: one that was redriven meanwhile is met twice."""

    async def begin(self) -> None:
        """Begin here: what has ended before is not told."""
        if not self._lists:
            self._position = await end_of_audit(self._view)
            return
        async for _ in self.more():
            pass

    async def more(self) -> AsyncIterator[Task]:
        """Yield what has ended since it was last asked."""
        while True:
            tasks, read = await (self._listed() if self._lists else self._audited())
            for task in tasks:
                known = (task.new.id, task.finished_at)
                if task.status.terminal and known not in self._told:
                    self._note(known)
                    yield task
            if not read:
                return

    def _note(self, known: tuple[int, float | None]) -> None:
        self._told[known] = None
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]

    async def _listed(self) -> tuple[list[Task], bool]:
        page = await self._view.run_ends(self.run, after=self._position, limit=PAGE)
        self._position = page.next if page.next is not None else self._position
        return list(page.tasks), bool(page.tasks)

    async def _audited(self) -> tuple[list[Task], bool]:
        page = await self._view.audit(after=self._position, limit=PAGE)
        self._position = page.next
        ended = [
            record.task
            for record in page.records
            if record.run == self.run
            and record.task is not None
            and record.after is not None
            and record.after.terminal
            and not record.pool.endswith(CALLBACKS)
        ]
        found = [await self._view.task(task) for task in dict.fromkeys(ended)]
        return [task for task in found if task is not None], bool(page.records)


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
