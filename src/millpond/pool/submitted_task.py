"""A submitted task as this process knows it: the internal object behind `Handle`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from millpond.core import validation as check
from millpond.core.admit import Reason, reason_of
from millpond.core.handler_signals import Cancelled
from millpond.core.lifecycle import Status
from millpond.core.type_names import qualified_name
from millpond.errors import TaskCancelled, TaskFailed, TaskRejected, UnknownTask
from millpond.pool.outcome import closure_result, read_result, unknown_here
from millpond.runtime.error_info import ErrorInfo, read
from millpond.runtime.jobs.job import current_job
from millpond.runtime.waiting.task_result import TaskResult
from millpond.store.protocol import InOrder

if TYPE_CHECKING:
    from millpond.core.task import NewTask, Task
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.store.protocol import Admission

BY_HANDLER = qualified_name(Cancelled)
_SILENT = "was cancelled by its handler"

_REJECTED = Status.REJECTED
"""A global, because looking up the member of an enum is slow."""


class SubmittedTask:
    """The last known state of one task, and the wait for its end."""

    end: TaskResult | None = None
    record: Task | None = None
    admission: Admission | None = None
    submitted_at: float | None = None
    _forgotten = False

    def __init__(
        self,
        pool: DeclaredPool,
        new: NewTask,
        decode: Callable[[bytes], Any] | None,
        era: object = None,
    ) -> None:
        self.pool = pool
        self.new = new
        self._decode = decode
        self._era = era
        self.id = new.id

    # What the store answers

    def admitted(self, admission: Admission, now: float) -> None:
        """Apply the store's answer to the submit."""
        self.admission = admission
        self.submitted_at = now
        if admission.duplicate:
            self.id = admission.task
            self._era = None
        elif admission.status is _REJECTED:
            # It was never stored, so there is no end to wait for and no record to read.
            self.end = TaskResult(Status.REJECTED)
            self.end.reason = admission.reason

    async def look_up(self) -> None:
        """Read the task that a duplicate stands for; without a record only its status is known."""
        record = await self.pool.runtime.view.task(self.id)
        if record is not None:
            self.read(record)
        elif self.status.terminal:
            self.end, self._forgotten = TaskResult(self.status), True

    def read(self, task: Task) -> None:
        """Apply a record of the store."""
        self.record = task
        self.new = task.new
        self.submitted_at = task.submitted_at
        self.end = self.pool.runtime.waiting.read(task) if task.status.terminal else None

    async def refresh(self) -> None:
        """Read the task from the store."""
        runtime = self.pool.runtime
        task = await runtime.view.task(self.id)
        if task is not None:
            self.read(task)
        elif self.end is None and self.status is not Status.REJECTED:
            raise runtime.waiting.unknown(self.id)

    async def cancel(self, mode: str) -> bool:
        """Cancel the task; return whether that changed anything."""
        check.one_of("mode", mode, ("cooperative", "interrupt"))
        await self.pool.ready()
        return await self.pool.runtime.control.cancel_one(
            self.id, interrupt=mode == "interrupt", of=self.pool.spec.name
        )

    # The last known state

    @property
    def status(self) -> Status:
        """The last known status."""
        known = self.end or self.record or self.admission
        return Status.QUEUED if known is None else known.status

    @property
    def duplicate(self) -> bool:
        """Whether its idempotency key was known."""
        return self.admission is not None and self.admission.duplicate

    @property
    def reason(self) -> Reason | None:
        """Why it ended, where its handler did not end it."""
        known = self.end or self.record or self.admission
        return None if known is None else reason_of(known.reason)

    @property
    def rejection_reason(self) -> Reason | None:
        """Why it was dropped, if it was."""
        return self.reason if self.status is Status.REJECTED else None

    @property
    def rejection_policy(self) -> str | None:
        """The policy that dropped it, if one did."""
        bound = self.pool.spec.backpressure
        if self.status is not Status.REJECTED or bound is None:
            return None
        return str(bound.on_full)

    @property
    def error(self) -> ErrorInfo | None:
        """The error of a task that failed or is parked, if it is known here."""
        if self.end is not None:
            return read(self.end.error)
        record = self.record
        return read(record.error) if record is not None and record.parked else None

    # The end

    def wait_and_return(self) -> Generator[Any, None, Any]:
        """Wait for the end; return the result or raise its error. This is `await handle`."""
        if self.end is None and current_job.get() is None:
            runtime = self.pool.runtime
            waiting = runtime.waiting
            self.end = waiting.recalled(self.id)
            if self.end is None and runtime.served(self.pool.spec.name):
                # No warning to prepare and no deadlock to check for: a future is enough.
                ended = waiting.begin(self.id, self._era)
                try:
                    self.ended_with((yield from ended))
                finally:
                    waiting.forget(self.id, ended)
        if self.end is None:
            yield from self.wait().__await__()
        return self.result()

    async def result_of(self, end: TaskResult | None) -> Any:  # noqa: ANN401 - whatever the task returned
        """Return the result that an end has, or raise its error; None = wait for the end."""
        if end is not None:
            end.raise_if_closed()
        self.end = end if end is not None else await self.wait()
        return self.result()

    def begin_wait(self) -> asyncio.Future[TaskResult] | None:
        """Begin to wait for the end, outside of any handler; None if it is known."""
        if self.end is None:
            waiting = self.pool.runtime.waiting
            self.end = waiting.recalled(self.id)
            if self.end is None:
                return waiting.begin(self.id, self._era)
        return None

    def end_wait(self, ended: asyncio.Future[TaskResult]) -> None:
        """Wait no longer."""
        self.pool.runtime.waiting.forget(self.id, ended)

    def ended_with(self, end: TaskResult) -> None:
        """Apply the end of the task; raise if the Millpond closed instead."""
        end.raise_if_closed()
        self.end = end

    def watch_pool(self) -> asyncio.TimerHandle | None:
        """Warn in a while if no worker serves its pool; None if one does now."""
        return self.pool.runtime.unserved.watch(self.pool.spec.name)

    async def wait(self) -> TaskResult:
        """Wait for the end, and return it."""
        if self.end is None:
            runtime = self.pool.runtime
            recalled = runtime.waiting.recalled(self.id)
            if recalled is not None:
                self.end = recalled
                return recalled
            timer = self.watch_pool()
            try:
                self.end = await runtime.waits.end_of(self.id, self._era)
            finally:
                if timer is not None:
                    timer.cancel()
        return self.end

    def result(self) -> Any:  # noqa: ANN401 - whatever the task returned
        """Return the result of a task that has ended, or raise its error."""
        end = self.end
        assert end is not None  # noqa: S101
        match end.status:
            case Status.COMPLETED if self._forgotten:
                raise UnknownTask(
                    f"task {self.id} of pool {self.pool.name!r} completed; its result is no longer "
                    "kept (see Keep)",
                    task_id=self.id,
                )
            case Status.COMPLETED:
                return self._value(end)
            case Status.CANCELLED:
                raise self._error(TaskCancelled, end, _cancelled(end))
            case Status.REJECTED:
                raise self._error(TaskRejected, end, "was dropped", policy=self.rejection_policy)
            case _:
                raise self._failure(end) from end.cause

    def _value(self, end: TaskResult) -> Any:  # noqa: ANN401 - whatever the task returned
        if end.value is not None:
            return end.value
        pool, function = self.pool.name, self.new.call.function
        if self.new.owner is not None:
            return closure_result(self.id, pool, function, end.result)
        if end.result is None:
            return None
        if self._decode is None:
            raise unknown_here(self.id, pool, function)
        return read_result(self.id, pool, function, end.result, self._decode)

    def _failure(self, end: TaskResult) -> Any:  # noqa: ANN401 - a TaskFailed
        info = read(end.error) or ErrorInfo(end.reason or "unknown", "")
        return self._error(
            TaskFailed,
            end,
            f"failed after {end.attempt} attempt(s): {info}",
            error_type=info.type,
            error_message=info.message,
            traceback_text=info.traceback,
        )

    def _error(self, kind: type[Any], end: TaskResult, what: str, **fields: object) -> Any:  # noqa: ANN401
        why = f" ({end.reason})" if end.reason else ""
        return kind(
            f"task {self.id} of pool {self.pool.name!r} {what}{why}",
            task_id=self.id,
            pool=self.pool.name,
            attempts=end.attempt,
            reason=reason_of(end.reason),
            **fields,
        )


class SubmittedBatch:
    """What this process knows of the tasks of a batch, but for the tasks themselves.

    Who keeps one of a thousand handles keeps this, and not a thousand payloads.
    """

    _admissions: Sequence[Admission] = ()
    _now = 0.0

    def __init__(
        self,
        pool: DeclaredPool,
        decoders: Sequence[Callable[[bytes], Any] | None],
        era: object,
    ) -> None:
        """`decoders` decode the results, each of one task; a single one those of all."""
        self._pool = pool
        self._decoders = decoders
        self._era = era

    def admitted(self, admissions: Sequence[Admission], now: float) -> None:
        """Apply the store's answer to the submit."""
        self._admissions, self._now = admissions, now

    @property
    def has_duplicates(self) -> bool:
        """Whether a task stands for another one, which has to be looked up."""
        admissions = self._admissions
        return type(admissions) is not InOrder and any(one.duplicate for one in admissions)

    def task(self, at: int, new: NewTask) -> SubmittedTask:
        """Return what is known of a task, given with its index."""
        decode = self._decoders[at if len(self._decoders) > 1 else 0]
        task = SubmittedTask(self._pool, new, decode, self._era)
        task.admitted(self._admissions[at], self._now)
        return task


def _cancelled(end: TaskResult) -> str:
    """Return in words how a task was cancelled."""
    info = read(end.error)
    if info is None or info.type != BY_HANDLER:
        # It was asked to stop, and raised something else.
        return "was cancelled"
    return f"was cancelled by its handler: {info.message}" if info.message else _SILENT
