"""The writers' lock: the kernel queues the writers of all processes fairly.

SQLite lets one connection write at a time. Those that wait ask again and again, each after a
sleep, so with some processes at work a few wait very long. Ours stand in line for a lock on a file
beside the database before they ask for the database itself. It is a courtesy and protects
nothing: connections of others (the user's own) do without it, and SQLite's lock decides.

The kernel frees the lock when its process dies, and a process that is frozen while it waits leaves
the line until it goes on. One that is frozen while it writes holds up every other writer, as it
would without this lock.
"""

from __future__ import annotations

import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.store.sqlite.sidecar_files import file_beside

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("millpond.sqlite")

FLOCK = sys.platform != "win32"
"""Windows has no such locks: there, SQLite's own lock serves."""

if FLOCK:
    import fcntl

_ENDING = "-writers"


class WritersLock:
    """One holder among all processes; an object serves one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + _ENDING)
        self._database = path
        self._descriptor: int | None = None
        self._crowded = False
        self._complained = False
        _OPEN.add(self)

    def acquire(self) -> None:
        """Wait for the lock, however long it takes."""
        if not self.try_acquire():
            self.wait()

    def try_acquire(self) -> bool:
        """Take the lock if it is free; always True where such locks do not exist."""
        if self._crowded:
            # Others waited when we last came: the process woken by our release goes first.
            os.sched_yield()
        try:
            self._lock(wait=False)
        except BlockingIOError:
            return False
        self._crowded = False
        return True

    def wait(self) -> None:
        """Wait behind the holder and the processes before this one."""
        self._crowded = True
        self._lock(wait=True)

    def release(self) -> None:
        """Release the lock; no effect if it is not held."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock; safe twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _lock(self, *, wait: bool) -> None:
        if not FLOCK:
            return
        try:
            if self._descriptor is None:
                self._descriptor = file_beside(self._database, _ENDING)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError as error:
            # No room for the file, no right to make it, too many files open: SQLite's lock is left.
            if not self._complained:
                self._complained = True
                log.warning(
                    "writers do not queue at lock file %s: %s",
                    self.path,
                    error,
                    extra=about("write_queue.unavailable", reason=str(error)),
                )


_OPEN: weakref.WeakSet[WritersLock] = weakref.WeakSet()


def _let_go_after_fork() -> None:
    """A forked child shares its parent's locks, and would keep them when the parent dies."""
    for lock in list(_OPEN):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)
