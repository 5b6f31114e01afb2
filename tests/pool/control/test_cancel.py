"""Cancel: tasks in each state and unknown ids; cooperative, or with an interrupt."""

import asyncio
import contextlib
from datetime import UTC, datetime

import pytest
from tests.pool.moments import result_of
from tests.pool.stores import any_pace, rounds  # noqa: F401 - a fixture

from millpond import ConfigError, Context, Keep, Millpond, Retry, TaskCancelled, TaskFailed
from millpond.core.task import Task, copied
from millpond.errors import UnknownTask
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.usefixtures("any_pace")


@pytest.mark.rows("CX-03", "CX-T04", "CX-T44", "CX-T75", "CX-T84")
async def test_a_queued_task_is_cancelled_at_once_and_never_starts() -> None:
    """A cancel ends a queued task at once."""
    mp = Millpond()
    pool = mp.pool("work")
    started: list[int] = []

    @pool.task
    async def job(number: int) -> None:
        started.append(number)

    async with mp:
        await pool.pause()
        handle = await job.submit(1)
        assert await handle.cancel()
        with pytest.raises(TaskCancelled) as caught:
            await handle
        assert ("cancelled", 0) == (caught.value.reason, caught.value.attempts)
        await pool.resume()
        await rounds()
        assert [] == started


@pytest.mark.rows("CX-T13", "CX-T76", "CX-T81", "CX-T45", "CX-T84", "CX-03")
async def test_a_cancelled_running_task_may_still_complete() -> None:
    """A cancel only sets ctx.cancelled; what the handler returns counts."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job(ctx: Context) -> str:
        assert not ctx.cancelled.is_set()
        await ctx.cancelled.wait()
        await asyncio.sleep(5)
        return "finished anyway"

    async with mp:
        handle = await job.submit()
        await rounds()
        assert await handle.cancel()
        await asyncio.sleep(1)
        assert "running" == (await handle.refresh()).status
        assert "finished anyway" == await handle
        assert "completed" == handle.status


async def stored(mp: Millpond, task: int) -> Task:
    """Return the record of a task in the store."""
    found = await internals_of(mp).runtime.env.view.task(task)
    assert found is not None
    return copied(found)


@pytest.mark.rows("CX-T79", "CX-T78")
async def test_no_turn_of_the_loop_touches_a_running_task_that_was_cancelled() -> None:
    """Other tasks start and end, leases are renewed: the task runs on, once, to its end."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2, retry=Retry.constant(0.0))
    runs: list[str] = []

    @pool.task
    async def job(name: str, seconds: float) -> str:
        runs.append(name)
        await asyncio.sleep(seconds)
        return name

    async with mp:
        plain, cancelled = await job.submit("plain", 100), await job.submit("cancelled", 100)
        await rounds()
        assert await cancelled.cancel()
        await pool.resize(3)
        runtime = internals_of(mp).runtime
        (worker,) = runtime.workers
        before, row = worker.turns, await stored(mp, cancelled.id)
        assert row.cancel_requested
        for number in range(20):
            await (await job.submit(f"other {number}", 1))
            worker.look_everywhere()
            await runtime.store.recover()
        assert 20 <= worker.turns - before
        assert row == await stored(mp, cancelled.id)
        assert ["running"] * 2 == await mp.status([plain.id, cancelled.id])
        assert ["plain", "cancelled"] == [await plain, await cancelled]
        assert [1, 1] == [plain.attempt, cancelled.attempt]
    assert [1, 1] == [runs.count(name) for name in ("plain", "cancelled")]


async def test_a_handler_that_checks_late_sees_an_early_cancel() -> None:
    """ctx.cancelled is also set for a handler that reads it only after the cancel."""
    mp = Millpond()
    pool = mp.pool("work")
    go = asyncio.Event()

    @pool.task
    async def job(ctx: Context) -> bool:
        await go.wait()
        return ctx.cancelled.is_set()

    async with mp:
        handle = await job.submit()
        await rounds()
        await handle.cancel()
        go.set()
        assert await handle


@pytest.mark.rows("CX-15", "CX-T19", "CX-T43", "CX-T77")
async def test_a_cancelled_task_that_fails_is_not_tried_again() -> None:
    """A failure after the cancel ends the task as cancelled, although attempts are left."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=5, initial=1.0))
    runs = 0

    @pool.task
    async def job(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        await ctx.cancelled.wait()
        raise OSError("gave up half way")

    async with mp:
        handle = await job.submit()
        await rounds()
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle
        await asyncio.sleep(100)
        assert 1 == runs


@pytest.mark.rows("CX-T91", "CX-T84", "CX-T12", "CX-T93")
async def test_a_task_cancelled_in_backoff_never_runs_again() -> None:
    """A task in backoff is queued, so the cancel ends it at once."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.constant(60.0))
    runs = 0

    @pool.task
    async def job() -> None:
        nonlocal runs
        runs += 1
        raise OSError("down")

    async with mp:
        handle = await job.submit()
        await asyncio.sleep(30)
        await handle.refresh()
        assert ("queued", 1) == (handle.status, handle.attempt)
        snapshot = await pool.snapshot()
        assert (0, 1, 1) == (snapshot.running, snapshot.queued, snapshot.scheduled)
        assert await handle.cancel()
        assert "cancelled" == (await handle.wait()).status
        await asyncio.sleep(1000)
        assert 1 == runs


@pytest.mark.rows("TRAP-16", "CX-T05", "CX-T85", "CX-T46", "CX-T92")
async def test_a_second_cancel_changes_nothing() -> None:
    """It returns False, like a cancel after the end, and leaves no audit record."""
    mp = Millpond()
    pool = mp.pool("work")
    go = asyncio.Event()

    @pool.task
    async def job() -> str:
        await go.wait()
        return "done"

    async def records() -> int:
        return len([record async for record in mp.audit(pool)])

    async with mp:
        running, waiting = await job.submit(), await job.submit()
        await rounds()
        assert [True, True] == [await waiting.cancel(), await running.cancel()]
        before = await records()
        assert [False, False] == [await waiting.cancel(), await running.cancel()]
        assert before == await records()
        go.set()
        assert "done" == await running
        assert not await running.cancel()
        assert not await running.cancel("interrupt")
        assert "completed" == (await running.refresh()).status
        assert 1 == (await pool.snapshot()).cancelled


@pytest.mark.rows("CX-T06", "CX-T09", "CX-24")
async def test_an_unknown_id_has_the_status_unknown() -> None:
    """A cancel of an unknown id raises; its status is unknown, not finished."""
    mp = Millpond()
    pool = mp.pool("work")
    async with mp:
        with pytest.raises(UnknownTask):
            await pool.cancel(4711)
        with pytest.raises(UnknownTask):
            await mp.cancel(4711)
        assert ["unknown"] == await mp.status([4711])


@pytest.mark.rows("CX-24", "CX-T10", "CX-T11")
async def test_status_distinguishes_every_state_of_a_task() -> None:
    """Queued, running, each end, expired and unknown are different answers."""
    mp = Millpond(keep=Keep(completed=10.0))
    pool = mp.pool("work", retry=Retry.never())

    @pool.task
    async def job(what: str) -> None:
        if what == "fail":
            raise OSError(what)
        if what == "wait":
            await asyncio.sleep(500)

    async with mp:
        old = await job.submit("pass")
        await old
        await asyncio.sleep(200)
        done, failed = await job.submit("pass"), await job.submit("fail")
        await mp.wait([done, failed])
        running = await job.submit("wait")
        await rounds()
        queued, cancelled = await job.submit("pass"), await job.submit("pass")
        await cancelled.cancel()
        ids = [h.id for h in (queued, running, done, failed, cancelled, old)]
        assert [
            "queued",
            "running",
            "completed",
            "failed",
            "cancelled",
            "expired",
            "unknown",
        ] == await mp.status([*ids, 1])
        assert not await old.cancel()


@pytest.mark.rows("CX-03")
async def test_interrupt_cancels_the_handler() -> None:
    """mode="interrupt" raises CancelledError inside; the task ends cancelled, its slot is free."""
    mp = Millpond()
    pool = mp.pool("work")
    cleaned: list[str] = []

    @pool.task
    async def job(name: str) -> str:
        try:
            await asyncio.sleep(1000 if name == "long" else 0)
        finally:
            cleaned.append(name)
        return name

    async with mp:
        handle = await job.submit("long")
        await rounds()
        assert await handle.cancel("interrupt")
        with pytest.raises(TaskCancelled):
            await handle
        assert ["long"] == cleaned
        assert "next" == await (await job.submit("next"))


@pytest.mark.parametrize("after", range(40))
async def test_an_interrupt_reaches_a_handler_at_any_point(after: int) -> None:
    """No cancel between the submit and the handler's first wait is lost."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job(name: str) -> str:
        await asyncio.sleep(1000 if name == "long" else 0)
        return name

    async with mp:
        # Once with a new slot and once with one that has worked before.
        for _ in range(2):
            handle = await job.submit("long")
            await rounds(after)
            assert await handle.cancel("interrupt")
            await handle.wait(timeout=10)
            assert "cancelled" == handle.status
            assert "next" == await asyncio.wait_for(result_of(await job.submit("next")), 10)


async def test_a_handler_that_swallows_the_interrupt_may_complete() -> None:
    """A handler that catches the CancelledError and returns has completed; the pool goes on."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
        return "still here"

    async with mp:
        handle = await stubborn.submit()
        await rounds()
        await handle.cancel("interrupt")
        assert "still here" == await handle
        again = await stubborn.submit()
        await rounds()
        await again.cancel("interrupt")
        assert "still here" == await again


async def test_cancelling_a_wait_does_not_cancel_the_task() -> None:
    """The task runs on."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job() -> str:
        await asyncio.sleep(10)
        return "done"

    async with mp:
        handle = await job.submit()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(result_of(handle), 1)
        with pytest.raises(TimeoutError):
            await handle.wait(timeout=1)
        assert "done" == await handle


@pytest.mark.rows("CX-T95", "CX-T89", "CX-T90")
async def test_settles_cancels_and_submits_in_one_loop_round_are_all_applied() -> None:
    """Two retries, a completion, a cancel and a submit each have their own effect."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=5, retry=Retry.constant(7.0, jitter=0.0))
    go = asyncio.Event()
    runs: dict[str, list[float]] = {}
    loop = asyncio.get_running_loop()

    @pool.task
    async def job(name: str) -> str:
        times = runs.setdefault(name, [])
        times.append(loop.time())
        await go.wait()
        if name.startswith("flaky") and len(times) == 1:
            raise OSError(name)
        return name

    async with mp:
        names = ["flaky 1", "flaky 2", "steady"]
        handles = [await job.submit(name) for name in names]
        await rounds()
        waiting = await job.options(delay=50).submit("never")
        began = loop.time()
        go.set()
        cancelled, young = await asyncio.gather(waiting.cancel(), job.submit("young"))
        assert cancelled
        assert [*names, "young"] == [await handle for handle in [*handles, young]]
        for name in ("flaky 1", "flaky 2"):
            assert [began, began + 7] == [pytest.approx(at, abs=0.01) for at in runs[name]]
        snapshot = await pool.snapshot()
        assert (4, 1, 0, 0) == (
            snapshot.completed,
            snapshot.cancelled,
            snapshot.running,
            snapshot.queued,
        )
        assert "never" not in runs


async def test_a_timeout_after_a_cancel_ends_it_cancelled() -> None:
    """A cancelled handler that then times out is cancelled, not retried."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=5))

    @pool.task(timeout=10)
    async def deaf() -> None:
        await asyncio.sleep(1000)

    async with mp:
        handle = await deaf.submit()
        await rounds()
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle


async def test_a_cancelled_error_from_the_handler_itself_is_a_failure() -> None:
    """Without a cancel, CancelledError is an error of the handler, and the task is retried."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=2, initial=1.0))
    runs = 0

    @pool.task
    async def job() -> None:
        nonlocal runs
        runs += 1
        raise asyncio.CancelledError("by myself")

    async with mp:
        with pytest.raises(TaskFailed) as caught:
            await (await job.submit())
        assert (2, 2) == (runs, caught.value.attempts)
        assert "CancelledError" in caught.value.error_type


async def test_a_task_of_any_pool_can_be_cancelled_by_its_id() -> None:
    """mp.cancel only sets ctx.cancelled of a running task; mode="interrupt" interrupts it."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2)

    @pool.task
    async def job(ctx: Context) -> str:
        await ctx.cancelled.wait()
        await asyncio.sleep(5)
        return "finished anyway"

    async with mp:
        signalled, stopped = await job.submit(), await job.submit()
        await rounds()
        assert await mp.cancel(signalled.id)
        assert await mp.cancel(stopped.id, mode="interrupt")
        assert ("completed", "cancelled") == (
            (await signalled.wait()).status,
            (await stopped.wait()).status,
        )
        with pytest.raises(ConfigError, match="mode"):
            await mp.cancel(signalled.id, mode="gently")  # type: ignore[arg-type]


async def test_cancel_all_takes_a_datetime() -> None:
    """It needs a time zone, as run_at does; tasks submitted later are kept."""
    mp = Millpond()
    pool = mp.pool("mail")

    @pool.task
    async def send() -> None: ...

    async with mp:
        await pool.pause()
        old = await send.submit()
        await asyncio.sleep(10)
        new = await send.submit()
        then = datetime.fromtimestamp(asyncio.get_running_loop().time() - 5, UTC)
        with pytest.raises(ConfigError, match="needs a time zone"):
            await pool.cancel_all(before=then.replace(tzinfo=None))
        assert 1 == await pool.cancel_all(before=then)
        assert ["cancelled", "queued"] == await mp.status([old.id, new.id])
