"""Handles: what a submitter holds of a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from millpond.core import validation as check
from millpond.core.admit import Reason, reason_of
from millpond.core.lifecycle import Status
from millpond.core.validation import Seconds
from millpond.errors import TaskCancelled, TaskFailed, TaskRejected, UnknownTask
from millpond.pool.outcome import closure_result, read_result, unknown_here
from millpond.runtime.error_info import ErrorInfo, read
from millpond.runtime.jobs.job import current_job
from millpond.runtime.waiting.deadlock import end_of
from millpond.runtime.waiting.task_result import TaskResult

if TYPE_CHECKING:
    from millpond.core.task import NewTask, Task
    from millpond.pool.pool import Pool
    from millpond.store.protocol import Admission

R_co = TypeVar("R_co", covariant=True)

CancelMode = Literal["cooperative", "interrupt"]


_REJECTED = Status.REJECTED
"""A member of an enum is slow to look up."""


class Handle(Generic[R_co]):
    """One submitted task: its last known state, and the way to its result.

    Everything here is the last known snapshot; `refresh()` reads it anew, and awaiting the handle
    waits for the end.
    """

    _end: TaskResult | None = None
    _record: Task | None = None
    _admission: Admission | None = None
    _forgotten = False
    submitted_at: float | None = None
    """When it was submitted, by the clock of the store."""

    def __init__(
        self,
        pool: Pool,
        new: NewTask,
        decode: Callable[[bytes], Any] | None,
        era: object = None,
    ) -> None:
        self._pool = pool
        self._new = new
        self._decode = decode
        self._era = era
        self.id = new.id
        """Its id; of a duplicate, that of the task it stands for."""

    def admitted(self, admission: Admission, now: float) -> None:
        """Take in what the store answered to the submit."""
        self._admission = admission
        self.submitted_at = now
        if admission.duplicate:
            self.id = admission.task
            self._era = None
        elif admission.status is _REJECTED:
            # It was never stored: nobody will tell of its end, and there is nothing to read.
            self._end = TaskResult(Status.REJECTED)
            self._end.reason = admission.reason

    def forgotten(self) -> None:
        """Only the key still stands for the task: how it ended is known, its result is not."""
        if self.status.terminal:
            self._end, self._forgotten = TaskResult(self.status), True

    @property
    def status(self) -> Status:
        """Where it was when last heard of."""
        known = self._end or self._record or self._admission
        return Status.QUEUED if known is None else known.status

    @property
    def attempt(self) -> int:
        """How many charged runs it has had."""
        known = self._end or self._record
        return 0 if known is None else known.attempt

    @property
    def key(self) -> str | None:
        """Its key."""
        return self._new.key

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return dict(self._new.labels)

    @property
    def priority(self) -> int:
        """Its priority, also where the order ignores it."""
        return self._new.priority

    @property
    def submitted_by(self) -> str:
        """Who submitted it."""
        return self._new.submitted_by

    @property
    def lane(self) -> str | None:
        """Its lane, in a pool that has lanes."""
        known = self._record or self._admission
        return None if known is None else known.lane

    @property
    def sequence(self) -> int:
        """Its number in its lane, or in the pool."""
        known = self._record or self._admission
        return 0 if known is None else known.sequence

    @property
    def position(self) -> int | None:
        """How many stood ahead of it when it was submitted: in its lane, or in a fifo pool."""
        return None if self._admission is None else self._admission.position

    @property
    def queue_depth(self) -> int | None:
        """How many tasks waited in the pool when it was submitted, itself included."""
        return None if self._admission is None else self._admission.depth

    @property
    def duplicate(self) -> bool:
        """Whether its idempotency key was known: this is the task it stands for."""
        return self._admission is not None and self._admission.duplicate

    @property
    def reason(self) -> Reason | None:
        """Why it ended as it did, where that was not its handler's doing."""
        known = self._end or self._record or self._admission
        return None if known is None else reason_of(known.reason)

    @property
    def pool(self) -> str:
        """The name of its pool."""
        return self._pool.name

    @property
    def pool_id(self) -> str:
        """The id of its pool."""
        return self._pool.id

    @property
    def rejection_reason(self) -> Reason | None:
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
        """What it returned, if it has completed; an error if that is not kept or not stored."""
        end = self._end
        if end is None or end.status is not Status.COMPLETED:
            return None
        return self._outcome()

    @property
    def error(self) -> ErrorInfo | None:
        """Why it failed, or is parked, if it is and that is known here."""
        if self._end is not None:
            return read(self._end.error)
        record = self._record
        return read(record.error) if record is not None and record.parked else None

    def __bool__(self) -> Literal[True]:
        """Be true, so that `if answer := await pool.try_submit(...)` tells it from a refusal."""
        return True

    def __await__(self) -> Generator[Any, None, R_co]:
        """Wait for the result, or raise TaskFailed, TaskCancelled or TaskRejected."""
        if self._end is None and current_job.get() is None:
            runtime = self._pool.runtime
            waiting = runtime.waiting
            self._end = waiting.recalled(self.id)
            if self._end is None and runtime.served(self._pool.spec.name):
                # No warning and no deadlock to think of: what is left is to wait.
                ended = waiting.begin(self.id, self._era)
                try:
                    self.ended_with((yield from ended))
                finally:
                    waiting.forget(self.id, ended)
        if self._end is None:
            yield from self._wait_for_end().__await__()
        return self._outcome()

    async def value_of(self, end: TaskResult | None) -> R_co:
        """Return the result that an end means, or raise its error; None = wait for the end."""
        if end is not None:
            end.raise_if_closed()
        self._end = end if end is not None else await self._wait_for_end()
        return self._outcome()

    def _outcome(self) -> R_co:
        end = self._end
        assert end is not None  # noqa: S101
        match end.status:
            case Status.COMPLETED if self._forgotten:
                raise UnknownTask(
                    f"task {self.id} of pool {self.pool!r} completed; its result is no longer kept "
                    "(see Keep)",
                    task_id=self.id,
                )
            case Status.COMPLETED:
                return self._value(end)  # type: ignore[no-any-return]
            case Status.CANCELLED:
                raise self._ended(TaskCancelled, end, "was cancelled")
            case Status.REJECTED:
                raise self._ended(TaskRejected, end, "was dropped", policy=self.rejection_policy)
            case _:
                raise self._failed(end) from end.cause

    def begin_wait(self) -> asyncio.Future[TaskResult] | None:
        """Begin to wait for the end, outside of any handler; None if it is known."""
        if self._end is None:
            waiting = self._pool.runtime.waiting
            self._end = waiting.recalled(self.id)
            if self._end is None:
                return waiting.begin(self.id, self._era)
        return None

    def end_wait(self, ended: asyncio.Future[TaskResult]) -> None:
        """Wait no longer."""
        self._pool.runtime.waiting.forget(self.id, ended)

    def ended_with(self, end: TaskResult) -> None:
        """Take in how the task ended; raise if the Millpond closed instead."""
        end.raise_if_closed()
        self._end = end

    def watch_pool(self) -> asyncio.TimerHandle | None:
        """Warn in a while if no worker serves its pool; None if one does now."""
        return self._pool.runtime.unserved.watch(self._pool.spec.name)

    async def _wait_for_end(self) -> TaskResult:
        if self._end is None:
            runtime = self._pool.runtime
            recalled = runtime.waiting.recalled(self.id)
            if recalled is not None:
                self._end = recalled
                return recalled
            timer = self.watch_pool()
            try:
                self._end = await end_of(runtime, self.id, self._era)
            finally:
                if timer is not None:
                    timer.cancel()
        return self._end

    def _value(self, end: TaskResult) -> Any:  # noqa: ANN401 - whatever the task returned
        if end.value is not None:
            return end.value
        function = self._new.call.function
        if self._new.owner is not None:
            return closure_result(self.id, self.pool, function, end.result)
        if end.result is None:
            return None
        if self._decode is None:
            raise unknown_here(self.id, self.pool, function)
        return read_result(self.id, self.pool, function, end.result, self._decode)

    def _failed(self, end: TaskResult) -> Any:  # noqa: ANN401 - a TaskFailed
        info = read(end.error) or ErrorInfo(end.reason or "unknown", "")
        return self._ended(
            TaskFailed,
            end,
            f"failed after {end.attempt} attempt(s): {info}",
            error_type=info.type,
            error_message=info.message,
            traceback_text=info.traceback,
        )

    def _ended(self, kind: type[Any], end: TaskResult, what: str, **fields: object) -> Any:  # noqa: ANN401
        why = f" ({end.reason})" if end.reason else ""
        return kind(
            f"task {self.id} of pool {self.pool!r} {what}{why}",
            task_id=self.id,
            pool=self.pool,
            attempts=end.attempt,
            reason=reason_of(end.reason),
            **fields,
        )

    async def wait(self, timeout: Seconds | None = None) -> Handle[R_co]:  # noqa: ASYNC109
        """Wait for the end, whatever it is, and return this handle; TimeoutError if it is late."""
        if timeout is None:
            await self._wait_for_end()
            return self
        async with asyncio.timeout(check.seconds("timeout", timeout)):
            await self._wait_for_end()
        return self

    async def refresh(self) -> Handle[R_co]:
        """Read the task anew from the store."""
        runtime = self._pool.runtime
        task = await runtime.view.task(self.id)
        if task is not None:
            self.read(task)
        elif self._end is None and self.status is not Status.REJECTED:
            raise runtime.waiting.unknown(self.id)
        return self

    def read(self, task: Task) -> None:
        """Take in a record of the store."""
        self._record = task
        self._new = task.new
        self.submitted_at = task.submitted_at
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
