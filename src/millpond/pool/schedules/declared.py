"""The schedules that one Millpond declares, and what of them is on its way to the store."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core import validation as check
from millpond.errors import BadSchedule, ConfigError, DuplicateName
from millpond.pool.delegation import on_loop
from millpond.pool.schedules.firing import Declaration, arm
from millpond.pool.schedules.schedule import Schedule, ScheduleInfo, schedules
from millpond.pool.schedules.timetable import Missed, Timetable
from millpond.pool.task import BoundCall, TaskFunction

if TYPE_CHECKING:
    from millpond.core.validation import Seconds
    from millpond.pool.millpond import Millpond
    from millpond.pool.pool import Pool
    from millpond.pool.sync.api import SyncPool

FASTEST = 1.0
"""Seconds between two firings, at least."""

NOT_FOR_A_FIRING = ("idempotency_key", "dedupe", "run_at", "submitted_by")
"""Options of a call that a firing decides itself."""


class Schedules:
    """Schedules, by id."""

    def __init__(self, mp: Millpond) -> None:
        self._mp = mp
        self._declared: dict[str, Schedule] = {}
        self._arming: set[asyncio.Task[Any]] = set()
        """What was declared while the Millpond is open, on its way to the store."""

    def cron(
        self,
        schedule_id: str,
        expression: str | None = None,
        /,
        *,
        every: Seconds | None = None,
        tz: str = "UTC",
        into: str | Pool | SyncPool | None = None,
        task: TaskFunction[[], Any, Any] | BoundCall[Any] | None = None,
        emits: str | None = None,
        payload: object = None,
        missed: Missed = "once",
        grace: Seconds = 300.0,
        most_missed: int = 100,
    ) -> Schedule:
        """Declare a schedule: a crontab line in a time zone, or every so many seconds.

        Each firing submits `task` into a pool, or emits an event (`cron.<id>` if it does nothing
        else); it happens once for the whole fleet. A firing more than `grace` seconds late was
        missed: `once` lets one stand for all that were, `all` makes up for each (the latest
        `most_missed` of them), `skip` for none.
        """
        name = check.name("schedule_id", schedule_id)
        work, pool = self._work(name, task, on_loop(into))
        if work is None and emits is None:
            emits = f"cron.{name}"
        if payload is not None and emits is None:
            reason = "is told by an event: say emits=, or bind it to task"
            raise ConfigError("payload", payload, reason)
        check.one_of("missed", missed, ("once", "all", "skip"))
        declaration = Declaration(
            id=name,
            timetable=_timetable(name, expression, every, tz),
            missed=missed,
            grace=check.seconds("grace", grace),
            most_missed=check.integer("most_missed", most_missed, least=1, most=10_000),
            emits=None if emits is None else check.name("emits", emits),
            payload=_plain(payload),
        )
        return self._added(Schedule(self._mp, self, declaration, work, pool))

    def _added(self, made: Schedule) -> Schedule:
        """Take in a schedule; where the Millpond is open on this very loop, it begins now."""
        if made.id in self._declared:
            message = f"a schedule named {made.id!r} exists already; give this one another id"
            raise DuplicateName(message, kind="schedule", name=made.id)
        self._declared[made.id] = made
        runtime = self._mp.runtime if self._mp.is_open else None
        if runtime is not None and runtime.thread == threading.get_ident():
            arming = runtime.spawn(made.arm())
            self._arming.add(arming)
            arming.add_done_callback(self._arming.discard)
        return made

    def _work(
        self,
        name: str,
        task: TaskFunction[[], Any, Any] | BoundCall[Any] | None,
        into: Pool | str | None,
    ) -> tuple[BoundCall[Any] | None, Pool | None]:
        """Return the call that each firing submits, and the pool it goes to."""
        if task is None:
            if into is not None:
                raise ConfigError("into", into, f"says where cron {name!r} submits: say also what")
            return None, None
        work = BoundCall(task, (), {}) if isinstance(task, TaskFunction) else task
        check.instance("task", work, BoundCall, "a task, or a call of one: task.bind(...)")
        if work.function.mp is not self._mp:
            raise ConfigError("task", task, "is a task of another Millpond")
        for option in NOT_FOR_A_FIRING:
            if option in work.given({}):
                reason = "is for each firing to say: leave it"
                raise ConfigError(option, work.given({})[option], reason)
        pool = self._mp.get_pool(into) if isinstance(into, str) else into or work.function.pool
        work.encoded()
        return work, pool

    async def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules of the store, whoever declared them; which fires next comes first.

        Of those that were declared a moment ago too: this waits until they are armed.
        """
        await self.armed()
        return await schedules(self._mp.runtime)

    async def armed(self) -> None:
        """Wait until the store knows the schedules that were declared here."""
        if self._arming:
            await asyncio.wait(self._arming)

    async def forget(self, schedule: str) -> None:
        """Let go of a schedule that is to be removed."""
        await self.armed()
        self._declared.pop(schedule, None)

    async def arm(self) -> None:
        """See to it that every schedule waits for its next firing."""
        if self._declared:
            declared = [await one.declaration() for one in self._declared.values()]
            await arm(self._mp.runtime, declared)


def _timetable(name: str, expression: str | None, every: Seconds | None, tz: str) -> Timetable:
    if (expression is None) == (every is None):
        raise BadSchedule(
            f"cron {name!r}: give a crontab line, such as '0 9 * * mon-fri', or every=seconds, "
            "and not both",
            field="expression",
            value=expression,
        )
    if every is not None:
        pace = check.seconds("every", every, least=FASTEST)
        if tz != "UTC":
            raise BadSchedule(
                f"cron {name!r}: every={pace:g} counts seconds since 1970, which are the same in "
                "every time zone: leave out tz, or give a crontab line",
                field="tz",
                value=tz,
            )
        return Timetable(every=pace)
    timetable = Timetable(check.text("expression", expression), check.text("tz", tz))
    timetable.check(name)
    return timetable


def _plain(payload: object) -> object:
    """Return a payload as it will come back; refuse what cannot be told as JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(payload))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError("payload", payload, f"cannot be told as JSON: {error}") from None
