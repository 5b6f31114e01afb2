"""Retention: ended tasks are pruned in time, and their memory is freed."""

import asyncio
import gc
import logging
import weakref

import pytest
from tests.pool.stores import any_pace, rounds  # noqa: F401 - a fixture

from millpond import ConfigError, Keep, Millpond, Outcome, Retry, TaskCancelled, TaskFailed
from millpond.errors import IdempotencyConflict, UnknownTask
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.usefixtures("any_pace")


class Thing:
    """Something large that a closure returns or raises with."""


@pytest.mark.rows("DE-T06")
async def test_completed_and_failed_tasks_are_kept_for_their_own_time() -> None:
    """Each kind is forgotten when its time is over, within a minute, and is expired then."""
    mp = Millpond(keep=Keep(completed=100, failed=1000))
    pool = mp.pool("work", retry=Retry.never())

    @pool.task
    async def job(fail: bool) -> None:
        if fail:
            raise OSError

    async with mp:
        await asyncio.sleep(500)
        good, bad = await job.submit(False), await job.submit(True)
        await mp.wait([good, bad])
        ids = [good.id, bad.id]
        await asyncio.sleep(95)
        assert ["completed", "failed"] == await mp.status(ids)
        await asyncio.sleep(70)
        assert ["expired", "failed"] == await mp.status(ids)
        await asyncio.sleep(900)
        assert ["expired", "expired"] == await mp.status(ids)
        with pytest.raises(UnknownTask):
            await mp.handle(good.id)
        assert [] == await pool.tasks()


async def test_lifetime_totals_stay() -> None:
    """Snapshots count all tasks that ended, and how many of them are kept."""
    mp = Millpond(keep=Keep(completed=1, failed=1))
    pool = mp.pool("work", retry=Retry.never())

    @pool.task
    async def job(fail: bool) -> None:
        if fail:
            raise OSError

    async with mp:
        await mp.wait([await job.submit(n % 2 == 0) for n in range(10)])
        assert 10 == (await pool.snapshot()).kept
        await asyncio.sleep(130)
        snapshot = await pool.snapshot()
        assert (5, 5, 0) == (snapshot.completed, snapshot.failed, snapshot.kept)


async def test_keys_outlive_their_tasks() -> None:
    """A known key is a duplicate after payload and result are gone, until keys are forgotten."""
    mp = Millpond(keep=Keep(completed=10, keys=500))
    pool = mp.pool("work")
    runs = 0

    @pool.task
    async def job(number: int) -> int:
        nonlocal runs
        runs += 1
        return number

    async with mp:
        first = await job.options(idempotency_key="k").submit(1)
        await first
        await asyncio.sleep(200)
        assert ["expired"] == await mp.status([first.id])
        again = await job.options(idempotency_key="k").submit(1)
        assert (first.id, True, 1) == (again.id, again.duplicate, runs)
        with pytest.raises(IdempotencyConflict):
            await job.options(idempotency_key="k").submit(2)
        # Another task must end before maintenance runs again.
        await asyncio.sleep(500)
        await (await job.submit(5))
        await asyncio.sleep(130)
        await (await job.submit(5))
        await asyncio.sleep(130)
        fresh = await job.options(idempotency_key="k").submit(2)
        assert (2, False) == (await fresh, fresh.duplicate)


async def test_the_value_of_a_closure_is_freed() -> None:
    """It can be read until retention prunes the task; then nothing holds it."""
    mp = Millpond(keep=Keep(completed=50))
    pool = mp.pool("work")

    async def closure() -> Thing:
        return Thing()

    async with mp:
        handle = await pool.submit(closure)
        thing = await handle
        alive = weakref.ref(thing)
        identifier = handle.id
        del handle, thing
        gc.collect()
        assert alive() is not None
        assert alive() is await (await mp.handle(identifier))
        await asyncio.sleep(170)
        gc.collect()
        assert None is alive()


async def test_the_objects_of_a_closure_are_freed_when_it_has_ended() -> None:
    """The code and its closed-over objects are freed when the task ends, not by retention."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())

    def make() -> tuple[weakref.ref[Thing], weakref.ref[Thing]]:
        one, two = Thing(), Thing()

        async def good() -> None:
            assert one is not None

        async def waits() -> None:
            assert two is not None

        work.extend([good, waits])
        return weakref.ref(one), weakref.ref(two)

    work: list[object] = []
    ran, cancelled = make()
    async with mp:
        first = await pool.submit(work.pop(0))  # type: ignore[call-overload]
        await first
        await pool.pause()
        second = await pool.submit(work.pop(0))  # type: ignore[call-overload]
        await second.cancel()
        await second.wait()
        await rounds()
        gc.collect()
        assert (None, None) == (ran(), cancelled())


async def test_the_error_of_a_failed_task_is_freed(caplog: pytest.LogCaptureFixture) -> None:
    """The exception, with all that its frames hold, is freed with its task."""
    # Captured logs keep their records, and a record keeps its exception.
    caplog.set_level(logging.CRITICAL, logger="millpond.tasks")
    mp = Millpond(keep=Keep(failed=50))
    pool = mp.pool("work", retry=Retry.never())
    made: list[weakref.ref[Thing]] = []

    @pool.task
    async def job() -> None:
        thing = Thing()
        made.append(weakref.ref(thing))
        raise OSError("down")

    async with mp:
        handle = await job.submit()
        with pytest.raises(TaskFailed) as caught:
            await handle
        assert isinstance(caught.value.__cause__, OSError)
        del handle, caught
        await asyncio.sleep(170)
        gc.collect()
        assert None is made[0]()


async def test_a_million_ends_keep_no_more_than_is_to_be_kept() -> None:
    """With a short time to keep, the store and the process hold a bounded number of tasks."""
    mp = Millpond(keep=Keep(completed=0, failed=0, keys=0))
    pool = mp.pool("work", max_concurrent=100)

    @pool.task
    async def job() -> None:
        await asyncio.sleep(1)

    async def closure() -> int:
        return 7

    async with mp:
        for _ in range(20):
            await mp.wait(await pool.submit_many(job.bind() for _ in range(100)))
            await (await pool.submit(closure))
            await asyncio.sleep(60)
        kept = (await pool.snapshot()).kept
        assert 250 >= kept
        waiting = internals_of(mp).runtime.waiting
        assert (0, 250 >= len(waiting.values), {}) == (
            len(waiting._tasks),
            True,
            internals_of(mp).runtime.closures,
        )


async def test_callbacks_are_forgotten_like_any_task() -> None:
    """Their own queue is pruned with its pool."""
    mp = Millpond(keep=Keep(completed=10))
    pool = mp.pool("work")

    @mp.task
    async def note(outcome: Outcome) -> None: ...

    @pool.task
    async def job() -> None: ...

    async with mp:
        await (await job.options(on_complete=note.bind()).submit())
        await pool.drain()
        view = internals_of(mp).runtime.view
        assert 1 == len((await view.tasks("work~callbacks")).tasks)
        await asyncio.sleep(200)
        assert 0 == len((await view.tasks("work~callbacks")).tasks)


async def test_a_running_or_waiting_task_is_never_forgotten() -> None:
    """Retention prunes only ended tasks, however old the others are."""
    mp = Millpond(keep=Keep(completed=1, failed=1))
    pool = mp.pool("work", max_concurrent=1)

    @pool.task
    async def job() -> str:
        await asyncio.sleep(5000)
        return "done"

    @pool.task
    async def quick() -> None: ...

    async with mp:
        running, waiting = await job.submit(), await job.submit()
        other = mp.pool("other")
        for _ in range(20):
            await (await other.submit(quick))
            await asyncio.sleep(200)
        assert ["running", "queued"] == await mp.status([running.id, waiting.id])
        assert ["done", "done"] == [await running, await waiting]


@pytest.mark.parametrize("option", ["completed", "failed", "keys", "audit"])
async def test_a_bad_time_to_keep_is_refused_by_name(option: str) -> None:
    """Negative and not numbers are refused."""
    for bad in (-1, float("nan"), "soon"):
        with pytest.raises(ConfigError, match=option):
            Keep(**{option: bad})  # type: ignore[arg-type]


async def test_the_key_of_a_forgotten_task_still_has_its_status() -> None:
    """The handle of a duplicate has the status, and so has the error of awaiting it."""
    mp = Millpond(keep=Keep(completed=10, failed=10, keys=5000))
    pool = mp.pool("work")

    @pool.task
    async def job(number: int) -> int:
        return number

    async with mp:
        await pool.pause()
        first = await job.options(idempotency_key="k").submit(1)
        await pool.purge()
        await pool.resume()
        await asyncio.sleep(200)
        assert ["expired"] == await mp.status([first.id])
        again = await job.options(idempotency_key="k").submit(1)
        assert (first.id, "cancelled") == (again.id, again.status)
        with pytest.raises(TaskCancelled):
            await again
