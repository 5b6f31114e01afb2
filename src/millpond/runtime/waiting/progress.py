"""Progress: what handlers tell, to those who watch in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.runtime.runtime import Runtime
    from millpond.runtime.waiting.task_result import End

Told = tuple[float, str]

POLL = 1.0
"""Seconds between two looks at a task that runs in another process."""


class ProgressBoard:
    """Who watches which task."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._watchers: dict[int, list[asyncio.Queue[Told | None]]] = {}

    async def look(self) -> None:
        """Find what handlers of other processes told."""
        for task in list(self._watchers):
            record = await self._runtime.view.task(task)
            if record is not None and record.progress is not None:
                self.told(task, *record.progress)

    def told(self, task: int, fraction: float, text: str) -> None:
        """A handler told how far it has come."""
        for watcher in self._watchers.get(task, ()):
            watcher.put_nowait((fraction, text))

    async def of(self, task: int) -> AsyncIterator[Told]:
        """Yield what is told of a task, from what is known now until its end."""
        watcher: asyncio.Queue[Told | None] = asyncio.Queue()
        self._watchers.setdefault(task, []).append(watcher)

        def ended(_end: End | None) -> None:
            watcher.put_nowait(None)

        self._runtime.waiting.on_end(task, ended)
        try:
            last = None
            record = await self._runtime.view.task(task)
            if record is not None and record.progress is not None:
                last = record.progress
                yield last
            if record is None or record.status.terminal:
                return
            while (told := await self._next(task, watcher, last)) is not None:
                if told != last or not self._runtime.shared:
                    last = told
                    yield told
        finally:
            self._runtime.waiting.forget(task, ended)
            self._watchers[task].remove(watcher)
            if not self._watchers[task]:
                del self._watchers[task]

    async def _next(
        self, task: int, watcher: asyncio.Queue[Told | None], last: Told | None
    ) -> Told | None:
        """Return the next thing told; where others may run the task, look at the store too."""
        while True:
            if not self._runtime.shared or self._runtime.abilities.changed is not None:
                return await watcher.get()
            try:
                async with asyncio.timeout(POLL):
                    return await watcher.get()
            except TimeoutError:
                record = await self._runtime.view.task(task)
                if record is None or record.status.terminal:
                    return None
                if record.progress is not None and record.progress != last:
                    return record.progress
