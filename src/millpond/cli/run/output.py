"""Output: what commands wrote, kept with how they ended.

A little of a command that went well is kept with its task, in the store. What is more, or of a
command that failed, is in two files named by the task.
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
"""As many bytes of output are kept in the store."""

LONGEST_LINE = 200
"""How much of its last line an error tells."""


class Ran(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a command ended that went well, as it is stored."""

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
        """How it ended, in a word or two."""
        if self.timed_out:
            return "timeout"
        return f"exit {self.code}" if self.code >= 0 else f"signal {signal_name(-self.code)}"


class CommandFailed(Exception):
    """A command did not end with exit code 0."""

    def __init__(self, verdict: str, told: str) -> None:
        super().__init__(told)
        # How it is stored with the task: no traceback of ours explains a command.
        self.info = ErrorInfo(verdict, told)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as KILL."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def files_of(folder: Path, task: int) -> tuple[Path, Path]:
    """Return where the output of a task is kept, if it is in files."""
    return folder / f"{task}.out", folder / f"{task}.err"


def collected(process: Process, code: int, folder: Path, task: int, *, final: bool) -> Ended:
    """Return what a process wrote; on files where that is much, or all there will be of it."""
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
    told = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return told if len(told) <= LONGEST_LINE else told[: LONGEST_LINE - 3] + "..."


def failure(ended: Ended) -> CommandFailed:
    """Return the error of a command that failed: how it ended, and the last it said."""
    return CommandFailed(ended.verdict, last_line(ended.err) or last_line(ended.out))
