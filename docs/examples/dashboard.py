"""The dashboard in an application of your own: mounted, with your login."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from millpond import Millpond
from millpond.server import app as dashboard

mp = Millpond("sqlite:///work.db")
mail = mp.pool("mail", max_concurrent=4)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with mp:
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/millpond", dashboard(mp))


def who(scope: Mapping[str, Any]) -> str | None:
    session = scope.get("session") or {}
    return session.get("user")


own = dashboard(mp, authenticate=who, allow_actions=True, allow_hosts=["app.example.com"])


async def main() -> None:
    """Ask the API, as a browser of this machine does, without a server."""
    async with lifespan(app), client(app) as browser:
        answer = await browser.get("/millpond/api/v1/pools")
        print("pools:", [pool["name"] for pool in answer.json()["items"]])
        refused = await browser.post("/millpond/api/v1/pools/mail/pause", json={})
        print("pause:", refused.status_code, refused.json()["error"]["code"])
        async with client(own) as stranger:
            answer = await stranger.get("/api/v1/pools")
            print("who?", answer.status_code)


def client(app: Any) -> httpx.AsyncClient:  # noqa: ANN401 - any ASGI app
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 50000))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


if __name__ == "__main__":
    asyncio.run(main())
