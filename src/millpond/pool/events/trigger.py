"""Triggers: what makes a task of an event, once, in a pool."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from millpond.core import validation as check
from millpond.core.backoff import Retry
from millpond.core.control import Declare
from millpond.core.event import Event, integer_at, text_at
from millpond.core.handler_signals import RetryLater, Throttled
from millpond.core.lifecycle import Status
from millpond.core.spec import OnFull
from millpond.errors import (
    BadPayload,
    ConfigError,
    IdempotencyConflict,
    NoCapacity,
    NoPoolForEvent,
    PayloadTooLarge,
    PoolClosed,
    PoolFull,
    UnknownPool,
)
from millpond.pool.events.receipt import Receipt, receipt_of, sent_of
from millpond.pool.payload.annotations import hints_of
from millpond.pool.task import BoundCall, TaskFunction
from millpond.runtime.jobs.outcome import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from millpond.core.event import TriggerSpec
    from millpond.pool.millpond import Millpond
    from millpond.pool.pool import Pool

Made: TypeAlias = BoundCall[Any] | Callable[[], Any] | None
Make: TypeAlias = Callable[[Event], Made | Awaitable[Made]]
"""Makes the call for an event; None = nothing is to be done for it."""

HOPELESS = (
    BadPayload,
    ConfigError,
    IdempotencyConflict,
    PayloadTooLarge,
    PoolClosed,
    Unreadable,
    UnknownPool,
)
"""What trying again does not change: such an event is a dead letter at once."""

DELIVERY = Retry(never=HOPELESS)
"""How a delivery is tried again, unless the trigger says otherwise."""

PAGE = 100
"""How many dead letters are redriven in one step."""

FULL_FOR = 0.2
"""Seconds for which a trigger waits when its pool is full and asks it to."""


class Trigger:
    """One submit per event: `mp.trigger("router", on="webhook.received", into=pool, task=fn)`."""

    def __init__(
        self,
        mp: Millpond,
        trigger: str,
        own: Pool,
        into: str | Pool,
        *,
        make: Make,
        options: Mapping[str, Any],
    ) -> None:
        self._mp = mp
        self.id = trigger
        """Its id, one for all processes of the store."""
        self.deliveries = own
        """Its own pool: one task for each event, which ends with its receipt."""
        self._into = into
        self._make = make
        self._options = options

    @property
    def spec(self) -> TriggerSpec:
        """As it was declared."""
        spec = self.deliveries.spec.trigger
        assert spec is not None  # noqa: S101 - it was made with one
        return spec

    def __repr__(self) -> str:
        return f"<trigger {self.id}: {', '.join(self.spec.on)} into {self.spec.into}>"

    # Control

    async def pause(self) -> None:
        """Submit nothing more; events wait for it, and are kept."""
        await self.deliveries.pause()

    async def resume(self) -> None:
        """Submit again, what has waited first."""
        await self.deliveries.resume()

    async def remove(self) -> None:
        """Take no more events; what it has been given is still submitted.

        For every process, until one that declares it is opened.
        """
        await self.deliveries.ready()
        runtime = self._mp.runtime
        gone = replace(self.spec, on=())
        spec = replace(self.deliveries.spec, trigger=gone)
        runtime.answers.apply(await runtime.store.control(Declare(spec)))

    async def dead_letters(self, after: int = 0, limit: int = 100) -> list[Receipt]:
        """Return events that it could not submit, oldest first."""
        await self.deliveries.ready()
        page = await self._mp.runtime.view.tasks(
            self.deliveries.spec.name, status=Status.FAILED, after=after, limit=limit
        )
        return [receipt_of(self.id, sent_of(task).event, task.new.id, task) for task in page.tasks]

    async def redrive(self, tasks: Iterable[int] | None = None) -> int:
        """Try dead letters again, all or those deliveries that are named; return how many."""
        if tasks is not None:
            return await self.deliveries.redrive(tasks)
        await self.deliveries.ready()
        count, after = 0, 0
        while True:
            page = await self._mp.runtime.view.tasks(
                self.deliveries.spec.name, status=Status.FAILED, after=after, limit=PAGE
            )
            count += await self.deliveries.redrive([task.new.id for task in page.tasks])
            if page.next is None:
                return count
            after = page.next

    # Delivery

    async def deliver(self, event: Event, delivery: int) -> Receipt:
        """Submit the task for an event; the same event finds the same task."""
        told = Receipt(
            trigger=self.id,
            event=event.name,
            event_id=event.id,
            outcome="skipped",
            delivery_id=delivery,
        )
        pool = await self._target(event)
        made = self._make(event)
        work = await made if inspect.isawaitable(made) else made
        if work is None:
            return told
        told = replace(told, pool=pool.spec.name)
        try:
            handle = await pool.submit(self._told(event, work), wait=0.0, **self._words(event))
        except (PoolFull, NoCapacity) as error:
            self._wait_for_room(pool, error)
            return replace(told, outcome="rejected", reason=error.message)
        if handle.status is Status.REJECTED and not handle.duplicate:
            why = str(handle.rejection_reason)
            return replace(told, outcome="rejected", task_id=handle.id, reason=why)
        outcome = "duplicate" if handle.duplicate else "submitted"
        return replace(told, outcome=outcome, task_id=handle.id)

    def _told(self, event: Event, work: object) -> Any:  # noqa: ANN401 - whatever can be submitted
        """Return the work under the key of the event: what its maker says of it does not count."""
        if isinstance(work, TaskFunction):
            work = BoundCall(work, (), {})
        if isinstance(work, BoundCall):
            work = work.options(**self._identity(event))
        return work

    def _words(self, event: Event) -> dict[str, Any]:
        """Return the options of the submit: as found in the event, else as declared."""
        spec = self.spec
        found = {
            "priority": integer_at(event, spec.priority_from),
            "key": text_at(event, spec.key_from),
            "weight": integer_at(event, spec.weight_from, least=1),
        }
        told = {name: value for name, value in found.items() if value is not None}
        return {**self._options, **told, **self._identity(event)}

    def _identity(self, event: Event) -> Any:  # noqa: ANN401 - some options
        return {
            "idempotency_key": f"{self.id}#{event.key}",
            "dedupe": "forever",
            "submitted_by": f"trigger:{self.id}",
        }

    async def _target(self, event: Event) -> Pool:
        """Return the pool to submit to: of this process, or as another has declared it."""
        try:
            return await self._mp.pool_in_store(self._into)
        except UnknownPool as error:
            raise NoPoolForEvent(
                f"trigger {self.id!r} has no pool {self.spec.into!r} to submit event "
                f"{event.id!r} of {event.name!r} to: nobody has declared it; once somebody has, "
                "redrive the dead letters of the trigger",
                pool=self.spec.into,
                trigger=self.id,
                event=event.key,
            ) from error

    def _wait_for_room(self, pool: Pool, error: PoolFull | NoCapacity) -> None:
        """Come back when there is room, where the pool wants its submitters to wait for it."""
        policy = pool.spec.backpressure
        if policy is None or policy.on_full is not OnFull.BLOCK_SUBMITTER:
            return
        if getattr(error, "lane", None) is not None:
            # Only one key is full: the others need not wait for it.
            raise RetryLater(FULL_FOR, spend=False) from error
        raise Throttled(FULL_FOR) from error


def maker_of(task: TaskFunction[..., Any, Any] | None, make: Make | None) -> Make:
    """Return what makes the call for an event."""
    if task is not None and make is None:
        check.instance("task", task, TaskFunction, "a registered task; or give make=")
        return caller_of(task)
    if make is None or task is not None:
        raise ConfigError("task", task, "or make must be given, and not both")
    return check.function("make", make)


def caller_of(task: TaskFunction[..., Any, Any]) -> Make:
    """Return what calls a task with an event, if it takes one, or with its payload."""
    takes = task.signature.parameters
    if not takes:
        return lambda _: BoundCall(task, (), {})
    if hints_of(task.fn, task.name).get(takes[0]) is Event:
        return lambda event: BoundCall(task, (event,), {})

    def call(event: Event) -> BoundCall[Any]:
        # Decoded as a stored argument is: so it has the type that the task asks for.
        try:
            args, kwargs = task.signature.decode(msgspec.json.encode({takes[0]: event.payload}))
        except Unreadable as error:
            raise BadPayload(
                f"the payload of event {event.id!r} of {event.name!r} is not what task "
                f"{task.name!r} takes as {takes[0]!r}: {error}",
                task=task.name,
                parameter=takes[0],
                reason=str(error),
            ) from error
        return BoundCall(task, tuple(args), kwargs)

    return call
