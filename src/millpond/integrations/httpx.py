"""Transports of httpx with one bulkhead per host.

    transport = AsyncBulkheadTransport(10, max_queue=20, timeout=2.0)
    async with httpx.AsyncClient(transport=transport) as client:
        ...

At most 10 requests to each host are under way at once, 20 more wait for at most two seconds, and
any other raises BulkheadRejected at once. A request is under way until its response is closed.
"""

from __future__ import annotations

import httpx

from millpond.integrations.host_bulkheads import (
    AsyncBody,
    AsyncTransport,
    Body,
    Transport,
)


class _AsyncBody(AsyncBody, httpx.AsyncByteStream):
    """A body as httpx knows it."""


class _Body(Body, httpx.SyncByteStream):
    """A body as httpx knows it."""


class AsyncBulkheadTransport(AsyncTransport[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient`: one bulkhead per host, around `transport`."""

    _body = _AsyncBody
    _make_inner = httpx.AsyncHTTPTransport


class BulkheadTransport(Transport[httpx.BaseTransport], httpx.BaseTransport):
    """For `httpx.Client`, which threads use: one bulkhead per host, around `transport`."""

    _body = _Body
    _make_inner = httpx.HTTPTransport
