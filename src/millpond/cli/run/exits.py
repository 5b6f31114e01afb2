"""How `millpond run` ends: by the numbers that xargs and shells use."""

from __future__ import annotations

import signal
from enum import IntEnum
from typing import Self


class RunExit(IntEnum):
    """The exit codes; `meaning` is what the help and the documentation say of each."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """Keep the meaning beside the number."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made

    DONE = 0, "every item is done"
    BROKE = 1, "something broke that should not; the traceback is on stderr"
    USAGE = 2, "the arguments are wrong, or the run is of another command"
    STORE = 4, "the run could not be kept, or another process is at it"
    NOTHING = 7, "there is no such run or item to show"
    FAILED = 123, "some items failed, as with xargs, now or before it was resumed"
    NOT_RUN = 126, "the command cannot be run; nothing was started"
    NOT_FOUND = 127, "there is no such command; nothing was started"
    HUNG_UP = 129, "SIGHUP: what is left is run by --resume"
    INTERRUPTED = 130, "Ctrl-C: what is left is run by --resume"
    PIPE = 141, "nobody reads the output any more: what is left is run by --resume"
    TERMINATED = 143, "SIGTERM: what is left is run by --resume"


OF_A_SIGNAL = {
    signal.SIGHUP: RunExit.HUNG_UP,
    signal.SIGINT: RunExit.INTERRUPTED,
    signal.SIGTERM: RunExit.TERMINATED,
}
