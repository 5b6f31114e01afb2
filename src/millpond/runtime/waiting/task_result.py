"""Task results: how a task ended, for the code of this process that waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.lifecycle import Status, Transition
from millpond.runtime.jobs.job import Closure

if TYPE_CHECKING:
    from millpond.core.settle import Settlement
    from millpond.core.task import Task
    from millpond.runtime.jobs.job import Job
    from millpond.store.protocol import StoredResult


class TaskResult:
    """How a task ended; `cause` is the exception itself if it was raised in this process."""

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
    def of(cls, decided: Settlement, job: Job, value: Any, after: Status) -> TaskResult:  # noqa: ANN401
        """Return the result of a settlement of this process."""
        # An attempt that began and was given back may have been the only one: then it is charged.
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
    def read(cls, task: Task) -> TaskResult:
        """Return the result that a store has."""
        end = cls(task.status, task.attempt)
        end.result, end.error, end.reason = task.result, task.error, task.reason
        return end

    @classmethod
    def stored(cls, found: StoredResult) -> TaskResult:
        """Return the result that a store has, read together with others."""
        end = cls(found.status, found.attempt)
        end.result, end.error, end.reason = found.result, found.error, found.reason
        return end

    @classmethod
    def closed(cls, error: BaseException) -> TaskResult:
        """Return the end of waiting, not of a task: the Millpond closed."""
        end = cls(Status.QUEUED)
        end.cause = error
        return end

    def raise_if_closed(self) -> None:
        """Raise the error of a Millpond that closed, if that ended the waiting."""
        if self.status is Status.QUEUED and self.cause is not None:
            raise self.cause
