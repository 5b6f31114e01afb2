"""Processes: each command in a group of its own, its output in files that have no name.

A command is started without a shell and without a copy of this process (`posix_spawn`), waited
for on the event loop, and killed with everything it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import tempfile
import time
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from millpond.cli.run.orphans import Ledger

KILL_AFTER = 2.0
"""Seconds from SIGTERM to SIGKILL for a command that is out of time."""

STOP_WITHIN = 0.7
"""Seconds from SIGTERM to SIGKILL when everything is to stop."""

OWN_FILES = 64
"""How many files this process has open besides those of commands, at most."""

MOST_FILES = 1 << 16

_GIVE_BACK = [signal.SIGPIPE, signal.SIGXFSZ]
"""What Python ignores and a command must not."""


class Process:
    """A command at work."""

    def __init__(self, pid: int, out: int, err: int, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = pid
        self.out = out
        self.err = err
        self.started = time.monotonic()
        self.slot: int | None = None
        self.timed_out = False
        self.told = False
        """Whether it was told to stop."""
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group. Its leader is not reaped yet, so it is still ours."""
        self.told = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def limit(self, seconds: float) -> None:
        """Let it run for so long at most."""
        self._timer = self._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.timed_out = True
        self.stop(KILL_AFTER)

    def stop(self, patience: float) -> None:
        """Tell it to end, and kill it if it has not in time."""
        self._cancel_timer()
        self.signal(signal.SIGTERM)
        self._timer = self._loop.call_later(patience, self.signal, signal.SIGKILL)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def exit_code(self) -> int:
        """Wait for its end; a signal that ended it counts below zero."""
        try:
            try:
                await _ended(self.pid, self._loop)
            except asyncio.CancelledError:
                self.stop(STOP_WITHIN)
                await _ended(self.pid, self._loop)
                raise
        finally:
            self._cancel_timer()
            status = self._reaped()
        return os.waitstatus_to_exitcode(status)

    def _reaped(self) -> int:
        if self.told:
            # What it started and left behind goes too, while its number cannot be another's.
            self.signal(signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]

    @property
    def seconds(self) -> float:
        """For how long it has run."""
        return time.monotonic() - self.started

    def close(self) -> None:
        """Let go of its output."""
        os.close(self.out)
        os.close(self.err)


async def _ended(pid: int, loop: asyncio.AbstractEventLoop) -> None:
    """Wait until a child has ended, and leave it to be reaped."""
    if not hasattr(os, "pidfd_open"):
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    descriptor = os.pidfd_open(pid)
    over = loop.create_future()
    loop.add_reader(descriptor, _tell, over)
    try:
        await over
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _tell(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


class Processes:
    """Starts commands, and knows those at work."""

    def __init__(
        self, folder: Path, ledger: Ledger, environment: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._ledger = ledger
        self._environment = dict(os.environ if environment is None else environment)
        self._nothing = os.open(os.devnull, os.O_RDWR)
        self._loop = asyncio.get_running_loop()
        self.live: dict[int, Process] = {}

    def start(self, program: str, arguments: list[str]) -> Process:
        """Start a command; OSError if it cannot be."""
        out = self._unnamed_file()
        try:
            err = self._unnamed_file()
            try:
                pid = os.posix_spawn(
                    program,
                    arguments,
                    self._environment,
                    file_actions=(
                        (os.POSIX_SPAWN_DUP2, self._nothing, 0),
                        (os.POSIX_SPAWN_DUP2, out, 1),
                        (os.POSIX_SPAWN_DUP2, err, 2),
                    ),
                    setpgroup=0,
                    setsigdef=_GIVE_BACK,
                )
            except BaseException:
                os.close(err)
                raise
        except BaseException:
            os.close(out)
            raise
        process = self.live[pid] = Process(pid, out, err, self._loop)
        process.slot = self._ledger.enter(pid)
        return process

    def ended(self, process: Process) -> None:
        """Forget a command that has ended."""
        del self.live[process.pid]
        self._ledger.leave(process.slot)
        process.close()

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to every command at work, from wherever this is called."""
        for process in list(self.live.values()):
            process.signal(number)

    def close(self) -> None:
        """Let go of what it holds open."""
        os.close(self._nothing)

    def _unnamed_file(self) -> int:
        if hasattr(os, "O_TMPFILE"):
            with contextlib.suppress(OSError):
                return os.open(self._folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        descriptor, path = tempfile.mkstemp(dir=self._folder)
        os.unlink(path)  # noqa: PTH108 - on the way of every command
        return descriptor


def most_at_once() -> int:
    """Return how many commands may be at work at a time, with as many open files as we may have.

    Each needs three: for what it writes, and to be told of its end.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return max((min(soft, MOST_FILES) - OWN_FILES) // 3, 1)


def found(program: str) -> str | None:
    """Return the file of a program, looked for as a shell does; None = there is none."""
    return shutil.which(program)


def copy(descriptor: int, to: BinaryIO) -> None:
    """Copy all that a command wrote."""
    with open(descriptor, "rb", closefd=False) as source:
        source.seek(0)
        shutil.copyfileobj(source, to)
