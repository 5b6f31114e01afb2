"""Leases of a fleet: a worker that renews keeps its tasks, and another loses them in time."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.pool.fleet import Fleet, until
from tests.pool.moments import clock, rounds
from verify.servers.schemas import Schema

from millpond import Context, Millpond, Pool, Retry

Place = Path | Schema

LEASE = 10.0
POLL = 1.0
"""Seconds between two polls of a process that gets no hints."""


class Works:
    """The same program in several processes; it notes which of them started a task, and when."""

    def __init__(self, place: Place, **options: object) -> None:
        self.fleet = Fleet(place)
        self.starts: list[tuple[str, int, float]] = []
        self.at_work: Counter[str] = Counter()
        self.most = 0
        self._options = {"retry": Retry.constant(0.0), **options}

    def process(self, name: str) -> Millpond:
        """Return one more process."""
        mp = self.fleet.millpond(work=True, lease=LEASE)
        pool = mp.pool("jobs", **self._options)  # type: ignore[arg-type]

        @pool.task
        async def job(ctx: Context, seconds: float) -> str:
            self.starts.append((name, ctx.attempt, clock()))
            self.at_work[name] += 1
            self.most = max(self.most, self.at_work.total())
            try:
                await asyncio.sleep(seconds)
            finally:
                self.at_work[name] -= 1
            return name

        return mp

    @property
    def ran(self) -> list[tuple[str, int]]:
        """Return which process ran the task, and as which attempt."""
        return [(name, attempt) for name, attempt, _ in self.starts]


@pytest.mark.rows("CX-20", "DE-T27", "DE-R16", "DP-09")
async def test_a_lease_that_is_renewed_is_left_alone_and_one_that_is_not_is_lost(
    place: Place,
) -> None:
    """One runs for four leases in peace; what a dead one held runs elsewhere when its lease ends.

    Only the lease decides: no worker can know of the dead process in another way.
    """
    works = Works(place, max_concurrent=3)
    dead, slow, idle = (works.process(name) for name in ("dead", "slow", "idle"))
    await dead.__aenter__()
    lost = await dead.tasks["job"].submit(3600.0)
    await rounds()
    await works.fleet.crash(dead, found_dead=False)
    died = clock()
    async with slow:
        kept = await slow.tasks["job"].submit(4 * LEASE)
        await rounds()
        async with idle:
            await until(lambda: has_started(works, 3), within=2 * LEASE)
            assert LEASE - POLL <= works.starts[2][2] - died <= LEASE + POLL
            assert "slow" == await kept
        assert [("dead", 1), ("slow", 1)] == works.ran[:2]
        assert (3, 2) == (len(works.starts), works.ran[2][1])
        there = await slow.handle(lost.id)
        await there.cancel("interrupt")
    assert (1, 2) == (kept.attempt, there.attempt)


async def has_started(works: Works, count: int) -> bool:
    """Return whether so many attempts have started."""
    return len(works.starts) >= count


@pytest.mark.rows("CX-T55", "CX-T62")
async def test_recovery_moves_on_from_one_lease_to_the_next(place: Place) -> None:
    """Three processes died at different times; the survivor finds each when its lease expires."""
    works = Works(place, max_concurrent=9)
    opened: list[float] = []
    for name in ("one", "two", "three"):
        mp = works.process(name)
        await mp.__aenter__()
        opened.append(clock())
        await mp.tasks["job"].submit(3600.0)
        await rounds()
        await works.fleet.crash(mp, found_dead=False)
        await asyncio.sleep(3.0)
    async with works.process("survivor"):
        await until(lambda: has_started(works, 6), within=3 * LEASE)
    assert [("one", 1), ("two", 1), ("three", 1)] + [("survivor", 2)] * 3 == works.ran
    for began, (_, _, at) in zip(opened, works.starts[3:], strict=True):
        assert LEASE <= at - began <= LEASE + POLL


@pytest.mark.rows("HN-01")
@pytest.mark.parametrize("found_dead", [True, False], ids=["found dead", "by its lease"])
async def test_max_concurrent_is_one_budget_for_every_process(
    place: Place, *, found_dead: bool
) -> None:
    """Three processes, each with its own connection and slots for all: never more run than may.

    One of them dies at work. What it held counts until it is found dead or its lease expires, and
    is then free.
    """
    works = Works(place, max_concurrent=4)
    processes = [works.process(name) for name in ("one", "two", "three")]
    for mp in processes:
        await mp.__aenter__()
    pools = [mp.get_pool("jobs") for mp in processes]
    for mp in (*processes, processes[0]):
        # A process gets hints of its own submits at once, so each of them is at work.
        await mp.tasks["job"].submit(2.0)
        await rounds()
    for mp, pool in zip(processes, pools, strict=True):
        await pool.submit_many(mp.tasks["job"].each([2.0] * 8))
    await until(lambda: has_started(works, 14))
    assert {"one": 2, "two": 1, "three": 1} == works.at_work
    assert 4 == works.most
    held, works.most = works.at_work["one"], 0
    assert held
    await works.fleet.crash(processes[0], found_dead=found_dead)
    # It renewed a third of a lease ago at the most.
    await asyncio.sleep(LEASE / 2)
    assert 4 - (0 if found_dead else held) == works.most
    await until(lambda: is_idle(pools[1]), within=120)
    assert 4 == works.most
    assert 28 == (await pools[1].snapshot()).completed
    for mp in processes[1:]:
        await mp.__aexit__(None, None, None)


async def is_idle(pool: Pool) -> bool:
    """Return whether nothing of a pool waits or runs."""
    return 0 == await pool.size()
