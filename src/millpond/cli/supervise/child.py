"""One worker process of a supervisor: start it, read its beats, signal it, see its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import msgspec

from millpond.cli.supervise.heartbeat import STALLED_AFTER, STARTING, STATUS_FD, Beat

if TYPE_CHECKING:
    from collections.abc import Sequence

_READ = 1 << 16


class Child:
    """A worker process, from its start to its end."""

    def __init__(self, number: int, command: Sequence[str], now: float) -> None:
        """Start the process; OSError if the system cannot."""
        self.number = number
        self.started_at = self.last_beat_at = now
        self.beat = Beat(STARTING)
        self.served = False
        """Whether it has ever reported a state other than starting."""
        self.stopping = False
        """Whether its parent has sent it a signal to stop."""
        self._rest = b""
        self.fd, theirs = os.pipe()
        os.set_blocking(self.fd, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                command,
                env={**os.environ, STATUS_FD: str(theirs)},
                pass_fds=(theirs,),
                # A terminal's Ctrl-C then reaches the parent alone, which passes it on once.
                process_group=0,
            )
        except BaseException:
            os.close(self.fd)
            raise
        finally:
            os.close(theirs)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def read(self, now: float) -> bool:
        """Read the beats that have arrived; return False after the last."""
        while True:
            try:
                got = os.read(self.fd, _READ)
            except BlockingIOError:
                return True
            if not got:
                return False
            *lines, self._rest = (self._rest + got).split(b"\n")
            if lines:
                # A beat of another version, or of none, is still a sign of life.
                with contextlib.suppress(msgspec.DecodeError):
                    self.beat = msgspec.json.decode(lines[-1], type=Beat)
                self.last_beat_at = now
                self.served = self.served or self.beat.state != STARTING

    def is_stalled(self, now: float) -> bool:
        """Return whether a process that served has not reported for long."""
        return self.served and now - self.last_beat_at > STALLED_AFTER

    def send(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        self.stopping = True
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the process and all processes of its handlers at once."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            self._process.kill()

    def exit_code(self) -> int | None:
        """Return the exit code of a process that has ended; negative for a signal."""
        return self._process.poll()

    def close(self) -> None:
        """Close the pipe of a process that has ended."""
        os.close(self.fd)
