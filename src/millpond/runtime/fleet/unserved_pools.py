"""Unserved pools: warn once about a wait for a task of a pool that no worker serves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.errors import Unserved
from millpond.runtime.fleet.closure_worker import OWN
from millpond.runtime.worker.workers import served

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import WorkerProtocol

log = logging.getLogger("millpond.runtime")

UNSERVED_AFTER = 5.0
"""Seconds of waiting after which it is checked whether a worker serves the pool."""


class UnservedPools(Service):
    """Warns about waits that no worker may ever end."""

    _env: Environment
    _workers: Sequence[WorkerProtocol]
    _warned: set[str] = set()

    def watch(self, pool: str) -> asyncio.TimerHandle | None:
        """Check in a while whether a worker serves a pool; None if one does now."""
        if pool in self._warned or served(self._workers, pool):
            return None
        return self._env.loop.call_later(UNSERVED_AFTER, self._check, pool)

    def _check(self, pool: str) -> None:
        if pool not in self._warned and not served(self._workers, pool):
            self._warned.add(pool)
            self._env.spawn(self._warn(pool))

    async def _warn(self, pool: str) -> None:
        if self._env.shared and await self._any_worker():
            # Another process has a worker; which pools it serves is not known here.
            return
        error = Unserved(
            f"a task of pool {pool!r} is awaited, but no live worker serves the pool; open one "
            f"with `async with mp.worker():`, or {self._remedy()}",
            pool=pool,
        )
        log.warning("%s", error, extra=about("pool.unserved", pool=pool))

    async def _any_worker(self) -> bool:
        """Return whether any process has a worker that takes work of other processes."""
        return any(not name.endswith(OWN) for name in await self._env.view.workers())

    def _remedy(self) -> str:
        if self._env.shared:
            return "start one with `millpond worker module:app`"
        return "do not pass work=False"
