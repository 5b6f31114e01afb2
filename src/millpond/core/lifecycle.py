"""The lifecycle of a task: one table with every transition a task can make.

Rule: no code changes a task's status except through `advance`. The table draws its own diagram
(`diagram()`), so the picture in the documentation cannot disagree with the program.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from millpond.errors import IllegalTransition

if TYPE_CHECKING:
    from collections.abc import Mapping


class Status(StrEnum):
    """The status of a task. *Scheduled* and *parked* tasks are queued."""

    QUEUED = "queued"
    """It waits: for its turn, for its time, or for a worker that knows its function."""
    RUNNING = "running"
    """A worker runs it."""
    COMPLETED = "completed"
    """Its handler returned."""
    FAILED = "failed"
    """Its handler raised and no attempts are left, or it could not be run."""
    CANCELLED = "cancelled"
    """A caller, an operator or its handler cancelled it."""
    REJECTED = "rejected"
    """The pool dropped it: it was full."""

    @property
    def terminal(self) -> bool:
        """Whether the task has ended (an operator's redrive may start it again)."""
        return self is not Status.QUEUED and self is not Status.RUNNING


class Transition(StrEnum):
    """What can happen to a task: the arrows of its lifecycle."""

    SUBMIT = "submit"
    REFUSE = "refuse"
    CLAIM = "claim"
    LEASE = "lease"
    UPDATE = "update"
    EVICT = "evict"
    EXPIRE = "expire"
    STALE = "stale"
    CORRUPT = "corrupt"
    UNKNOWN = "unknown"
    CANCEL = "cancel"
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    RELEASE = "release"
    LOSE = "lose"
    EXHAUST = "exhaust"
    REDRIVE = "redrive"


LIFECYCLE: Mapping[tuple[Status | None, Transition], Status] = {
    (None, Transition.SUBMIT): Status.QUEUED,
    (None, Transition.REFUSE): Status.REJECTED,  # drop_newest: a rejected handle, never stored
    (Status.QUEUED, Transition.CLAIM): Status.QUEUED,  # prefetched by a worker
    (Status.QUEUED, Transition.RELEASE): Status.QUEUED,  # a prefetched task goes back, not charged
    (Status.QUEUED, Transition.LOSE): Status.QUEUED,  # its worker died: it may have started
    (Status.QUEUED, Transition.EXHAUST): Status.FAILED,  # the same, with no attempts left
    (Status.QUEUED, Transition.UPDATE): Status.QUEUED,  # other arguments, priority or due time
    (Status.QUEUED, Transition.LEASE): Status.RUNNING,
    (Status.QUEUED, Transition.CANCEL): Status.CANCELLED,  # cancel, purge, a failing run
    (Status.QUEUED, Transition.EVICT): Status.REJECTED,  # only if never claimed
    (Status.QUEUED, Transition.EXPIRE): Status.FAILED,
    (Status.QUEUED, Transition.STALE): Status.FAILED,  # a closure whose process is gone
    (Status.QUEUED, Transition.CORRUPT): Status.FAILED,
    (
        Status.QUEUED,
        Transition.UNKNOWN,
    ): Status.FAILED,  # parked for a day: no worker knew the function
    (Status.RUNNING, Transition.COMPLETE): Status.COMPLETED,
    (Status.RUNNING, Transition.FAIL): Status.FAILED,
    (Status.RUNNING, Transition.CANCEL): Status.CANCELLED,
    (Status.RUNNING, Transition.RETRY): Status.QUEUED,
    (Status.RUNNING, Transition.RELEASE): Status.QUEUED,  # released, not charged
    (Status.RUNNING, Transition.LOSE): Status.QUEUED,  # lease lost, attempts left
    (Status.RUNNING, Transition.EXHAUST): Status.FAILED,  # lease lost, none left
    (Status.RUNNING, Transition.STALE): Status.FAILED,  # a closure is never silently run again
    (Status.FAILED, Transition.REDRIVE): Status.QUEUED,
    (Status.CANCELLED, Transition.REDRIVE): Status.QUEUED,
}


def advance(status: Status | None, event: Transition) -> Status:
    """Return the status after `event`, or raise IllegalTransition; changes nothing."""
    try:
        return LIFECYCLE[status, event]
    except KeyError:
        message = f"a {status or 'new'} task has no transition {event!s}"
        raise IllegalTransition(message, status=status, event=event) from None


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in LIFECYCLE.items():
        arrows.setdefault((before or "[*]", after), []).append(event)
    lines = ["stateDiagram-v2"]
    lines += [f"    {a} --> {b}: {' | '.join(events)}" for (a, b), events in arrows.items()]
    lines += [
        f"    {s} --> [*]"
        for s in Status
        if s.terminal and (s, Transition.REDRIVE) not in LIFECYCLE
    ]
    return "\n".join(lines) + "\n"
