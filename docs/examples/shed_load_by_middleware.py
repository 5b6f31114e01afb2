"""A bulkhead in front of a whole application, and one per host behind it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from millpond import Bulkhead, BulkheadRejected
from millpond.integrations.asgi import BulkheadMiddleware
from millpond.integrations.httpx import AsyncBulkheadTransport


async def slow(_request: Request) -> PlainTextResponse:
    await asyncio.sleep(0.2)
    return PlainTextResponse("done")


async def health(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("fine")


app = Starlette(routes=[Route("/", slow), Route("/health", health)])
app.add_middleware(
    BulkheadMiddleware,
    bulkhead=Bulkhead("api", 4, max_queue=4),
    timeout=1.0,
    retry_after=2,
    exempt=["/health"],
)


@asynccontextmanager
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """Give a client that has at most six requests to each host under way."""
    inside = httpx.ASGITransport(app)  # leave it out for the network
    transport = AsyncBulkheadTransport(6, max_queue=4, timeout=1.0, transport=inside)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.example") as client:
        yield client


async def main() -> None:
    inside = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=inside, base_url="http://api.example") as plain:
        answers = await asyncio.gather(*(plain.get("/") for _ in range(10)))
        refused = [answer for answer in answers if answer.status_code == 503]
        assert len(refused) == 2
        assert refused[0].headers["retry-after"] == "2"
        assert refused[0].json()["reason"] == "queue_limit"

    async with client() as bounded:
        answers = await asyncio.gather(*(bounded.get("/") for _ in range(10)))
        assert {answer.status_code for answer in answers} == {200}  # four waited in the client
        many = (bounded.get("/") for _ in range(12))
        answers_or_errors = await asyncio.gather(*many, return_exceptions=True)
        errors = [one for one in answers_or_errors if isinstance(one, BulkheadRejected)]
        assert [(error.bulkhead, error.reason) for error in errors] == [
            ("host:api.example", "queue_limit"),
            ("host:api.example", "queue_limit"),
        ]


asyncio.run(main())
