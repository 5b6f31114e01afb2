"""The heartbeat of a worker process: its event loop writes down its state once a second.

A health server, systemd and a parent process read it. The loop itself writes it, so an old
heartbeat means that the loop is blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.worker.worker import Worker

EVERY = 1.0
"""Seconds between two heartbeats."""

STALLED_AFTER = 30.0
"""Seconds without a heartbeat after which a process no longer counts as live."""

STATUS_FD = "MILLPOND_STATUS_FD"
"""The environment variable with the file descriptor on which a child reports to its parent."""

STARTING, READY, AWAY, DRAINING = "starting", "ready", "store unreachable", "draining"


class Beat(msgspec.Struct, frozen=True):
    """The state of a worker process at one moment."""

    state: str
    running: int = 0
    """How many tasks run."""


class Heartbeat:
    """The latest state of this process; the loop writes it, any thread reads it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self.beat = Beat(STARTING)
        self._worker: Worker | None = None
        self._draining = False
        self._listeners: list[Callable[[Beat], None]] = []

    @property
    def age(self) -> float:
        """Seconds since the event loop last wrote its state."""
        return self._clock() - self._at

    def add_listener(self, listener: Callable[[Beat], None]) -> None:
        """Call `listener` on the event loop with every beat."""
        self._listeners.append(listener)

    def follow(self, worker: Worker) -> None:
        """Report the state of this worker from now on."""
        self._worker = worker
        self.write()

    def write(self) -> None:
        """Write down the state now."""
        running = 0 if self._worker is None else len(self._worker.jobs)
        self.beat = Beat(self._state(), running)
        self._at = self._clock()
        for listener in self._listeners:
            listener(self.beat)

    def _state(self) -> str:
        worker = self._worker
        if self._draining or (worker is not None and worker.stopping):
            return DRAINING
        if worker is None:
            return STARTING
        is_ready = worker.joined and worker.may_lease and worker.services.outages.reachable
        return READY if is_ready else AWAY

    def drain(self) -> None:
        """Write down that the process starts no more tasks."""
        self._draining = True
        self.write()

    async def keep_writing(self) -> None:
        """Write down the state once a second."""
        while True:
            await asyncio.sleep(EVERY)
            self.write()


class StatusPipe:
    """Reports beats to the parent process."""

    def __init__(self, fd: int, parent_is_gone: Callable[[], None]) -> None:
        self._fd = fd
        self._parent_is_gone = parent_is_gone
        # The processes of handlers must not hold the pipe open.
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)

    @classmethod
    def from_environment(cls, parent_is_gone: Callable[[], None]) -> StatusPipe | None:
        """Return the pipe to the parent that started this process with one."""
        fd = os.environ.pop(STATUS_FD, None)
        return None if fd is None else cls(int(fd), parent_is_gone)

    def send(self, beat: Beat) -> None:
        """Send a beat. A parent that reads nothing for long misses some."""
        try:
            with contextlib.suppress(BlockingIOError):
                os.write(self._fd, msgspec.json.encode(beat) + b"\n")
        except BrokenPipeError:
            self._parent_is_gone()
