"""Handles: what a submitter holds of a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from millpond.core import check
from millpond.core.check import Seconds
from millpond.core.errors import TaskCancelled, TaskFailed, TaskRejected
from millpond.core.lifecycle import Status
from millpond.runtime.end import End
from millpond.runtime.error import ErrorInfo, read
from millpond.runtime.wait import end_of

if TYPE_CHECKING:
    from millpond.core.task import NewTask, Task
    from millpond.pool.pool import Pool
    from millpond.store.protocol import Admission

R_co = TypeVar("R_co", covariant=True)

CancelMode = Literal["cooperative", "interrupt"]


class Handle(Generic[R_co]):
    """One submitted task: its last known state, and the way to its result.

    Everything here is the last known snapshot; `refresh()` reads it anew, and awaiting the handle
    waits for the end.
    """

    __slots__ = (
        "_decode",
        "_end",
        "_pool",
        "_era",
        "attempt",
        "duplicate",
        "id",
        "key",
        "labels",
        "lane",
        "position",
        "priority",
        "queue_depth",
        "reason",
        "sequence",
        "status",
        "submitted_at",
        "submitted_by",
    )

    def __init__(
        self,
        pool: Pool,
        new: NewTask,
        *,
        status: Status,
        decode: Callable[[bytes], Any] | None,
        era: int | None = None,
    ) -> None:
        self._pool = pool
        self._decode = decode
        self._era = era
        self._end: End | None = None
        self.id = new.id
        self.status = status
        self.key = new.key
        self.labels = new.labels
        self.priority = new.priority
        self.submitted_by = new.submitted_by
        self.lane: str | None = None
        self.sequence = 0
        self.position: int | None = None
        self.queue_depth: int | None = None
        self.submitted_at: float | None = None
        self.attempt = 0
        self.duplicate = False
        self.reason: str | None = None

    def admitted(self, admission: Admission, now: float) -> None:
        """Take in what the store answered to the submit."""
        self.id = admission.task
        self.status = admission.status
        self.lane = admission.lane
        self.sequence = admission.sequence
        self.position = admission.position
        self.duplicate = admission.duplicate
        self.reason = admission.reason
        self.submitted_at = now
        if admission.duplicate:
            self._era = None

    @property
    def pool(self) -> str:
        """The name of its pool."""
        return self._pool.name

    @property
    def pool_id(self) -> str:
        """The id of its pool."""
        return self._pool.id

    @property
    def rejection_reason(self) -> str | None:
        """Why it was dropped, if it was."""
        return self.reason if self.status is Status.REJECTED else None

    @property
    def rejection_policy(self) -> str | None:
        """The policy that dropped it, if one did."""
        if self.status is not Status.REJECTED or self._pool.spec.backpressure is None:
            return None
        return str(self._pool.spec.backpressure.on_full)

    @property
    def result(self) -> R_co | None:
        """What it returned, if it has completed and that is known here."""
        end = self._end
        if end is None or end.status is not Status.COMPLETED:
            return None
        return self._value(end)  # type: ignore[no-any-return]

    @property
    def error(self) -> ErrorInfo | None:
        """Why it failed, if it has and that is known here."""
        return None if self._end is None else read(self._end.error)

    def __bool__(self) -> Literal[True]:
        """Be true, so that `if answer := await pool.try_submit(...)` tells it from a refusal."""
        return True

    def __await__(self) -> Generator[Any, None, R_co]:
        """Wait for the result, or raise TaskFailed, TaskCancelled or TaskRejected."""
        return self._wait_for_result().__await__()

    async def value_of(self, end: End | None) -> R_co:
        """Return the result that an end means, or raise its error; None = wait for the end."""
        if end is not None:
            self._take(end)
        return await self._wait_for_result()

    async def _wait_for_result(self) -> R_co:
        end = self._end or await self._wait_for_end()
        match end.status:
            case Status.COMPLETED:
                return self._value(end)  # type: ignore[no-any-return]
            case Status.CANCELLED:
                raise self._ended(TaskCancelled, end, "was cancelled")
            case Status.REJECTED:
                raise self._ended(TaskRejected, end, "was dropped", policy=self.rejection_policy)
            case _:
                raise self._failed(end) from end.cause

    async def _wait_for_end(self) -> End:
        if self._end is None:
            runtime = self._pool.runtime
            if self.status is Status.REJECTED and not self.duplicate:
                # It was never stored: there is nothing to wait for and nothing to read.
                self._end = End(Status.REJECTED, reason=self.reason)
            else:
                self._take(await end_of(runtime, self.id, self._era))
        assert self._end is not None  # noqa: S101
        return self._end

    def _take(self, end: End) -> None:
        self._end = end
        self.status = end.status
        self.reason = end.reason
        self.attempt = end.attempt

    def _value(self, end: End) -> Any:  # noqa: ANN401 - whatever the task returned
        if end.result is not None and self._decode is not None:
            return self._decode(end.result)
        return end.value

    def _failed(self, end: End) -> Any:  # noqa: ANN401 - a TaskFailed
        info = read(end.error) or ErrorInfo(end.reason or "unknown", "")
        return self._ended(
            TaskFailed,
            end,
            f"failed after {end.attempt} attempt(s): {info}",
            error_type=info.type,
            error_message=info.message,
            traceback_text=info.traceback,
        )

    def _ended(self, kind: type[Any], end: End, what: str, **fields: object) -> Any:  # noqa: ANN401
        why = f" ({end.reason})" if end.reason else ""
        return kind(
            f"task {self.id} of pool {self.pool!r} {what}{why}",
            task_id=self.id,
            pool=self.pool,
            attempts=end.attempt,
            reason=end.reason,
            **fields,
        )

    async def wait(self, timeout: Seconds | None = None) -> Handle[R_co]:  # noqa: ASYNC109
        """Wait for the end, whatever it is, and return this handle; TimeoutError if it is late."""
        limit = None if timeout is None else check.seconds("timeout", timeout)
        async with asyncio.timeout(limit):
            await self._wait_for_end()
        return self

    async def refresh(self) -> Handle[R_co]:
        """Read the task anew from the store."""
        runtime = self._pool.runtime
        task = await runtime.view.task(self.id)
        if task is not None:
            self.read(task)
        elif self._end is None and self.status is not Status.REJECTED:
            raise runtime.gone(self.id)
        return self

    def read(self, task: Task) -> None:
        """Take in a record of the store."""
        self.status = task.status
        self.attempt = task.attempt
        self.lane = task.lane
        self.sequence = task.sequence
        self.submitted_at = task.submitted_at
        self.reason = task.reason
        self._end = self._pool.runtime.waiting.read(task) if task.status.terminal else None

    async def cancel(self, mode: CancelMode = "cooperative") -> bool:
        """Cancel the task: at once if it waits; if it runs it is told, and not retried.

        mode="interrupt" also cancels an async handler. Return whether this changed anything.
        """
        return await self._pool.cancel(self.id, mode=mode)

    def progress(self) -> AsyncIterator[tuple[float, str]]:
        """Yield (fraction, text) as the handler tells it, until the task ends."""
        return self._pool.runtime.progress.of(self.id)

    def __repr__(self) -> str:
        return f"<handle {self.id} of pool {self.pool!r}: {self.status}>"
