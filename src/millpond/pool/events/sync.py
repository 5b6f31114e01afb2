"""Events and triggers, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.pool.delegation import on_loop, signature_of
from millpond.pool.events.emit import Events
from millpond.pool.events.trigger import Trigger
from millpond.pool.handle import SyncHandle
from millpond.pool.internals import internals_of
from millpond.pool.loop_bridge import limit_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.event import Event, TriggerSpec
    from millpond.core.validation import Seconds
    from millpond.pool.events.receipt import Emission, Receipt
    from millpond.pool.loop_bridge import LoopBridge
    from millpond.pool.sync_pool import SyncPool


class SyncEmission:
    """The receipt of an emit, for threads."""

    def __init__(self, bridge: LoopBridge, emission: Emission) -> None:
        self._bridge = bridge
        self._emission = emission

    @property
    def event(self) -> Event:
        """The event."""
        return self._emission.event

    @property
    def event_id(self) -> str:
        """The id of the event; a new one where none was given."""
        return self._emission.event_id

    @property
    def duplicate(self) -> bool:
        """Whether an event of this name and id was known: this is that one."""
        return self._emission.duplicate

    @property
    def task_id(self) -> int:
        """The task that the event is stored as."""
        return self._emission.task_id

    def receipts(self, timeout: Seconds | None = None) -> list[Receipt]:
        """Wait until every trigger has handled the event; return their receipts."""
        return self._bridge.within(limit_of(timeout), self._emission.receipts)

    def handles(self, timeout: Seconds | None = None) -> list[SyncHandle[Any]]:
        """Wait as `receipts` does; return the handles of the tasks made for the event."""
        found = self._bridge.within(limit_of(timeout), self._emission.handles)
        return [SyncHandle(self._bridge, internals_of(one)) for one in found]


class SyncTrigger:
    """A trigger, for threads."""

    def __init__(self, bridge: LoopBridge, trigger: Trigger) -> None:
        self._bridge = bridge
        self._trigger = trigger

    @property
    def id(self) -> str:
        """Its id, one for all processes of the store."""
        return self._trigger.id

    @property
    def spec(self) -> TriggerSpec:
        """As declared."""
        return self._trigger.spec

    @property
    def deliveries(self) -> SyncPool:
        """Its own pool: one task for each event, whose result is the receipt."""
        return self._trigger.deliveries.sync

    pause = on_loop(Trigger.pause, "_trigger", writes=True)
    resume = on_loop(Trigger.resume, "_trigger", writes=True)
    remove = on_loop(Trigger.remove, "_trigger", writes=True)
    dead_letters = on_loop(Trigger.dead_letters, "_trigger")

    def redrive(self, tasks: Iterable[int] | None = None) -> int:
        """Try dead letters again, all or those deliveries that are named; return how many."""
        return self._bridge.call(self._trigger.redrive, None if tasks is None else list(tasks))


class SyncEvents:
    """The events and triggers of one Millpond, for threads."""

    def __init__(self, bridge: LoopBridge, events: Events) -> None:
        self._bridge = bridge
        self._events = events

    @signature_of(Events.trigger)
    def trigger(self, *given: Any, **named: Any) -> SyncTrigger:  # noqa: ANN401 - as its twin
        """Declare a trigger: each event of a name (or of several) is one submit into a pool."""
        return SyncTrigger(self._bridge, self._events.trigger(*given, **named))

    def get_trigger(self, trigger_id: str, /) -> SyncTrigger:
        """Return a trigger that was declared here; UnknownTrigger if there is none of that id."""
        return SyncTrigger(self._bridge, self._events.get_trigger(trigger_id))

    def triggers(self) -> list[SyncTrigger]:
        """Return the triggers that were declared here, in the order they were made."""
        return [SyncTrigger(self._bridge, one) for one in self._events.triggers()]

    def emit(
        self,
        name: str,
        payload: object = None,
        *,
        event_id: str | None = None,
        connection: object = None,
    ) -> SyncEmission:
        """Store an event for every trigger of this name; return once it is stored.

        An `event_id` names one event of this name: emitted twice, it is stored once. With
        `connection` it is part of the transaction open on it.
        """
        if connection is not None:
            made = self._bridge.here(self._events.emit_within, name, payload, event_id, connection)
        else:
            made = self._bridge.write(self._events.emit, name, payload, event_id=event_id)
        return SyncEmission(self._bridge, made)

    def replay(self, name: str, event_id: str) -> SyncEmission:
        """Send a kept event to the triggers again; those that made a task for it find that task."""
        return SyncEmission(self._bridge, self._bridge.call(self._events.replay, name, event_id))

    events = on_loop(Events.events, "_events")
