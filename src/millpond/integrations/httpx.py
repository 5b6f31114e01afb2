"""Transports of httpx with one bulkhead per host.

    transport = AsyncBulkheadTransport(10, max_queue=20, timeout=2.0)
    async with httpx.AsyncClient(transport=transport) as client:
        ...

At most 10 requests to each host are under way at once, 20 more wait for at most two seconds, and
any other raises BulkheadRejected at once. A request is under way until its response is closed.
"""

from __future__ import annotations

import httpx

from millpond.core.adaptive import Adaptive
from millpond.core.validation import Seconds
from millpond.integrations.host_bulkheads import (
    AsyncBody,
    AsyncTransport,
    Body,
    HostBulkheads,
    Transport,
)


class _AsyncBody(AsyncBody, httpx.AsyncByteStream):
    """A body as httpx knows it."""


class _Body(Body, httpx.SyncByteStream):
    """A body as httpx knows it."""


class AsyncBulkheadTransport(AsyncTransport, httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient`: one bulkhead per host, around `transport`."""

    _body = _AsyncBody

    def __init__(
        self,
        max_concurrent: int | Adaptive,
        *,
        max_queue: int = 0,
        timeout: Seconds | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        bulkheads = HostBulkheads(max_concurrent, max_queue=max_queue, timeout=timeout)
        super().__init__(transport or httpx.AsyncHTTPTransport(), bulkheads)


class BulkheadTransport(Transport, httpx.BaseTransport):
    """For `httpx.Client`, which threads use: one bulkhead per host, around `transport`."""

    _body = _Body

    def __init__(
        self,
        max_concurrent: int | Adaptive,
        *,
        max_queue: int = 0,
        timeout: Seconds | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        bulkheads = HostBulkheads(max_concurrent, max_queue=max_queue, timeout=timeout)
        super().__init__(transport or httpx.HTTPTransport(), bulkheads)
