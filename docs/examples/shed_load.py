"""A web application that answers 503 at once instead of queueing forever. Plain ASGI."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from millpond import Bulkhead, BulkheadRejected

Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

reports = Bulkhead("reports", 4, max_queue=8)


async def answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def build_report() -> bytes:
    await asyncio.sleep(0.01)  # the slow database
    return b"report"


async def app(_scope: Scope, _receive: object, send: Send) -> None:
    try:
        body = await reports.run(build_report, timeout=0.5)
    except BulkheadRejected:
        await answer(send, 503, b"busy, try again", (b"retry-after", b"1"))
    else:
        await answer(send, 200, body)


async def main() -> None:
    """Send twenty requests at once: four run, eight wait, eight get a 503 at once."""
    statuses: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await asyncio.gather(*(app({}, None, send) for _ in range(20)))
    print(f"served {statuses.count(200)}, refused {statuses.count(503)}")
    assert (statuses.count(200), statuses.count(503)) == (12, 8)


asyncio.run(main())
