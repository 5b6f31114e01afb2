"""Workers while the wall clock is set an hour forward or back, for one process or for all.

A store's time never stands still: after the wall clock was set back, it goes on from where it was.
If the clock stays there, the store goes back to it, and moves the times stored meanwhile along. The
store follows a clock that is set forward only after it has stayed there: no lease is lost, no task
is due early and none is removed early.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status
from millpond.core.rate import Rate
from millpond.core.settle import Settled
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.store.clock import ForwardClock
from millpond.store.protocol import Batch
from millpond.store.sqlite import SqliteStore
from millpond.testing.conformance.lab import completed

HOUR, DAY, LEASE = 3600.0, 86_400.0, 30.0


class Machine:
    """The real time, and the wall clock of all processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed = 1000.0
        self.ids = iter(range(1, 1000))

    @property
    def wall(self) -> float:
        """Return the time of a clock without jumps."""
        return 1e9 + self.passed

    def start(self, name: str) -> "Process":
        """Start a process, with a wall clock of its own."""
        return Process(self, name)


class Process:
    """A process on the file, with one worker."""

    def __init__(self, machine: Machine, name: str) -> None:
        self._machine, self.name, self.jump = machine, name, 0.0
        clock = ForwardClock(lambda: machine.wall + self.jump, lambda: machine.passed)
        self.store = SqliteStore(machine.path, durability="normal", clock=clock, inline=True)

    async def join(self) -> None:
        """Let its worker present itself."""
        await self.store.control(orders.Register(self.name, LEASE))

    async def put(self, *, delay: float = 0.0, pool: str = "p") -> int:
        """Submit a task."""
        new = NewTask(id=next(self._machine.ids), pool=pool, call=Call("work"), delay=delay)
        await self.store.submit([Batch(tasks=(new,))])
        return new.id

    async def lease(self, want: int = 9, pool: str = "p") -> list[Leased]:
        """Lease some tasks."""
        return list(
            (await self.store.lease(LeaseRequest(pool=pool, worker=self.name, want=want))).leased
        )

    async def renew(self) -> bool:
        """Say that its worker lives."""
        return (await self.store.renew(self.name, LEASE)).alive

    async def status(self, task: int) -> Status:
        """Return where a task is."""
        found = await self.store.view.task(task)
        assert found is not None
        return found.status


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with a file."""
    return Machine(tmp_path / "work.db")


Jump = Callable[[Process, Process], None]


def one_back(one: Process, _: Process) -> None:
    """Set the clock of the maintenance leader back."""
    one.jump = -HOUR


def other_back(_: Process, other: Process) -> None:
    """Set the clock of the worker back."""
    other.jump = -HOUR


def all_back(one: Process, other: Process) -> None:
    """Set both clocks back."""
    one.jump = other.jump = -HOUR


BACK = pytest.mark.parametrize("jump", [one_back, other_back, all_back])


async def started(machine: Machine) -> tuple[Process, Process]:
    """Return two processes whose clocks agree, and a pool."""
    one, other = machine.start("one"), machine.start("other")
    spec = PoolSpec(name="p", max_concurrent=9)
    await one.store.control(orders.Declare(spec))
    slow = PoolSpec(name="slow", max_concurrent=9, rates=(Rate(1, per=10),))
    await one.store.control(orders.Declare(slow))
    await one.join()
    await other.join()
    return one, other


async def closed(*processes: Process) -> None:
    """Close their stores."""
    for process in processes:
        await process.store.close()


@BACK
async def test_a_clock_set_back_loses_no_lease_and_dead_workers_are_found(
    machine: Machine, jump: Jump
) -> None:
    """A worker that renews keeps its tasks; a dead one is found after its lease, not later."""
    one, other = await started(machine)
    task = await one.put()
    (leased,) = await other.lease()
    jump(one, other)
    for _ in range(12):
        machine.passed += 10
        assert await other.renew()
        assert await one.renew()
        assert 0 == (await one.store.recover()).moved
    assert Status.RUNNING == await one.status(task)
    machine.passed += LEASE + 1
    assert await one.renew()
    assert 1 == (await one.store.recover()).moved
    assert Status.QUEUED == await one.status(task)
    assert (Settled.STALE,) == (await other.store.settle([completed(leased)])).settled
    await closed(one, other)


@BACK
async def test_set_back_delays_and_rates_take_as_long_as_they_should(
    machine: Machine, jump: Jump
) -> None:
    """Neither is anything due an hour later."""
    one, other = await started(machine)
    task = await one.put(delay=20.0)
    for _ in range(3):
        await one.put(pool="slow")
    assert 1 == len(await other.lease(pool="slow"))
    jump(one, other)
    machine.passed += 9
    assert [] == await other.lease()
    assert [] == await other.lease(pool="slow")
    machine.passed += 1.5
    assert 1 == len(await other.lease(pool="slow"))
    assert [] == await other.lease()
    machine.passed += 10
    assert [task] == [leased.fence.task for leased in await other.lease()]
    await closed(one, other)


@BACK
async def test_set_back_and_restarted_time_goes_on(machine: Machine, jump: Jump) -> None:
    """A process that starts with the wrong clock is carried along to the latest moment.

    How much time has passed while there was none it cannot know.
    """
    one, other = await started(machine)
    await one.put(delay=20.0)
    await closed(one, other)
    one, other = machine.start("one"), machine.start("other")
    jump(one, other)
    machine.passed += 10
    assert [] == await other.lease()
    machine.passed += 20.5
    assert 1 == len(await other.lease() or await one.lease())
    await closed(one, other)


@pytest.mark.rows("TR-08")
@pytest.mark.parametrize("jump", [HOUR, 400 * DAY])
async def test_set_forward_for_one_nothing_is_lost_due_or_removed_early(
    machine: Machine, jump: float
) -> None:
    """The store's time goes on unchanged, also when the clock is set back to the right time."""
    one, other = await started(machine)
    task, later = await one.put(), await one.put(delay=HOUR / 2)
    (leased,) = await other.lease()
    one.jump = jump
    assert await one.renew()
    assert 0 == (await one.store.recover()).moved
    assert [] == await one.lease()
    assert await other.renew()
    assert (Settled.APPLIED,) == (await other.store.settle([completed(leased)])).settled
    now = one.store._clock()
    assert 0 == (await one.store.control(orders.Prune("p", now - HOUR, now - HOUR))).count
    one.jump = 0.0
    for _ in range(4):
        machine.passed += 9.9
        assert await other.renew()
        assert await one.renew()
        assert 0 == (await one.store.recover()).moved
    assert Status.COMPLETED == await one.status(task)
    machine.passed += HOUR / 2 - 45
    assert [] == await other.lease()
    machine.passed += 6
    assert [later] == [due.fence.task for due in await other.lease()]
    await closed(one, other)


@pytest.mark.rows("TR-08")
async def test_set_forward_for_all_a_clock_that_stays_there_is_followed_and_no_lease_is_lost(
    machine: Machine,
) -> None:
    """After a minute, or a hundredth of the jump, it counts as right; renewed leases stay."""
    one, other = await started(machine)
    task, later = await one.put(), await one.put(delay=HOUR / 2)
    (leased,) = await other.lease()
    one.jump = other.jump = HOUR
    for _ in range(7):
        assert [] == await other.lease()
        machine.passed += 9
        assert await other.renew()
        assert await one.renew()
        assert 0 == (await one.store.recover()).moved
    assert [later] == [due.fence.task for due in await other.lease()]
    assert abs(machine.wall + HOUR - one.store._clock()) < 1
    assert (Settled.APPLIED,) == (await other.store.settle([completed(leased)])).settled
    assert Status.COMPLETED == await one.status(task)
    await closed(one, other)


@pytest.mark.rows("TR-08")
async def test_a_store_that_stood_idle_takes_the_clock_at_its_word_but_not_for_retention(
    machine: Machine,
) -> None:
    """On Monday it runs the tasks due on Sunday at once; retention waits an hour."""
    one = machine.start("one")
    await one.store.control(orders.Declare(PoolSpec(name="p", max_concurrent=9)))
    await one.join()
    await one.put()
    (leased,) = await one.lease()
    await one.store.settle([completed(leased)])
    later = await one.put(delay=2 * DAY)
    await closed(one)
    machine.passed += 3 * DAY
    one = machine.start("one")
    await one.join()
    assert [later] == [due.fence.task for due in await one.lease()]

    async def pruned() -> int:
        old = machine.wall - HOUR
        return (await one.store.control(orders.Prune("p", old, old))).count

    assert 0 == await pruned()
    machine.passed += HOUR
    await one.renew()
    assert 1 == await pruned()
    await closed(one)


@pytest.mark.rows("TR-08")
async def test_a_store_that_was_wrong_by_400_days_finds_back_to_real_time(machine: Machine) -> None:
    """It moves the times stored meanwhile along: delays, leases and rates keep their length."""
    one = machine.start("one")
    one.jump = 400 * DAY
    await one.store.control(orders.Declare(PoolSpec(name="p", max_concurrent=9)))
    slow = PoolSpec(name="slow", max_concurrent=9, rates=(Rate(1, per=1000),))
    await one.store.control(orders.Declare(slow))
    await one.join()
    task, later = await one.put(), await one.put(delay=1000.0)
    await one.put(pool="slow")
    await one.put(pool="slow")
    (leased,) = await one.lease()
    assert 1 == len(await one.lease(pool="slow"))
    one.jump = 0.0
    for _ in range(8):
        machine.passed += 10
        assert await one.renew()
        assert 0 == (await one.store.recover()).moved
    assert abs(machine.wall - one.store._clock()) < 1
    assert () == await one.store.repair()
    found = await one.store.view.task(task)
    assert found is not None
    assert abs(machine.wall - 80 - found.submitted_at) < 2
    assert (Settled.APPLIED,) == (await one.store.settle([completed(leased)])).settled
    assert [] == await one.lease()
    assert [] == await one.lease(pool="slow")
    for _ in range(95):
        machine.passed += 10
        assert await one.renew()
    assert [later] == [due.fence.task for due in await one.lease()]
    assert 1 == len(await one.lease(pool="slow"))
    await closed(one)


@pytest.mark.rows("TR-08")
async def test_stepping_back_keeps_rates_of_keys_holds_and_moments_of_the_calendar(
    machine: Machine,
) -> None:
    """A key's rate lasts as long as it should, a hold that is over is over, run_at stays run_at."""
    one = machine.start("one")
    one.jump = 400 * DAY
    keyed = PoolSpec(name="keyed", max_concurrent=9, rate_per_key=Rate(1, per=1000))
    await one.store.control(orders.Declare(keyed))
    await one.store.control(orders.Declare(PoolSpec(name="p", max_concurrent=9)))
    await one.store.control(orders.Declare(PoolSpec(name="~cron", max_concurrent=9)))
    await one.join()
    wrong = machine.wall + one.jump

    async def put(pool: str = "p", **options: Any) -> int:
        new = NewTask(id=next(machine.ids), pool=pool, call=Call("work"), **options)
        await one.store.submit([Batch(tasks=(new,))])
        return new.id

    for _ in range(2):
        await put("keyed", key="k")
    assert 1 == len(await one.lease(pool="keyed"))
    soon, far = await put(run_at=wrong + 500), await put(run_at=wrong + 500 * DAY)
    firing = await put("~cron", run_at=wrong + DAY)
    assert [] == await one.lease(pool="~cron")
    one.jump = 0.0
    for _ in range(8):
        machine.passed += 10
        assert await one.renew()
    assert abs(machine.wall - one.store._clock()) < 1
    assert () == await one.store.repair()
    assert [firing] == [found.fence.task for found in await one.lease(pool="~cron")]
    assert [] == await one.lease(pool="keyed")
    assert [] == await one.lease()
    for _ in range(43):
        machine.passed += 10
        assert await one.renew()
    assert [soon] == [found.fence.task for found in await one.lease()]
    for _ in range(51):
        machine.passed += 10
        assert await one.renew()
    assert 1 == len(await one.lease(pool="keyed"))
    connection = sqlite3.connect(machine.path)
    assert [(wrong + 500 * DAY,)] == connection.execute(
        "SELECT due FROM millpond_live WHERE id = ?", [far]
    ).fetchall()
    connection.close()
    await closed(one)


@pytest.mark.rows("TR-08")
async def test_two_clocks_that_take_turns_are_logged_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Each verb of the one is a jump for the other: that is one thing to know, and not many."""
    one, other = await started(machine)
    one.jump = 400 * DAY
    for _ in range(20):
        machine.passed += 1
        assert await one.renew()
        assert await other.renew()
    warned = [line for line in caplog.messages if "clock" in line]
    assert 1 <= len(warned) <= 4, warned
    await closed(one, other)


async def test_set_on_a_worker_that_renews_first_keeps_its_leases(machine: Machine) -> None:
    """It races with the worker that recovers; no lease loses time, whichever is first."""
    one, other = await started(machine)
    task = await one.put()
    (leased,) = await other.lease()
    one.jump = other.jump = HOUR
    assert await other.renew()
    await one.store.recover()
    assert (Settled.APPLIED,) == (await other.store.settle([completed(leased)])).settled
    assert Status.COMPLETED == await one.status(task)
    await closed(one, other)


async def test_retention_counts_from_the_latest_moment(machine: Machine) -> None:
    """Set back, what has just ended is not removed too early; it goes when its time has passed."""
    one, other = await started(machine)
    one.jump = other.jump = -HOUR
    task = await one.put()
    (leased,) = await other.lease()
    await other.store.settle([completed(leased)])
    found = await one.store.view.task(task)
    assert found is not None
    assert found.finished_at is not None
    before = orders.Prune("p", found.finished_at, found.finished_at)
    assert 0 == (await one.store.control(before)).count
    machine.passed += 1
    again = await one.put()
    (leased,) = await other.lease()
    await other.store.settle([completed(leased)])
    ended = await one.store.view.task(again)
    assert ended is not None
    assert ended.finished_at is not None
    assert 0.9 < ended.finished_at - found.finished_at < 1.1
    await closed(one, other)
