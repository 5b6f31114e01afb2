"""Serve: drain, map and stream bring a worker for their pool where none serves it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from millpond.pool.pool import Pool


class Brought:
    """A worker that was brought for one pool, and how many need it."""

    def __init__(self) -> None:
        self.users = 0
        self.worker = contextlib.AsyncExitStack()


@contextlib.asynccontextmanager
async def serving(pool: Pool) -> AsyncIterator[None]:
    """See to it that a worker of this process serves a pool while this lasts.

    Where one does already, nothing is changed; else one is brought, for all who ask meanwhile,
    and leaves with the last of them. What it runs for others then is given back uncharged.
    """
    await pool.ready()
    everyone = pool.runtime.brought
    brought = everyone.get(pool.name)
    if brought is None and pool.runtime.served(pool.name):
        yield
        return
    if brought is None:
        brought = everyone[pool.name] = Brought()
    brought.users += 1
    try:
        if brought.users == 1:
            await brought.worker.enter_async_context(pool.millpond.worker(pools=[pool]))
        yield
    finally:
        brought.users -= 1
        if not brought.users:
            del everyone[pool.name]
            await brought.worker.aclose()
