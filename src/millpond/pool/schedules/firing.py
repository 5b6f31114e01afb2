"""Cron: a schedule is stored as its next firing, and that is a task.

Each firing is a task of one internal pool, due at its moment. Its handler submits the scheduled
task and the next firing, both as part of its own outcome: stored with its completion, or not at
all. So leases and fences let one process of the fleet fire, a process that dies in the middle
fires nothing, and there is no leader. The moment of a firing follows from the one before it, never
from a worker's clock.

A firing carries the whole schedule: any worker can run it, also one that does not declare it, and
the schedules of a store are the firings that wait in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from millpond.core.backoff import Retry
from millpond.core.control import Cancel
from millpond.core.handler_signals import RetryLater
from millpond.core.lifecycle import Status
from millpond.core.log_fields import about
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, Dedupe, NewTask
from millpond.errors import BadSchedule
from millpond.pool.declared_pool import UNLIMITED
from millpond.pool.refusals import error_of
from millpond.pool.schedules.timetable import Missed, Timetable, plan
from millpond.runtime.jobs.job import Handler, Where
from millpond.runtime.runtime_of_job import runtime_of
from millpond.store.protocol import Batch

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from millpond.core.task import Task
    from millpond.runtime.jobs.job import Job
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.cron")

CRON = "~cron"
"""The pool of all firings of a store, and the function that they call."""

STARTING = "~cron/start"
"""The function that fires a schedule when it begins."""

ENDING = "~cron/end"
"""The function that ends the firings of declarations that are no longer in force."""

SPEC = PoolSpec(name=CRON, max_concurrent=16)

PATIENCE = Retry(attempts=UNLIMITED, initial=1.0, max_delay=60.0)
"""A firing is retried until it succeeds: a schedule that gives up would end silently."""

AT_ONCE = 500
"""How many firings are read, or armed, in one verb."""

LOOKS = 3
"""How often to look again for the firing of a schedule before the schedule counts as new."""

TURNS, TURN = 100, 0.1
"""How often, and after how many seconds, to look again for firings of a schedule that changed."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """A schedule as declared: all that its firing needs."""

    id: str
    timetable: Timetable
    missed: Missed = "once"
    grace: float = 300.0
    most_missed: int = 100
    task: NewTask | None = None
    """The task that each firing submits; it gets its id, key and labels from the firing."""
    emits: str | None = None
    payload: Any = None
    """The payload of the event, beside the moment it was due."""
    on_start: bool = False
    """Whether it also fires once when it begins."""

    @cached_property
    def digest(self) -> str:
        """The same for the same declaration, in every process."""
        encoded = msgspec.json.encode(self, order="deterministic")
        return hashlib.blake2b(encoded, digest_size=8).hexdigest()


class Firing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The firing that a schedule waits for."""

    schedule: Declaration
    moment: float
    armed_at: float
    """When its schedule was declared: of two declarations, the later is in force."""


class Standing(msgspec.Struct, frozen=True):
    """A firing in the store."""

    task: int
    firing: Firing


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Firing).decode


def shown(moment: float) -> str:
    """Return a moment as text: in UTC, so that it names the same one everywhere."""
    exact = datetime.fromtimestamp(moment, UTC)
    return exact.isoformat(timespec="auto").replace("+00:00", "Z")


# Arming


async def arm(runtime: Runtime, declared: Iterable[Declaration]) -> None:
    """Store the next firing of each schedule, and cancel those of older declarations.

    Every process that declares a schedule does this. A firing of the same declaration that waits
    already stays as it is, however late. Where processes differ, the last declaration is in force.
    """
    wanted = {one.id: one for one in declared}
    await runtime.declarations.declare(SPEC)
    standing = await _looked_for(runtime, wanted)
    if any(map(_outdated, standing.values())):
        # First: an old firing of the same declaration must not pass for a new one.
        await _end_older(runtime, wanted)
        standing = await _looked_for(runtime, wanted)
    fresh = [one for one in wanted.values() if one.digest not in _digests(standing[one.id])]
    if fresh:
        endings = await _begin(runtime, fresh, standing)
        # Also where there was none before: another process may have armed another declaration
        # meanwhile, and the last one to look sees both.
        if await _end_older(runtime, wanted):
            runtime.answers.apply(await runtime.store.control(Cancel(endings, of=CRON)))


async def _looked_for(runtime: Runtime, wanted: Iterable[str]) -> dict[str, list[Standing]]:
    """Return the firings of schedules; look more than once for a schedule that has none.

    A schedule that catches up goes from firing to firing without a pause, and a look may fall
    between two of them.
    """
    standing = await standing_of(runtime, wanted)
    for _ in range(LOOKS):
        unseen = [one for one in wanted if not standing[one]]
        if not unseen:
            break
        standing.update(await standing_of(runtime, unseen))
    return standing


async def _begin(
    runtime: Runtime, fresh: list[Declaration], standing: dict[str, list[Standing]]
) -> tuple[int, ...]:
    """Store the first firings of schedules, with the tasks that end older firings.

    So a process that dies after this leaves nothing undone. Return those tasks.
    """
    now = runtime.clock()
    endings = []
    for begin in range(0, len(fresh), AT_ONCE):
        some = fresh[begin : begin + AT_ONCE]
        firings = [first_firing(one, standing[one.id], now, runtime.new_id()) for one in some]
        firings += [starting_firing(one, now, runtime.new_id()) for one in some if one.on_start]
        ending = _ending([one.id for one in some], runtime.new_id())
        await _submit(runtime, (*firings, ending))
        endings.append(ending.id)
    return tuple(endings)


def first_firing(schedule: Declaration, standing: list[Standing], now: float, task: int) -> NewTask:
    """Return the first firing of a schedule that begins now and replaces the stored ones.

    Its `armed_at` is later than theirs, also where the clock was set back meanwhile.
    """
    before = max((one.firing.armed_at for one in standing), default=0.0)
    return _task(Firing(schedule, schedule.timetable.after(now), max(now, before + 0.001)), task)


async def _submit(runtime: Runtime, firings: tuple[NewTask, ...]) -> list[int]:
    """Store tasks; return their ids, those of known tasks where their keys are known."""
    answer = await runtime.submitter.submit(Batch(tasks=firings))
    if answer.refusal is not None:
        raise error_of(answer.refusal, len(firings))
    return [admission.task for admission in answer.admissions]


async def _end_older(runtime: Runtime, wanted: Iterable[str]) -> bool:
    """Cancel the firings of declarations that are no longer in force; return if none is left.

    A firing that is running leaves a successor, so this looks until there is none.
    """
    names = set(wanted)
    for _ in range(TURNS):
        standing = await standing_of(runtime, names)
        older = [one.task for found in standing.values() for one in _outdated(found)]
        if not older:
            return True
        runtime.answers.apply(await runtime.store.control(Cancel(tuple(older), of=CRON)))
        await asyncio.sleep(TURN)
    return False


def _ending(schedules: list[str], task: int) -> NewTask:
    """Return the task that ends the firings that schedules had before they changed."""
    return NewTask(
        id=task,
        pool=CRON,
        call=Call(ENDING, msgspec.json.encode(schedules)),
        attempts=UNLIMITED,
        submitted_by="cron",
    )


def starting_firing(schedule: Declaration, now: float, task: int) -> NewTask:
    """Return the task that fires a schedule as it begins, once for each declaration."""
    return NewTask(
        id=task,
        pool=CRON,
        call=Call(STARTING, _encode(Firing(schedule, now, now))),
        key=schedule.id,
        attempts=UNLIMITED,
        idempotency_key=f"{schedule.id}#{schedule.digest}#start",
        fingerprint=int(schedule.digest, 16) >> 2,
        submitted_by=f"cron:{schedule.id}",
    )


def _outdated(found: list[Standing]) -> list[Standing]:
    """Return the firings of a schedule that are not those of its latest declaration."""
    if not found:
        return []
    force = in_force(found).firing.schedule.digest
    return [one for one in found if one.firing.schedule.digest != force]


def in_force(found: list[Standing]) -> Standing:
    """Return the firing that a schedule waits for: of its latest declaration, the first."""
    latest = max((one.firing.armed_at, one.firing.schedule.digest) for one in found)
    ours = [one for one in found if one.firing.schedule.digest == latest[1]]
    return min(ours, key=lambda one: one.firing.moment)


def _digests(found: list[Standing]) -> set[str]:
    return {in_force(found).firing.schedule.digest} if found else set()


def _task(firing: Firing, task: int) -> NewTask:
    """Return a firing as a task.

    Its key keeps a schedule that several processes arm at once from waiting twice for one moment.
    """
    schedule = firing.schedule
    return NewTask(
        id=task,
        pool=CRON,
        call=Call(CRON, _encode(firing)),
        key=schedule.id,
        run_at=firing.moment,
        attempts=UNLIMITED,
        idempotency_key=f"{schedule.id}#{schedule.digest}#{firing.moment!r}",
        dedupe=Dedupe.INFLIGHT,
        fingerprint=int(schedule.digest, 16) >> 2,
        submitted_by=f"cron:{schedule.id}",
    )


# Firing


EventTask: TypeAlias = Callable[[str, Any, str], Awaitable[NewTask]]
"""Makes the task that an event of a name, a payload and an id is stored as."""


def handlers(event_task: EventTask) -> dict[str, Handler]:
    """Return the handlers of firings, and of the tasks that end older ones."""

    def fire(job: Job) -> Coroutine[Any, Any, dict[str, Any]]:
        return _fire(job, _decode(job.leased.call.payload), event_task)

    async def start(job: Job) -> None:
        schedule = _decode(job.leased.call.payload).schedule
        job.follow_ups = list(await extra_firing(runtime_of(job), schedule, event_task))

    def end(job: Job) -> Coroutine[Any, Any, None]:
        return _end(runtime_of(job), msgspec.json.decode(job.leased.call.payload, type=list[str]))

    encode = msgspec.json.encode
    return {
        CRON: Handler(CRON, Where.LOOP, fire, encode, PATIENCE),
        STARTING: Handler(STARTING, Where.LOOP, start, encode, PATIENCE),
        ENDING: Handler(ENDING, Where.LOOP, end, encode, PATIENCE),
    }


async def _end(runtime: Runtime, schedules: list[str]) -> None:
    """End older firings, which the process that changed the schedules may not have done."""
    if not await _end_older(runtime, schedules):
        raise RetryLater(TURN, spend=False)


async def _fire(job: Job, firing: Firing, event_task: EventTask) -> dict[str, Any]:
    """Fire if it is time, and add the next firing: the store gets both when this completes."""
    runtime, schedule = runtime_of(job), firing.schedule
    now = runtime.clock()
    planned = plan(
        schedule.timetable,
        firing.moment,
        now,
        missed=schedule.missed,
        grace=schedule.grace,
        most=schedule.most_missed,
    )
    if planned.fire is None and planned.then == firing.moment:
        # It is not due yet: the store's clock was set back after it was claimed.
        raise RetryLater(firing.moment - now, spend=False)
    if planned.left_out:
        _report_missed(schedule, firing.moment, planned.fire, now)
    fired = None if planned.fire is None else shown(planned.fire)
    following = [_task(Firing(schedule, planned.then, firing.armed_at), runtime.new_id())]
    if fired is not None and schedule.task is not None:
        following.append(_target(schedule, schedule.task, fired, runtime.new_id()))
    if fired is not None and schedule.emits is not None:
        following.append(await event_task(schedule.emits, _payload(schedule, fired), fired))
    job.follow_ups = following
    return {
        "schedule": schedule.id,
        "fired": fired,
        "tasks": [new.id for new in following[1:]],
        "next": shown(planned.then),
    }


async def extra_firing(
    runtime: Runtime, schedule: Declaration, event_task: EventTask
) -> tuple[NewTask, ...]:
    """Return the tasks of a firing beside the timetable, for this moment."""
    moment = shown(runtime.clock())
    tasks: list[NewTask] = []
    if schedule.task is not None:
        tasks.append(_target(schedule, schedule.task, moment, runtime.new_id()))
    if schedule.emits is not None:
        tasks.append(await event_task(schedule.emits, _payload(schedule, moment), moment))
    return tuple(tasks)


def _target(schedule: Declaration, template: NewTask, moment: str, task: int) -> NewTask:
    """Return the task that a firing submits: one per schedule and moment, in any process.

    Where the schedule has a key of its own, all its firings share that one.
    """
    return msgspec.structs.replace(
        template,
        id=task,
        idempotency_key=template.idempotency_key or f"cron:{schedule.id}:{moment}",
        labels={**template.labels, "cron": schedule.id, "scheduled_at": moment},
        submitted_by=f"cron:{schedule.id}",
    )


class _Emission(Protocol):
    @property
    def event_id(self) -> str: ...


EmitAs: TypeAlias = Callable[[str, str, object, str | None], Awaitable[_Emission]]
"""Emits an event: who emits it, its name, its payload and its id."""


async def fire_by_hand(
    runtime: Runtime, emit_as: EmitAs, schedule: str, *, by: str
) -> tuple[int | None, str | None]:
    """Do now what a schedule does when it fires, whatever it waits for; that stays as it is.

    Return the task that was submitted and the id of the event that was emitted.
    """
    standing = (await standing_of(runtime, [schedule]))[schedule]
    if not standing:
        message = f"no schedule {schedule!r} is armed"
        raise BadSchedule(message, field="schedule", value=schedule)
    declared = in_force(standing).firing.schedule
    moment = shown(runtime.clock())
    task = event = None
    if declared.task is not None:
        made = _target(declared, declared.task, moment, runtime.new_id())
        made = msgspec.structs.replace(made, submitted_by=by)
        if declared.task.idempotency_key is None:
            made = msgspec.structs.replace(made, idempotency_key=None, fingerprint=0)
        (task,) = await _submit(runtime, (made,))
    if declared.emits is not None:
        name = f"{moment}#{runtime.new_id():016x}"
        emitted = await emit_as(by, declared.emits, _payload(declared, moment), name)
        event = emitted.event_id
    return task, event


def _payload(schedule: Declaration, moment: str) -> dict[str, Any]:
    return {"schedule": schedule.id, "scheduled_at": moment, "payload": schedule.payload}


def _report_missed(schedule: Declaration, moment: float, fired: float | None, now: float) -> None:
    """Log that firings were missed."""
    log.warning(
        "schedule %s missed its firing of %s by %.0f s; with missed=%r %s",
        schedule.id,
        shown(moment),
        now - moment,
        schedule.missed,
        "it skips it" if fired is None else f"it fires for {shown(fired)}",
        extra=about(
            "schedule.missed", pool=CRON, schedule=schedule.id, seconds_late=round(now - moment)
        ),
    )


# Reading


async def standing_of(
    runtime: Runtime, only: Iterable[str] | None = None
) -> dict[str, list[Standing]]:
    """Return the firings that wait or run, by schedule: of all, or of some."""
    names = None if only is None else set(only)
    found: dict[str, dict[int, Standing]] = defaultdict(dict)
    key = next(iter(names)) if names is not None and len(names) == 1 else None
    # A task that starts between two reads is in neither list: so the queue is read twice.
    for status in (Status.QUEUED, Status.RUNNING, Status.QUEUED):
        after: int | None = 0
        while after is not None:
            page = await runtime.view.tasks(
                CRON, status=status, key=key, after=after, limit=AT_ONCE
            )
            for task in page.tasks:
                schedule = task.new.key or ""
                ours = task.new.call.function == CRON and (names is None or schedule in names)
                firing = _read(task) if ours else None
                if firing is not None:
                    found[schedule][task.new.id] = Standing(task.new.id, firing)
            after = page.next
    return defaultdict(list, {name: list(each.values()) for name, each in found.items()})


def _read(task: Task) -> Firing | None:
    """Return the firing that a task holds; None, and a warning, if it cannot be read."""
    try:
        return _decode(task.new.call.payload)
    except msgspec.MsgspecError as error:
        log.warning(
            "task %d of pool %s is not a firing: %s",
            task.new.id,
            CRON,
            error,
            extra=about("schedule.unreadable", pool=CRON, task=task.new.id, reason=str(error)),
        )
        return None
