"""The closure worker: runs closures of this process where it has no other worker.

On a shared store, opening a Millpond starts no worker. But closures run in the process that
submitted them, and a run that a process holds open must end with it. So this worker starts when one
of them needs it. It runs closures of this process and no task functions, and by its registration
other processes see that this one is alive.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millpond.core.service import Service
from millpond.runtime.worker.workers import served

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, MutableMapping, Sequence
    from typing import Any

    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import Closure
    from millpond.runtime.worker.worker import Worker

OWN = "~own"
"""The suffix of such a worker's name: it does not take work of other processes."""

IN_FLIGHT = (0.0, 1.0, 60.0)
"""Seconds between checks whether a cancelled submit was stored; after the last it was not."""


class ClosureWorker(Service):
    """Starts that worker when it is first needed, and keeps it until the end."""

    _env: Environment
    _workers: Sequence[Worker]
    _closures: MutableMapping[int, Closure]
    _start: Callable[[], Coroutine[Any, Any, Worker]]
    _pools: dict[str, None] = {}
    """Where closures were submitted."""
    _starting: asyncio.Task[Worker] | None = None
    open_runs: int = 0
    """How many runs this process holds open."""

    async def serve(self, pool: str) -> None:
        """Make sure that a worker of this process runs closures of a pool."""
        self._pools[pool] = None
        if not served(self._workers, pool):
            (await self._worker()).add_pool(pool)

    async def register(self) -> None:
        """Make sure that the store knows that this process is alive."""
        if not any(worker.joined for worker in self._workers):
            await self._worker()

    async def take_over(self, leaving: Worker) -> None:
        """Start before a worker leaves that closures, or an open run, still need."""
        if leaving.own or self._env.closed or not self._env.shared:
            return
        others = [one for one in self._workers if one is not leaving]
        for pool in list(self._pools) if self._closures else ():
            if not any(one.serves(pool) for one in others):
                (await self._worker()).add_pool(pool)
        if self.open_runs and not any(one.joined for one in others):
            await self._worker()

    async def _worker(self) -> Worker:
        starting = self._starting
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception())):
            starting = self._starting = self._env.spawn(self._start())
        # The first caller may be cancelled: the others go on waiting for the same worker.
        return await asyncio.shield(starting)

    async def forget_unstored(self, tasks: Sequence[int]) -> None:
        """Drop the closures of tasks that the store does not know, and will not know.

        A submit whose caller was cancelled may be on its way to a shared store and be stored after
        all: then its closure is needed.
        """
        for pause in IN_FLIGHT if self._env.shared else (0.0,):
            await asyncio.sleep(pause)
            known = zip(tasks, await self._env.view.status(tasks), strict=True)
            tasks = [task for task, status in known if status == "unknown"]
            if not tasks:
                return
        for task in tasks:
            self._closures.pop(task, None)
