"""Receipts: what each trigger did with an event, and the receipt of the emit itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from millpond.core import validation as check
from millpond.core.admit import Reason
from millpond.core.event import EVENTS, Event, SentEvent
from millpond.core.lifecycle import Status
from millpond.core.task import Dedupe
from millpond.errors import TaskRejected
from millpond.runtime.error_info import read

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millpond.core.task import Task
    from millpond.core.validation import Seconds
    from millpond.pool.handle import Handle
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.pool.submitted_task import SubmittedTask
    from millpond.runtime.waiting.task_result import TaskResult

Result: TypeAlias = Literal["submitted", "duplicate", "rejected", "skipped", "failed", "cancelled"]

HAS_TASK = ("submitted", "duplicate")


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a trigger did with an event."""

    trigger: str
    """The id of the trigger."""
    event: str
    """The name of the event."""
    event_id: str
    """Its id."""
    outcome: Result
    """`submitted`; `duplicate`: the event has a task from before; `rejected`: the pool refused or
    dropped it, for good; `skipped`: the trigger made no call for it; `failed`: it is a dead letter
    of the trigger; `cancelled`."""
    pool: str | None = None
    """The stored name of the pool it was submitted to."""
    task_id: int | None = None
    """The task of the event there, or the one that was dropped."""
    reason: str | None = None
    """Why it was rejected, failed or was cancelled."""
    delivery_id: int = 0
    """The delivery task of the trigger that returned this: a redrive names it."""


class EventInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is kept."""

    name: str
    """The name of its channel."""
    id: str
    """Its id."""
    payload: Any
    """Its payload."""
    emitted_at: float
    """When, by the clock of the store."""
    emitted_by: str
    """Who emitted it."""
    status: str
    """`queued` or `running`: on its way to the triggers; `completed`: they have it."""
    replay: bool
    """Whether it was sent to them again."""
    deliveries: dict[str, int]
    """The triggers it was for, each with its delivery task."""
    task_id: int
    """The task it is kept as."""
    seq: int
    """Its place among all events; pages go by it."""

    @classmethod
    def of(cls, task: Task) -> EventInfo:
        """Return an event as the store has it."""
        sent = sent_of(task)
        found = msgspec.json.decode(task.result, type=dict[str, int]) if task.result else {}
        return cls(
            name=sent.event.name,
            id=sent.event.id,
            payload=sent.event.payload,
            emitted_at=task.submitted_at,
            emitted_by=task.new.submitted_by,
            status=str(task.status),
            replay=bool(sent.replay),
            deliveries=found,
            task_id=task.new.id,
            seq=task.seq,
        )


class _Stored(msgspec.Struct):
    """How an event is stored: as the one argument of the dispatch task."""

    sent: SentEvent


def sent_of(task: Task) -> SentEvent:
    """Return the event that a record holds."""
    return msgspec.json.decode(task.new.call.payload, type=_Stored).sent


class Emission:
    """The receipt of an emit: the event is stored, and its triggers can be waited for."""

    def __init__(
        self,
        owner: RuntimeOwner,
        event: Event,
        dispatch: SubmittedTask,
        handle_of: Callable[[int], Awaitable[Handle[Any]]],
    ) -> None:
        self._owner = owner
        self._dispatch = dispatch
        self._handle_of = handle_of
        self.event = event
        """The event."""

    @property
    def event_id(self) -> str:
        """The id of the event; a new one where none was given."""
        return self.event.id

    @property
    def duplicate(self) -> bool:
        """Whether an event of this name and id was known: this is that one."""
        return self._dispatch.duplicate

    @property
    def task_id(self) -> int:
        """The task that the event is stored as."""
        return self._dispatch.id

    async def receipts(self, timeout: Seconds | None = None) -> list[Receipt]:  # noqa: ASYNC109
        """Wait until every trigger has handled the event; return their receipts.

        The list is empty if no trigger was for it. TimeoutError if it takes too long: a trigger may
        be paused, or no worker runs.
        """
        limit = None if timeout is None else check.seconds("timeout", timeout)
        async with asyncio.timeout(limit):
            found = await self._dispatched()
            return [await self._receipt(trigger, task) for trigger, task in found.items()]

    async def handles(self, timeout: Seconds | None = None) -> list[Handle[Any]]:  # noqa: ASYNC109
        """Wait as `receipts` does; return the handles of the tasks made for the event."""
        made = [one for one in await self.receipts(timeout) if one.outcome in HAS_TASK]
        return [await self._handle_of(one.task_id) for one in made if one.task_id is not None]

    async def _dispatched(self) -> dict[str, int]:
        """Wait until the event is dispatched; return the delivery task of each trigger."""
        try:
            return await self._dispatch.result_of(None)  # type: ignore[no-any-return]
        except TaskRejected as rejected:
            if rejected.reason is not Reason.DUPLICATE:
                raise
        # Two open transactions emitted it, and neither could see the other.
        runtime = self._owner.runtime
        dedupe = Dedupe.FOREVER
        task = await runtime.view.holder(EVENTS, self.event.key, run=None, dedupe=dedupe)
        if task is not None:
            await runtime.waits.end_of(task)
        record = None if task is None else await runtime.view.task(task)
        return {} if record is None else EventInfo.of(record).deliveries

    async def _receipt(self, trigger: str, task: int) -> Receipt:
        return receipt_of(trigger, self.event, task, await self._owner.runtime.waits.end_of(task))

    def __repr__(self) -> str:
        return f"<event {self.event.name} {self.event.id}>"


def receipt_of(trigger: str, event: Event, delivery: int, end: TaskResult | Task) -> Receipt:
    """Return the receipt that the end of a delivery means."""
    if end.status is Status.COMPLETED and end.result is not None:
        return msgspec.json.decode(end.result, type=Receipt)
    failed = end.status is Status.FAILED
    return Receipt(
        trigger=trigger,
        event=event.name,
        event_id=event.id,
        outcome="failed" if failed else "cancelled",
        reason=str(read(end.error) or end.reason or end.status),
        delivery_id=delivery,
    )
