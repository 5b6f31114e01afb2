"""Own: the worker of a process that works for nobody else.

On a store that others use, opening a Millpond makes no worker. But closures run in the process
that submitted them, and a run that a process holds open must end with it. So a worker is brought
that takes the closures of this process and no call, and by which the others know that it lives.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.worker import Worker

OWN = "~own"
"""What the names of such workers end in: nobody who waits for work waits for them."""


class OwnWorker:
    """Brings that worker when it is first needed, and keeps it until the end."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pools: dict[str, None] = {}
        """Where closures were submitted."""
        self._making: asyncio.Task[Worker] | None = None
        self.held = 0
        """How many runs this process holds open."""

    async def serve(self, pool: str) -> None:
        """See to it that closures of a pool are run here."""
        self._pools[pool] = None
        if not self._runtime.served(pool):
            (await self._worker()).also(pool)

    async def live(self) -> None:
        """See to it that the store knows that this process lives."""
        if not any(worker.joined for worker in self._runtime.workers):
            await self._worker()

    async def take_over(self, leaving: Worker) -> None:
        """Be there before a worker leaves that closures, or an open run, still need."""
        runtime = self._runtime
        if leaving.own or runtime.closed or not runtime.shared:
            return
        others = [one for one in runtime.workers if one is not leaving]
        for pool in list(self._pools) if runtime.closures else ():
            if not any(one.serves(pool) for one in others):
                (await self._worker()).also(pool)
        if self.held and not any(one.joined for one in others):
            await self._worker()

    async def _worker(self) -> Worker:
        making = self._making
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            runtime = self._runtime
            making = self._making = runtime.spawn(runtime.add_worker(own=True))
        # Whoever asked first may be cancelled: the others go on waiting for the same one.
        return await asyncio.shield(making)
