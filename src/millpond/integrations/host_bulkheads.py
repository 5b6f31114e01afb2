"""One bulkhead per host, for HTTP clients: a slow host does not take the slots of the others."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.bulkhead import Bulkhead
from millpond.bulkhead.permit import is_failure
from millpond.bulkhead.reports import as_error
from millpond.core import validation as check
from millpond.core.adaptive import Adaptive
from millpond.core.validation import Seconds

if TYPE_CHECKING:
    from millpond.bulkhead import Permit

Inner = TypeVar("Inner")
"""The kind of transport inside."""

MOST_HOSTS = 1000
"""Bulkheads that are kept. Beyond that the idle ones are dropped, the oldest first."""

_ORDINARY = {"http": 80, "https": 443}


class HostBulkheads:
    """Makes a bulkhead for each host that is asked for, all with the same limits."""

    def __init__(
        self, max_concurrent: int | Adaptive, *, max_queue: int, timeout: Seconds | None
    ) -> None:
        self._options = (max_concurrent, max_queue)
        self._timeout = None if timeout is None else check.seconds("timeout", timeout)
        self._of: dict[str, Bulkhead] = {}
        self._lock = threading.Lock()
        self._made("")  # an option that is not valid is refused here, not at the first request

    def _made(self, host: str) -> Bulkhead:
        max_concurrent, max_queue = self._options
        return Bulkhead(f"host:{host}", max_concurrent, max_queue=max_queue)

    def of(self, host: str) -> Bulkhead:
        """Return the bulkhead of a host: `example.com`, or `example.com:8443`."""
        with self._lock:
            found = self._of.get(host)
            if found is None:
                self._drop_idle()
                found = self._of[host] = self._made(host)
            return found

    def _drop_idle(self) -> None:
        if len(self._of) < MOST_HOSTS:
            return
        idle = [host for host, one in self._of.items() if _is_idle(one)]
        for host in idle[: len(self._of) - MOST_HOSTS + 1]:
            del self._of[host]

    async def enter(self, url: Any) -> Permit:  # noqa: ANN401 - httpx or httpx2
        """Wait for a permit for the host of a URL; BulkheadRejected if there is none."""
        permit = await self.of(host_of(url)).acquire(self._timeout)
        if not permit:
            raise as_error(permit)
        return permit

    def enter_in_thread(self, url: Any) -> Permit:  # noqa: ANN401
        """Do the same in a thread."""
        bulkhead = self.of(host_of(url))
        permit = bulkhead._acquire_in_thread(1, self._timeout)  # noqa: SLF001 - held past a block
        if not permit:
            raise as_error(permit)
        return permit


def host_of(url: Any) -> str:  # noqa: ANN401
    """Return the host of a URL, with its port unless that is the ordinary one."""
    host, port = url.raw_host.decode("ascii"), url.port
    return host if port in (None, _ORDINARY.get(url.scheme)) else f"{host}:{port}"


def _is_idle(bulkhead: Bulkhead) -> bool:
    stats = bulkhead.stats()
    return not (stats.in_flight or stats.pending)


class HeldUntilClosed:
    """A permit that the body of a response holds until it is closed."""

    def __init__(self, inner: Any, permit: Permit, *, failed: bool) -> None:  # noqa: ANN401
        self._inner = inner
        self._permit: Permit | None = permit
        self._failed = failed

    def _release(self) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            permit.release(self._failed)


class AsyncBody(HeldUntilClosed):
    """The body of a response, read on an event loop."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield part

    async def aclose(self) -> None:
        """Close the body and give the slot back."""
        try:
            await self._inner.aclose()
        finally:
            self._release()


class Body(HeldUntilClosed):
    """The body of a response, read in a thread."""

    def __iter__(self) -> Iterator[bytes]:
        yield from self._inner

    def close(self) -> None:
        """Close the body and give the slot back."""
        try:
            self._inner.close()
        finally:
            self._release()


class HostTransport(Generic[Inner]):
    """What a transport around another one has, whichever client uses it."""

    _body: Callable[..., Any]
    _make_inner: Callable[[], Inner]

    def __init__(
        self,
        max_concurrent: int | Adaptive,
        *,
        max_queue: int = 0,
        timeout: Seconds | None = None,
        transport: Inner | None = None,
    ) -> None:
        self._bulkheads = HostBulkheads(max_concurrent, max_queue=max_queue, timeout=timeout)
        self._inner: Any = transport or self._make_inner()

    def bulkhead(self, host: str) -> Bulkhead:
        """Return the bulkhead of a host, to read its `stats()` or to `resize` it."""
        return self._bulkheads.of(host)


class AsyncTransport(HostTransport[Inner]):
    """The transport of an asynchronous client, around another one."""

    async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401
        """Send a request once its host has a free slot; the body holds the slot."""
        permit = await self._bulkheads.enter(request.url)
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException as error:
            permit.release(is_failure(type(error)))
            raise
        failed = response.status_code >= 500
        response.stream = self._body(response.stream, permit, failed=failed)
        return response

    async def aclose(self) -> None:
        """Close the transport inside."""
        await self._inner.aclose()


class Transport(HostTransport[Inner]):
    """The transport of a client for threads, around another one."""

    def handle_request(self, request: Any) -> Any:  # noqa: ANN401
        """Send a request once its host has a free slot; the body holds the slot."""
        permit = self._bulkheads.enter_in_thread(request.url)
        try:
            response = self._inner.handle_request(request)
        except BaseException as error:
            permit.release(is_failure(type(error)))
            raise
        failed = response.status_code >= 500
        response.stream = self._body(response.stream, permit, failed=failed)
        return response

    def close(self) -> None:
        """Close the transport inside."""
        self._inner.close()
