"""The ledger: what each process saw, written down by itself the moment it happened.

One file for all processes, opened to append; each line is one write, so lines of different
processes never mix. A process that is killed in the middle of a write may leave a torn line; every
line begins with a line feed, so that a torn line does not damage the next.
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


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag=str.lower):
    """One line; when it was written, by both clocks, and by which process."""

    pid: int
    wall: float
    mono: float


class StoreOpened(Entry, frozen=True):
    """A process opened the store; its workers' names begin with its owner."""

    owner: str
    role: str
    number: int


class LeadershipTaken(Entry, frozen=True):
    """A process leads maintenance from now on."""

    generation: int


class AttemptBegan(Entry, frozen=True):
    """A handler began an attempt."""

    task: int
    attempt: int
    token: int
    pool: str
    item: str


class AttemptEnded(Entry, frozen=True):
    """A handler ended an attempt; the store may still refuse the settle."""

    task: int
    attempt: int
    token: int
    how: Literal["returned", "raised", "stopped"]


class CallbackRan(Entry, frozen=True):
    """A callback received the outcome of a task."""

    task: int
    status: str


class SubmitConfirmed(Entry, frozen=True):
    """The store confirmed a submit."""

    item: int
    task: int
    duplicate: bool
    submitter: int


class SubmitFailed(Entry, frozen=True):
    """The store could not accept a submit; the submitter tries again."""

    error: str


class ResultReceived(Entry, frozen=True):
    """A submitter waited for a task and received its result."""

    task: int
    status: str
    result: str | None


class RunDrained(Entry, frozen=True):
    """A submitter waited for a run and was given its report."""

    run: str
    total: int
    completed: int
    resumed: bool


class CancelRequested(Entry, frozen=True):
    """A canceller is about to cancel a task whose handler has begun."""

    task: int
    way: str


class CancelNoticed(Entry, frozen=True):
    """A handler noticed that its task is cancelled."""

    task: int
    attempt: int
    token: int


class ProcessClosed(Entry, frozen=True):
    """A process closed its Millpond cleanly; `stale` of its settles were refused as too late."""

    stale: int


class ProcessStarted(Entry, frozen=True):
    """The supervisor started a process."""

    child: int
    role: str
    number: int


class SignalSent(Entry, frozen=True):
    """The supervisor sent a process a signal: `killed`, `frozen`, `thawed` or `stopped`."""

    child: int
    how: Literal["killed", "frozen", "thawed", "stopped"]


class StoreFaulted(Entry, frozen=True):
    """The supervisor had the store cut a connection, or crash, or brought it back."""

    how: Literal["cut", "crash", "back"]


class ProcessEnded(Entry, frozen=True):
    """The supervisor found that a process has ended."""

    child: int
    role: str
    number: int
    code: int
    expected: bool
    """Whether the supervisor ended it."""


class IdleMeasured(Entry, frozen=True):
    """Idle workers were watched for a while: the statements they sent."""

    workers: int
    seconds: float
    transactions: int
    statements: int | None
    """None = not counted."""


AnyEntry: TypeAlias = (
    StoreOpened
    | LeadershipTaken
    | AttemptBegan
    | AttemptEnded
    | CallbackRan
    | SubmitConfirmed
    | SubmitFailed
    | ResultReceived
    | RunDrained
    | CancelRequested
    | CancelNoticed
    | ProcessClosed
    | ProcessStarted
    | SignalSent
    | StoreFaulted
    | ProcessEnded
    | IdleMeasured
)

_decoder = msgspec.json.Decoder(AnyEntry)


class Ledger:
    """The pen of one process."""

    def __init__(self, path: Path | str) -> None:
        self.pid = os.getpid()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def close(self) -> None:
        """Put the pen down."""
        os.close(self._file)

    def write(self, kind: type[Entry], **facts: object) -> Entry:
        """Write one line, with the time and the process."""
        line = kind(pid=self.pid, wall=time.time(), mono=time.monotonic(), **facts)
        os.write(self._file, b"\n" + msgspec.json.encode(line) + b"\n")
        return line

    @contextmanager
    def attempt(self, fence: Fence, pool: str, item: str) -> Iterator[None]:
        """Record that a handler began, and how it ended before the worker settles it."""
        who = {"task": fence.task, "attempt": fence.attempt, "token": fence.token}
        self.write(AttemptBegan, **who, pool=pool, item=item)
        try:
            yield
        except Exception:
            self.write(AttemptEnded, **who, how="raised")
            raise
        except BaseException:
            self.write(AttemptEnded, **who, how="stopped")
            raise
        self.write(AttemptEnded, **who, how="returned")


def read(path: Path | str) -> tuple[list[AnyEntry], int]:
    """Return the lines of a ledger in the order in which they were written, and how many tore."""
    tail = Tail(path)
    return tail.read(), tail.torn


class Tail:
    """Reads the entries of a ledger that are new since the last read."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._read = 0
        self._rest = b""
        self.torn = 0

    def read(self) -> list[AnyEntry]:
        """Return the lines that are new; one that is just being written comes next time."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *complete, self._rest = (self._rest + new).split(b"\n")
        return [line for raw in complete if raw and (line := self._decoded(raw)) is not None]

    def _decoded(self, raw: bytes) -> AnyEntry | None:
        try:
            line: AnyEntry = _decoder.decode(raw)
        except msgspec.MsgspecError:
            self.torn += 1
            return None
        return line
