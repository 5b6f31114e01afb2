"""Deliveries: how a trigger submits the task of one event."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from millpond.core import validation as check
from millpond.core.backoff import Retry
from millpond.core.event import Event, integer_at, text_at
from millpond.core.handler_signals import RetryLater, Throttled
from millpond.core.lifecycle import Status
from millpond.core.service import Service
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
from millpond.pool.events.receipt import Receipt
from millpond.pool.internals import internals_of
from millpond.pool.payload.annotations import hints_of
from millpond.pool.task import BoundCall, TaskFunction
from millpond.runtime.jobs.outcome import Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.core.event import TriggerSpec
    from millpond.pool.pool import Pool
    from millpond.pool.pools import Pools

Made: TypeAlias = BoundCall[Any] | Callable[[], Any] | None
Make: TypeAlias = Callable[[Event], Made | Awaitable[Made]]
"""Makes the call for an event; None: the trigger skips it."""

HOPELESS = (
    BadPayload,
    ConfigError,
    IdempotencyConflict,
    PayloadTooLarge,
    PoolClosed,
    Unreadable,
    UnknownPool,
)
"""Errors that a retry does not change: such an event is a dead letter at once."""

DELIVERY = Retry(never=HOPELESS)
"""The retry policy of deliveries where the trigger has none."""

FULL_FOR = 0.2
"""Seconds for which a trigger waits when its pool is full and makes submitters wait."""


class TriggerDelivery(Service):
    """Makes a call of an event and submits it: the internal object behind `Trigger`."""

    trigger: str
    spec: TriggerSpec
    _pools: Pools
    _into: str | Pool
    _make: Make
    _options: Mapping[str, Any]

    async def deliver(self, event: Event, delivery: int) -> Receipt:
        """Submit the task for an event; the same event finds the same task."""
        receipt = Receipt(
            trigger=self.trigger,
            event=event.name,
            event_id=event.id,
            outcome="skipped",
            delivery_id=delivery,
        )
        pool = await self._target(event)
        made = self._make(event)
        work = await made if inspect.isawaitable(made) else made
        if work is None:
            return receipt
        receipt = replace(receipt, pool=pool.spec.name)
        try:
            handle = await pool.submit(
                self._keyed(event, work), wait=0.0, **self._submit_options(event)
            )
        except (PoolFull, NoCapacity) as error:
            self._wait_for_room(pool, error)
            return replace(receipt, outcome="rejected", reason=error.message)
        if handle.status is Status.REJECTED and not handle.duplicate:
            why = str(handle.rejection_reason)
            return replace(receipt, outcome="rejected", task_id=handle.id, reason=why)
        outcome = "duplicate" if handle.duplicate else "submitted"
        return replace(receipt, outcome=outcome, task_id=handle.id)

    def _keyed(self, event: Event, work: object) -> Any:  # noqa: ANN401 - whatever can be submitted
        """Return the work with the idempotency key of the event, which wins over its own."""
        if isinstance(work, TaskFunction):
            work = BoundCall(work, (), {})
        if isinstance(work, BoundCall):
            work = work.options(**self._identity(event))
        return work

    def _submit_options(self, event: Event) -> dict[str, Any]:
        """Return the options of the submit: from the event, else as declared."""
        spec = self.spec
        found = {
            "priority": integer_at(event, spec.priority_from),
            "key": text_at(event, spec.key_from),
            "weight": integer_at(event, spec.weight_from, least=1),
        }
        in_event = {name: value for name, value in found.items() if value is not None}
        return {**self._options, **in_event, **self._identity(event)}

    def _identity(self, event: Event) -> Any:  # noqa: ANN401 - some options
        return {
            "idempotency_key": f"{self.trigger}#{event.key}",
            "dedupe": "forever",
            "submitted_by": f"trigger:{self.trigger}",
        }

    async def _target(self, event: Event) -> Pool:
        """Return the pool to submit to: of this process, or as another has declared it."""
        try:
            return await self._pools.in_store(self._into)
        except UnknownPool as error:
            raise NoPoolForEvent(
                f"trigger {self.trigger!r} has no pool {self.spec.into!r} to submit event "
                f"{event.id!r} of {event.name!r} to: no process has declared it; once one has, "
                "redrive the dead letters of the trigger",
                pool=self.spec.into,
                trigger=self.trigger,
                event=event.key,
            ) from error

    def _wait_for_room(self, pool: Pool, error: PoolFull | NoCapacity) -> None:
        """Raise to retry later, where a full pool makes its submitters wait."""
        policy = pool.spec.backpressure
        if policy is None or policy.on_full is not OnFull.BLOCK_SUBMITTER:
            return
        if getattr(error, "lane", None) is not None:
            # Only one key is full: events of other keys need not wait.
            raise RetryLater(FULL_FOR, spend=False) from error
        raise Throttled(FULL_FOR) from error


def maker_of(task: TaskFunction[..., Any, Any] | None, make: Make | None) -> Make:
    """Return the function that makes the call for an event."""
    if task is not None and make is None:
        check.instance("task", task, TaskFunction, "a registered task; or give make=")
        return caller_of(task)
    if make is None or task is not None:
        raise ConfigError("task", task, "or make must be given, and not both")
    return check.function("make", make)


def caller_of(task: TaskFunction[..., Any, Any]) -> Make:
    """Return a function that calls a task with the event, if it takes one, or its payload."""
    signature = internals_of(task).signature
    takes = signature.parameters
    if not takes:
        return lambda _: BoundCall(task, (), {})
    if hints_of(internals_of(task).fn, task.name).get(takes[0]) is Event:
        return lambda event: BoundCall(task, (event,), {})

    def call(event: Event) -> BoundCall[Any]:
        # Decoded like a stored argument, so that it has the parameter's type.
        try:
            args, kwargs = signature.decode(msgspec.json.encode({takes[0]: event.payload}))
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
