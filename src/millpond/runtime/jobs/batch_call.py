"""One call of a batch function: it looks like a handler and settles each of its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from millpond.runtime.jobs.job import Handler

if TYPE_CHECKING:
    from millpond.runtime.jobs.job import Job


class Failed:
    """One item of a batch that failed; the other items are not affected."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | str) -> None:
        self.error: BaseException = (
            error if isinstance(error, BaseException) else RuntimeError(error)
        )
        """The error of the item; a text becomes a RuntimeError."""

    def __repr__(self) -> str:
        return f"Failed({self.error!r})"


class BatchOwner(Protocol):
    """Settles the jobs of a batch call."""

    def settle(self, jobs: list[Job], returned: Any) -> None:  # noqa: ANN401 - by the handler
        """Settle each job of a call by its own result."""

    def fail(self, jobs: list[Job], error: BaseException, leader: Job) -> None:
        """Settle every job of a call that raised, was stopped or timed out."""


class BatchCall(Handler, kw_only=True, eq=False):
    """The one call that runs a batch of jobs."""

    owner: BatchOwner
    jobs: list[Job]

    def ended(self, leader: Job, value: Any, *, failed: bool) -> None:  # noqa: ANN401
        """Settle the jobs of this call."""
        if failed:
            self.owner.fail(self.jobs, value, leader)
        else:
            self.owner.settle(self.jobs, value)
