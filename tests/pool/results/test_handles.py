"""Handles: how a submitter reads and awaits its task."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from tests.pool.moments import result_of, rounds

from millpond import (
    Context,
    GiveUp,
    Keep,
    Millpond,
    Retry,
    TaskCancelled,
    TaskFailed,
    TaskRejected,
    bounded,
    fair_round_robin,
    fifo,
    lifo,
    priority,
)
from millpond.core.spec import Order
from millpond.errors import NotOpen, UnknownTask


async def test_a_handle_shows_the_submitted_task() -> None:
    """Everything known at submit is on the handle, without reading anything."""
    mp = Millpond()
    pool = mp.pool("fields")

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        await asyncio.sleep(50)
        first = await work.submit()
        handle = await pool.submit(
            work, priority=7, key="acme", labels={"colour": "red"}, submitted_by="ann"
        )
        assert isinstance(handle.id, int)
        assert first.id != handle.id
        assert ("fields", "session::fields") == (handle.pool, handle.pool_id)
        assert ("queued", "acme", {"colour": "red"}, 7, "ann") == (
            handle.status,
            handle.key,
            handle.labels,
            handle.priority,
            handle.submitted_by,
        )
        assert (50.0, 0, False) == (handle.submitted_at, handle.attempt, handle.duplicate)
        assert (None, None, None, None) == (
            handle.result,
            handle.error,
            handle.rejection_reason,
            handle.rejection_policy,
        )
        assert (1, 2) == (first.sequence, handle.sequence)
        assert repr(handle) == f"<handle {handle.id} of pool 'fields': queued>"


@pytest.mark.rows("DE-21")
async def test_queue_depth_is_how_many_wait_once_it_is_taken() -> None:
    """The first queued task has depth 1; running tasks do not count; a batch counts up."""
    mp = Millpond()
    pool = mp.pool("depth")

    @pool.task
    async def work() -> None:
        await asyncio.sleep(1)

    async with mp:
        await work.submit()
        await rounds()
        assert [1, 2] == [(await work.submit()).queue_depth, (await work.submit()).queue_depth]
        many = await pool.submit_many([work.bind(), work.bind()])
        assert [3, 4] == [handle.queue_depth for handle in many]


async def test_the_queue_depth_of_a_rejected_handle_is_that_of_the_full_queue() -> None:
    """The handle of a dropped task has the number of tasks that were queued."""
    mp = Millpond()
    pool = mp.pool("depth", backpressure=bounded(2, on_full="drop_newest"))

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        depths = [(await work.submit()).queue_depth for _ in range(4)]
    assert [1, 2, 2, 2] == depths


@pytest.mark.parametrize(
    ("order", "positions"),
    [
        (fifo(), [0, 1, 2]),
        (priority(), [None] * 3),
        (lifo(), [None] * 3),
        (fair_round_robin(), [None] * 3),
    ],
    ids=["fifo", "priority", "lifo", "fair"],
)
async def test_position_is_how_many_are_ahead_where_that_means_anything(
    order: Order, positions: list[int | None]
) -> None:
    """In a fifo pool it is the number of tasks ahead; other orders cannot know."""
    mp = Millpond()
    pool = mp.pool("position", queue=order)

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        assert positions == [(await work.submit()).position for _ in range(3)]


async def test_position_in_a_lane_counts_that_lane() -> None:
    """With lanes the position is the number ahead in the task's own lane."""
    mp = Millpond()
    pool = mp.pool("lanes", lanes=8)

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        handles = [await work.options(key=key).submit() for key in ("a", "b", "a", "a", "b")]
    by_lane: dict[str | None, list[int | None]] = {}
    for handle in handles:
        by_lane.setdefault(handle.lane, []).append(handle.position)
    assert all(found == list(range(len(found))) for found in by_lane.values())
    assert handles[0].lane == handles[2].lane is not None


async def test_a_handle_is_a_snapshot_until_it_is_refreshed() -> None:
    """A handle does not change by itself; refresh() reads the task again and returns the handle."""
    mp = Millpond()
    pool = mp.pool("refresh")

    @pool.task
    async def work() -> int:
        await asyncio.sleep(10)
        return 42

    async with mp:
        handle = await work.submit()
        await asyncio.sleep(1)
        assert ("queued", 0) == (handle.status, handle.attempt)
        assert handle is await handle.refresh()
        assert ("running", 1) == (handle.status, handle.attempt)
        await asyncio.sleep(10)
        assert "running" == handle.status
        await handle.refresh()
        assert ("completed", 42) == (handle.status, handle.result)


async def test_awaiting_a_handle_gives_the_result_any_number_of_times() -> None:
    """A handle can be awaited again, by many, before and after the end."""
    mp = Millpond()
    pool = mp.pool("await")

    @pool.task
    async def work() -> list[int]:
        await asyncio.sleep(1)
        return [1, 2, 3]

    async with mp:
        handle = await work.submit()
        got = await asyncio.gather(*(result_of(handle) for _ in range(5)))
        assert [[1, 2, 3]] * 5 == got
        assert [1, 2, 3] == await handle == handle.result


class Disk(Exception):
    """An error of the user's own."""


@pytest.mark.rows("HN-14")
async def test_a_failure_has_error_attempts_and_traceback() -> None:
    """TaskFailed has type, message, traceback text and attempts, and the original as its cause."""
    mp = Millpond()
    pool = mp.pool("fails", retry=Retry.constant(1.0, attempts=2))

    @pool.task
    async def work() -> None:
        raise Disk("full")

    async with mp:
        handle = await work.submit()
        with pytest.raises(TaskFailed, match="full") as caught:
            await handle
        error = caught.value
        assert ("fails", handle.id, 2) == (error.pool, error.task_id, error.attempts)
        assert error.error_type.endswith("Disk")
        assert "full" == error.error_message
        assert 'raise Disk("full")' in error.traceback_text
        assert isinstance(error.__cause__, Disk)
        assert "failed" == handle.status
        assert handle.error is not None
        assert "full" == handle.error.message
        assert handle.result is None


@pytest.mark.rows("HN-14")
async def test_a_failure_breaks_nothing_but_its_own_attempt() -> None:
    """Of ten tasks every second one raises; the others complete and the pool goes on."""
    mp = Millpond()
    pool = mp.pool("mixed", max_concurrent=3, retry=Retry.never())

    @pool.task
    async def work(n: int) -> int:
        if n % 2:
            raise SystemExit(n) if n % 3 else ValueError(n)
        return n

    async with mp:
        handles = await pool.submit_many(work.each(range(10)))
        ended = await mp.wait(handles)
        assert ["completed", "failed"] * 5 == [handle.status for handle in ended]
        assert 4 == await (await work.submit(4))


@pytest.mark.rows("HN-15")
async def test_wait_gives_a_terminal_snapshot_and_never_raises_for_the_outcome() -> None:
    """However a task ends, wait() returns the handle, and its status says how."""
    mp = Millpond()
    pool = mp.pool("wait", backpressure=bounded(1, on_full="drop_newest"))

    async def fine() -> str:
        return "fine"

    async def bad() -> None:
        raise GiveUp("bad")

    async with mp:
        completed = await pool.submit(fine)
        assert completed is await completed.wait()
        failed = await (await pool.submit(bad)).wait()
        await pool.pause()
        cancelled = await pool.submit(fine)
        rejected = await pool.submit(fine)
        await cancelled.cancel()
        ended = await mp.wait([completed, failed, cancelled, rejected])
        statuses = [handle.status for handle in ended]
        assert ["completed", "failed", "cancelled", "rejected"] == statuses
        assert "fine" == completed.result
        with pytest.raises(TaskCancelled) as caught:
            await cancelled
        assert "cancelled" == caught.value.reason
        with pytest.raises(TaskRejected):
            await rejected


@pytest.mark.rows("HN-15")
async def test_mp_wait_returns_handles_in_the_given_order() -> None:
    """Also when the tasks end in another order."""
    mp = Millpond()
    pool = mp.pool("order", max_concurrent=10)
    loop = asyncio.get_running_loop()

    @pool.task
    async def work(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    async with mp:
        handles = [await work.submit(n) for n in (3, 1, 2)]
        assert [3, 1, 2] == [handle.result for handle in await mp.wait(handles)]
        before = loop.time()
        assert handles[::-1] == await mp.wait(handles[::-1])
        assert before == loop.time()
        assert [] == await mp.wait([])


@pytest.mark.parametrize("limit", [5.0, timedelta(seconds=5)])
async def test_a_wait_may_have_a_limit(limit: Any) -> None:
    """The wait raises TimeoutError, and the task runs on."""
    mp = Millpond()
    pool = mp.pool("late", max_concurrent=2)

    @pool.task
    async def work() -> str:
        await asyncio.sleep(60)
        return "done"

    async with mp:
        handle = await work.submit()
        with pytest.raises(TimeoutError):
            await handle.wait(timeout=limit)
        with pytest.raises(TimeoutError):
            await mp.wait([handle, await work.submit()], timeout=limit)
        assert 10.0 == pytest.approx(asyncio.get_running_loop().time(), abs=0.01)
        assert "done" == await handle


async def test_as_completed_yields_handles_in_the_order_of_their_ends() -> None:
    """The quickest comes first; ended tasks come before the others."""
    mp = Millpond()
    pool = mp.pool("race", max_concurrent=10)

    @pool.task
    async def work(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    async with mp:
        handles = [await work.submit(n) for n in (5, 1, 9, 3)]
        await asyncio.sleep(2)
        assert [1, 3, 5, 9] == [handle.result async for handle in mp.as_completed(handles)]


async def test_leaving_as_completed_early_leaves_the_tasks_alone() -> None:
    """Breaking out of the loop ends the watch; the tasks run on."""
    mp = Millpond()
    pool = mp.pool("race", max_concurrent=10)

    @pool.task
    async def work(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    async with mp:
        handles = [await work.submit(n) for n in (1, 5)]
        watching = mp.as_completed(handles)
        async for handle in watching:
            assert 1 == handle.result
            break
        await watching.aclose()  # type: ignore[attr-defined]
        assert 5 == await handles[1]


async def test_cancelling_a_wait_does_not_cancel_the_task() -> None:
    """The task runs on."""
    mp = Millpond()
    pool = mp.pool("stays")

    @pool.task
    async def work() -> str:
        await asyncio.sleep(10)
        return "done"

    async with mp:
        handle = await work.submit()
        waits: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: result_of(handle),
            handle.wait,
            lambda: mp.wait([handle]),
        ]
        for wait in waits:
            awaiter = asyncio.create_task(wait())
            await asyncio.sleep(1)
            awaiter.cancel()
            await asyncio.wait([awaiter])
            assert awaiter.cancelled()
            assert ["running"] == await mp.status([handle.id])
        assert "done" == await handle


async def test_cancel_returns_whether_it_changed_anything() -> None:
    """A waiting task is cancelled at once and once; an ended one not at all."""
    mp = Millpond()
    pool = mp.pool("cancel")

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        handle = await work.submit()
        assert [True, False] == [await handle.cancel(), await handle.cancel()]
        assert ["cancelled"] == await mp.status([handle.id])
        await pool.resume()
        ended = await work.submit()
        await ended
        assert not await mp.cancel(ended.id)
        with pytest.raises(UnknownTask):
            await pool.cancel(12345)


async def test_mp_handle_returns_a_handle_for_an_id() -> None:
    """mp.handle(id) knows the pool, the state and how to read the result."""
    mp = Millpond()
    pool = mp.pool("back")

    @pool.task
    async def work(n: int) -> tuple[int, str]:
        return (n, "x")

    async with mp:
        await pool.pause()
        given = await work.options(key="k", priority=3, labels={"a": "b"}).submit(5)
        found = await mp.handle(given.id)
        assert (given.id, "back", "queued", "k", 3, {"a": "b"}) == (
            found.id,
            found.pool,
            found.status,
            found.key,
            found.priority,
            found.labels,
        )
        assert (given.sequence, given.submitted_at) == (found.sequence, found.submitted_at)
        await pool.resume()
        assert (5, "x") == await found
        typed = await mp.handle(given.id, of=work)
        assert ("completed", (5, "x")) == (typed.status, typed.result)


async def test_an_unknown_id_raises_unknown_task() -> None:
    """mp.handle of an id that the store does not know raises UnknownTask."""
    mp = Millpond()
    mp.pool("none")
    async with mp:
        with pytest.raises(UnknownTask, match="12345") as caught:
            await mp.handle(12345)
        assert 12345 == caught.value.task_id
        with pytest.raises(UnknownTask):
            await mp.why(12345)


async def test_status_distinguishes_every_state() -> None:
    """queued, running, each end, expired (forgotten) and unknown, in the order asked."""
    mp = Millpond(keep=Keep(completed=60.0))
    pool = mp.pool("states")

    async def fine() -> None: ...
    async def slow() -> None:
        await asyncio.sleep(1000)

    async def bad() -> None:
        raise GiveUp

    async with mp:
        forgotten = await pool.submit(fine)
        await asyncio.sleep(200)
        completed, failed = await pool.submit(fine), await pool.submit(bad)
        await mp.wait([completed, failed])
        running = await pool.submit(slow)
        await rounds()
        cancelled, queued = await pool.submit(fine), await pool.submit(fine)
        scheduled = await pool.submit(fine, delay=500)
        await cancelled.cancel()
        handles = [queued, scheduled, running, completed, failed, cancelled, forgotten]
        assert [
            "queued",
            "queued",
            "running",
            "completed",
            "failed",
            "cancelled",
            "expired",
            "unknown",
        ] == await mp.status([*(handle.id for handle in handles), 12345])
        assert "expired" == await mp.why(forgotten.id)


async def test_progress_is_yielded_until_the_end() -> None:
    """handle.progress() yields each report of the handler, then the iterator ends."""
    mp = Millpond()
    pool = mp.pool("steps")

    @pool.task
    async def work(ctx: Context) -> None:
        for step in range(1, 4):
            await asyncio.sleep(1)
            await ctx.progress(step / 4, f"step {step}")

    async with mp:
        handle = await work.submit()
        reports = [one async for one in handle.progress()]
    assert [(0.25, "step 1"), (0.5, "step 2"), (0.75, "step 3")] == reports


async def test_a_handle_of_a_redriven_task_gives_its_new_result() -> None:
    """After a redrive refresh() forgets the old end, and awaiting gives the new one."""
    mp = Millpond()
    pool = mp.pool("again", retry=Retry.never())
    runs: list[int] = []

    @pool.task
    async def work() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError
        return "better"

    async with mp:
        handle = await work.submit()
        with pytest.raises(TaskFailed):
            await handle
        await pool.redrive([handle])
        await handle.refresh()
        assert handle.error is None
        assert "better" == await handle


# Closing


async def test_closing_ends_every_wait_with_not_open() -> None:
    """Each wait raises NotOpen at once when the Millpond closes."""
    mp = Millpond()
    pool = mp.pool("closing", backpressure=bounded(1))

    @pool.task
    async def work() -> None:
        await asyncio.sleep(1000)

    async def iterate() -> None:
        async for _ in mp.as_completed([queued]):
            pytest.fail("it cannot have ended")

    async def watch() -> None:
        async for _ in queued.progress():
            pytest.fail("there was no report")

    await mp.__aenter__()
    running = await work.submit()
    await rounds()
    queued = await work.submit()
    waiters = [
        asyncio.create_task(one)
        for one in (
            result_of(running),
            result_of(queued),
            queued.wait(),
            mp.wait([running, queued]),
            iterate(),
            work.submit(),
            pool.drain(),
            pool.drain([work.bind()]),
        )
    ]
    watcher = asyncio.create_task(watch())
    await asyncio.sleep(1)
    assert not any(waiter.done() for waiter in waiters)
    loop = asyncio.get_running_loop()
    before = loop.time()
    await mp.__aexit__(None, None, None)
    await asyncio.wait([*waiters, watcher], timeout=0.5)
    assert ["NotOpen"] * len(waiters) == [_ended_with(waiter) for waiter in waiters]
    assert watcher.done()
    assert before == loop.time()


def _ended_with(task: asyncio.Task[Any]) -> str:
    if not task.done():
        task.cancel()
        return "hangs"
    error = task.exception()
    return "nothing" if error is None else type(error).__name__


async def test_known_results_stay_readable_after_closing() -> None:
    """A handle that has read its result keeps it; any other raises NotOpen."""
    mp = Millpond()
    pool = mp.pool("known", backpressure=bounded(2, on_full="drop_newest"))

    @pool.task
    async def work() -> int:
        return 1

    async with mp:
        seen, unseen = await work.submit(), await work.submit()
        await seen
        await pool.pause()
        left, _, rejected = [await work.submit() for _ in range(3)]
    assert 1 == await seen == seen.result
    assert rejected is await rejected.wait()
    for handle in (unseen, left):
        with pytest.raises(NotOpen):
            await handle
    with pytest.raises(NotOpen):
        await seen.refresh()


@pytest.mark.rows("HN-18")
async def test_a_handle_of_an_earlier_opening_is_unknown_and_does_not_hang() -> None:
    """Memory ends with its opening: the next one does not know the task, and says so."""
    mp = Millpond()
    pool = mp.pool("forgets")

    @pool.task
    async def work() -> int:
        return 1

    async with mp:
        await pool.pause()
        handle = await work.submit()
    async with mp:
        assert ["unknown"] == await mp.status([handle.id])
        assert 0 == await pool.size()
        with pytest.raises(UnknownTask):
            await asyncio.wait_for(handle.wait(), 10)
        with pytest.raises(UnknownTask):
            await handle.refresh()
