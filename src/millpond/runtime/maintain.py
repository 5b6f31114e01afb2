"""Maintenance: what time alone does. It sleeps until the store says that there is something."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.control import Prune
from millpond.core.plan import sooner

if TYPE_CHECKING:
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.maintenance")

PRUNE_EVERY = 60.0
SHORTEST_SLEEP = 0.001

NEVER = 1e9
"""Seconds that no wait is as long as: the lease of a worker that nobody can outlive."""


class Maintenance:
    """Renews leases, recovers lost work and forgets what is old."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._pruned_at = runtime.clock()
        self._prunes = False

    def start(self) -> None:
        """Begin, once there is a worker."""
        if self._task is None:
            self._task = self._runtime.loop.create_task(self._main(), name="millpond maintenance")
            self._runtime.loop.call_soon(self._nudge.set)

    async def stop(self) -> None:
        """End; safe before start, and safe twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def nudge(self) -> None:
        """Something may be due earlier than was known."""
        self._nudge.set()

    def ended(self) -> None:
        """A task has ended: one day it is to be forgotten."""
        if not self._prunes:
            self._prunes = True
            self._nudge.set()

    async def _main(self) -> None:
        while True:
            try:
                moment = await self._round()
            except Exception:
                log.exception("maintenance failed; it tries again")
                moment = self._runtime.clock() + 1.0
            delay = NEVER if moment is None else moment - self._runtime.clock()
            if delay >= NEVER / 2:
                await self._nudged()
                continue
            delay = max(delay, SHORTEST_SLEEP)
            try:
                async with asyncio.timeout(delay):
                    await self._nudged()
            except TimeoutError:
                pass

    async def _nudged(self) -> None:
        """Wait for a nudge: one that came during the last round counts."""
        await self._nudge.wait()
        self._nudge.clear()

    async def _round(self) -> float | None:
        """Do what is due; return when to look again."""
        runtime = self._runtime
        renewal = await self._renew()
        answer = await runtime.store.recover()
        runtime.heed(answer)
        if answer.more:
            return runtime.clock()
        return sooner(sooner(answer.next_at, renewal), await self._prune())

    async def _renew(self) -> float | None:
        """Keep the leases of our workers; only a store that others use can lose them."""
        runtime = self._runtime
        if not runtime.shared:
            return None
        for worker in [one for one in runtime.workers if one.joined and not one.fenced]:
            sent, name = runtime.clock(), worker.name
            answer = await runtime.store.renew(name, worker.lease)
            if answer.alive:
                worker.renewed(sent)
            elif worker.name == name:
                runtime.fenced(worker)
            runtime.told_to_cancel(answer.cancelled)
        shortest = min((worker.lease for worker in runtime.workers), default=None)
        return None if shortest is None else runtime.clock() + shortest / 3

    async def _prune(self) -> float | None:
        """Forget what is older than it is kept, now and then, while there is anything to forget."""
        runtime = self._runtime
        now = runtime.clock()
        due = self._pruned_at + PRUNE_EVERY
        if now < due:
            return due if await self._anything_kept() else None
        self._pruned_at = now
        keep = runtime.keep
        for pool in list(runtime.declared):
            order = Prune(
                pool,
                now - float(keep.completed),  # type: ignore[arg-type]
                now - float(keep.failed),  # type: ignore[arg-type]
                keys_before=now - float(keep.keys),  # type: ignore[arg-type]
            )
            more = True
            while more:
                more = (await runtime.store.control(order)).count >= order.limit
                await asyncio.sleep(0)
        runtime.waiting.forget_values(now - float(keep.completed))  # type: ignore[arg-type]
        return now + PRUNE_EVERY if await self._anything_kept() else None

    async def _anything_kept(self) -> bool:
        """Return whether there is something to forget; if not, the next end will tell."""
        for pool in self._runtime.declared:
            view = await self._runtime.view.pool(pool)
            if view is not None and view.kept:
                self._prunes = True
                return True
        self._prunes = False
        return False
