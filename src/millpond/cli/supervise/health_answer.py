"""What the health endpoint answers, and where it listens; without the HTTP server.

A worker that has no health endpoint does not import `http.server`, which takes 1 MB.
"""

from __future__ import annotations

import msgspec

LOOPBACK = "127.0.0.1"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a probe."""

    live: bool
    """False: the process does not work any more, and a restart is the way out."""
    ready: bool
    """Whether it takes tasks. False while it starts or drains, and while the store is away."""
    state: str
    running: int
    processes: int = 1
    """How many worker processes run."""


class Address(msgspec.Struct, frozen=True):
    """Where the endpoint listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address of `PORT`, `HOST:PORT` or `[HOST]:PORT`; raise ValueError if not."""
        host, _, port = text.rpartition(":")
        if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
            raise ValueError(text)
        return cls(host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port))
