"""The schedule: what `mp.cron(...)` returns, and what is told of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from millpond.core.control import Cancel, Pause, Resume
from millpond.pool.payload.signature import fingerprint
from millpond.pool.schedules.firing import (
    CRON,
    SPEC,
    TURN,
    TURNS,
    Declaration,
    Standing,
    arm,
    in_force,
    standing_of,
)
from millpond.pool.schedules.timetable import Missed, Timetable
from millpond.pool.submit import new_task
from millpond.pool.task import BoundCall
from millpond.runtime.jobs.policy import without_trace

if TYPE_CHECKING:
    from typing import Any

    from millpond.core.task import NewTask
    from millpond.pool.millpond import Millpond
    from millpond.pool.pool import Pool
    from millpond.pool.schedules.declared import Schedules
    from millpond.pool.sync.schedules import SyncSchedule
    from millpond.runtime.runtime import Runtime


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule at one moment, as the store knows it."""

    id: str
    """Its id."""
    expression: str | None
    """The crontab line; None where it fires every so many seconds."""
    every: float | None
    """The seconds between two firings; None where there is a line."""
    tz: str
    """The time zone of the line."""
    next_at: float
    """When it fires next; a moment that is past waits for a worker."""
    paused: bool
    """Whether it is paused, by itself or with all of them."""
    missed: Missed
    """What becomes of firings that nobody was there for."""
    grace: float
    """How late a firing may be without being missed."""
    into: str | None
    """The pool that its task goes to, as the store calls it."""
    task: str | None
    """The task that it submits, by name."""
    emits: str | None
    """The event that it emits."""
    declared_at: float
    """Since when it is in force as it is."""


class Schedule:
    """When something is to be done again and again. Make it with `mp.cron(...)`."""

    def __init__(
        self,
        mp: Millpond,
        among: Schedules,
        declaration: Declaration,
        work: BoundCall[Any] | None,
        into: Pool | None,
    ) -> None:
        self._mp = mp
        self._among = among
        self._declaration = declaration
        self._work = work
        self._into = into

    def __repr__(self) -> str:
        return f"<schedule {self.id}: {words(self._declaration.timetable)}>"

    @property
    def id(self) -> str:
        """Its name, one for all processes of the store."""
        return self._declaration.id

    @property
    def timetable(self) -> Timetable:
        """When it fires."""
        return self._declaration.timetable

    @property
    def sync(self) -> SyncSchedule:
        """The same for threads."""
        return self._mp.sync.schedule_of(self)

    async def declaration(self) -> Declaration:
        """Return it with what its firings submit; the store knows their pool after this."""
        if self._work is None or self._into is None:
            return self._declaration
        await self._mp.ready(self._into)
        made = template(new_task(self._into, self._work, {}))
        return msgspec.structs.replace(self._declaration, task=made)

    async def arm(self) -> None:
        """See to it that it waits for its next firing; opening the Millpond does this by itself."""
        await arm(self._mp.runtime, [await self.declaration()])

    async def pause(self) -> None:
        """Fire no more. What is due meanwhile is missed, as `missed` has it, when it goes on."""
        await _order(self._mp, Pause(CRON, self.id))

    async def resume(self) -> None:
        """Fire again."""
        await _order(self._mp, Resume(CRON, self.id))

    async def remove(self) -> bool:
        """Let it end, for all processes; return whether there was anything to end.

        A process that still declares it brings it back when it opens the store the next time.
        """
        await self._among.forget(self.id)
        return await remove(self._mp.runtime, self.id)

    async def status(self) -> ScheduleInfo | None:
        """Return when it fires next, and how it stands; None if it was removed."""
        await self._among.armed()
        found = await schedules(self._mp.runtime, [self.id])
        return found[0] if found else None


def template(new: NewTask) -> NewTask:
    """Return a task as the pattern of those that firings submit: the same in every process."""
    return msgspec.structs.replace(
        new,
        id=0,
        submitted_by="cron",
        fingerprint=fingerprint(new.call.function, new.call.payload),
        options=without_trace(new.options),
    )


async def remove(runtime: Runtime, schedule: str) -> bool:
    """End a schedule: what waits is cancelled, and what a firing under way leaves behind."""
    ended = False
    for _ in range(TURNS):
        standing = (await standing_of(runtime, [schedule]))[schedule]
        if not standing:
            break
        order = Cancel(tuple(one.task for one in standing), of=CRON)
        runtime.answers.apply(await runtime.store.control(order))
        ended = True
        await asyncio.sleep(TURN)
    # Whoever declares it anew does not expect it to be paused.
    await runtime.control.order(Resume(CRON, schedule))
    return ended


async def schedules(runtime: Runtime, only: list[str] | None = None) -> list[ScheduleInfo]:
    """Return the schedules of a store, those that fire next first."""
    view = await runtime.view.pool(CRON, measured=False)
    if view is None:
        return []
    found = await standing_of(runtime, only)
    told = [
        _told(in_force(each), paused=view.paused or name in view.paused_units)
        for name, each in found.items()
        if each
    ]
    return sorted(told, key=lambda one: (one.next_at, one.id))


def _told(standing: Standing, *, paused: bool) -> ScheduleInfo:
    schedule = standing.firing.schedule
    timetable, task = schedule.timetable, schedule.task
    return ScheduleInfo(
        id=schedule.id,
        expression=timetable.expression or None,
        every=timetable.every or None,
        tz=timetable.zone,
        next_at=standing.firing.moment,
        paused=paused,
        missed=schedule.missed,
        grace=schedule.grace,
        into=None if task is None else task.pool,
        task=None if task is None else task.call.function,
        emits=schedule.emits,
        declared_at=standing.firing.armed_at,
    )


def words(timetable: Timetable) -> str:
    """Return a timetable in words."""
    if timetable.every:
        return f"every {timetable.every:g} s"
    return f"{timetable.expression} {timetable.zone}"


async def _order(mp: Millpond, order: Pause | Resume) -> None:
    await mp.runtime.declarations.declare(SPEC)
    await mp.runtime.control.order(order)
