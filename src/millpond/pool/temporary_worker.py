"""Serve: drain, map and stream bring a worker for their pool where none serves it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.pool.pool import Pool


class Brought:
    """A worker that was brought for one pool, and how many need it.

    A task of its own opens and closes it: who asked first may be cancelled, or leave first.
    """

    def __init__(self, pool: Pool) -> None:
        self.users = 0
        self._pool = pool
        loop = pool.loop
        self._there: asyncio.Future[None] = loop.create_future()
        self._unwanted: asyncio.Future[None] = loop.create_future()
        self._failure: Exception | None = None
        self._task = pool.runtime.spawn(self._hold())

    async def _hold(self) -> None:
        try:
            async with self._pool.millpond.worker(pools=[self._pool]):
                self._there.set_result(None)
                await self._unwanted
        except Exception as error:  # noqa: BLE001 - told to those who need it
            self._failure = error

    async def there(self) -> None:
        """Wait until it serves; raise what kept it from it."""
        await asyncio.wait((self._there, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._failure is not None:
            raise self._failure

    async def leave(self) -> None:
        """Let it go, and wait until it is gone; raise what went wrong with that."""
        if not self._there.done():
            self._task.cancel()
        if not self._unwanted.done():
            self._unwanted.set_result(None)
        await asyncio.wait((self._task,))
        if self._there.done() and self._failure is not None:
            raise self._failure


@contextlib.asynccontextmanager
async def serving(pool: Pool) -> AsyncIterator[None]:
    """See to it that a worker of this process serves a pool while this lasts.

    Where one does already, nothing is changed; else one is brought, for all who ask meanwhile,
    and leaves with the last of them. What it runs for others then is given back uncharged.
    """
    await pool.ready()
    everyone = pool.runtime.temporary_workers
    brought = everyone.get(pool.spec.name)
    if brought is None and pool.runtime.served(pool.spec.name):
        yield
        return
    if brought is None:
        brought = everyone[pool.spec.name] = Brought(pool)
    brought.users += 1
    try:
        await brought.there()
        yield
    finally:
        brought.users -= 1
        if not brought.users:
            del everyone[pool.spec.name]
            await brought.leave()
