"""How the command ends: a number for the supervisor, and a sentence for the person."""

from __future__ import annotations

from enum import IntEnum

TYPE_CHECKING = False
"""As `typing` has it; see main.py."""

if TYPE_CHECKING:
    from typing import Self


class Exit(IntEnum):
    """The exit codes; `meaning` is what the help and the documentation say of each."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """Keep the meaning beside the number."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made

    CLEAN = 0, "stopped as asked: by a signal, or idle with --once; nothing was lost"
    BROKE = 1, "something broke that should not; the traceback is on stderr"
    USAGE = 2, "the arguments are wrong, or name a pool that does not exist"
    APP = 3, "the application could not be loaded, or is not one a worker can serve"
    STORE = 4, "the store could not be opened, or refused what the application declares"
    FORCED = 5, "a second signal cut the drain short; what ran was given back"
    LOST = 6, "it left without telling the store of all it held: that is found by its lease"
    NOTHING = 7, "no such pool or task, or one that this cannot be done to; the rest was done"
    DECLINED = 8, "it asks first, and was not told to go on: nothing was changed"
    INTERRUPTED = 130, "Ctrl-C before it began"


OF_A_WORKER = tuple(code for code in Exit if code not in (Exit.NOTHING, Exit.DECLINED))
"""The codes of `millpond worker`, which their meanings speak of."""

OF_AN_OPERATOR = {
    Exit.CLEAN: "done, or there was nothing to do",
    Exit.BROKE: "something is wrong that this was to find, or broke that should not",
    Exit.USAGE: "the arguments are wrong",
    Exit.APP: "the application could not be loaded, or names no store",
    Exit.STORE: "the store is not there, could not be opened, or failed",
    Exit.NOTHING: Exit.NOTHING.meaning,
    Exit.DECLINED: Exit.DECLINED.meaning,
    Exit.INTERRUPTED: "Ctrl-C",
}
"""The codes of the commands that look at a store or give it orders."""


class Refusal(Exception):
    """The command cannot do what was asked; told in a line, without a traceback of ours."""

    def __init__(self, code: Exit, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.trace = trace
        """The traceback of the user's own code, where that is what went wrong."""
