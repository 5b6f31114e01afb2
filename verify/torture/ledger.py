"""The ledger: what each process saw, written down by itself the moment it happened.

One file for all processes, opened to append; each line is one write, so lines of different
processes never mix. A process that is killed in the middle of a write may leave a torn line; every
line begins with a line feed of its own, so that it tears nobody else's.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.task import Fence


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag=str.lower):
    """One line; when it was written, by both clocks, and by which process."""

    pid: int
    wall: float
    mono: float


class Born(Line, frozen=True):
    """A process opened the store; its workers' names begin with its owner."""

    owner: str
    role: str
    number: int


class Leads(Line, frozen=True):
    """A process leads maintenance from now on."""

    generation: int


class Began(Line, frozen=True):
    """A handler began an attempt."""

    task: int
    attempt: int
    token: int
    pool: str
    item: str


class Ended(Line, frozen=True):
    """A handler ended an attempt; what becomes of it is up to the store."""

    task: int
    attempt: int
    token: int
    how: Literal["returned", "raised", "stopped"]


class Told(Line, frozen=True):
    """A callback was told how a task ended."""

    task: int
    status: str


class Taken(Line, frozen=True):
    """A submitter was told that an item is stored."""

    item: int
    task: int
    duplicate: bool
    submitter: int


class Refused(Line, frozen=True):
    """A submitter was told that the store could not take something now; it tries again."""

    error: str


class Awaited(Line, frozen=True):
    """A submitter waited for a task and was told its end."""

    task: int
    status: str
    result: str | None


class Drained(Line, frozen=True):
    """A submitter waited for a run and was given its report."""

    run: str
    total: int
    completed: int
    resumed: bool


class CalledOff(Line, frozen=True):
    """Somebody is about to cancel a task whose handler has begun."""

    task: int
    way: str


class Noticed(Line, frozen=True):
    """A handler noticed that its task is cancelled."""

    task: int
    attempt: int
    token: int


class Left(Line, frozen=True):
    """A process closed its Millpond in good order, having seen so many settles come too late."""

    stale: int


class Started(Line, frozen=True):
    """The supervisor started a process."""

    child: int
    role: str
    number: int


class Struck(Line, frozen=True):
    """The supervisor sent a process a signal: `killed`, `frozen`, `thawed` or `stopped`."""

    child: int
    how: Literal["killed", "frozen", "thawed", "stopped"]


class Fell(Line, frozen=True):
    """The supervisor had the store cut a connection, or crash, or brought it back."""

    how: Literal["cut", "crash", "back"]


class Gone(Line, frozen=True):
    """The supervisor found that a process has ended."""

    child: int
    role: str
    number: int
    code: int
    asked: bool
    """Whether it was told or made to end."""


class Rested(Line, frozen=True):
    """So many workers had nothing to do for a while; what they asked of the store meanwhile."""

    workers: int
    seconds: float
    transactions: int
    statements: int | None
    """None = nobody counted them."""


AnyLine: TypeAlias = (
    Born
    | Leads
    | Began
    | Ended
    | Told
    | Taken
    | Refused
    | Awaited
    | Drained
    | CalledOff
    | Noticed
    | Left
    | Started
    | Struck
    | Fell
    | Gone
    | Rested
)

_decoder = msgspec.json.Decoder(AnyLine)


class Ledger:
    """The pen of one process."""

    def __init__(self, path: Path | str) -> None:
        self.pid = os.getpid()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def close(self) -> None:
        """Put the pen down."""
        os.close(self._file)

    def write(self, kind: type[Line], **facts: object) -> Line:
        """Write one line, with the time and the process."""
        line = kind(pid=self.pid, wall=time.time(), mono=time.monotonic(), **facts)
        os.write(self._file, b"\n" + msgspec.json.encode(line) + b"\n")
        return line

    @contextmanager
    def attempt(self, fence: Fence, pool: str, item: str) -> Iterator[None]:
        """Write down that a handler began, and how it ended before anybody else hears of it."""
        who = {"task": fence.task, "attempt": fence.attempt, "token": fence.token}
        self.write(Began, **who, pool=pool, item=item)
        try:
            yield
        except Exception:
            self.write(Ended, **who, how="raised")
            raise
        except BaseException:
            self.write(Ended, **who, how="stopped")
            raise
        self.write(Ended, **who, how="returned")


def read(path: Path | str) -> tuple[list[AnyLine], int]:
    """Return the lines of a ledger in the order in which they were written, and how many tore."""
    tail = Tail(path)
    return tail.read(), tail.torn


class Tail:
    """The end of a ledger: what was written since one last looked."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._read = 0
        self._rest = b""
        self.torn = 0

    def read(self) -> list[AnyLine]:
        """Return the lines that are new; one that is just being written comes next time."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return [line for raw in whole if raw and (line := self._decoded(raw)) is not None]

    def _decoded(self, raw: bytes) -> AnyLine | None:
        try:
            line: AnyLine = _decoder.decode(raw)
        except msgspec.MsgspecError:
            self.torn += 1
            return None
        return line
