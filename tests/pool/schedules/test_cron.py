"""Schedules: each process that declares one arms it, one process fires it; operators' orders."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import defaultdict
from datetime import datetime
from typing import Any

import pytest
from tests.stores import fresh_store

from millpond import Context, Millpond
from millpond.core.event import Event
from millpond.core.task import Call, NewTask
from millpond.errors import BadSchedule, ConfigError, DriverMissing, DuplicateName
from millpond.pool.internals import internals_of
from millpond.pool.schedules import firing as cron
from millpond.pool.schedules.firing import CRON, SPEC, shown
from millpond.pool.schedules.stored import schedules
from millpond.pool.schedules.timetable import Timetable
from millpond.store.protocol import Batch

DAY = 86_400.0
MONDAY = datetime.fromisoformat("2026-03-23T00:00:00+00:00").timestamp()


def wall() -> float:
    return asyncio.get_running_loop().wall_time()  # type: ignore[attr-defined, no-any-return]


async def until(moment: float | str) -> None:
    """Sleep until a moment, and a little longer."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment).timestamp()
    await asyncio.sleep(max(moment - wall(), 0.0) + 1.0)


class Fleet:
    """Processes that share one store and note the firings that they ran."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._store: Any = None

    def process(
        self, *, work: bool = True, alone: bool = False, slow: float = 0.0
    ) -> tuple[Millpond, Any]:
        """Return one more process, with its task."""
        mp = Millpond(work=work, lease=30.0)
        if self._store is None:
            self._store = fresh_store()
        internals_of(mp).owner.make_store = lambda: Shared(self._store, slow)
        internals_of(mp).owner.shared = not alone
        pool = mp.pool("reports", max_concurrent=4)

        @pool.task
        async def report(ctx: Context) -> None:
            self.done.append(ctx.labels["scheduled_at"])

        return mp, report


class Shared:
    """A shared store that stays open when one process closes it."""

    def __init__(self, store: Any, slow: float) -> None:
        self._store = store
        self._slow = slow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, *args: Any, **options: Any) -> Any:
        """Take in batches, perhaps after a while."""
        await asyncio.sleep(self._slow)
        return await self._store.submit(*args, **options)

    async def close(self) -> None:
        """Do nothing: the other processes still use it."""


async def test_a_schedule_fires_on_time_and_labels_its_tasks_with_the_time() -> None:
    fleet = Fleet()
    mp, report = fleet.process(alone=True)
    schedule = mp.cron("daily", "0 9 * * *", tz="Europe/Berlin", task=report)
    async with mp:
        begin = wall()
        await asyncio.sleep(3 * DAY)
        status = await schedule.status()
    assert 3 == len(fleet.done)
    assert status is not None
    assert status.next_at - begin > 3 * DAY - 60
    assert fleet.done == sorted(fleet.done)
    assert all(done.endswith(":00:00Z") for done in fleet.done)


@pytest.mark.rows("CR-04")
async def test_many_processes_arm_it_once_and_one_fires() -> None:
    fleet = Fleet()
    processes = [fleet.process() for _ in range(4)]
    for mp, report in processes:
        mp.cron("often", every=60, task=report)
    first, *others = [mp for mp, _ in processes]
    async with first:
        await asyncio.sleep(170)
        for other in others:
            await other.__aenter__()
        await asyncio.sleep(170)
        (status,) = await first.schedules()
        assert not status.paused
        view = await internals_of(first).runtime.view.pool(CRON)
        assert view is not None
        assert 1 == view.queued
        for other in others:
            await other.__aexit__(None, None, None)
    assert len(fleet.done) == len(set(fleet.done)) >= 5


@pytest.mark.rows("CR-03")
async def test_firings_missed_by_a_dead_fleet_follow_the_missed_option() -> None:
    expected = {"once": 1, "all": 6, "skip": 0}
    for missed, count in expected.items():
        fleet = Fleet()
        mp, report = fleet.process()
        mp.cron("often", "* * * * *", task=report, missed=missed, grace=10)  # type: ignore[arg-type]
        async with mp:
            await until((wall() // 60 + 1) * 60)
        assert 1 == len(fleet.done)
        fleet.done.clear()
        # No process is open for six and a half intervals.
        await asyncio.sleep(6.5 * 60)
        again, report = fleet.process()
        again.cron("often", "* * * * *", task=report, missed=missed, grace=10)  # type: ignore[arg-type]
        async with again:
            await asyncio.sleep(5)
            assert count == len(fleet.done), missed
            await asyncio.sleep(60)
        assert count + 1 == len(set(fleet.done)) == len(fleet.done), missed


@pytest.mark.rows("CR-03")
async def test_most_missed_bounds_the_missed_firings_that_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Fleet()
    mp, report = fleet.process()
    mp.cron("often", every=60, task=report, missed="all", most_missed=10)
    async with mp:
        await asyncio.sleep(90)
    fleet.done.clear()
    await asyncio.sleep(DAY)
    again, report = fleet.process()
    again.cron("often", every=60, task=report, missed="all", most_missed=10)
    with caplog.at_level(logging.WARNING, "millpond.cron"):
        async with again:
            await asyncio.sleep(20)
            last = wall()
    # Those within grace are not late; the bound is for the others.
    assert 10 <= len(fleet.done) <= 16
    assert shown(last // 60 * 60) in fleet.done
    assert "missed its firing" in caplog.text


@pytest.mark.rows("CR-06")
async def test_a_paused_schedule_does_not_fire_and_its_neighbour_does() -> None:
    fleet = Fleet()
    mp, report = fleet.process()
    quiet = mp.cron("quiet", every=60, task=report, missed="skip", grace=1)
    async with mp:
        await quiet.pause()
        status = await quiet.status()
        assert status is not None
        assert status.paused
        loud = mp.cron("loud", every=60, task=report)
        await asyncio.sleep(130)
        assert 2 == len(fleet.done)
        await loud.remove()
        await quiet.resume()
        await asyncio.sleep(1)
        assert 2 == len(fleet.done)
        await asyncio.sleep(60)
        assert 3 == len(fleet.done)


@pytest.mark.rows("CR-06")
async def test_a_removed_schedule_is_gone_for_all_until_it_is_declared_again() -> None:
    fleet = Fleet()
    mp, report = fleet.process()
    schedule = mp.cron("often", every=60, task=report)
    async with mp:
        assert await schedule.remove()
        assert not await schedule.remove()
        assert await schedule.status() is None
        assert [] == await mp.schedules()
        await asyncio.sleep(130)
        assert [] == fleet.done
        mp.cron("often", every=60, task=report)
        await asyncio.sleep(130)
    assert 2 == len(fleet.done)


@pytest.mark.rows("CR-05")
async def test_a_changed_schedule_replaces_the_old_one_at_once() -> None:
    fleet = Fleet()
    old, report = fleet.process()
    old.cron("report", every=360, task=report)
    async with old:
        await asyncio.sleep(10)
        new, report = fleet.process()
        new.cron("report", every=60, task=report)
        async with new:
            # Listing schedules does not declare the process's own schedule again.
            (status,) = await old.schedules()
            assert 60 == status.every
            view = await internals_of(new).runtime.view.pool(CRON)
            assert view is not None
            assert 1 == view.queued
            before = wall()
            await asyncio.sleep(2 * 360)
            # Also those fired by the process that declared it otherwise.
            expected = [
                shown(at * 60.0) for at in range(int(before // 60) + 1, int(wall() // 60) + 1)
            ]
            assert expected == sorted(fleet.done)
            assert len(fleet.done) == len(set(fleet.done))


@pytest.mark.rows("CR-05")
async def test_a_change_counts_although_the_clock_was_set_back_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet()
    await asyncio.sleep(10_000)
    old, report = fleet.process(work=False)
    old.cron("report", every=60, task=report)
    async with old:
        pass
    new, report = fleet.process(work=False)
    async with new:
        behind = wall() - 3_600
        monkeypatch.setattr(internals_of(new).runtime, "clock", lambda: behind)
        new.cron("report", every=80, task=report)
        (status,) = await new.schedules()
        assert 80 == status.every


@pytest.mark.rows("CR-05")
async def test_processes_that_differ_and_open_at_once_agree_on_one_of_them() -> None:
    fleet = Fleet()
    paces = (60, 61, 62, 63)
    processes = [fleet.process(slow=0.01 * number) for number in range(len(paces))]
    for pace, (mp, report) in zip(paces, processes, strict=True):
        mp.cron("report", every=pace, task=report)
    await asyncio.gather(*(mp.__aenter__() for mp, _ in processes))
    last = processes[-1][0]
    view = await internals_of(last).runtime.view.pool(CRON)
    assert view is not None
    assert 1 == view.queued
    (status,) = await schedules(internals_of(last).runtime)
    assert status.every in paces
    for mp, _ in processes:
        await mp.__aexit__(None, None, None)


@pytest.mark.rows("CR-05")
async def test_a_change_while_a_firing_runs_leaves_one_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet()
    old, report = fleet.process()
    old.cron("report", every=60, task=report)
    async with old:
        runtime = internals_of(old).runtime
        holding = asyncio.Event()
        original = runtime.store.settle

        async def late(*args: Any, **kwargs: Any) -> Any:
            holding.set()
            await asyncio.sleep(2.0)
            return await original(*args, **kwargs)

        monkeypatch.setattr(runtime.store, "settle", late)
        await holding.wait()
        new, report = fleet.process(work=False)
        new.cron("report", every=70, task=report)
        async with new:
            await asyncio.sleep(5)
            (status,) = await new.schedules()
            assert 70 == status.every
            view = await internals_of(new).runtime.view.pool(CRON)
            assert view is not None
            assert 1 == view.queued + view.running


@pytest.mark.rows("CR-05")
async def test_a_process_that_dies_while_it_changes_a_schedule_leaves_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet()
    old, report = fleet.process()
    old.cron("report", every=60, task=report)
    async with old:
        await asyncio.sleep(10)
        await change_and_die(fleet, 45, monkeypatch)
        before = wall()
        await asyncio.sleep(600)
        (status,) = await old.schedules()
        assert 45 == status.every
        view = await internals_of(old).runtime.view.pool(CRON)
        assert view is not None
        assert 1 == view.queued
        moments = range(int(before // 45) + 1, int(wall() // 45) + 1)
        assert [shown(at * 45.0) for at in moments] == fleet.done


@pytest.mark.rows("CR-05")
async def test_a_declaration_after_a_crash_in_a_change_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet()
    old, report = fleet.process(work=False)
    schedule = old.cron("report", every=60, task=report)
    async with old:
        await change_and_die(fleet, 45, monkeypatch)
        await internals_of(schedule).arm()
        (status,) = await old.schedules()
        assert 60 == status.every


@pytest.mark.rows("CR-04")
async def test_a_firing_that_a_read_missed_is_not_armed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet()
    first, report = fleet.process(work=False)
    first.cron("report", every=60, task=report)
    second, report = fleet.process(work=False)
    second.cron("report", every=60, task=report)
    looks: list[str] = []
    look = cron.standing_of

    async def overlook(runtime: Any, only: Any = None) -> Any:
        looks.append("look")
        return defaultdict(list) if len(looks) < 3 else await look(runtime, only)

    async with first:
        # It is late: a firing armed now would be for another time.
        await asyncio.sleep(90)
        monkeypatch.setattr(cron, "standing_of", overlook)
        async with second:
            view = await internals_of(second).runtime.view.pool(CRON)
            assert view is not None
            assert 1 == view.queued


async def change_and_die(fleet: Fleet, pace: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare the schedule otherwise, in a process that dies as soon as that is stored."""
    new, report = fleet.process(work=False)

    async def die(*_: Any) -> bool:
        raise ConnectionResetError

    with monkeypatch.context() as patch, pytest.raises(ConnectionResetError):
        patch.setattr(cron, "_end_older", die)
        new.cron("report", every=pace, task=report)
        async with new:
            pass


@pytest.mark.rows("CR-07")
async def test_a_firing_emits_an_event_for_triggers() -> None:
    fleet = Fleet()
    mp, _ = fleet.process()
    pool = mp.get_pool("reports")
    heard: list[Event] = []

    @pool.task
    async def hear(event: Event) -> None:
        heard.append(event)

    mp.trigger("listener", on="cron.minutely", into=pool, task=hear)
    mp.cron("minutely", every=60)
    mp.cron("both", every=60, task=hear.bind(Event("x", "y")), emits="cron.minutely", payload=[7])
    async with mp:
        await asyncio.sleep(70)
        emitted = await mp.events("cron.minutely")
    moment = shown((wall() - 70) // 60 * 60 + 60)
    assert {moment} == {event.id for event in emitted}
    delivered = [event for event in heard if event.name == "cron.minutely"]
    assert [moment] == [event.id for event in delivered]
    assert moment == delivered[0].payload["scheduled_at"]
    assert 2 == len(heard)


async def test_a_firing_that_fails_is_tried_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet()
    mp, _ = fleet.process()
    mp.cron("unreliable", every=600)
    tries: list[tuple[Any, ...]] = []
    events = internals_of(mp).events
    original = events.new_event

    def failing(*event: Any) -> Any:
        tries.append(event)
        if len(tries) < 12:
            raise ConnectionError("away")
        return original(*event)

    monkeypatch.setattr(events, "new_event", failing)
    async with mp:
        await asyncio.sleep(1_150)
        assert 1 == len(await mp.events("cron.unreliable"))
    assert 1 == len(set(map(str, tries)))
    assert 12 == len(tries)


@pytest.mark.rows("CR-08")
async def test_declaring_is_checked_where_it_is_done() -> None:
    mp = Millpond()
    pool = mp.pool("reports")
    other = Millpond()

    @pool.task
    async def report() -> None: ...

    @mp.task
    async def loose(day: str) -> None: ...

    @other.task
    async def foreign() -> None: ...

    mp.cron("fine", "@daily", task=report)
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (DuplicateName, "fine", {"expression": "@daily"}),
        (BadSchedule, "both", {"expression": "@daily", "every": 60}),
        (BadSchedule, "neither", {}),
        (BadSchedule, "zone", {"expression": "@daily", "tz": "Europe/Nowhere"}),
        (BadSchedule, "pace", {"every": 60, "tz": "Europe/Berlin"}),
        (ConfigError, "fast", {"every": 0.5}),
        (ConfigError, "spaces in it", {"every": 60}),
        (ConfigError, "pool", {"every": 60, "into": pool}),
        (ConfigError, "no-pool", {"every": 60, "task": loose.bind("x")}),
        (ConfigError, "foreign", {"every": 60, "task": foreign, "into": pool}),
        (ConfigError, "missed", {"every": 60, "missed": "never"}),
        (ConfigError, "keyed", {"every": 60, "task": report.bind().options(idempotency_key="x")}),
        (ConfigError, "both-payloads", {"every": 60, "task": report, "payload": 1}),
        (ConfigError, "payload", {"every": 60, "emits": "x", "payload": object()}),
        (ConfigError, "bound", {"every": 60, "task": report, "most_missed": 0}),
        (TypeError, "unbound", {"every": 60, "task": loose, "into": pool}),
    ]
    for kind, name, options in cases:
        with pytest.raises(kind):
            mp.cron(name, options.pop("expression", None), **options)
    # A refused declaration leaves its name free.
    for _, name, _options in cases[1:]:
        if " " not in name:
            mp.cron(name, every=60)


async def test_an_unreadable_firing_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Fleet()
    mp, report = fleet.process(work=False)
    async with mp:
        await internals_of(mp).runtime.declarations.declare(SPEC)
        broken = NewTask(
            id=7, pool=CRON, call=Call(CRON, b"{"), key="odd", run_at=wall() + 5_000, attempts=9
        )
        await internals_of(mp).runtime.store.submit((Batch(tasks=(broken,)),))
        with caplog.at_level(logging.WARNING, "millpond.cron"):
            await internals_of(mp.cron("fine", every=600, task=report)).arm()
            assert ["fine"] == [status.id for status in await mp.schedules()]
    assert "task 7" in caplog.text


def test_crontab_lines_need_an_extra_and_a_pace_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    mp = Millpond()
    mp.cron("often", every=60)
    with pytest.raises(DriverMissing, match=r"millpond\[cron\]"):
        mp.cron("daily", "@daily")


async def test_an_armed_schedule_is_not_unsettled_work() -> None:
    fleet = Fleet()
    mp, report = fleet.process()
    mp.cron("often", every=600, task=report)
    async with mp:
        assert [] == await mp.unsettled()
        await mp.get_pool("reports").drain()


def test_schedules_can_be_declared_and_paused_from_threads() -> None:
    mp = Millpond()
    pool = mp.pool("reports")
    done = []

    @pool.task
    def report() -> None:
        done.append(1)

    before = mp.sync.cron("before", every=3600, task=report)
    with mp.sync:
        after = mp.sync.cron("after", every=3600, task=report)
        assert {"before", "after"} == {status.id for status in mp.sync.schedules()}
        before.pause()
        status = before.status()
        assert status is not None
        assert status.paused
        before.resume()
        assert after.remove()
        assert ["before"] == [status.id for status in mp.sync.schedules()]


async def counted(mp: Millpond, name: str) -> int:
    """Return how many tasks of a pool wait or run."""
    return sum(task.pool == name for task in await mp.unsettled())


async def test_a_schedule_with_a_key_does_not_pile_up() -> None:
    """While its task waits or runs, a firing adds none; the schedule itself goes on."""
    fleet = Fleet()
    mp, report = fleet.process()
    call = report.bind().options(idempotency_key="report", dedupe="inflight")
    tick = mp.cron("tick", every=60, task=call)
    async with mp:
        await mp.get_pool("reports").pause()
        await asyncio.sleep(10 * 60 + 1)
        assert 1 == await counted(mp, "reports")
        status = await tick.status()
        assert status is not None
        assert 0 < status.next_at - wall() <= 60
        waiting = [task.id for task in await mp.unsettled() if task.pool == "reports"]
        assert waiting == await tick.fire()
        await mp.get_pool("reports").resume()
        await asyncio.sleep(2 * 60)
    assert 3 == len(fleet.done)


async def test_a_schedule_may_replace_the_task_that_waits() -> None:
    """With `replace` the task that waits is that of the last firing."""
    fleet = Fleet()
    mp, report = fleet.process()
    call = report.bind().options(idempotency_key="report", dedupe="replace")
    mp.cron("tick", every=60, task=call)
    async with mp:
        await mp.get_pool("reports").pause()
        await asyncio.sleep(10 * 60 + 1)
        assert 1 == await counted(mp, "reports")
        latest = shown((wall() // 60) * 60)
        await mp.get_pool("reports").resume()
        await asyncio.sleep(1)
    assert [latest] == fleet.done


async def test_a_schedule_fires_on_start_once_for_each_declaration() -> None:
    """The first of several processes fires; a restart does not, and a changed schedule does."""
    fleet = Fleet()
    for _ in range(2):
        for _ in range(2):
            mp, report = fleet.process()
            mp.cron("daily", "0 9 * * *", task=report, on_start=True)
            async with mp:
                await asyncio.sleep(5)
        assert 1 == len(fleet.done)
    mp, report = fleet.process()
    daily = mp.cron("daily", "0 10 * * *", task=report, on_start=True)
    async with mp:
        await asyncio.sleep(5)
        assert 2 == len(fleet.done)
        status = await daily.status()
        assert status is not None
        assert "10:00" in shown(status.next_at)


async def test_processes_that_start_at_once_fire_once() -> None:
    """The second declares it before the store has it from the first; a worker fires it once."""
    fleet = Fleet()
    both = [fleet.process(work=False, slow=0.5) for _ in range(2)]
    for mp, report in both:
        mp.cron("daily", "0 9 * * *", task=report, on_start=True)
    first = asyncio.create_task(both[0][0].open())
    await asyncio.sleep(0.1)  # before the store has what the first one declares
    await both[1][0].open()
    await first
    await asyncio.sleep(3_600)
    assert [] == fleet.done
    worker, report = fleet.process()
    worker.cron("daily", "0 9 * * *", task=report, on_start=True)
    async with worker:
        await asyncio.sleep(60)
        assert 1 == len(fleet.done)
        assert 1 == len(await worker.schedules())
    await asyncio.gather(*(mp.close() for mp, _ in both))


def test_a_schedule_starts_once_for_each_declaration() -> None:
    """Processes that declare it at once, at different moments, submit one task by its key."""

    def submitted(seconds: float, now: float, task: int) -> tuple[str | None, int]:
        declared = cron.Declaration(id="tick", timetable=Timetable(every=seconds), on_start=True)
        new = cron.starting_firing(declared, now, task)
        return new.idempotency_key, new.fingerprint

    assert submitted(60.0, 100.0, 1) == submitted(60.0, 100.5, 2)
    assert submitted(60.0, 100.0, 1) != submitted(90.0, 100.0, 1)


@pytest.mark.parametrize("options", [{"dedupe": "inflight"}, {"idempotency_key": "x"}])
async def test_a_key_that_would_stop_a_schedule_is_refused(options: dict[str, Any]) -> None:
    """A key that counts for ever lets a schedule fire once, and a mode needs a key."""
    mp, report = Fleet().process()
    with pytest.raises(ConfigError, match="dedupe"):
        mp.cron("tick", every=60, task=report.bind().options(**options))
