"""Schedules: when each fires next; firing one by hand, pausing and resuming it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from millpond.core.control import Pause, Resume
from millpond.errors import BadSchedule
from millpond.pool.internals import internals_of
from millpond.pool.schedules.firing import CRON, fire_by_hand
from millpond.pool.schedules.stored import ScheduleInfo, schedules
from millpond.pool.schedules.timetable import Timetable
from millpond.server import contract
from millpond.server.api import parameters as given
from millpond.server.openapi import operation
from millpond.server.refusals import Refused
from millpond.server.site import Site, actor_of, answer, site_of

if TYPE_CHECKING:
    from millpond.core.control import Command

router = APIRouter(tags=["schedules"])

UPCOMING = 5


@router.get("/schedules", **operation(contract.SchedulePage))
async def list_schedules(request: Request) -> Response:
    """List the schedules of the store, those that fire next first."""
    site = site_of(request)
    now = site.now()
    found = await schedules(site.runtime)
    items = [_item(one, now) for one in found]
    return answer(contract.SchedulePage(items=items, next=None, at=now))


def _item(one: ScheduleInfo, now: float) -> contract.ScheduleItem:
    late = one.next_at + one.grace < now
    return contract.ScheduleItem(
        id=one.id,
        state="paused" if one.paused else "late" if late else "waiting",
        expression=one.expression,
        every=one.every,
        tz=one.tz,
        next_at=one.next_at,
        upcoming=_upcoming(one),
        paused=one.paused,
        missed=one.missed,
        grace=one.grace,
        into=one.into,
        task=one.task,
        emits=one.emits,
        declared_at=one.declared_at,
    )


def _upcoming(one: ScheduleInfo) -> list[float]:
    timetable = Timetable(one.expression or "", one.tz, one.every or 0.0)
    moments = [one.next_at]
    try:
        while len(moments) < UPCOMING:
            moments.append(timetable.after(moments[-1]))
    except (BadSchedule, ImportError, StopIteration):
        # Its time zone, or what reads crontab lines, is not on this machine.
        return moments
    return moments


@router.post(
    "/schedules/{schedule:path}/fire",
    **operation(contract.Fired, status=202, errors=(404, 409), says="It fired."),
)
async def fire(request: Request, schedule: given.OneName) -> Response:
    """Do now what a schedule does when it fires; its next firing stays as it is."""
    site = site_of(request)
    await _must_exist(site, schedule)
    emit_as = internals_of(site.mp).events.emit_as
    task, event = await fire_by_hand(site.runtime, emit_as, schedule, by=actor_of(request))
    return answer(
        contract.Fired(schedule=schedule, task=None if task is None else str(task), event=event),
        202,
    )


@router.post("/schedules/{schedule:path}/pause", **operation(contract.Changed, errors=(404,)))
async def pause(request: Request, schedule: given.OneName) -> Response:
    """Pause a schedule: it does not fire until it is resumed."""
    return await _switch(request, schedule, Pause(CRON, schedule, actor_of(request)), "pause")


@router.post("/schedules/{schedule:path}/resume", **operation(contract.Changed, errors=(404,)))
async def resume(request: Request, schedule: given.OneName) -> Response:
    """Let a schedule fire again."""
    return await _switch(request, schedule, Resume(CRON, schedule, actor_of(request)), "resume")


async def _switch(request: Request, schedule: str, order: Command, action: str) -> Response:
    site = site_of(request)
    await _must_exist(site, schedule)
    done = await site.order(order, CRON)
    return answer(contract.Changed(action=action, changed=done.count, pool=CRON))


async def _must_exist(site: Site, schedule: str) -> None:
    if not await schedules(site.runtime, [schedule]):
        raise Refused(404, "unknown_schedule", f"no schedule {schedule!r} is armed")
