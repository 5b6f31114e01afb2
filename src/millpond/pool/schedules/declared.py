"""The schedules that one Millpond declares, on the loop and for threads."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core import validation as check
from millpond.errors import BadSchedule, ConfigError, DuplicateName
from millpond.pool.delegation import on_loop, signature_of
from millpond.pool.internals import internals_of
from millpond.pool.registered import Invocation
from millpond.pool.schedules.firing import Declaration, EventTask, arm
from millpond.pool.schedules.schedule import DeclaredSchedule, Schedule, SyncSchedule
from millpond.pool.schedules.stored import ScheduleInfo, schedules
from millpond.pool.schedules.timetable import Missed, Timetable
from millpond.pool.task import BoundCall, TaskFunction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.core.validation import Seconds
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.pool import Pool
    from millpond.pool.pools import Pools
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.pool.sync_pool import SyncPool

FASTEST = 1.0
"""Seconds between two firings, at least."""

NOT_FOR_A_FIRING = ("run_at", "submitted_by")
"""Options of a call that each firing sets itself."""

WHILE_ONE_IS_LEFT = ("inflight", "waiting", "replace")
"""How long a key may count that all firings of a schedule share: it must be free again."""


class Schedules:
    """Schedules, by id."""

    def __init__(self, owner: RuntimeOwner, pools: Pools, event_task: EventTask) -> None:
        self._owner = owner
        self._pools = pools
        self._event_task = event_task
        self._declared: dict[str, DeclaredSchedule] = {}
        self._arming: set[asyncio.Task[Any]] = set()
        """The tasks that store schedules which were declared while the Millpond is open."""

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
        on_start: bool = False,
    ) -> Schedule:
        """Declare a schedule: a crontab line in a time zone, or every so many seconds.

        Each firing submits `task` into a pool, or emits an event (`cron.<id>` if neither is
        given), once for the whole fleet. A firing more than `grace` seconds late is missed: with
        `once` one firing stands for all missed ones, `all` fires for each of them (the latest
        `most_missed`), `skip` for none. With `on_start` it also fires when the store first gets
        this declaration. An idempotency key of the call keeps its tasks from piling up.
        """
        name = check.name("schedule_id", schedule_id)
        work, pool = self._work(name, task, into)
        if work is None and emits is None:
            emits = f"cron.{name}"
        if payload is not None and emits is None:
            reason = "belongs to an event: give emits=, or bind it to task"
            raise ConfigError("payload", payload, reason)
        check.instance("on_start", on_start, bool, "True or False")
        check.one_of("missed", missed, ("once", "all", "skip"))
        declaration = Declaration(
            id=name,
            timetable=_timetable(name, expression, every, tz),
            missed=missed,
            grace=check.seconds("grace", grace),
            most_missed=check.integer("most_missed", most_missed, least=1, most=10_000),
            emits=None if emits is None else check.name("emits", emits),
            payload=_plain(payload),
            on_start=on_start,
        )
        made = DeclaredSchedule(
            self._owner, declaration, work, pool, self.armed, self.forget, self._event_task
        )
        return self._add(made)

    def _add(self, made: DeclaredSchedule) -> Schedule:
        """Add a schedule; where the Millpond is open on this thread's loop, it begins now."""
        if made.id in self._declared:
            message = f"a schedule named {made.id!r} exists already; give this one another id"
            raise DuplicateName(message, kind="schedule", name=made.id)
        self._declared[made.id] = made
        runtime = self._owner.runtime if self._owner.is_open else None
        if runtime is not None and runtime.thread == threading.get_ident():
            arming = runtime.spawn(made.arm())
            self._arming.add(arming)
            arming.add_done_callback(self._arming.discard)
        return Schedule(made)

    def _work(
        self,
        name: str,
        task: TaskFunction[[], Any, Any] | BoundCall[Any] | None,
        into: str | Pool | SyncPool | None,
    ) -> tuple[Invocation | None, DeclaredPool | None]:
        """Return the call that each firing submits, and the pool it goes to."""
        if task is None:
            if into is not None:
                raise ConfigError("into", into, f"needs a task: cron {name!r} submits none")
            return None, None
        work = task.bind() if isinstance(task, TaskFunction) else task
        check.instance("task", work, BoundCall, "a task, or a call of one: task.bind(...)")
        if self._pools.functions.by_name.get(work.function.name) is not work.function:
            raise ConfigError("task", task, "is a task of another Millpond")
        call = internals_of(work)
        options = call.options_within({})
        for option in NOT_FOR_A_FIRING:
            if option in options:
                raise ConfigError(option, options[option], "is set by each firing: leave it out")
        _check_key(options)
        pool = self._pools.get_pool(into) if isinstance(into, str) else into or work.function.pool
        call.encode()
        return call, internals_of(pool)

    async def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules of the store, of all processes, the next to fire first.

        It waits until the store has those that were declared a moment ago.
        """
        await self.armed()
        return await schedules(self._owner.runtime)

    async def armed(self) -> None:
        """Wait until the store has the schedules that were declared here."""
        if self._arming:
            await asyncio.wait(self._arming)

    async def forget(self, schedule: str) -> None:
        """Forget a schedule that is about to be removed."""
        await self.armed()
        self._declared.pop(schedule, None)

    async def arm(self) -> None:
        """Store the next firing of every schedule."""
        if self._declared:
            declared = [await one.declaration() for one in self._declared.values()]
            await arm(self._owner.runtime, declared)


def _check_key(options: Mapping[str, Any]) -> None:
    """Raise for a key that would let a schedule fire once only, or that is missing."""
    key, dedupe = options.get("idempotency_key"), options.get("dedupe")
    if key is None and dedupe is not None:
        raise ConfigError("dedupe", dedupe, "needs an idempotency_key")
    if key is not None and dedupe not in WHILE_ONE_IS_LEFT:
        known = ", ".join(f'"{one}"' for one in WHILE_ONE_IS_LEFT)
        raise ConfigError(
            "dedupe", dedupe or "forever", f"would let the schedule fire once: one of {known}"
        )


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
    """Return a payload as it comes back from JSON; refuse one that JSON cannot hold."""
    try:
        return msgspec.json.decode(msgspec.json.encode(payload))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError("payload", payload, f"cannot be stored as JSON: {error}") from None


class SyncSchedules:
    """The schedules of one Millpond, for threads."""

    def __init__(self, owner: RuntimeOwner, schedules: Schedules) -> None:
        self._owner = owner
        self._bridge = owner.bridge
        self._schedules = schedules

    @signature_of(Schedules.cron)
    def cron(self, *given: Any, **named: Any) -> SyncSchedule:  # noqa: ANN401 - as Schedules.cron
        """Declare a schedule: a crontab line in a time zone, or every so many seconds.

        Each firing submits `task` into a pool, or emits an event (`cron.<id>` if neither is
        given), once for the whole fleet.
        """
        made = self._schedules.cron(*given, **named)
        if self._owner.is_open:
            self._bridge.call(internals_of(made).arm)
        return made.sync

    schedules = on_loop(Schedules.schedules, "_schedules")
