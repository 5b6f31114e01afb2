"""Ends: how a task came to its end, as told to those who wait for it in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.lifecycle import Status
from millpond.runtime.job import Closure

if TYPE_CHECKING:
    from millpond.core.settle import Settlement
    from millpond.core.task import Task
    from millpond.runtime.job import Job


class End:
    """The last word on a task; `cause` is the exception itself where it was raised here."""

    __slots__ = ("attempt", "cause", "error", "reason", "result", "status", "value")

    def __init__(
        self,
        status: Status,
        *,
        result: bytes | None = None,
        value: Any = None,  # noqa: ANN401 - what a closure returned
        error: bytes | None = None,
        cause: BaseException | None = None,
        reason: str | None = None,
        attempt: int = 0,
    ) -> None:
        self.status = status
        self.result = result
        self.value = value
        self.error = error
        self.cause = cause
        self.reason = reason
        self.attempt = attempt

    @classmethod
    def of(cls, decided: Settlement, job: Job, value: Any, after: Status) -> End:  # noqa: ANN401
        """Return the end that a settlement of this process made."""
        done = after is Status.COMPLETED
        cancelled = after is Status.CANCELLED
        return cls(
            after,
            result=decided.result,
            value=value if done and type(job.body) is Closure else None,
            error=decided.error,
            cause=value if not done and isinstance(value, BaseException) else None,
            reason="cancelled" if cancelled else decided.reason,
            attempt=job.leased.fence.attempt,
        )

    @classmethod
    def read(cls, task: Task) -> End:
        """Return the end that a store remembers."""
        return cls(
            task.status,
            result=task.result,
            error=task.error,
            reason=task.reason,
            attempt=task.attempt,
        )
