"""Transports of httpx2 with one bulkhead per host.

    transport = AsyncBulkheadTransport(10, max_queue=20, timeout=2.0)
    async with httpx2.AsyncClient(transport=transport) as client:
        ...

At most 10 requests to each host are under way at once, 20 more wait for at most two seconds, and
any other raises BulkheadRejected at once. A request is under way until its response is closed.
"""

from __future__ import annotations

import httpx2

from millpond.core.adaptive import Adaptive
from millpond.core.validation import Seconds
from millpond.integrations.host_bulkheads import (
    AsyncBody,
    AsyncTransport,
    Body,
    HostBulkheads,
    Transport,
)


class _AsyncBody(AsyncBody, httpx2.AsyncByteStream):
    """A body as httpx2 knows it."""


class _Body(Body, httpx2.SyncByteStream):
    """A body as httpx2 knows it."""


class AsyncBulkheadTransport(AsyncTransport, httpx2.AsyncBaseTransport):
    """For `httpx2.AsyncClient`: one bulkhead per host, around `transport`."""

    _body = _AsyncBody

    def __init__(
        self,
        max_concurrent: int | Adaptive,
        *,
        max_queue: int = 0,
        timeout: Seconds | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        bulkheads = HostBulkheads(max_concurrent, max_queue=max_queue, timeout=timeout)
        super().__init__(transport or httpx2.AsyncHTTPTransport(), bulkheads)


class BulkheadTransport(Transport, httpx2.BaseTransport):
    """For `httpx2.Client`, which threads use: one bulkhead per host, around `transport`."""

    _body = _Body

    def __init__(
        self,
        max_concurrent: int | Adaptive,
        *,
        max_queue: int = 0,
        timeout: Seconds | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        bulkheads = HostBulkheads(max_concurrent, max_queue=max_queue, timeout=timeout)
        super().__init__(transport or httpx2.HTTPTransport(), bulkheads)
