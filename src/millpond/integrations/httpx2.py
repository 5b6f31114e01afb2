"""Transports of httpx2 with one bulkhead per host.

    transport = AsyncBulkheadTransport(10, max_queue=20, timeout=2.0)
    async with httpx2.AsyncClient(transport=transport) as client:
        ...

At most 10 requests to each host are under way at once, 20 more wait for at most two seconds, and
any other raises BulkheadRejected at once. A request is under way until its response is closed.
"""

from __future__ import annotations

import httpx2

from millpond.integrations.host_bulkheads import (
    AsyncBody,
    AsyncTransport,
    Body,
    Transport,
)


class _AsyncBody(AsyncBody, httpx2.AsyncByteStream):
    """A body as httpx2 knows it."""


class _Body(Body, httpx2.SyncByteStream):
    """A body as httpx2 knows it."""


class AsyncBulkheadTransport(AsyncTransport[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport):
    """For `httpx2.AsyncClient`: one bulkhead per host, around `transport`."""

    _body = _AsyncBody
    _make_inner = httpx2.AsyncHTTPTransport


class BulkheadTransport(Transport[httpx2.BaseTransport], httpx2.BaseTransport):
    """For `httpx2.Client`, which threads use: one bulkhead per host, around `transport`."""

    _body = _Body
    _make_inner = httpx2.HTTPTransport
