"""Runs: a seed of tasks and every task they submit, until the last has ended.

A run ends when it is sealed and none of its tasks is queued or running. Its counts change in the
same step as its tasks: the follow-ups of a completed attempt are counted *before* the attempt is
taken off, so a run is never seen empty while it is still growing.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import islice

import msgspec

from millpond.core import bounds
from millpond.core.lifecycle import Status
from millpond.core.task import Call


class OnError(StrEnum):
    """What a run does when one of its tasks fails."""

    SKIP = "skip"
    FAIL = "fail"


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to open, or to resume by its name."""

    id: int
    pool: str
    name: str | None = None
    on_error: OnError = OnError.SKIP
    max_tasks: int | None = None
    holder: str | None = None
    """The process that keeps it open; None = sealed with its seed."""
    on_complete: Call | None = None
    """The call that is submitted once, when the run has ended."""


class Run(msgspec.Struct, kw_only=True):
    """A run as a store keeps it."""

    new: NewRun
    opened_at: float
    holders: set[str] = set()
    live: int = 0
    total: int = 0
    ended: dict[str, int] = {}
    stopped: str | None = None
    """Why it accepts no more tasks: one failed, or its budget was exceeded."""
    failed_task: int | None = None
    finished_at: float | None = None
    members: list[int] = []
    """Its first tasks, if it has a callback: those whose results the callback gets."""
    callback: int | None = None
    """The task of its callback, once the run has ended."""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finished_at is not None

    def room(self) -> int | None:
        """Return how many more tasks its budget allows, or None."""
        return None if self.new.max_tasks is None else self.new.max_tasks - self.total

    def joined(self, *, counted: bool) -> None:
        """Add one task; a callback is waited for but not counted."""
        self.live += 1
        self.total += counted

    def dropped(self) -> None:
        """Add one task that a full queue did not take: it ended before it was stored."""
        self.total += 1
        self.ended[Status.REJECTED] = self.ended.get(Status.REJECTED, 0) + 1

    def remember(self, tasks: Iterable[int]) -> None:
        """Note tasks for the callback, if there is one and it can get their results."""
        if self.new.on_complete is not None:
            self.members += islice(tasks, max(bounds.MAX_RUN_RESULTS - len(self.members), 0))

    @property
    def to_call(self) -> Call | None:
        """Its callback, unless it was submitted already: a redriven task may end a run twice."""
        return None if self.callback is not None else self.new.on_complete

    def called(self, callback: int) -> None:
        """Note the task of its callback."""
        self.callback = callback
        self.members = []

    def revived(self, status: Status, *, counted: bool) -> None:
        """Add a redriven task again; this reopens the run."""
        self.live += 1
        if counted:
            self.ended[status] -= 1
            if not self.ended[status]:
                del self.ended[status]
        self.finished_at = None
        self.stopped = self.failed_task = None

    def left(self, status: Status, *, counted: bool) -> None:
        """Remove a task that ended."""
        self.live -= 1
        if counted:
            self.ended[status] = self.ended.get(status, 0) + 1

    def close_if_done(self, now: float) -> bool:
        """End the run if it has no live task and no holder; return whether it ended now."""
        if self.finished or self.live or self.holders:
            return False
        self.finished_at = now
        return True


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment."""

    id: int
    pool: str
    name: str | None
    live: int
    total: int
    ended: dict[str, int]
    stopped: str | None
    failed_task: int | None
    finished: bool
    resumed: bool = False
    opened_at: float = 0.0
    finished_at: float | None = None


def view(run: Run, *, resumed: bool = False) -> RunView:
    """Return a run as it is now."""
    return RunView(
        id=run.new.id,
        pool=run.new.pool,
        name=run.new.name,
        live=run.live,
        total=run.total,
        ended=dict(run.ended),
        stopped=run.stopped,
        failed_task=run.failed_task,
        finished=run.finished,
        resumed=resumed,
        opened_at=run.opened_at,
        finished_at=run.finished_at,
    )
