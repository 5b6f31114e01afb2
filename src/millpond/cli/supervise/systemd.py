"""Notify systemd that the process is ready, alive or stopping (sd_notify), without a library.

systemd passes the address of a datagram socket in $NOTIFY_SOCKET if the unit says `Type=notify` or
`WatchdogSec=`. Without that variable all calls do nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from millpond.cli.supervise.heartbeat import Beat

ADDRESS, WATCHDOG_USEC, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class Systemd:
    """The notification socket of a unit."""

    def __init__(self, address: str | None, watchdog: float | None = None) -> None:
        self._address = None if address is None else _decoded(address)
        self.watchdog = watchdog
        """Seconds within which systemd expects the next sign of life; None = it expects none."""
        self._ready = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> Systemd:
        """Return the socket of this process, and hide it from processes that this one starts."""
        values = os.environ if environment is None else environment
        address = values.pop(ADDRESS, None)
        limit, pid = values.pop(WATCHDOG_USEC, None), values.pop(WATCHDOG_PID, None)
        is_mine = pid is None or pid == str(os.getpid())
        watchdog = int(limit) / 1e6 if limit is not None and limit.isdecimal() and is_mine else None
        return cls(address or None, watchdog or None)

    def ready(self, status: str) -> None:
        """Report once that the process serves."""
        if not self._ready:
            self._ready = True
            self.send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def alive(self, status: str) -> None:
        """Report a sign of life."""
        self.send("WATCHDOG=1", f"STATUS={status}")

    def stopping(self) -> None:
        """Report that the process drains."""
        self.send("STOPPING=1", "STATUS=draining")

    def send(self, *lines: str) -> None:
        """Send lines to systemd. A socket that is gone is no failure of a worker."""
        if self._address is None:
            return
        with contextlib.suppress(OSError), _socket() as channel:
            channel.sendto("\n".join(lines).encode(), self._address)


class SystemdListener:
    """Reports the beats of a worker to systemd."""

    def __init__(self, systemd: Systemd) -> None:
        self._systemd = systemd
        self._stopping = False

    def __call__(self, beat: Beat) -> None:
        """Report a beat; the event loop calls this, so a blocked loop is no sign of life."""
        from millpond.cli.supervise.heartbeat import DRAINING, READY

        status = f"{beat.state}, {beat.running} running"
        if beat.state == READY:
            self._systemd.ready(status)
        if beat.state == DRAINING and not self._stopping:
            self._stopping = True
            self._systemd.stopping()
        self._systemd.alive(status)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0))


def _decoded(address: str) -> str:
    """Return the address; a leading @ stands for an abstract socket of Linux."""
    return "\0" + address[1:] if address.startswith("@") else address
