"""Channels: events go in, and every trigger that is for them makes its task, once.

    emit      one submit into the pool of all events, under the event's own id
    dispatch  reads which triggers the store knows, and submits one delivery into the pool of each
    deliver   submits the trigger's task into the pool that it is for, and ends with the receipt

Each step may be done twice, by whatever process, and has the same effect as once: every submit has
an idempotency key that follows from the event.
"""

from __future__ import annotations

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
from millpond.pool.context import Context, SyncContext
from millpond.pool.events.delivery import DELIVERY, TriggerDelivery, maker_of
from millpond.pool.events.receipt import Emission, EventInfo, Receipt, sent_of
from millpond.pool.events.trigger import Trigger
from millpond.pool.internals import internals_of
from millpond.pool.new_task import new_task
from millpond.pool.options import checked, policy
from millpond.pool.payload.codec import plain_json
from millpond.pool.pool import Pool
from millpond.pool.pool_submitter import PoolSubmitter
from millpond.pool.registered import Invocation, Registered, Registration
from millpond.pool.sync_pool import SyncPool
from millpond.pool.task_handler import TaskHandler
from millpond.runtime.jobs.batch_call import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from millpond.core.task import NewTask
    from millpond.pool.all_tasks import AllTasks
    from millpond.pool.events.delivery import Make
    from millpond.pool.options import Options
    from millpond.pool.pools import Pools
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.pool.submitted_task import SubmittedTask
    from millpond.pool.task import TaskFunction
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.observe.hooks import DeadLetter

DISPATCH, DELIVER = "~dispatch", "~deliver"

AT_ONCE = 64
"""How many events are dispatched together: the list of triggers is read once for all."""

DISPATCHING = Retry(attempts=20)
"""A dispatch fails only with its store, so it is worth many attempts."""

ENVELOPE = 4096
"""Bytes that a delivery may have beyond what an event may: names, ids and quotes around it."""


class Events:
    """The events and triggers of one Millpond."""

    def __init__(self, owner: RuntimeOwner, pools: Pools, tasks: AllTasks) -> None:
        self._owner = owner
        self._pools = pools
        self._tasks = tasks
        spec = PoolSpec(
            name=EVENTS,
            max_concurrent=4 * AT_ONCE,
            order=fifo(),
            keep=owner.keep.of_pool(given=False),
        )
        self._events = internals_of(pools.unlisted(spec, DISPATCHING))
        """The pool of all events."""
        self._submitter = PoolSubmitter(self._events)
        self._triggers: dict[str, Trigger] = {}
        self._dispatch = self._register(self.dispatch, DISPATCH, batch=(AT_ONCE, 0.0))
        self._deliver = self._register(self.deliver, DELIVER, envelope=ENVELOPE)

    def _register(
        self,
        fn: Callable[..., Any],
        name: str,
        *,
        batch: tuple[int, float] | None = None,
        envelope: int = 0,
    ) -> Registered:
        """Register a function of our own, which users do not see among their tasks."""
        functions = self._pools.functions
        registered = Registered(
            fn,
            name=name,
            context_types=(Context, SyncContext),
            largest=self._owner.max_payload + envelope,
            find_pool=lambda found: internals_of(self._pools.get_pool(found)),
            given=Registration(batch=batch),
        )
        handler = TaskHandler(registered, functions.decoder_of, self._owner.hooks)
        self._owner.handlers[name] = handler.handler()
        return registered

    def pools(self) -> list[Pool]:
        """Return the pools that the store must know: none while there are no triggers."""
        own = [trigger.deliveries for trigger in self._triggers.values()]
        return [Pool(self._events, self._pools.functions), *own] if own else []

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
        function of the event that returns the call, or None to skip the event. `priority_from` and
        its like are paths into the event, such as `payload.urgency`; where the event has no such
        value, the option of that name counts.

        The trigger has delivery tasks of its own, `max_concurrent` at a time, which submit and are
        retried as `delivery_retry` says; an event that it cannot submit is a dead letter.
        """
        maker = maker_of(task, make)
        names = (on,) if isinstance(on, str) else tuple(on)
        if not names:
            raise ConfigError("on", on, "must name an event")
        target = self._target(into, task)
        given = checked(options)
        for option in given.keys() & {"idempotency_key", "dedupe", "submitted_by"}:
            raise ConfigError(option, given[option], "is set by the trigger, from the event")
        again = policy("delivery_retry", delivery_retry) or DELIVERY
        spec = TriggerSpec(
            on=names,
            into=target if isinstance(target, str) else target.spec.name,
            task=None if task is None else task.name,
            priority_from=priority_from,
            key_from=key_from,
            weight_from=weight_from,
            attempts=getattr(again, "attempts", DISPATCHING.attempts),
        )
        name = pool_of_trigger(trigger_id)
        if trigger_id in self._triggers:
            found = f"mp.get_trigger({trigger_id!r})"
            message = f"a trigger {trigger_id!r} exists already; {found} returns it"
            raise DuplicateName(message, kind="trigger", name=trigger_id)
        own = self._pools.unlisted(
            PoolSpec(
                name=name,
                max_concurrent=max_concurrent,
                order=fifo(),
                trigger=spec,
                keep=self._owner.keep.of_pool(given=False),
            ),
            again,
        )
        if on_dead_letter is not None:
            self._owner.hooks.on_dead_letter[name] = check.function(
                "on_dead_letter", on_dead_letter
            )
        delivery = TriggerDelivery(trigger_id, spec, self._pools, target, maker, given)
        made = self._triggers[trigger_id] = Trigger(self._owner, own, delivery)
        self._owner.retries[name] = again
        return made

    def _target(
        self, into: str | Pool | SyncPool | None, task: TaskFunction[..., Any, Any] | None
    ) -> str | Pool:
        """Return the pool that a trigger submits to."""
        if isinstance(into, str):
            return into
        target = None if task is None else internals_of(task).pool
        if into is not None:
            target = internals_of(into)
        if target is None:
            raise ConfigError("into", into, "must say which pool the trigger submits to")
        if target.owner is not self._owner:
            raise ConfigError("into", target.name, "is a pool of another Millpond")
        return Pool(target, self._pools.functions)

    def get_trigger(self, trigger_id: str, /) -> Trigger:
        """Return a trigger that was declared here; UnknownTrigger if there is none of that id."""
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
        """Store an event for every trigger of this name; return once it is stored.

        An `event_id` names one event of this name: emitted twice, it is stored once. With
        `connection` it is part of the transaction open on it.
        """
        return await self._send(self.new_event(name, payload, event_id), connection)

    async def emit_as(
        self, submitted_by: str, name: str, payload: object, event_id: str | None
    ) -> Emission:
        """Emit with another `submitted_by`."""
        return await self._send(self.new_event(name, payload, event_id), submitted_by=submitted_by)

    def emit_within(
        self, name: str, payload: object, event_id: str | None, connection: object
    ) -> Emission:
        """Emit inside a transaction of the caller's, in its thread and at once."""
        sent = self.new_event(name, payload, event_id)
        call = Invocation(self._dispatch, (sent,), {})
        (task,) = self._submitter.submit_within([call], _identity(sent), connection)
        return self._emission(sent, task)

    def _emission(self, sent: SentEvent, dispatch: SubmittedTask) -> Emission:
        return Emission(self._owner, sent.event, dispatch, self._tasks.handle)

    def new_event(self, name: str, payload: object, event_id: str | None) -> SentEvent:
        """Return an event as it is stored; BadPayload for a payload that cannot be."""
        check.name("name", name)
        if event_id is None:
            event_id = f"{self._owner.runtime.new_id():016x}"
        check.storable("event_id", event_id, bounds.MAX_EVENT_ID)
        try:
            data = msgspec.json.decode(plain_json(payload))
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
                await internals_of(pool).ready()
        options = _identity(sent)
        if submitted_by is not None:
            options["submitted_by"] = submitted_by
        call = Invocation(self._dispatch, (sent,), {})
        task = await self._submitter.submit(call, options, connection=connection)
        return self._emission(sent, task)

    async def as_task(self, name: str, payload: object, event_id: str) -> NewTask:
        """Return an event as a task, for a schedule that stores it with its own outcome."""
        sent = self.new_event(name, payload, event_id)
        for pool in [self._events, *map(internals_of, self.pools())]:
            await pool.ready()
        return new_task(self._events, Invocation(self._dispatch, (sent,), {}), _identity(sent))

    async def replay(self, name: str, event_id: str) -> Emission:
        """Send a kept event to the triggers again; those that made a task for it find that task."""
        view, now = self._owner.runtime.view, self._owner.runtime.clock()
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
        nonce = f"{self._owner.runtime.new_id():016x}"
        return await self._send(msgspec.structs.replace(sent_of(record), replay=nonce))

    async def events(
        self, name: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[EventInfo]:
        """Return a page of the kept events, oldest first; go on after a `seq`."""
        view = self._owner.runtime.view
        if await view.pool(EVENTS, measured=False) is None:
            # The first emit declares its pool.
            return []
        page = await view.tasks(EVENTS, key=name, after=after, limit=limit)
        return [EventInfo.of(task) for task in page.tasks]

    # The handlers of our own tasks

    async def dispatch(self, sent: list[SentEvent]) -> list[dict[str, int] | Failed]:
        """Submit a delivery for each event and each trigger of its name."""
        found: list[dict[str, int] | Failed] = [{} for _ in sent]
        for trigger, pool in await self._registered():
            spec = pool.spec.trigger
            matching = [i for i, one in enumerate(sent) if spec and one.event.name in spec.on]
            for i, task in (await self._submit_deliveries(pool, sent, matching)).items():
                deliveries = found[i]
                if isinstance(task, Failed):
                    found[i] = task
                elif not isinstance(deliveries, Failed):
                    deliveries[trigger] = task
        return found

    async def _registered(self) -> list[tuple[str, Pool]]:
        """Return every trigger in the store, of any process, with its own pool."""
        view = self._owner.runtime.view
        found = []
        for name in await view.names(TRIGGERS):
            stored = await view.pool(name, measured=False)
            spec = None if stored is None else stored.declared.trigger
            if stored is not None and spec is not None:
                again = Retry(attempts=spec.attempts)
                pool = self._pools.unlisted(stored.declared, again, foreign=True)
                found.append((name.removeprefix(TRIGGERS), pool))
        return found

    async def _submit_deliveries(
        self, pool: Pool, sent: list[SentEvent], chosen: list[int]
    ) -> dict[int, int | Failed]:
        """Submit the deliveries of one trigger, and return their tasks."""
        calls = [
            Invocation(
                self._deliver,
                (one,),
                {},
                {**_identity(one), "submitted_by": f"event:{one.event.id}"},
            )
            for one in (sent[i] for i in chosen)
        ]
        try:
            tasks = await PoolSubmitter(internals_of(pool)).submit_batch(calls, {})
        except IdempotencyConflict as error:
            # An id was used again after its event was forgotten: only that event fails.
            if len(chosen) == 1:
                return {chosen[0]: Failed(error)}
            alone = [await self._submit_deliveries(pool, sent, [i]) for i in chosen]
            return {i: task for one in alone for i, task in one.items()}
        return {i: task.id for i, task in zip(chosen, tasks, strict=True)}

    async def deliver(self, ctx: Context, sent: SentEvent) -> Receipt:
        """Submit the task that a trigger makes of an event."""
        trigger = self.get_trigger(ctx.pool.removeprefix(TRIGGERS))
        return await internals_of(trigger).deliver(sent.event, ctx.task_id)


def _identity(sent: SentEvent) -> Options:
    """Return the options under which an event is stored, and each of its deliveries."""
    return {"idempotency_key": sent.key, "key": sent.event.name}
