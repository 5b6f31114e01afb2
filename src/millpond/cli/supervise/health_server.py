"""The health endpoint: three paths over HTTP for probes, served by a thread.

`/live` fails if the process should be restarted, `/ready` if it should get no work or is not
started yet, and `/health` has both as JSON. The thread answers although the event loop is blocked:
it then reports exactly that.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.cli.exits import Exit, Refusal
from millpond.core.log_fields import about

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.cli.supervise.health_answer import Address, Health

log = logging.getLogger("millpond.cli")

REQUEST_WITHIN = 5.0
"""Seconds for a client to send its request; then its connection is closed."""

MOST_CLIENTS = 64
"""Connections at a time; one more closes the oldest, so that a probe always gets an answer."""


class HealthServer:
    """Serves the health of this process until the process ends."""

    def __init__(self, address: Address, health: Callable[[], Health]) -> None:
        try:
            self._server = _Server(address, health)
        except OSError as error:
            where = f"{address.host}:{address.port}"
            raise Refusal(Exit.USAGE, f"--health-port: cannot listen on {where}: {error}") from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="millpond health", daemon=True
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()
        log.info(
            "health on http://%s:%d/health",
            self._server.host,
            self.port,
            extra=about("worker.health"),
        )

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: Address, health: Callable[[], Health]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.host = address.host
        self.health = health
        self._clients: dict[socket.socket, float] = {}
        """Open connections, each with when it began, the oldest first."""
        self._guard = threading.Lock()
        super().__init__((address.host, address.port), _Request)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as there
        """Answer a client in a thread; close the oldest connections beyond the bound."""
        with self._guard:
            self._clients[request] = time.monotonic()
            too_many = list(self._clients)[:-MOST_CLIENTS]
        _hang_up(too_many)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as there
        """Forget a client that was answered, or has left."""
        with self._guard:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that take too long; called twice a second.

        The timeout of a socket is that of one read: a client that sends byte by byte has none.
        """
        latest = time.monotonic() - REQUEST_WITHIN
        with self._guard:
            slow = [one for one, since in self._clients.items() if since < latest]
        _hang_up(slow)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002
        """Log an error of an answer; a client that hangs up is none."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.warning(
                "cannot answer a health probe: %s",
                error,
                exc_info=error,
                extra=about("worker.health_failed", reason=type(error).__name__),
            )

    def server_bind(self) -> None:
        """Bind without the reverse lookup of the host name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.server_address[1]


def _hang_up(clients: Sequence[socket.socket]) -> None:
    """End connections; the thread of each then sees the end of its request."""
    for one in clients:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_WITHIN
    server_version = "millpond"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a probe."""
        health = self.server.health()
        path = self.path.partition("?")[0].rstrip("/")
        answers = {
            "/live": health.live,
            "/ready": health.live and health.ready,
            "/health": health.live and health.ready,
        }
        if path not in answers:
            self._answer(404, b'{"error":"paths: /live /ready /health"}')
        else:
            self._answer(200 if answers[path] else 503, msgspec.json.encode(health))

    def do_HEAD(self) -> None:
        """Answer a probe without a body."""
        self.do_GET()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - as it is there
        """Log no probe: there is one every few seconds."""
