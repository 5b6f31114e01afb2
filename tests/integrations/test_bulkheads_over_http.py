"""The bulkhead middleware under uvicorn, and the transports of httpx and httpx2 against it."""

import asyncio
import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from tests.integrations.serving import SOON, Served, served, uvicorn

from millpond import Bulkhead, BulkheadRejected, ConfigError, Permit, RejectReason
from millpond.integrations import host_bulkheads
from millpond.integrations.asgi import BulkheadMiddleware, Message
from millpond.integrations.host_bulkheads import HostBulkheads

pytestmark = pytest.mark.real_loop

CLOSE = {"connection": "close"}
"""uvicorn ends a connection on which the application raised; a client must not use it again."""

APP = """
import asyncio

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

from millpond import Bulkhead
from millpond.integrations.asgi import BulkheadMiddleware

entered, opened = asyncio.Semaphore(0), asyncio.Event()

async def wait(request):
    entered.release()
    await opened.wait()
    return PlainTextResponse("done")

async def let_go(request):
    for _ in range(int(request.query_params["after"])):
        await entered.acquire()
    opened.set()
    return PlainTextResponse("let go")

async def fail(request):
    raise ValueError("on purpose")

async def ready(request):
    return PlainTextResponse("fine")

async def stream(request):
    async def parts():
        for _ in range(3):
            yield b"part"
    return StreamingResponse(parts())

app = Starlette(routes=[
    Route("/wait", wait), Route("/let_go", let_go), Route("/fail", fail), Route("/ready", ready),
    Route("/stream", stream),
])
app.add_middleware(
    BulkheadMiddleware,
    bulkhead=Bulkhead("api", 2, max_queue=1),
    retry_after=2.5,
    exempt=["/let_go", "/ready"],
)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """An application of which two requests run and one waits."""
    (tmp_path / "shedding.py").write_text(APP)
    with served(uvicorn("shedding:app"), tmp_path) as server:
        yield server


async def test_what_is_not_admitted_gets_503_and_a_reason(server: Served) -> None:
    """The others are answered, and slots come back, also those of requests that fail."""
    async with httpx.AsyncClient(base_url=server.url, timeout=SOON) as client:
        for _ in range(4):
            assert 500 == (await client.get("/fail", headers=CLOSE)).status_code
        waiting = [asyncio.create_task(client.get("/wait")) for _ in range(6)]
        refused = []
        for next_one in asyncio.as_completed(waiting):
            refused.append(await next_one)
            if len(refused) == 3:
                break
        for answer in refused:
            assert 503 == answer.status_code
            assert "3" == answer.headers["retry-after"]
            expected = {"error": "busy", "reason": "queue_limit", "bulkhead": "api"}
            assert expected == answer.json()
        assert 200 == (await client.get("/ready")).status_code
        assert 200 == (await client.get("/let_go", params={"after": 2})).status_code
        answers = await asyncio.gather(*waiting)
        assert [200] * 3 + [503] * 3 == sorted(answer.status_code for answer in answers)
        assert b"part" * 3 == (await client.get("/stream")).content


async def call(middleware: BulkheadMiddleware, kind: str = "http") -> list[Message]:
    """Call a middleware as a server does; return what it sends."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    await middleware({"type": kind, "path": "/"}, receive, send)
    return sent


async def test_only_requests_need_a_permit_and_failures_reach_an_adaptive_limit() -> None:
    """A lifespan or a WebSocket passes; an answer of 500 is a failure, as an exception is."""
    bulkhead = Bulkhead("api", 1)
    failed: list[bool] = []

    async def app(scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 500, "headers": []})

    permit = bulkhead.try_acquire()
    assert permit
    middleware = BulkheadMiddleware(app, bulkhead, timeout=0.01)
    assert [] == await call(middleware, "lifespan")
    assert [] == await call(middleware, "websocket")
    answer = await call(middleware)
    assert 503 == answer[0]["status"]
    assert RejectReason.CONCURRENCY_LIMIT.encode() in answer[1]["body"]
    permit.release()

    release = type(permit).release

    def counted(self: Permit, failure: bool = False) -> None:
        failed.append(failure)
        release(self, failure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(permit), "release", counted)
        assert 500 == (await call(middleware))[0]["status"]
    assert [True] == failed
    with pytest.raises(ConfigError, match="retry_after"):
        BulkheadMiddleware(app, bulkhead, retry_after=-1)


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    """The client: the one of before, or its successor."""
    return importlib.import_module(request.param)


def transports(library: ModuleType) -> Any:
    """Our transports for it."""
    return importlib.import_module(f"millpond.integrations.{library.__name__}")


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)


async def test_an_async_client_has_one_bulkhead_per_host(
    server: Served, library: ModuleType
) -> None:
    """A host that hangs has its slots taken, and the other host has all of its own."""
    transport = transports(library).AsyncBulkheadTransport(2)
    other = server.url.replace("127.0.0.1", "localhost")
    async with library.AsyncClient(transport=transport, timeout=SOON) as client:
        hanging = [asyncio.create_task(client.get(f"{server.url}/wait")) for _ in range(2)]
        bulkhead = transport.bulkhead(server.url.removeprefix("http://"))
        await until(lambda: bulkhead.stats().in_flight == 2)
        with pytest.raises(BulkheadRejected) as caught:
            await client.get(f"{server.url}/ready")
        assert RejectReason.CONCURRENCY_LIMIT == caught.value.reason
        assert caught.value.bulkhead == bulkhead.name
        assert 200 == (await client.get(f"{other}/let_go", params={"after": 2})).status_code
        assert [200, 200] == [answer.status_code for answer in await asyncio.gather(*hanging)]
        assert 0 == bulkhead.stats().in_flight


async def test_a_response_that_is_streamed_holds_its_slot_until_it_is_closed(
    server: Served, library: ModuleType
) -> None:
    """Whether it was read to its end or not; and a connection that fails gives it back at once."""
    transport = transports(library).AsyncBulkheadTransport(1)
    bulkhead = transport.bulkhead(server.url.removeprefix("http://"))
    async with library.AsyncClient(transport=transport, timeout=SOON) as client:
        async with client.stream("GET", f"{server.url}/stream") as response:
            assert 1 == bulkhead.stats().in_flight
            with pytest.raises(BulkheadRejected):
                await client.get(f"{server.url}/ready")
            assert b"part" * 3 == await response.aread()
        assert 0 == bulkhead.stats().in_flight
        server.stop()
        with pytest.raises(library.ConnectError):
            await client.get(f"{server.url}/ready")
        assert 0 == bulkhead.stats().in_flight


def test_threads_share_one_bulkhead_per_host(server: Served, library: ModuleType) -> None:
    """They wait for a slot in order, and none is lost."""
    transport = transports(library).BulkheadTransport(2, max_queue=50, timeout=SOON)
    bulkhead = transport.bulkhead(server.url.removeprefix("http://"))
    most: list[int] = []
    with library.Client(transport=transport, timeout=SOON) as client:

        def get(_number: int) -> int:
            answer = client.get(f"{server.url}/ready")
            most.append(bulkhead.stats().in_flight)
            status: int = answer.status_code
            return status

        with ThreadPoolExecutor(20) as threads:
            assert [200] * 40 == list(threads.map(get, range(40)))
        with client.stream("GET", f"{server.url}/stream") as response:
            assert 1 == bulkhead.stats().in_flight
            assert b"part" * 3 == response.read()
    assert max(most) <= 2
    assert 0 == bulkhead.stats().in_flight


def test_bulkheads_of_hosts_are_checked_named_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crawler of a million hosts keeps those that are in use."""
    with pytest.raises(ConfigError, match="max_concurrent"):
        HostBulkheads(0, max_queue=0, timeout=None)
    monkeypatch.setattr(host_bulkheads, "MOST_HOSTS", 3)
    bulkheads = HostBulkheads(1, max_queue=0, timeout=None)
    permit = bulkheads.enter_in_thread(httpx.URL("https://busy.example/"))
    busy = bulkheads.of("busy.example")
    for number in range(10):
        bulkheads.of(f"host{number}.example")
    assert 3 == len(bulkheads._of)
    assert busy is bulkheads.of("busy.example")
    with pytest.raises(BulkheadRejected):
        bulkheads.enter_in_thread(httpx.URL("https://busy.example:443/again"))
    permit.release()
    for url in ("http://busy.example:443/", "http://[::1]:8000/", "http://bücher.example/"):
        bulkheads.enter_in_thread(httpx.URL(url)).release()
