"""Schedules: what `mp.cron(...)` returns, on the loop and for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.control import Pause, Resume
from millpond.core.service import Service
from millpond.pool.delegation import on_loop
from millpond.pool.internals import internals_of
from millpond.pool.new_task import new_task
from millpond.pool.schedules.firing import CRON, SPEC, Declaration, arm
from millpond.pool.schedules.stored import ScheduleInfo, fire, remove, schedules, template, words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.registered import Invocation
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.pool.schedules.firing import EventTask
    from millpond.pool.schedules.timetable import Timetable


class DeclaredSchedule(Service):
    """A schedule that this process declares: the internal object behind `Schedule`."""

    owner: RuntimeOwner
    _declaration: Declaration
    _work: Invocation | None
    _into: DeclaredPool | None
    _armed: Callable[[], Awaitable[None]]
    _forget: Callable[[str], Awaitable[None]]
    _event_task: EventTask

    @property
    def id(self) -> str:
        """Its id."""
        return self._declaration.id

    @property
    def timetable(self) -> Timetable:
        """When it fires."""
        return self._declaration.timetable

    async def declaration(self) -> Declaration:
        """Return it with the task that its firings submit; declare their pool to the store."""
        if self._work is None or self._into is None:
            return self._declaration
        await self._into.ready()
        made = template(new_task(self._into, self._work, {}))
        return msgspec.structs.replace(self._declaration, task=made)

    async def arm(self) -> None:
        """Store its next firing."""
        await arm(self.owner.runtime, [await self.declaration()])

    async def order(self, order: Pause | Resume) -> None:
        """Send an order about it to the store."""
        runtime = self.owner.runtime
        await runtime.declarations.declare(SPEC)
        await runtime.control.order(order)

    async def remove(self) -> bool:
        """End it in the store; return whether there was anything to end."""
        await self._forget(self.id)
        return await remove(self.owner.runtime, self.id)

    async def fire(self) -> list[int]:
        """Fire it once more, now; return the tasks that this submitted."""
        await self._armed()
        return await fire(self.owner.runtime, self.id, self._event_task)

    async def status(self) -> ScheduleInfo | None:
        """Return it as the store has it; None if it was removed."""
        await self._armed()
        found = await schedules(self.owner.runtime, [self.id])
        return found[0] if found else None


class _Shown:
    """What a schedule shows of itself."""

    _internals: DeclaredSchedule

    @property
    def id(self) -> str:
        """Its id, one for all processes of the store."""
        return self._internals.id

    @property
    def timetable(self) -> Timetable:
        """When it fires."""
        return self._internals.timetable


class Schedule(_Shown):
    """A schedule. Make it with `mp.cron(...)`."""

    def __init__(self, declared: DeclaredSchedule) -> None:
        self._internals = declared

    def __repr__(self) -> str:
        return f"<schedule {self.id}: {words(self.timetable)}>"

    @property
    def sync(self) -> SyncSchedule:
        """The same for threads."""
        return SyncSchedule(self)

    async def pause(self) -> None:
        """Stop firing. Firings due meanwhile are missed: `resume` treats them as `missed` says."""
        await self._internals.order(Pause(CRON, self.id))

    async def resume(self) -> None:
        """Fire again."""
        await self._internals.order(Resume(CRON, self.id))

    async def fire(self) -> list[int]:
        """Fire once more, now; return the ids of the tasks that this submitted.

        The timetable and the next firing stay as they are. A paused schedule fires too.
        """
        return await self._internals.fire()

    async def remove(self) -> bool:
        """End it, for all processes; return whether there was anything to end.

        A process that still declares it brings it back when it opens the store the next time.
        """
        return await self._internals.remove()

    async def status(self) -> ScheduleInfo | None:
        """Return when it fires next, and its settings; None if it was removed."""
        return await self._internals.status()


class SyncSchedule(_Shown):
    """A schedule, for threads."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._internals = internals_of(schedule)
        self._bridge = self._internals.owner.bridge

    def __repr__(self) -> str:
        return f"<sync {self._schedule!r}>"

    pause = on_loop(Schedule.pause, "_schedule", writes=True)
    resume = on_loop(Schedule.resume, "_schedule", writes=True)
    fire = on_loop(Schedule.fire, "_schedule", writes=True)
    remove = on_loop(Schedule.remove, "_schedule", writes=True)
    status = on_loop(Schedule.status, "_schedule")
