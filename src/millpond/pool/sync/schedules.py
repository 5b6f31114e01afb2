"""Schedules, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.pool.delegation import like
from millpond.pool.schedules.declared import Schedules

if TYPE_CHECKING:
    from millpond.pool.millpond import Millpond
    from millpond.pool.schedules.schedule import Schedule, ScheduleInfo
    from millpond.pool.schedules.timetable import Timetable
    from millpond.pool.sync.bridge import Bridge


class SyncSchedule:
    """A schedule, for threads."""

    def __init__(self, bridge: Bridge, schedule: Schedule) -> None:
        self._bridge = bridge
        self.twin = schedule
        """The schedule as the loop has it."""

    def __repr__(self) -> str:
        return f"<sync {self.twin!r}>"

    @property
    def id(self) -> str:
        """Its name, one for all processes of the store."""
        return self.twin.id

    @property
    def timetable(self) -> Timetable:
        """When it fires."""
        return self.twin.timetable

    def arm(self) -> None:
        """See to it that it waits for its next firing; opening the Millpond does this by itself."""
        self._bridge.call(self.twin.arm)

    def pause(self) -> None:
        """Fire no more. What is due meanwhile is missed, as `missed` has it, when it goes on."""
        self._bridge.call(self.twin.pause)

    def resume(self) -> None:
        """Fire again."""
        self._bridge.call(self.twin.resume)

    def remove(self) -> bool:
        """Let it end, for all processes; return whether there was anything to end."""
        return self._bridge.call(self.twin.remove)

    def status(self) -> ScheduleInfo | None:
        """Return when it fires next, and how it stands; None if it was removed."""
        return self._bridge.call(self.twin.status)


class SyncSchedules:
    """The schedules of one Millpond, for threads."""

    def __init__(self, bridge: Bridge, mp: Millpond) -> None:
        self._bridge = bridge
        self._mp = mp

    @like(Schedules.cron)
    def cron(self, *given: Any, **named: Any) -> SyncSchedule:  # noqa: ANN401 - as its twin
        """Declare a schedule: a crontab line in a time zone, or every so many seconds.

        Each firing submits `task` into a pool, or emits an event (`cron.<id>` if it does nothing
        else); it happens once for the whole fleet.
        """
        made = self._mp.cron(*given, **named)
        if self._mp.is_open:
            self._bridge.call(made.arm)
        return self.schedule_of(made)

    def schedule_of(self, schedule: Schedule) -> SyncSchedule:
        """Return a schedule as threads use it."""
        return SyncSchedule(self._bridge, schedule)

    def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules of the store, whoever declared them; which fires next comes first.

        Of those that were declared a moment ago too: this waits until they are armed.
        """
        return self._bridge.call(self._mp.schedules)
