"""Transports of httpx2 with one bulkhead per host; see `millpond.integrations.httpx`."""

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
