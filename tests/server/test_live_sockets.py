"""Ten thousand real connections ask for live events at a time."""

from __future__ import annotations

import asyncio
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

CLIENTS = 10_000
SERVED = 100
SPARE = 500
"""Open files besides the connections."""

AT_A_TIME = 200
REQUEST = b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n"

_SERVE = """
import asyncio, resource, sys
from millpond import Millpond
from millpond.server import app
from millpond.server.serving import serve
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
mp = Millpond()
mp.pool("orders")
made = app(mp, max_clients=int(sys.argv[1]), max_rate=1_000_000)
asyncio.run(serve(made, "127.0.0.1", 0, lambda url: print(url, flush=True)))
"""


@contextmanager
def served() -> Iterator[int]:
    """Serve a Millpond in another process; give its port."""
    command = [sys.executable, "-c", _SERVE, str(SERVED)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        yield int(found[1])
    finally:
        process.terminate()
        process.communicate(timeout=30)


class Client(asyncio.Protocol):
    """A connection that asks once, and keeps the answer."""

    def __init__(self) -> None:
        self.heard = b""
        self.transport: asyncio.Transport
        self.answered = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for live events."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        """Keep the beginning of the answer."""
        self.heard = (self.heard + data)[:4000]
        if b"event: pools" in self.heard or b"too_many_clients" in self.heard:
            self.answered.set()

    @property
    def status(self) -> int:
        """The status of the answer."""
        return int(self.heard[9:12])


@pytest.mark.rows("DA-10")
@pytest.mark.real_loop
@pytest.mark.timeout(120)
async def test_ten_thousand_connections_are_answered_and_a_hundred_of_them_served() -> None:
    """A refusal beyond the limit says when to come back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(CLIENTS, hard - SPARE) if hard != resource.RLIM_INFINITY else CLIENTS
    try:
        with served() as port:
            clients = await connected(port, count)
            statuses = [client.status for client in clients]
            assert statuses.count(200) == SERVED
            assert statuses.count(503) == count - SERVED
            refused = next(client for client in clients if client.status == 503)
            assert b"retry-after: 5" in refused.heard
            # Those who were refused are still connected, and do not keep others out.
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as other:
                assert (await other.get("/api/v1/pools")).status_code == 200
            for client in clients:
                client.transport.abort()
            (again,) = await connected(port, 1)
            assert again.status == 200
            again.transport.abort()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def connected(port: int, count: int) -> list[Client]:
    """Return clients that were all answered."""
    loop = asyncio.get_running_loop()
    turns = asyncio.Semaphore(AT_A_TIME)

    async def connect() -> Client:
        async with turns:
            _, client = await loop.create_connection(Client, "127.0.0.1", port)
            await client.answered.wait()
            return client

    return await asyncio.gather(*(connect() for _ in range(count)))
