"""A bulkhead in front of an ASGI application: what it does not admit is answered with 503.

    app.add_middleware(BulkheadMiddleware, bulkhead=Bulkhead("api", 50, max_queue=100), timeout=0.5)

It needs no framework: Starlette, FastAPI, Django, Quart and Litestar take it as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, TypeAlias

from millpond.bulkhead import Bulkhead, PermitRejection
from millpond.bulkhead.permit import is_failure
from millpond.core import validation as check
from millpond.core.validation import Seconds

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


class BulkheadMiddleware:
    """Lets as many requests into an application as a bulkhead admits.

    `timeout` bounds how long a request waits, if the bulkhead has a queue. `retry_after` is what a
    refused client is asked to wait. Requests to the paths of `exempt` (health checks) pass, and so
    do WebSockets and the server's own start and stop. A permit is held until the application has
    answered; an answer of 500 or more is a failure for an adaptive limit.
    """

    def __init__(
        self,
        app: App,
        bulkhead: Bulkhead,
        *,
        timeout: Seconds | None = None,
        retry_after: Seconds = 1.0,
        exempt: Collection[str] = (),
    ) -> None:
        self._app = app
        self._bulkhead = bulkhead
        self._timeout = None if timeout is None else check.seconds("timeout", timeout)
        self._retry_after = math.ceil(check.seconds("retry_after", retry_after))
        self._exempt = frozenset(exempt)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http" or scope["path"] in self._exempt:
            await self._app(scope, receive, send)
            return
        permit = await self._bulkhead.acquire(self._timeout)
        if not permit:
            await self._refuse(permit, send)
            return
        failed = False

        async def watch(message: Message) -> None:
            nonlocal failed
            if message["type"] == "http.response.start":
                failed = message["status"] >= 500
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except BaseException as error:
            failed = is_failure(type(error))
            raise
        finally:
            permit.release(failed)

    async def _refuse(self, refused: PermitRejection, send: Send) -> None:
        document = {"error": "busy", "reason": str(refused.reason), "bulkhead": refused.bulkhead}
        body = json.dumps(document).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"retry-after", str(self._retry_after).encode()),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})
