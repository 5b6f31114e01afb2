"""Run commands as processes: each in its own process group, its output in unnamed files.

A command is started with `posix_spawn`, without a shell. The event loop waits for its end. A kill
goes to its whole process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from millpond.cli.run.orphans import Ledger

if sys.platform != "win32":
    import resource

KILL_AFTER = 2.0
"""Seconds from SIGTERM to SIGKILL after a timeout."""

STOP_WITHIN = 0.7
"""Seconds from SIGTERM to SIGKILL when the run is stopped."""

OWN_FILES = 64
"""Most files that this process has open besides those of commands."""

MOST_FILES = 1 << 16


class Process:
    """A running command."""

    def __init__(self, pid: int, out: int, err: int, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = pid
        self.out = out
        self.err = err
        self.started = time.monotonic()
        self.slot: int | None = None
        self.timed_out = False
        self.signalled = False
        """Whether a signal was sent to it."""
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group. Its leader is not reaped yet, so the id is ours."""
        self.signalled = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def limit(self, seconds: float) -> None:
        """Stop the command after so many seconds."""
        self._timer = self._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.timed_out = True
        self.stop(KILL_AFTER)

    def stop(self, patience: float) -> None:
        """Send SIGTERM, and SIGKILL after `patience` seconds."""
        self._cancel_timer()
        self.signal(signal.SIGTERM)
        self._timer = self._loop.call_later(patience, self.signal, signal.SIGKILL)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def exit_code(self) -> int:
        """Wait for the end and return the exit code; a signal counts below zero."""
        try:
            try:
                await _ended(self.pid)
            except asyncio.CancelledError:
                self.stop(STOP_WITHIN)
                await _ended(self.pid)
                raise
        finally:
            self._cancel_timer()
            status = self._reaped()
        return os.waitstatus_to_exitcode(status)

    def _reaped(self) -> int:
        if self.signalled:
            # Also kill its children, while its pid cannot be reused.
            self.signal(signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]

    @property
    def seconds(self) -> float:
        """How long the command has run."""
        return time.monotonic() - self.started

    def close(self) -> None:
        """Close its output files."""
        os.close(self.out)
        os.close(self.err)


async def _ended(pid: int) -> None:
    """Wait until a child has ended, and leave it to be reaped."""
    if not hasattr(os, "pidfd_open"):
        if hasattr(os, "waitid"):  # the command refuses to run where there is neither
            await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    descriptor = os.pidfd_open(pid)
    try:
        await readable(descriptor)
    finally:
        os.close(descriptor)


async def readable(descriptor: int) -> None:
    """Wait until a read would not block. A thread that reads could not be stopped."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.add_reader(descriptor, _set_done, over)
    try:
        await over
    finally:
        loop.remove_reader(descriptor)


def _set_done(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


class Processes:
    """Starts commands, and keeps track of those that run."""

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
        """Start a command; raise OSError if that fails."""
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
                    # Python ignores these, and a command must not.
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
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
        """Send a signal to every running command; safe to call from a signal handler."""
        for process in list(self.live.values()):
            process.signal(number)

    def close(self) -> None:
        """Close the open files."""
        os.close(self._nothing)

    def _unnamed_file(self) -> int:
        if hasattr(os, "O_TMPFILE"):
            with contextlib.suppress(OSError):
                return os.open(self._folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        descriptor, path = tempfile.mkstemp(dir=self._folder)
        os.unlink(path)  # noqa: PTH108 - faster, and every command needs it
        return descriptor


def most_at_once() -> int:
    """Return how many commands may run at a time, given the limit of open files.

    Each needs three: stdout, stderr, and a pidfd to wait for its end.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return max((min(soft, MOST_FILES) - OWN_FILES) // 3, 1)


def found(program: str) -> str | None:
    """Return the path of a program, searched in PATH; None if there is none."""
    return shutil.which(program)


def copy(descriptor: int, to: BinaryIO) -> None:
    """Copy the output of a command to a file."""
    with open(descriptor, "rb", closefd=False) as source:
        source.seek(0)
        shutil.copyfileobj(source, to)
