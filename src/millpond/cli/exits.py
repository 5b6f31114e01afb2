"""Exit codes, and the error that ends a command with one."""

from __future__ import annotations

from enum import IntEnum

TYPE_CHECKING = False
"""Stands in for `typing.TYPE_CHECKING`; see main.py."""

if TYPE_CHECKING:
    from typing import Self


class ExitCode(IntEnum):
    """An exit code; the help and the documentation print `meaning`."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """Keep the meaning beside the number."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made


class Exit(ExitCode):
    """The exit codes of all commands but `millpond run`."""

    CLEAN = 0, "stopped by a signal, or idle with --once; nothing was lost"
    BROKE = 1, "unexpected error; the traceback is on stderr"
    USAGE = 2, "the arguments are wrong, or name a pool that does not exist"
    APP = 3, "the application could not be loaded, or a worker cannot serve it"
    STORE = 4, "the store could not be opened, or refused the application's declarations"
    FORCED = 5, "a second signal ended the drain early; running tasks were given back"
    LOST = 6, "exited with tasks it could not give back; they run again when their leases expire"
    NOTHING = 7, "no such pool or task, or the command does not apply to it; the others were done"
    DECLINED = 8, "confirmation required (use --yes); nothing was changed"
    INTERRUPTED = 130, "Ctrl-C before the worker started"


WORKER_EXITS = tuple(code for code in Exit if code not in (Exit.NOTHING, Exit.DECLINED))
"""The exit codes of `millpond worker`."""

OPERATOR_EXITS = {
    Exit.CLEAN: "done, or there was nothing to do",
    Exit.BROKE: "a check found a problem, or an unexpected error; the traceback is on stderr",
    Exit.USAGE: "the arguments are wrong",
    Exit.APP: "the application could not be loaded, or names no store",
    Exit.STORE: "the store does not exist, could not be opened, or failed",
    Exit.NOTHING: Exit.NOTHING.meaning,
    Exit.DECLINED: Exit.DECLINED.meaning,
    Exit.INTERRUPTED: "Ctrl-C",
}
"""The exit codes of the commands that read or change a store."""


class Refusal(Exception):
    """The command stops with this exit code and a message of one line, without our traceback."""

    def __init__(self, code: Exit, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.trace = trace
        """The traceback of the user's code, if that failed."""
