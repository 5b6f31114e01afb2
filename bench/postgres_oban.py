"""oban for bench/postgres.py: its workers are found by the name of the module they are in."""

from __future__ import annotations

from typing import Any

import oban
from oban.schema import install
from postgres_peers import Counted, Handler

_handlers: list[Handler] = []


@oban.worker(queue="default")
class Noop:
    """Records that it was started."""

    async def process(self, job: Any) -> None:
        """Do nothing else."""
        _handlers[-1](job.args["sent"])


class Oban(Counted):
    """oban with the pool of connections it makes by itself."""

    remaining = "SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'executing')"

    # The library gives a worker `new` when it is declared.
    _job: Any = Noop

    async def _pool(self) -> Any:
        return await oban.Oban.create_pool(dsn=self.url)

    async def install(self) -> None:
        await install(await self._pool())

    async def open(self) -> None:
        self.oban = oban.Oban(pool=await self._pool())

    async def submit(self, sent: int) -> None:
        await self.oban.enqueue(self._job.new({"sent": sent}))

    async def submit_many(self, sent: list[int]) -> None:
        await self.oban.enqueue_many([self._job.new({"sent": one}) for one in sent])

    async def start(self, concurrency: int, handler: Handler) -> None:
        _handlers.append(handler)
        self.oban = oban.Oban(pool=await self._pool(), queues={"default": concurrency})
        await self.oban.__aenter__()
