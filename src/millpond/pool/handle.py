"""Handles: what a submitter holds of a task, on the loop and in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from millpond.core import validation as check
from millpond.core.admit import Reason
from millpond.core.lifecycle import Status
from millpond.core.validation import Seconds
from millpond.pool.loop_bridge import limit_of

if TYPE_CHECKING:
    from millpond.core.task import NewTask
    from millpond.pool.loop_bridge import LoopBridge
    from millpond.pool.submitted_task import SubmittedBatch, SubmittedTask
    from millpond.runtime.error_info import ErrorInfo

R_co = TypeVar("R_co", covariant=True)

CancelMode = Literal["cooperative", "interrupt"]


class LastKnown(Generic[R_co]):
    """What a handle shows of its task: the last known state. `refresh()` reads it again."""

    __slots__ = ("_at", "_batch", "_new", "_task")

    _task: SubmittedTask | None
    _batch: SubmittedBatch | None
    _at: int
    _new: NewTask | None

    @property
    def _internals(self) -> SubmittedTask:
        task = self._task
        if task is None:
            assert self._batch is not None  # noqa: S101 - given in place of the task
            assert self._new is not None  # noqa: S101 - given with the batch
            task = self._task = self._batch.task(self._at, self._new)
            self._batch = self._new = None
        return task

    @property
    def id(self) -> int:
        """Its id; of a duplicate, that of the task it stands for."""
        return self._internals.id

    @property
    def pool(self) -> str:
        """The name of its pool."""
        return self._internals.pool.name

    @property
    def pool_id(self) -> str:
        """The id of its pool."""
        return self._internals.pool.id

    @property
    def status(self) -> Status:
        """The last known status."""
        return self._internals.status

    @property
    def attempt(self) -> int:
        """How many attempts were charged."""
        known = self._internals.end or self._internals.record
        return 0 if known is None else known.attempt

    @property
    def key(self) -> str | None:
        """Its key."""
        return self._internals.new.key

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return dict(self._internals.new.labels)

    @property
    def priority(self) -> int:
        """Its priority, also where the order ignores it."""
        return self._internals.new.priority

    @property
    def submitted_at(self) -> float | None:
        """When it was submitted, by the clock of the store."""
        return self._internals.submitted_at

    @property
    def submitted_by(self) -> str:
        """Who submitted it: `user`, `task:<id>`, or as the option of that name says."""
        return self._internals.new.submitted_by

    @property
    def lane(self) -> str | None:
        """Its lane, in a pool that has lanes."""
        known = self._internals.record or self._internals.admission
        return None if known is None else known.lane

    @property
    def sequence(self) -> int:
        """Its number in its lane, or in the pool."""
        known = self._internals.record or self._internals.admission
        return 0 if known is None else known.sequence

    @property
    def position(self) -> int | None:
        """How many were ahead of it when it was submitted: in its lane, or in a FIFO pool."""
        admission = self._internals.admission
        return None if admission is None else admission.position

    @property
    def queue_depth(self) -> int | None:
        """How many tasks waited in the pool when it was submitted, itself included."""
        admission = self._internals.admission
        return None if admission is None else admission.depth

    @property
    def duplicate(self) -> bool:
        """Whether its idempotency key was known: the handle is that of the known task."""
        return self._internals.duplicate

    @property
    def revision(self) -> int:
        """How often it was updated while it waited."""
        return self._internals.new.revision

    @property
    def reported(self) -> tuple[float, str] | None:
        """The fraction and the text that its handler reported last, if it has."""
        record = self._internals.record
        return None if record is None else record.progress

    @property
    def reason(self) -> Reason | None:
        """Why it ended, where its handler did not end it."""
        return self._internals.reason

    @property
    def rejection_reason(self) -> Reason | None:
        """Why it was dropped, if it was."""
        return self._internals.rejection_reason

    @property
    def rejection_policy(self) -> str | None:
        """The policy that dropped it, if one did."""
        return self._internals.rejection_policy

    @property
    def result(self) -> R_co | None:
        """The result of a completed task; raises if it is not kept or was not stored."""
        end = self._internals.end
        if end is None or end.status is not Status.COMPLETED:
            return None
        return self._internals.result()  # type: ignore[no-any-return]

    @property
    def error(self) -> ErrorInfo | None:
        """The error of a task that failed or is parked, if it is known here."""
        return self._internals.error

    def __bool__(self) -> Literal[True]:
        """Return True, where a rejection is false: `if answer := await pool.try_submit(...)`."""
        return True

    def __repr__(self) -> str:
        return f"<handle {self.id} of pool {self.pool!r}: {self.status}>"


class Handle(LastKnown[R_co]):
    """One submitted task: its last known state, and the way to its result.

    All attributes are the last known state; `refresh()` reads it again. Awaiting the handle waits
    for the result.
    """

    __slots__ = ("__weakref__",)

    def __init__(
        self,
        task: SubmittedTask | None,
        batch: SubmittedBatch | None = None,
        at: int = 0,
        new: NewTask | None = None,
    ) -> None:
        """`batch`: in place of its task, with its index there, until more is asked for."""
        self._task = task
        if batch is not None:
            self._batch = batch
            self._at = at
            self._new = new

    def __await__(self) -> Generator[Any, None, R_co]:
        """Wait for the result, or raise TaskFailed, TaskCancelled or TaskRejected."""
        return self._internals.wait_and_return()

    async def wait(self, timeout: Seconds | None = None) -> Handle[R_co]:  # noqa: ASYNC109
        """Wait until the task has ended, whatever its outcome; TimeoutError after `timeout`."""
        if timeout is None:
            await self._internals.wait()
            return self
        async with asyncio.timeout(check.seconds("timeout", timeout)):
            await self._internals.wait()
        return self

    async def refresh(self) -> Handle[R_co]:
        """Read the task from the store, which renews all attributes; return the handle."""
        await self._internals.refresh()
        return self

    async def cancel(self, mode: CancelMode = "cooperative") -> bool:
        """Cancel the task: at once if it waits; a running one gets `ctx.cancelled` and no retry.

        mode="interrupt" also cancels an async handler. Return whether this changed anything.
        """
        return await self._internals.cancel(mode)

    def progress(self) -> AsyncIterator[tuple[float, str]]:
        """Yield (fraction, text) as the handler reports it, until the task ends."""
        return self._internals.pool.runtime.progress.of(self.id)


class SyncHandle(LastKnown[R_co]):
    """One submitted task, for threads: its last known state, and the way to its result."""

    __slots__ = ("_bridge",)

    def __init__(self, bridge: LoopBridge, task: SubmittedTask) -> None:
        self._bridge = bridge
        self._task = task

    def get(self, timeout: Seconds | None = None) -> R_co:
        """Wait for the result, or raise TaskFailed, TaskCancelled or TaskRejected.

        TimeoutError if it takes longer than `timeout`; the task goes on.
        """
        return self._bridge.within(  # type: ignore[no-any-return]
            limit_of(timeout), self._internals.result_of, None
        )

    def wait(self, timeout: Seconds | None = None) -> SyncHandle[R_co]:
        """Wait until the task has ended, whatever its outcome; TimeoutError after `timeout`."""
        self._bridge.within(limit_of(timeout), self._internals.wait)
        return self

    def refresh(self) -> SyncHandle[R_co]:
        """Read the task from the store, which renews all attributes; return the handle."""
        self._bridge.call(self._internals.refresh)
        return self

    def cancel(self, mode: CancelMode = "cooperative") -> bool:
        """Cancel the task: at once if it waits; a running one gets `ctx.cancelled` and no retry.

        mode="interrupt" also cancels an async handler. Return whether this changed anything.
        """
        return self._bridge.call(self._internals.cancel, mode)

    def progress(self) -> Iterator[tuple[float, str]]:
        """Yield (fraction, text) as the handler reports it, until the task ends."""
        task = self._internals
        return self._bridge.iterate(lambda: task.pool.runtime.progress.of(task.id))
