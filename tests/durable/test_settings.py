"""Settings outlive the process that made them, and reach the others that are there."""

import asyncio
from pathlib import Path

import pytest
from tests.pool.fleet import Fleet, until
from verify.servers.schemas import Schema

from millpond import ConfigConflict, Millpond, Pool, StaleRevision, fifo, priority

MILLPONDS: dict[Pool, Millpond] = {}
"""The Millpond of each pool that a test makes."""


def process(
    fleet: Fleet, ran: list[str], name: str, *, work: bool = True, **options: object
) -> Pool:
    """Return the pool of one process, whose tasks note which process ran them."""
    mp = fleet.millpond(work=work)
    options.setdefault("max_concurrent", 2)
    pool: Pool = mp.pool("jobs", **options)  # type: ignore[arg-type]

    @pool.task
    async def job(word: str) -> str:
        ran.append(f"{name} {word}")
        await asyncio.sleep(1)
        return word

    MILLPONDS[pool] = mp
    return pool


async def submit(pool: Pool, *words: str, key: str | None = None) -> list[int]:
    """Submit a job for each word; return their ids."""
    job = MILLPONDS[pool].tasks["job"]
    calls = [job.bind(word) if key is None else job.bind(word).options(key=key) for word in words]
    return [handle.id for handle in await pool.submit_many(calls)]


async def test_a_pause_holds_over_restarts_and_for_all_processes(place: Path | Schema) -> None:
    """Paused by one, paused for another, and for one that comes later; resumed by a third."""
    fleet = Fleet(place)
    ran: list[str] = []
    here, there = process(fleet, ran, "here"), process(fleet, ran, "there")
    async with MILLPONDS[here]:
        await here.pause()
    async with MILLPONDS[there]:
        await submit(there, "a")
        await asyncio.sleep(60)
        assert [] == ran
        assert (await there.snapshot()).paused
        operator = process(fleet, ran, "operator", work=False)
        async with MILLPONDS[operator]:
            await operator.resume()
        await asyncio.sleep(2.5)
        assert ["there a"] == ran
        assert not (await there.snapshot()).paused


async def test_a_key_is_paused_for_all_processes(place: Path | Schema) -> None:
    """Only that key, over a restart, until a process resumes it."""
    fleet = Fleet(place)
    ran: list[str] = []
    first, second = process(fleet, ran, "first"), process(fleet, ran, "second")
    async with MILLPONDS[first]:
        await first.pause(key="acme")
    async with MILLPONDS[second]:
        await submit(second, "held", key="acme")
        await submit(second, "free", key="bolt")
        await asyncio.sleep(30)
        assert ["second free"] == ran
        assert ("acme",) == (await second.snapshot()).paused_units
        other = process(fleet, ran, "other", work=False)
        async with MILLPONDS[other]:
            await other.resume(key="acme")
        await asyncio.sleep(2.5)
    assert ["second free", "second held"] == ran


async def test_a_new_limit_holds_over_restarts_until_it_is_reset(place: Path | Schema) -> None:
    """What an operator set wins over what the next process declares; None = as declared."""
    fleet = Fleet(place)
    ran: list[str] = []
    operator = process(fleet, ran, "operator", work=False)
    async with MILLPONDS[operator]:
        await operator.resize(max_concurrent=1)
    one, two = process(fleet, ran, "one"), process(fleet, ran, "two")
    async with MILLPONDS[one], MILLPONDS[two]:
        assert (1, 2) == await limits(one) == await limits(two)
        await submit(one, "a", "b", "c", "d")
        await asyncio.sleep(2.5)
        assert len(ran) <= 3
        await one.drain()
        async with MILLPONDS[operator]:
            await operator.resize(max_concurrent=None)
        assert (2, 2) == await limits(one) == await limits(two)


async def limits(pool: Pool) -> tuple[int, int]:
    """Return the limit in force, and the one that was declared."""
    snapshot = await pool.snapshot()
    return snapshot.max_concurrent, snapshot.config.max_concurrent


async def test_two_processes_together_keep_the_limit(place: Path | Schema) -> None:
    """Also when it is lowered while both of them run: by attrition, and then exactly."""
    fleet = Fleet(place)
    inside = 0
    most: list[int] = []

    def worker() -> Pool:
        mp = fleet.millpond(work=True)
        pool = mp.pool("jobs", max_concurrent=4)

        @pool.task
        async def job(word: str) -> None:
            nonlocal inside
            inside += 1
            most.append(inside)
            await asyncio.sleep(1.5)
            inside -= 1

        MILLPONDS[pool] = mp
        return pool

    one, two = worker(), worker()
    async with MILLPONDS[one], MILLPONDS[two]:
        await submit(one, *map(str, range(20)))
        await asyncio.sleep(3)
        assert 4 == max(most)
        await two.resize(max_concurrent=2)
        await asyncio.sleep(3)
        most.clear()
        await one.drain()
        assert 2 == max(most)


async def test_each_declaration_that_differs_is_a_revision(place: Path | Schema) -> None:
    """Of whichever process; one that says the same again is none."""
    fleet = Fleet(place)
    ran: list[str] = []
    revisions = []
    for limit in (2, 2, 3, 3, 2):
        pool = process(fleet, ran, "p", work=False, max_concurrent=limit)
        async with MILLPONDS[pool]:
            revisions.append((await pool.snapshot()).revision)
    assert [1, 1, 2, 2, 3] == revisions


async def test_a_decision_made_on_old_settings_is_refused(place: Path | Schema) -> None:
    """Two operators read the same revision: the second to write gets an error and reads again."""
    fleet = Fleet(place)
    ran: list[str] = []
    one, two = (process(fleet, ran, "p", work=False) for _ in range(2))
    async with MILLPONDS[one], MILLPONDS[two]:
        seen = (await one.snapshot()).revision
        assert seen == (await two.snapshot()).revision
        await one.resize(max_concurrent=5, revision=seen + 1)
        with pytest.raises(StaleRevision, match="read the settings again"):
            await two.resize(max_concurrent=9, revision=seen + 1)
        assert 5 == (await two.snapshot()).max_concurrent


async def test_the_order_of_a_queue_with_tasks_cannot_change(place: Path | Schema) -> None:
    """ConfigConflict names the field and both values; once the queue is empty it may."""
    fleet = Fleet(place)
    ran: list[str] = []
    before = process(fleet, ran, "before", work=False, queue=fifo())
    async with MILLPONDS[before]:
        await submit(before, "a")
    after = process(fleet, ran, "after", work=False, queue=priority())
    message = "queue of pool 'jobs' cannot change from .* to .* while 1 of its tasks wait or run"
    with pytest.raises(ConfigConflict, match=message) as caught:
        async with MILLPONDS[after]:
            pytest.fail("it was declared")
    assert ("queue", "fifo", "priority") == (
        caught.value.field,
        caught.value.stored,
        caught.value.declared,
    )
    async with MILLPONDS[before]:
        await before.drain()
    async with MILLPONDS[after]:
        assert "priority" == (await after.snapshot()).queue


async def test_a_closed_pool_stays_closed(place: Path | Schema) -> None:
    """For every process, and for good; what it holds is still done."""
    fleet = Fleet(place)
    ran: list[str] = []
    one = process(fleet, ran, "one", work=False)
    async with MILLPONDS[one]:
        await submit(one, "a")
        await one.close()
    two = process(fleet, ran, "two")
    async with MILLPONDS[two]:
        with pytest.raises(Exception, match="closed"):
            await submit(two, "b")
        await until(lambda: ended(two, 1))
    assert ["two a"] == ran


async def ended(pool: Pool, count: int) -> bool:
    """Return whether so many have completed."""
    return count == (await pool.snapshot()).completed


async def test_a_lane_is_paused_for_all_processes(place: Path | Schema) -> None:
    """And goes on in its order when another process resumes it."""
    fleet = Fleet(place)
    ran: list[int] = []

    def worker(*, work: bool) -> tuple[Millpond, Pool]:
        mp = fleet.millpond(work=work)
        pool = mp.pool("hooks", lanes=2)

        @pool.task
        async def send(number: int) -> None:
            ran.append(number)

        return mp, pool

    mp, pool = worker(work=False)
    async with mp:
        await pool.pause(lane="1")
        await pool.submit_many(mp.tasks["send"].each(range(6)))
    worker_mp, worked = worker(work=True)
    async with worker_mp:
        await asyncio.sleep(10)
        assert [0, 2, 4] == ran
        async with mp:
            await pool.resume(lane="1")
        await asyncio.sleep(2)
        assert [0, 2, 4, 1, 3, 5] == ran
        assert 0 == await worked.size()
