"""Which tasks a search is for: the conditions that people choose in a list of tasks."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.task import Task

State: TypeAlias = Literal[
    "queued", "scheduled", "parked", "running", "completed", "failed", "cancelled", "rejected"
]
"""Every status, and the two views of queued."""


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that a task must meet, all of them; None = any."""

    state: State | None = None
    key: str | None = None
    function: str | None = None
    labels: dict[str, str] = {}
    error: str | None = None
    """A part of the type or the message of its error, or of the reason why it ended."""
    since: float | None = None
    """Submitted at this moment or later."""
    before: float | None = None
    """Submitted earlier than this moment."""
    ended_before: float | None = None
    """Not ended yet, or earlier than this moment."""
    run: int | None = None

    @property
    def status(self) -> Status | None:
        """The status that the state is a view of."""
        if self.state is None:
            return None
        return Status.QUEUED if self.state in ("scheduled", "parked") else Status(self.state)

    @property
    def plain(self) -> bool:
        """Whether the state is the only condition: nearly every task of it is found then."""
        return self == TaskFilter(state=self.state)

    def fits(self, task: Task, now: float) -> bool:
        """Return whether a task meets every condition at `now`."""
        return (
            self._fits_state(task, now)
            and (self.key is None or task.new.key == self.key)
            and (self.function is None or task.new.call.function == self.function)
            and (self.run is None or task.new.run == self.run)
            and (self.since is None or task.submitted_at >= self.since)
            and (self.before is None or task.submitted_at < self.before)
            and (
                self.ended_before is None
                or task.finished_at is None
                or task.finished_at < self.ended_before
            )
            and (not self.labels or self.labels.items() <= task.new.labels.items())
            and (self.error is None or self.error.casefold() in error_words(task).casefold())
        )

    def _fits_state(self, task: Task, now: float) -> bool:
        match self.state:
            case None:
                return True
            case "parked":
                return task.status is Status.QUEUED and task.parked
            case "scheduled":
                return task.status is Status.QUEUED and not task.parked and task.due > now
            case state:
                return task.status == state


class _Words(msgspec.Struct):
    """What a stored error says, without its traceback."""

    type: str = ""
    message: str = ""


_decode = msgspec.msgpack.Decoder(_Words).decode


def error_words(task: Task) -> str:
    """Return the reason why a task ended, and the type and the message of its error."""
    if not task.error:
        return task.reason or ""
    try:
        words = _decode(task.error)
        text = f"{words.type}: {words.message}"
    except msgspec.MsgspecError:
        text = task.error.decode("utf-8", "replace")
    return f"{task.reason} {text}" if task.reason else text
