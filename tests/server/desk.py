"""A Millpond, the server that shows it, and a client on this machine: what the tests work with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tests import stores

from millpond import Millpond
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.runtime.environment import wall_clock
from millpond.server import app
from millpond.server.application import Server
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Batch, Store

TOKEN = "a-token-that-is-hard-to-guess"  # noqa: S105 - of the tests
BEARER = {"authorization": f"Bearer {TOKEN}"}
MakeStore = Callable[[], Store]


class Desk:
    """What a test has in its hands."""

    def __init__(self, mp: Millpond, server: Server, client: httpx.AsyncClient) -> None:
        self.mp = mp
        self.server = server
        self.client = client

    async def get(self, path: str, **options: Any) -> Any:
        """Return what a path answers, which must be a success."""
        answer = await self.client.get(f"/api/v1{path}", **options)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def post(self, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        """Post, and return the answer, which must have the status that is expected."""
        answer = await self.client.post(f"/api/v1{path}", json=body or {}, **options)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def patch(self, path: str, body: Any, status: int = 200) -> Any:
        """Patch, and return the answer, which must have the status that is expected."""
        answer = await self.client.patch(f"/api/v1{path}", json=body)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def put(
        self, pool: str, count: int = 1, function: str = "absent", **said: Any
    ) -> list[int]:
        """Store calls of a function that this process does not know; return their ids."""
        runtime = internals_of(self.mp).runtime
        new = [
            NewTask(id=runtime.new_id(), pool=pool, call=Call(function, b"{}"), **said)
            for _ in range(count)
        ]
        answer = await runtime.submitter.submit(Batch(tasks=tuple(new)))
        assert answer.refusal is None
        return [one.id for one in new]


def local_client(server: Any, host: str = "localhost", **options: Any) -> httpx.AsyncClient:
    """Return a client that asks as a program of this machine does."""
    transport = httpx.ASGITransport(server, client=("127.0.0.1", 50000))
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}", **options)


@asynccontextmanager
async def desk(
    declare: Callable[[Millpond], object],
    make: stores.Places | None = None,
    *,
    work: bool | None = None,
    **options: Any,
) -> AsyncIterator[Desk]:
    """Open a Millpond on a store of a kind, and a server that shows it."""
    mp = Millpond(work=work)
    clock = wall_clock(asyncio.get_running_loop())
    internals_of(mp).owner.make_store = lambda: (
        MemoryStore(clock=clock) if make is None else make.fresh(clock)
    )
    declare(mp)
    options.setdefault("max_rate", 1_000_000)
    server = app(mp, **options)
    async with mp, local_client(server) as client:
        try:
            yield Desk(mp, server, client)
        finally:
            await server.close()
