"""Stored schedules: list them and remove them, whichever process declared them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from millpond.core.control import Cancel, Resume
from millpond.pool.payload.signature import fingerprint
from millpond.pool.refusals import error_of
from millpond.pool.schedules.firing import (
    CRON,
    TURN,
    TURNS,
    EventTask,
    Standing,
    extra_firing,
    in_force,
    standing_of,
)
from millpond.pool.schedules.timetable import Missed, Timetable
from millpond.runtime.jobs.policy import without_trace
from millpond.store.protocol import Batch

if TYPE_CHECKING:
    from millpond.core.task import NewTask
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
    """When it fires next; a moment in the past waits for a worker."""
    paused: bool
    """Whether it is paused, by itself or with all of them."""
    missed: Missed
    """What happens to firings that no worker was there for."""
    grace: float
    """How late a firing may be without being missed."""
    into: str | None
    """The stored name of the pool that its task goes to."""
    task: str | None
    """The task that it submits, by name."""
    emits: str | None
    """The event that it emits."""
    declared_at: float
    """Since when this declaration is in force."""


def template(new: NewTask) -> NewTask:
    """Return a task as the template of those that firings submit: the same in every process."""
    return msgspec.structs.replace(
        new,
        id=0,
        submitted_by="cron",
        fingerprint=fingerprint(new.call.function, new.call.payload),
        options=without_trace(new.options),
    )


async def remove(runtime: Runtime, schedule: str) -> bool:
    """End a schedule: cancel its firing, and the successor that a running firing leaves."""
    ended = False
    for _ in range(TURNS):
        standing = (await standing_of(runtime, [schedule]))[schedule]
        if not standing:
            break
        order = Cancel(tuple(one.task for one in standing), of=CRON)
        runtime.answers.apply(await runtime.store.control(order))
        ended = True
        await asyncio.sleep(TURN)
    # A later declaration of the same id must not begin paused.
    await runtime.control.order(Resume(CRON, schedule))
    return ended


async def fire(runtime: Runtime, schedule: str, event_task: EventTask) -> list[int]:
    """Fire a schedule once more, now; its timetable and its next firing stay as they are.

    Return the tasks that this submits: none if the store has no such schedule.
    """
    standing = (await standing_of(runtime, [schedule]))[schedule]
    if not standing:
        return []
    fired = await extra_firing(runtime, in_force(standing).firing.schedule, event_task)
    answer = await runtime.submitter.submit(Batch(tasks=fired))
    if answer.refusal is not None:
        raise error_of(answer.refusal, len(fired))
    return [admission.task for admission in answer.admissions]


async def schedules(runtime: Runtime, only: list[str] | None = None) -> list[ScheduleInfo]:
    """Return the schedules of a store, the next to fire first."""
    view = await runtime.view.pool(CRON, measured=False)
    if view is None:
        return []
    found = await standing_of(runtime, only)
    infos = [
        _info(in_force(each), paused=view.paused or name in view.paused_units)
        for name, each in found.items()
        if each
    ]
    return sorted(infos, key=lambda one: (one.next_at, one.id))


def _info(standing: Standing, *, paused: bool) -> ScheduleInfo:
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
