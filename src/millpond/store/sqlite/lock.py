"""The writers' lock: who writes next, decided by the kernel and not by who sleeps least.

SQLite lets one connection write at a time. Those that wait ask again and again, each after a
sleep, so with some processes at work a few wait very long. Ours stand in line for a lock on a file
beside the database before they ask for the database itself. It is a courtesy and protects
nothing: connections of others (the user's own) do without it, and SQLite's lock decides.

The lock is freed by the kernel when its process dies, and a process that is frozen while it
waits leaves the line until it goes on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

FLOCK = sys.platform != "win32"
"""Windows has no such locks: SQLite's own must do there."""

if FLOCK:
    import fcntl


class WritersLock:
    """One holder over all processes; for one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}-writers")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Wait for one's turn."""
        if not FLOCK:
            return
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        """Let the next one go."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the lock up for good; safe twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
