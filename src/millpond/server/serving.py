"""Serving with uvicorn: live streams end when it stops, and signals are ours."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from millpond.server.application import Server

GRACE = 5
"""Seconds that requests under way are given when the server stops."""


HEADERS_WITHIN = 10.0
"""Seconds that a connection has to send the headers of a request, the first or the next."""


class Impatient(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """A connection that is closed if it sends nothing, or no end of its headers.

    Uvicorn by itself waits for ever, and each such connection keeps a file open.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the headers of the next request."""
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        self.loop.call_later(HEADERS_WITHIN, self._give_up, self.cycle)

    def _give_up(self, before: object) -> None:
        if self.cycle is before and not self.transport.is_closing():
            self.transport.close()


class _Uvicorn(uvicorn.Server):
    """Announces where it listens, and ends live streams first when it stops."""

    def __init__(self, config: uvicorn.Config, app: Server, started: Callable[[str], None]) -> None:
        super().__init__(config)
        self._app = app
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say where."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._started(f"http://{f'[{host}]' if ':' in host else host}:{port}/")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; a stream of live events would never end by itself."""
        await self._app.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first signal, at once at the second.

        Uvicorn would raise the signal again when it has stopped, before the store is closed.
        """
        loop = asyncio.get_running_loop()
        caught: list[signal.Signals] = []
        for one in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(one, self.handle_exit, one, None)
                caught.append(one)
        try:
            yield
        finally:
            for one in caught:
                loop.remove_signal_handler(one)


async def serve(app: Server, host: str, port: int, started: Callable[[str], None]) -> None:
    """Serve an app until a signal says otherwise."""
    config = uvicorn.Config(
        app,
        host,
        port,
        http=Impatient,
        log_config=None,
        access_log=False,
        server_header=False,
        # Who sends a request is who is connected: a header must not say otherwise.
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
    )
    await _Uvicorn(config, app, started).serve()
