"""Pools that nobody serves: whoever waits for a task of one is told so, once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.errors import Unserved
from millpond.runtime.fleet.closure_worker import OWN

if TYPE_CHECKING:
    import asyncio

    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.runtime")

UNSERVED_AFTER = 5.0
"""Seconds for which a waiter waits before it is looked who could end its wait."""


class UnservedPools:
    """Warns of waits that nobody may ever end."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._warned: set[str] = set()

    def watch(self, pool: str) -> asyncio.TimerHandle | None:
        """Look in a while whether anybody serves a pool; None if somebody does now."""
        if pool in self._warned or self._runtime.served(pool):
            return None
        return self._runtime.loop.call_later(UNSERVED_AFTER, self._look, pool)

    def _look(self, pool: str) -> None:
        if pool not in self._warned and not self._runtime.served(pool):
            self._warned.add(pool)
            self._runtime.spawn(self._warn(pool))

    async def _warn(self, pool: str) -> None:
        if self._runtime.shared and await self._somebody_works():
            # Somebody is at work elsewhere; which pools it serves is not known here.
            return
        error = Unserved(
            f"somebody waits for a task of pool {pool!r}, which no live worker serves; open one "
            f"with `async with mp.worker():`, or {self._remedy()}",
            pool=pool,
        )
        log.warning("%s", error, extra={"pool": pool})

    async def _somebody_works(self) -> bool:
        """Return whether there is a worker anywhere that takes the work of others."""
        return any(not name.endswith(OWN) for name in await self._runtime.view.workers())

    def _remedy(self) -> str:
        if self._runtime.shared:
            return "start one with `millpond worker module:app`"
        return "do not pass work=False"
