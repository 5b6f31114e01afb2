"""The exit codes of `millpond run`: those of xargs and shells."""

from __future__ import annotations

from millpond.cli.exits import ExitCode


class RunExit(ExitCode):
    """The exit codes of `millpond run`."""

    DONE = 0, "every item succeeded"
    BROKE = 1, "unexpected error; the traceback is on stderr"
    USAGE = 2, "the arguments are wrong, or the run is of another command"
    STORE = 4, "the run could not be stored, or another process runs it"
    NOTHING = 7, "no such run or item to show"
    FAILED = 123, "some items failed, in this run or before it was resumed (as xargs)"
    NOT_RUN = 126, "the command cannot be run; nothing was started"
    NOT_FOUND = 127, "command not found; nothing was started"
    HUNG_UP = 129, "SIGHUP; --resume runs the rest"
    INTERRUPTED = 130, "Ctrl-C; --resume runs the rest"
    PIPE = 141, "the reader of the output closed the pipe; --resume runs the rest"
    TERMINATED = 143, "SIGTERM; --resume runs the rest"


SIGNAL_EXITS = {
    "SIGHUP": RunExit.HUNG_UP,
    "SIGINT": RunExit.INTERRUPTED,
    "SIGTERM": RunExit.TERMINATED,
}
