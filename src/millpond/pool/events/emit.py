"""Channels: events go in, and every trigger that is for them makes its task, once.

    emit      one submit into the pool of all events, under the event's own id
    dispatch  reads which triggers the store knows, and submits one delivery into the pool of each
    deliver   submits the trigger's task into the pool that it is for, and ends with the receipt

Each step may be done twice, by whatever process, and has the same effect as once: every submit has
an idempotency key that follows from the event.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.backoff import Retry
from millpond.core.event import (
    EVENTS,
    TRIGGERS,
    Event,
    SentEvent,
    TriggerSpec,
    pool_of_trigger,
)
from millpond.core.retention import in_force
from millpond.core.spec import PoolSpec, fifo
from millpond.core.task import Dedupe
from millpond.errors import (
    BadPayload,
    ConfigError,
    DuplicateName,
    IdempotencyConflict,
    UnknownEvent,
    UnknownTrigger,
)
from millpond.pool.context import Context
from millpond.pool.delegation import on_loop
from millpond.pool.events.receipt import Emission, EventInfo, Receipt, sent_of
from millpond.pool.events.trigger import DELIVERY, Trigger, maker_of
from millpond.pool.options import checked, policy
from millpond.pool.payload.codec import ENCODER
from millpond.pool.pool import Pool
from millpond.pool.submit import new_task
from millpond.pool.task import TaskFunction
from millpond.runtime.jobs.batch_call import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from millpond.core.task import NewTask
    from millpond.pool.events.trigger import Make
    from millpond.pool.millpond import Millpond
    from millpond.pool.options import Options
    from millpond.pool.sync.api import SyncPool
    from millpond.runtime.jobs.job import Handler
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.observe.hooks import DeadLetter, Hooks

DISPATCH, DELIVER = "~dispatch", "~deliver"

AT_ONCE = 64
"""How many events are dispatched together: which triggers there are is read once for all."""

DISPATCHING = Retry(attempts=20)
"""A dispatch only fails with its store, so it is worth many tries."""

ENVELOPE = 4096
"""Bytes that a delivery may have beyond what an event may: names, ids and quotes around it."""


class Channels:
    """The events and triggers of one Millpond."""

    def __init__(self, mp: Millpond, retries: dict[str, Policy], hooks: Hooks) -> None:
        self._mp = mp
        self._retries = retries
        self._hooks = hooks
        kept = mp.keep.of_pool(given=False)
        spec = PoolSpec(name=EVENTS, max_concurrent=4 * AT_ONCE, order=fifo(), keep=kept)
        self._events = self.own_pool(spec, DISPATCHING)
        """The pool of all events."""
        self._triggers: dict[str, Trigger] = {}
        self._dispatch: TaskFunction[[SentEvent], dict[str, int], Any] = TaskFunction(
            mp, self._events, self.dispatch, name=DISPATCH, batch=(AT_ONCE, 0.0)
        )
        self._deliver: TaskFunction[[SentEvent], Receipt, Any] = TaskFunction(
            mp, None, self.deliver, name=DELIVER
        )
        self._deliver.signature.largest += ENVELOPE

    def handlers(self) -> dict[str, Handler]:
        """Return what workers run."""
        return {DISPATCH: self._dispatch.handler(), DELIVER: self._deliver.handler()}

    def own_pool(self, spec: PoolSpec, retry: Policy | None, *, foreign: bool = False) -> Pool:
        """Return a pool that is not among those of the user."""
        made = Pool(
            self._mp,
            spec,
            name=spec.name,
            scope=None,
            scope_id=None,
            retry=retry,
            created_at=time.time(),
        )
        made.foreign = foreign
        return made

    def pools(self) -> list[Pool]:
        """Return the pools that the store must know: none, where nothing waits for events."""
        own = [trigger.deliveries for trigger in self._triggers.values()]
        return [self._events, *own] if own else []

    # Triggers

    def trigger(
        self,
        trigger_id: str,
        /,
        *,
        on: str | Sequence[str],
        into: str | Pool | SyncPool | None = None,
        task: TaskFunction[..., Any, Any] | None = None,
        make: Make | None = None,
        priority_from: str | None = None,
        key_from: str | None = None,
        weight_from: str | None = None,
        max_concurrent: int = 16,
        delivery_retry: Policy | None = None,
        on_dead_letter: Callable[[DeadLetter], object] | None = None,
        **options: Unpack[Options],
    ) -> Trigger:
        """Declare a trigger: each event of a name (or of several) is one submit into a pool.

        `task` is called with the event, if it takes an `Event`, else with its payload; `make` is a
        function of the event that returns the call, or None for nothing. `priority_from` and its
        like are paths into the event, such as `payload.urgency`; where one leads nowhere, the
        option of that name counts.

        The submits are made by tasks of the trigger's own, `max_concurrent` at a time, and tried
        again as `delivery_retry` says; what cannot be submitted is a dead letter of the trigger.
        """
        maker = maker_of(task, make)
        names = (on,) if isinstance(on, str) else tuple(on)
        if not names:
            raise ConfigError("on", on, "must name an event")
        target = self._target(on_loop(into), task)
        given = checked(options)
        for option in given.keys() & {"idempotency_key", "dedupe", "submitted_by"}:
            raise ConfigError(option, given[option], "follows from the trigger and the event")
        again = policy("delivery_retry", delivery_retry) or DELIVERY
        spec = TriggerSpec(
            on=names,
            into=target.spec.name if isinstance(target, Pool) else target,
            task=None if task is None else task.name,
            priority_from=priority_from,
            key_from=key_from,
            weight_from=weight_from,
            attempts=getattr(again, "attempts", DISPATCHING.attempts),
        )
        name = pool_of_trigger(trigger_id)
        if trigger_id in self._triggers:
            message = (
                f"a trigger {trigger_id!r} exists already; mp.get_trigger({trigger_id!r}) has it"
            )
            raise DuplicateName(message, kind="trigger", name=trigger_id)
        own = self.own_pool(
            PoolSpec(
                name=name,
                max_concurrent=max_concurrent,
                order=fifo(),
                trigger=spec,
                keep=self._mp.keep.of_pool(given=False),
            ),
            again,
        )
        if on_dead_letter is not None:
            self._hooks.on_dead_letter[name] = check.function("on_dead_letter", on_dead_letter)
        made = Trigger(self._mp, trigger_id, own, target, make=maker, options=given)
        self._triggers[trigger_id] = made
        self._retries[name] = again
        return made

    def _target(
        self, into: str | Pool | None, task: TaskFunction[..., Any, Any] | None
    ) -> str | Pool:
        """Return the pool that a trigger submits to."""
        target = into if into is not None or task is None else task.own_pool
        if target is None:
            raise ConfigError("into", into, "must say which pool the trigger submits to")
        if isinstance(target, Pool) and target.millpond is not self._mp:
            raise ConfigError("into", target.name, "is a pool of another Millpond")
        return target

    def get_trigger(self, trigger_id: str, /) -> Trigger:
        """Return the trigger of an id that was declared here; UnknownTrigger if there is none."""
        try:
            return self._triggers[trigger_id]
        except KeyError:
            known = ", ".join(self._triggers) or "none"
            message = f"no trigger {trigger_id!r} was declared here (there are: {known})"
            raise UnknownTrigger(message, trigger=trigger_id) from None

    def triggers(self) -> list[Trigger]:
        """Return the triggers that were declared here, in the order they were made."""
        return list(self._triggers.values())

    # Events

    async def emit(
        self,
        name: str,
        payload: object = None,
        *,
        event_id: str | None = None,
        connection: object = None,
    ) -> Emission:
        """Tell every trigger for events of this name what happened; return once it is stored.

        The same `event_id` (of this name) is the same event: told twice, it is one. With
        `connection` it is part of the transaction open on it.
        """
        return await self._send(self.told(name, payload, event_id), connection)

    async def emit_as(
        self, submitted_by: str, name: str, payload: object, event_id: str | None
    ) -> Emission:
        """Emit in the name of somebody else."""
        return await self._send(self.told(name, payload, event_id), submitted_by=submitted_by)

    def emit_within(
        self, name: str, payload: object, event_id: str | None, connection: object
    ) -> Emission:
        """Emit inside a transaction of the caller's, in its thread and at once."""
        sent = self.told(name, payload, event_id)
        call, options = self._dispatch.bind(sent), _identity(sent)
        (handle,) = self._events.submit_within([call], options, connection)
        return Emission(self._mp, sent.event, handle)

    def told(self, name: str, payload: object, event_id: str | None) -> SentEvent:
        """Return an event as it is stored."""
        check.name("name", name)
        if event_id is None:
            event_id = f"{self._mp.runtime.new_id():016x}"
        check.storable("event_id", event_id, bounds.MAX_EVENT_ID)
        try:
            data = msgspec.json.decode(ENCODER.encode(payload))
        except Exception as error:  # a user's own class may raise anything
            raise BadPayload(
                f"the payload of event {name!r} cannot be stored: {error}",
                task=DISPATCH,
                parameter="payload",
                reason=str(error),
            ) from error
        return SentEvent(Event(name, event_id, data))

    async def _send(
        self, sent: SentEvent, connection: object = None, submitted_by: str | None = None
    ) -> Emission:
        """Store an event for the triggers."""
        if connection is None:
            for pool in self.pools():
                await pool.ready()
        call = self._dispatch.bind(sent)
        if submitted_by is not None:
            call = call.options(submitted_by=submitted_by)
        handle = await self._events.submit(call, connection=connection, **_identity(sent))
        return Emission(self._mp, sent.event, handle)

    async def as_task(self, name: str, payload: object, event_id: str) -> NewTask:
        """Return an event as a task, for whoever stores it with what else it stores."""
        sent = self.told(name, payload, event_id)
        for pool in [self._events, *self.pools()]:
            await pool.ready()
        options = {"idempotency_key": sent.key, "key": sent.event.name}
        return new_task(self._events, self._dispatch.bind(sent), options)

    async def replay(self, name: str, event_id: str) -> Emission:
        """Send an event that is kept to the triggers again; what they made of it, they find."""
        view, now = self._mp.runtime.view, self._mp.runtime.clock()
        key = Event(name, event_id).key
        task = await view.holder(EVENTS, key, run=None, dedupe=Dedupe.FOREVER)
        record = None if task is None else await view.task(task)
        stored = await view.pool(EVENTS, measured=False)
        window = in_force(None if stored is None else stored.declared.keep).events
        if record is None or record.submitted_at + window < now:
            message = (
                f"no event {event_id!r} of {name!r} is kept: there was none, or it was emitted "
                f"more than {window:g} s ago (see Keep.events)"
            )
            raise UnknownEvent(message, name=name, event_id=event_id)
        nonce = f"{self._mp.runtime.new_id():016x}"
        return await self._send(msgspec.structs.replace(sent_of(record), replay=nonce))

    async def events(
        self, name: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[EventInfo]:
        """Return a page of the events that are kept, oldest first; go on after a `seq`."""
        view = self._mp.runtime.view
        if await view.pool(EVENTS, measured=False) is None:
            # Its pool is declared with the first event that is emitted.
            return []
        page = await view.tasks(EVENTS, key=name, after=after, limit=limit)
        return [EventInfo.of(task) for task in page.tasks]

    # What workers do

    async def dispatch(self, sent: list[SentEvent]) -> list[dict[str, int] | Failed]:
        """Submit a delivery for each event and each trigger that is for it."""
        found: list[dict[str, int] | Failed] = [{} for _ in sent]
        for trigger, pool in await self._registered():
            spec = pool.spec.trigger
            meant = [i for i, one in enumerate(sent) if spec and one.event.name in spec.on]
            for i, task in (await self._delivered(pool, sent, meant)).items():
                told = found[i]
                if isinstance(task, Failed):
                    found[i] = task
                elif not isinstance(told, Failed):
                    told[trigger] = task
        return found

    async def _registered(self) -> list[tuple[str, Pool]]:
        """Return every trigger that the store knows, whoever declared it, with its own pool."""
        view = self._mp.runtime.view
        found = []
        for name in await view.names(TRIGGERS):
            told = await view.pool(name, measured=False)
            spec = None if told is None else told.declared.trigger
            if told is not None and spec is not None:
                again = Retry(attempts=spec.attempts)
                pool = self.own_pool(told.declared, again, foreign=True)
                found.append((name.removeprefix(TRIGGERS), pool))
        return found

    async def _delivered(
        self, pool: Pool, sent: list[SentEvent], meant: list[int]
    ) -> dict[int, int | Failed]:
        """Submit the deliveries of one trigger, and return their tasks."""
        calls = [
            self._deliver.bind(one)
            .options(**_identity(one))
            .options(submitted_by=f"event:{one.event.id}")
            for one in (sent[i] for i in meant)
        ]
        try:
            handles = await pool.submit_many(calls)
        except IdempotencyConflict as error:
            # An id that was used again after its event was forgotten: the others go their way.
            if len(meant) == 1:
                return {meant[0]: Failed(error)}
            alone = [await self._delivered(pool, sent, [i]) for i in meant]
            return {i: task for one in alone for i, task in one.items()}
        return {i: handle.id for i, handle in zip(meant, handles, strict=True)}

    async def deliver(self, ctx: Context, sent: SentEvent) -> Receipt:
        """Submit what a trigger makes of an event."""
        trigger = self.get_trigger(ctx.pool.removeprefix(TRIGGERS))
        return await trigger.deliver(sent.event, ctx.task_id)


def _identity(sent: SentEvent) -> Options:
    """Return the options under which an event is stored, and each of its deliveries."""
    return {"idempotency_key": sent.key, "key": sent.event.name}
