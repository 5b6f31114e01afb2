"""Temporary workers: drain, map and stream start a worker for their pool where none serves it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.pool.declared_pool import DeclaredPool


class TemporaryWorker:
    """A worker for one pool, and how many callers need it.

    A task of its own opens and closes it, because the caller that started it may be cancelled or
    leave before the others.
    """

    def __init__(self, pool: DeclaredPool) -> None:
        self.users = 0
        self._pool = pool
        loop = pool.loop
        self._started: asyncio.Future[None] = loop.create_future()
        self._unused: asyncio.Future[None] = loop.create_future()
        self._failure: Exception | None = None
        self._task = pool.runtime.spawn(self._run())

    async def _run(self) -> None:
        try:
            async with self._pool.owner.worker(frozenset({self._pool.spec.name})):
                self._started.set_result(None)
                await self._unused
        except Exception as error:  # noqa: BLE001 - raised by `started` or `stop`
            self._failure = error

    async def started(self) -> None:
        """Wait until it serves the pool; raise the error that prevents it."""
        await asyncio.wait((self._started, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Stop it and wait until it has stopped; raise the error of that."""
        if not self._started.done():
            self._task.cancel()
        if not self._unused.done():
            self._unused.set_result(None)
        await asyncio.wait((self._task,))
        if self._started.done() and self._failure is not None:
            raise self._failure


@contextlib.asynccontextmanager
async def serving(pool: DeclaredPool) -> AsyncIterator[None]:
    """Make sure that a worker of this process serves a pool while this lasts.

    Where none does, all callers share one temporary worker, which stops with the last of them and
    then gives back uncharged what it runs for others.
    """
    await pool.ready()
    temporary = pool.runtime.temporary_workers
    worker = temporary.get(pool.spec.name)
    if worker is None and pool.runtime.served(pool.spec.name):
        yield
        return
    if worker is None:
        worker = temporary[pool.spec.name] = TemporaryWorker(pool)
    worker.users += 1
    try:
        await worker.started()
        yield
    finally:
        worker.users -= 1
        if not worker.users:
            del temporary[pool.spec.name]
            await worker.stop()
