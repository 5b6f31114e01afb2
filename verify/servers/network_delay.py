"""A network between a client and a server: every byte arrives some time later (network_delay.c).

The proxy is a program in C, because an event loop in Python rounds half a millisecond up to a whole
one, and its own processor time would count as the network's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from verify.servers.compiled import compiled

if TYPE_CHECKING:
    from typing import Self

SOURCE = Path(__file__).with_name("network_delay.c")


class NetworkDelay:
    """A port on the loopback, behind which is that of a server, some seconds away each way."""

    def __init__(self, port: int, seconds: float) -> None:
        command = [str(compiled(SOURCE)), str(port), str(round(seconds * 1e6))]
        self._process = subprocess.Popen(  # noqa: S603 - ours
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        """Where clients connect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends when its input does

    def through(self, url: str) -> str:
        """Return a URL by TCP, with the proxy in the place of its host."""
        parts = urlsplit(url)
        who, _, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{who}@127.0.0.1:{self.port}"))
