"""How the command ends: a number for the supervisor, and a sentence for the person."""

from __future__ import annotations

from enum import IntEnum
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
    INTERRUPTED = 130, "Ctrl-C before it began"


class Refusal(Exception):
    """The command cannot do what was asked; told in a line, without a traceback of ours."""

    def __init__(self, code: Exit, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.trace = trace
        """The traceback of the user's own code, where that is what went wrong."""
