"""Ends: how a task came to its end, as told to those who wait for it in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.lifecycle import Status, Transition
from millpond.runtime.worker.job import Closure

if TYPE_CHECKING:
    from millpond.core.settle import Settlement
    from millpond.core.task import Task
    from millpond.runtime.worker.job import Job


class End:
    """The last word on a task; `cause` is the exception itself where it was raised here."""

    __slots__ = ("attempt", "cause", "error", "reason", "result", "status", "value")

    def __init__(self, status: Status, attempt: int = 0) -> None:
        self.status = status
        self.attempt = attempt
        self.result: bytes | None = None
        self.value: Any = None
        self.error: bytes | None = None
        self.cause: BaseException | None = None
        self.reason: str | None = None

    @classmethod
    def of(cls, decided: Settlement, job: Job, value: Any, after: Status) -> End:  # noqa: ANN401
        """Return the end that a settlement of this process made."""
        # An attempt that was given back and had begun may have been the only one: then it counts.
        charged = decided.spend or (after is Status.FAILED and decided.event is Transition.RELEASE)
        end = cls(after, job.leased.fence.attempt - (not charged))
        if after is Status.COMPLETED:
            end.result = decided.result
            if type(job.body) is Closure:
                end.value = value
            return end
        end.error = decided.error
        end.reason = decided.reason
        if after is Status.CANCELLED:
            end.reason = "cancelled"
        elif decided.event is Transition.CORRUPT:
            end.reason = "corrupt"
        if isinstance(value, BaseException):
            end.cause = value
        return end

    @classmethod
    def read(cls, task: Task) -> End:
        """Return the end that a store remembers."""
        end = cls(task.status, task.attempt)
        end.result, end.error, end.reason = task.result, task.error, task.reason
        return end

    @classmethod
    def closed(cls, error: BaseException) -> End:
        """Return the end of waiting, not of a task: nobody will end it here any more."""
        end = cls(Status.QUEUED)
        end.cause = error
        return end

    def must_be_one(self) -> None:
        """Raise what ended the waiting, if that is all that has ended."""
        if self.status is Status.QUEUED and self.cause is not None:
            raise self.cause
