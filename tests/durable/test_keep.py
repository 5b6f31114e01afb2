"""Retention belongs to the pool: another program on the same store cannot shorten it."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.pool.fleet import Fleet
from tests.pool.moments import result_of
from verify.servers.schemas import Schema

from millpond import Keep, Millpond, Retry, TaskFailed
from millpond.errors import ConfigConflict, UnknownTask

Place = Path | Schema

SHORT = Keep(completed=1.0, failed=1.0, keys=2.0, events=1.0, audit=1.0)


def application(
    fleet: Fleet, pool: str, *, keep: Keep | None = None, own: Keep | None = None
) -> Millpond:
    """Return an application with one pool, whose task fails for a negative number."""
    mp = fleet.millpond(work=True, keep=keep)

    @mp.pool(pool, retry=Retry.never(), keep=own).task
    async def job(number: int) -> int:
        if number < 0:
            raise ValueError(number)
        return number

    return mp


async def leave_some(mp: Millpond) -> tuple[int, int]:
    """Leave a dead letter and a key behind; return their tasks."""
    job = mp.tasks["job"]
    with pytest.raises(TaskFailed):
        await (dead := await job.submit(-1))
    done = await job.options(idempotency_key="once").submit(1)
    assert 1 == await result_of(done)
    return dead.id, done.id


@pytest.mark.rows("TR-09")
@pytest.mark.parametrize("own", [None, Keep(completed=300.0)], ids=["by default", "its own"])
async def test_a_leader_with_short_values_leaves_the_pools_of_others_alone(
    place: Place, own: Keep | None
) -> None:
    """Dead letters, keys and records stay as long as their own pool says, or by default."""
    fleet = Fleet(place)
    async with application(fleet, "first", own=own) as first:
        dead, done = await leave_some(first)
    async with application(fleet, "second", keep=SHORT) as second:
        gone = await (await second.tasks["job"].submit(1)).wait()
        await asyncio.sleep(150)
        assert ["expired", "failed", "completed"] == await second.status([gone.id, dead, done])
        await asyncio.sleep(400)
        assert ["failed", "expired" if own else "completed"] == await second.status([dead, done])
        assert [record async for record in second.audit() if record.task == dead]
    async with application(fleet, "first", own=own) as first:
        again = await first.tasks["job"].options(idempotency_key="once").submit(1)
        assert (True, done) == (again.duplicate, again.id)


@pytest.mark.rows("DE-T06")
async def test_a_completed_task_is_readable_for_as_long_as_it_is_kept(place: Place) -> None:
    """It is out of the queue at once; another process reads its result until its time is over."""
    fleet = Fleet(place)
    keep = Keep(completed=300.0)
    async with application(fleet, "jobs", own=keep) as first:
        done = await first.tasks["job"].submit(7)
        assert 7 == await result_of(done)
        assert 0 == await first.get_pool("jobs").size()
    await asyncio.sleep(100)
    async with application(fleet, "jobs", own=keep) as second:
        # It prunes once a minute.
        await asyncio.sleep(130)
        assert ["completed"] == await second.status([done.id])
        assert 7 == await (await second.handle(done.id, of=second.tasks["job"]))
        await asyncio.sleep(150)
        assert ["expired"] == await second.status([done.id])
        with pytest.raises(UnknownTask):
            await second.handle(done.id)


@pytest.mark.rows("TR-09")
async def test_a_declaration_that_would_forget_sooner_is_a_conflict(place: Place) -> None:
    """It names the field and both values; `shorten=True` says that it is meant."""
    fleet = Fleet(place)
    long, short = Keep(completed=9_000.0), Keep(completed=60.0)
    async with application(fleet, "jobs", keep=long) as first:
        await leave_some(first)
        assert long == (await first.get_pool("jobs").snapshot()).keep
        with pytest.raises(ConfigConflict, match="completed=9000") as conflict:
            async with application(fleet, "jobs", own=short):
                pass
        assert ("jobs", "keep") == (conflict.value.pool, conflict.value.field)
        async with application(fleet, "jobs") as other:
            assert long == (await other.get_pool("jobs").snapshot()).keep
        shortened = Keep(completed=60.0, shorten=True)
        async with application(fleet, "jobs", own=shortened) as other:
            assert short == (await other.get_pool("jobs").snapshot()).keep
        async with application(fleet, "jobs", own=short):
            pass
        async with application(fleet, "jobs", own=long) as other:
            assert long == (await other.get_pool("jobs").snapshot()).keep


@pytest.mark.rows("TR-09")
async def test_a_default_that_differs_from_what_is_stored_is_said_and_changes_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Millpond(keep=) is the default of pools that it creates."""
    fleet = Fleet(place)
    async with application(fleet, "jobs") as first:
        dead, _ = await leave_some(first)
    with caplog.at_level(logging.WARNING):
        async with application(fleet, "jobs", keep=SHORT) as second:
            await asyncio.sleep(300)
            assert ["failed"] == await second.status([dead])
            assert Keep() == (await second.get_pool("jobs").snapshot()).keep
    assert any("pool jobs is stored with keep=" in one.message for one in caplog.records)


@pytest.mark.rows("TR-09")
async def test_each_pool_of_one_program_is_kept_as_it_says(place: Place) -> None:
    """Two pools, two values; callbacks go with their pool."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True, keep=Keep(completed=100_000.0))
    brief, ample = mp.pool("brief", keep=Keep(completed=10.0)), mp.pool("ample")

    @mp.task
    async def job() -> None: ...

    async with mp:
        ids = [(await (await pool.submit(job.bind())).wait()).id for pool in (brief, ample)]
        await asyncio.sleep(200)
        assert ["expired", "completed"] == await mp.status(ids)


@pytest.mark.rows("TR-09")
async def test_a_replay_makes_no_second_task_in_a_pool_that_forgets_keys_soon(
    place: Place,
) -> None:
    """The keys of a pool that a trigger submits to stay for as long as events can be replayed."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True)
    pool = mp.pool("jobs", keep=SHORT)
    ran: list[int] = []

    @pool.task
    async def job(payload: dict[str, int]) -> None:
        ran.append(payload["number"])

    mp.trigger("t", on="happened", into=pool, task=job)
    async with mp:
        await mp.emit("happened", {"number": 1}, event_id="e1")
        await asyncio.sleep(500)
        assert [1] == ran
        task = await job.options(idempotency_key="own").submit({"number": 2})
        await asyncio.sleep(500)
        assert ["expired"] == await mp.status([task.id])
        emission = await mp.replay("happened", "e1")
        await asyncio.sleep(10)
        assert [1, 2] == ran
        (receipt,) = await emission.receipts()
        assert "duplicate" == receipt.outcome
