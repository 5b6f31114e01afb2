"""Keep the output of commands.

Small output of a successful command is stored with its task. Larger output, and that of a failed
command, is in two files named by the task.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import msgspec

from millpond.cli.run.process import copy
from millpond.runtime.error_info import ErrorInfo

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.cli.run.process import Process

SMALL = 16 << 10
"""Output of up to this many bytes is kept in the store."""

LONGEST_LINE = 200
"""Longest part of the last line that an error message contains."""


class Ran(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored result of a successful command."""

    seconds: float
    out: bytes = b""
    err: bytes = b""
    in_files: bool = False
    """Its output is in files instead."""


class Ended(msgspec.Struct, frozen=True):
    """A command that has ended, and what it wrote."""

    code: int
    """Its exit code; a signal that ended it counts below zero."""
    seconds: float
    out: bytes | Path
    err: bytes | Path
    timed_out: bool = False

    @property
    def verdict(self) -> str:
        """The exit code, signal or timeout, in a word or two."""
        if self.timed_out:
            return "timeout"
        return f"exit {self.code}" if self.code >= 0 else f"signal {signal_name(-self.code)}"


class CommandFailed(Exception):
    """A command did not end with exit code 0."""

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        # Stored with the task. A traceback of ours would not explain a command.
        self.info = ErrorInfo(verdict, message)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as KILL."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def files_of(folder: Path, task: int) -> tuple[Path, Path]:
    """Return the files for the output of a task."""
    return folder / f"{task}.out", folder / f"{task}.err"


def collect(process: Process, code: int, folder: Path, task: int, *, final: bool) -> Ended:
    """Return the output of a process; move it to files if it is large or final and failed."""
    sizes = [os.fstat(one).st_size for one in (process.out, process.err)]
    failed = code != 0 or process.timed_out
    seconds = round(process.seconds, 6)
    if max(sizes) <= SMALL and not (failed and final):
        out, err = (
            os.pread(one, size, 0) if size else b""
            for one, size in zip((process.out, process.err), sizes, strict=True)
        )
        return Ended(code, seconds, out, err, process.timed_out)
    paths = files_of(folder, task)
    for path, descriptor in zip(paths, (process.out, process.err), strict=True):
        with path.open("wb") as file:
            copy(descriptor, file)
    return Ended(code, seconds, *paths, process.timed_out)


def last_line(output: bytes | Path) -> str:
    """Return the last line that is not empty, or its beginning."""
    if isinstance(output, bytes):
        tail = output[-4096:]
    else:
        with output.open("rb") as file:
            file.seek(max(output.stat().st_size - 4096, 0))
            tail = file.read()
    lines = tail.decode("utf-8", "replace").split("\n")
    message = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return message if len(message) <= LONGEST_LINE else message[: LONGEST_LINE - 3] + "..."


def failure(ended: Ended) -> CommandFailed:
    """Return the error of a failed command: its verdict and its last line of output."""
    return CommandFailed(ended.verdict, last_line(ended.err) or last_line(ended.out))
