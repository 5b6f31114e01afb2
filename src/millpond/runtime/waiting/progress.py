"""Progress: what handlers report, for the code of this process that watches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millpond.core.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.runtime.environment import Environment
    from millpond.runtime.waiting.results import Waiting
    from millpond.runtime.waiting.task_result import TaskResult

Report = tuple[float, str]

POLL = 1.0
"""Seconds between two looks at a task that runs in another process."""


class ProgressBoard(Service):
    """Passes the progress of tasks on to those who watch them."""

    _env: Environment
    _waiting: Waiting
    _watchers: dict[int, list[asyncio.Queue[Report | None]]] = {}

    async def look(self) -> None:
        """Find what handlers of other processes reported."""
        for task in list(self._watchers):
            record = await self._env.view.task(task)
            if record is not None and record.progress is not None:
                self.reported(task, *record.progress)

    def reported(self, task: int, fraction: float, text: str) -> None:
        """Pass on what a handler of this process reported."""
        for watcher in self._watchers.get(task, ()):
            watcher.put_nowait((fraction, text))

    async def of(self, task: int) -> AsyncIterator[Report]:
        """Yield the progress of a task, from what is known now until its end."""
        watcher: asyncio.Queue[Report | None] = asyncio.Queue()
        self._watchers.setdefault(task, []).append(watcher)

        def ended(_end: TaskResult | None) -> None:
            watcher.put_nowait(None)

        self._waiting.on_end(task, ended)
        try:
            last = None
            record = await self._env.view.task(task)
            if record is not None and record.progress is not None:
                last = record.progress
                yield last
            if record is None or record.status.terminal:
                return
            while (report := await self._next(task, watcher, last)) is not None:
                if report != last or not self._env.shared:
                    last = report
                    yield report
            if self._env.shared:
                # Its end was known before the last look of this process.
                record = await self._env.view.task(task)
                if record is not None and record.progress not in (None, last):
                    yield record.progress
        finally:
            self._waiting.forget(task, ended)
            self._watchers[task].remove(watcher)
            if not self._watchers[task]:
                del self._watchers[task]

    async def _next(
        self, task: int, watcher: asyncio.Queue[Report | None], last: Report | None
    ) -> Report | None:
        """Return the next report; where other processes may run the task, poll the store too."""
        while True:
            if not self._env.shared or self._env.shared_store.changed is not None:
                return await watcher.get()
            try:
                async with asyncio.timeout(POLL):
                    return await watcher.get()
            except TimeoutError:
                record = await self._env.view.task(task)
                if record is None or record.status.terminal:
                    return None
                if record.progress is not None and record.progress != last:
                    return record.progress
