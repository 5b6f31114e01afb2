"""The wall clock is set an hour on or back, for one process or for all: what becomes of the work.

A store's time never goes back, and never stands still: after its wall clock was set back, a
process goes on from where it was. Whoever acts is carried along to the latest moment in the file,
so one clock that is set an hour on takes everybody with it: what waits is due up to an hour early,
and a worker that has not renewed since is taken for dead. Its tasks are run again, not lost.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.core import control as orders
from millpond.core.lease import LeaseAsk, Leased
from millpond.core.lifecycle import Status
from millpond.core.rate import Rate
from millpond.core.settle import Settled
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.store.clock import ForwardClock
from millpond.store.protocol import Batch
from millpond.store.sqlite import SqliteStore
from millpond.testing.conformance.lab import completed

HOUR, LEASE = 3600.0, 30.0


class Machine:
    """Time as it really passes, and the wall clock of everybody."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed = 1000.0
        self.ids = iter(range(1, 1000))

    def start(self, name: str) -> "Process":
        """Start a process, with a wall clock of its own."""
        return Process(self, name)


class Process:
    """A process on the file, with one worker."""

    def __init__(self, machine: Machine, name: str) -> None:
        self._machine, self.name, self.jump = machine, name, 0.0
        clock = ForwardClock(lambda: 1e9 + machine.passed + self.jump, lambda: machine.passed)
        self.store = SqliteStore(machine.path, durability="normal", clock=clock, inline=True)

    async def join(self) -> None:
        """Let its worker present itself."""
        await self.store.control(orders.Join(self.name, LEASE))

    async def put(self, *, delay: float = 0.0, pool: str = "p") -> int:
        """Submit a task."""
        new = NewTask(id=next(self._machine.ids), pool=pool, call=Call("work"), delay=delay)
        await self.store.submit([Batch(tasks=(new,))])
        return new.id

    async def lease(self, want: int = 9, pool: str = "p") -> list[Leased]:
        """Lease some tasks."""
        return list(
            (await self.store.lease(LeaseAsk(pool=pool, worker=self.name, want=want))).leased
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
    """The one who leads maintenance is set back."""
    one.jump = -HOUR


def other_back(_: Process, other: Process) -> None:
    """The one who works is set back."""
    other.jump = -HOUR


def all_back(one: Process, other: Process) -> None:
    """Both are."""
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
async def test_set_back_nobody_loses_a_lease_and_the_dead_are_found(
    machine: Machine, jump: Jump
) -> None:
    """Who renews keeps what it has; who does not is found out after its lease, not later."""
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
    """A process that starts with the wrong clock is carried along to the latest moment."""
    one, other = await started(machine)
    await one.put(delay=20.0)
    await closed(one, other)
    one, other = machine.start("one"), machine.start("other")
    jump(one, other)
    machine.passed += 10
    assert [] == await other.lease()
    machine.passed += 11
    assert 1 == len(await other.lease() or await one.lease())
    await closed(one, other)


async def test_set_on_for_one_everybody_is_carried_along(machine: Machine) -> None:
    """A worker that did not renew since is taken for dead: its task is run again, never lost.

    From then on leases, delays and renewals take as long as they should, also when the clock is
    put right again.
    """
    one, other = await started(machine)
    task, later = await one.put(), await one.put(delay=HOUR / 2)
    (leased,) = await other.lease()
    one.jump = HOUR
    assert await one.renew()
    assert 1 == (await one.store.recover()).moved
    assert not await other.renew()
    assert (Settled.STALE,) == (await other.store.settle([completed(leased)])).settled
    assert {task, later} == {again.fence.task for again in await one.lease()}
    await other.join()
    one.jump = 0.0
    delayed = await other.put(delay=10.0)
    for _ in range(4):
        machine.passed += 9.9
        assert await other.renew()
        assert await one.renew()
        assert 0 == (await one.store.recover()).moved
    assert [delayed] == [due.fence.task for due in await other.lease()]
    await closed(one, other)


async def test_set_on_a_worker_that_renews_first_keeps_its_leases(machine: Machine) -> None:
    """It is a race with whoever recovers: no time is lost by whoever wins it."""
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
