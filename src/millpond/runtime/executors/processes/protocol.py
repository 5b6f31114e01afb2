"""What is asked of a child process, what it answers, and the way to a running handler."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millpond.runtime.executors.processes import frames


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is to do: a function by its name, and what to hand it.

    `module` is imported in the child; "__main__" is this process's main module, which the child
    runs once under the name "__mp_main__". `qualname` leads to a task (something with
    `_run_encoded(payload, context, channel) -> bytes`) or to a function from bytes to bytes.
    """

    module: str
    qualname: str
    payload: bytes
    context: bytes = b""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The handler returned."""

    value: bytes


class Broke(msgspec.Struct, frozen=True, kw_only=True):
    """The handler raised; the child lives on.

    `data` is what the error's `__millpond_wish__` said. `loaded` is False if the function could not
    even be found: its module does not import, or has no such name.
    """

    kind: str
    message: str
    traceback: str
    data: bytes = b""
    loaded: bool = True


class Died(msgspec.Struct, frozen=True, kw_only=True):
    """The child ended without an answer; `reason` is its exit code or signal, in words.

    A child that was killed because it did not keep to the protocol has a reason that begins with
    "protocol".
    """

    reason: str


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """The pool ended the job before it had an answer, or before it began."""

    reason: str


Answer = Done | Broke | Died | Killed
OnMessage = Callable[[bytes], None]


class Line:
    """The way to the handler of one job; made by the caller, given to `run`.

    Use it before, during and after the job: what is said before the job has a child is kept for it,
    what is said after its end has no effect. Only for the loop's own thread.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self.reached = False
        """Whether a child ever had its job."""
        self._kept: list[tuple[int, tuple[bytes, ...]]] | None = []
        self._post: Callable[..., object] | None = None

    def cancel(self, reason: str = "") -> None:
        """Set `channel.cancelled` in the child, and why; the handler decides what follows."""
        self._say(frames.CANCEL, reason.encode())

    def send(self, message: bytes) -> None:
        """Hand `message` to the handler's `channel.receive`."""
        self._say(frames.MESSAGE, frames.fitting(message))

    def take(self) -> None:
        """Reserve it for a job; RuntimeError if it had one."""
        if self._is_taken:
            raise RuntimeError("a line leads to one job; make a new one for each run")
        self._is_taken = True

    def open(self, post: Callable[..., object]) -> None:
        """Pass on the kept messages, and from now on every message."""
        self.reached = True
        kept, self._kept, self._post = self._kept, None, post
        for kind, fields in kept or ():
            post(kind, *fields)

    def close(self) -> None:
        """Pass on nothing any more."""
        self._kept = self._post = None

    def _say(self, kind: int, *fields: bytes) -> None:
        if self._post is not None:
            self._post(kind, *fields)
        elif self._kept is not None:
            self._kept.append((kind, fields))
