"""Events and triggers, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.pool.delegation import like
from millpond.pool.events.emit import Channels
from millpond.pool.sync.handles import SyncHandle, limit_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.event import Event, TriggerSpec
    from millpond.core.validation import Seconds
    from millpond.pool.events.receipt import Emission, EventInfo, Receipt
    from millpond.pool.events.trigger import Trigger
    from millpond.pool.millpond import Millpond
    from millpond.pool.sync.api import SyncPool
    from millpond.pool.sync.bridge import Bridge


class SyncEmission:
    """The receipt of an emit, for threads."""

    def __init__(self, bridge: Bridge, emission: Emission) -> None:
        self._bridge = bridge
        self.twin = emission
        """The receipt as the loop has it."""

    @property
    def event(self) -> Event:
        """What was emitted."""
        return self.twin.event

    @property
    def event_id(self) -> str:
        """The id of the event; one of its own where none was given."""
        return self.twin.event_id

    @property
    def duplicate(self) -> bool:
        """Whether an event of this name and id was known: this is that one."""
        return self.twin.duplicate

    @property
    def task_id(self) -> int:
        """The task that the event is kept as."""
        return self.twin.task_id

    def receipts(self, timeout: Seconds | None = None) -> list[Receipt]:
        """Wait until every trigger has dealt with the event; return what each made of it."""
        return self._bridge.within(limit_of(timeout), self.twin.receipts)

    def handles(self, timeout: Seconds | None = None) -> list[SyncHandle[Any]]:
        """Wait as `receipts` does; return the handles of the tasks that stand for the event."""
        found = self._bridge.within(limit_of(timeout), self.twin.handles)
        return [SyncHandle(self._bridge, one) for one in found]


class SyncTrigger:
    """A trigger, for threads."""

    def __init__(self, bridge: Bridge, trigger: Trigger) -> None:
        self._bridge = bridge
        self.twin = trigger
        """The trigger as the loop has it."""

    @property
    def id(self) -> str:
        """Its id, one for all processes of the store."""
        return self.twin.id

    @property
    def spec(self) -> TriggerSpec:
        """As it was declared."""
        return self.twin.spec

    @property
    def deliveries(self) -> SyncPool:
        """Its own pool: one task for each event, which ends with its receipt."""
        return self.twin.deliveries.sync

    def pause(self) -> None:
        """Submit nothing more; events wait for it, and are kept."""
        self._bridge.call(self.twin.pause)

    def resume(self) -> None:
        """Submit again, what has waited first."""
        self._bridge.call(self.twin.resume)

    def remove(self) -> None:
        """Take no more events; what it has been given is still submitted."""
        self._bridge.call(self.twin.remove)

    def dead_letters(self, after: int = 0, limit: int = 100) -> list[Receipt]:
        """Return events that it could not submit, oldest first."""
        return self._bridge.call(self.twin.dead_letters, after, limit)

    def redrive(self, tasks: Iterable[int] | None = None) -> int:
        """Try dead letters again, all or those deliveries that are named; return how many."""
        return self._bridge.call(self.twin.redrive, None if tasks is None else list(tasks))


class SyncChannels:
    """The events and triggers of one Millpond, for threads."""

    def __init__(self, bridge: Bridge, mp: Millpond) -> None:
        self._bridge = bridge
        self._mp = mp

    @like(Channels.trigger)
    def trigger(self, *given: Any, **named: Any) -> SyncTrigger:  # noqa: ANN401 - as its twin
        """Declare a trigger: each event of a name (or of several) is one submit into a pool."""
        return SyncTrigger(self._bridge, self._mp.trigger(*given, **named))

    def get_trigger(self, trigger_id: str, /) -> SyncTrigger:
        """Return the trigger of an id that was declared here; UnknownTrigger if there is none."""
        return SyncTrigger(self._bridge, self._mp.get_trigger(trigger_id))

    def triggers(self) -> list[SyncTrigger]:
        """Return the triggers that were declared here, in the order they were made."""
        return [SyncTrigger(self._bridge, one) for one in self._mp.triggers()]

    def emit(
        self,
        name: str,
        payload: object = None,
        *,
        event_id: str | None = None,
        connection: object = None,
    ) -> SyncEmission:
        """Tell every trigger for events of this name what happened; return once it is stored.

        The same `event_id` (of this name) is the same event: told twice, it is one. With
        `connection` it is part of the transaction open on it.
        """
        if connection is not None:
            made = self._bridge.here(self._mp.emit_within, name, payload, event_id, connection)
        else:
            made = self._bridge.call(self._mp.emit, name, payload, event_id=event_id)
        return SyncEmission(self._bridge, made)

    def replay(self, name: str, event_id: str) -> SyncEmission:
        """Send an event that is kept to the triggers again; what they made of it, they find."""
        return SyncEmission(self._bridge, self._bridge.call(self._mp.replay, name, event_id))

    def events(
        self, name: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[EventInfo]:
        """Return a page of the events that are kept, oldest first; go on after a `seq`."""
        return self._bridge.call(self._mp.events, name, after=after, limit=limit)
