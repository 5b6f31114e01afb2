"""Batch tasks: several tasks in one call, each settled on its own."""

import asyncio
from typing import Any

import pytest
from tests.pool.stores import Opened, any_pace, rounds  # noqa: F401 - a fixture

from millpond import (
    ConfigError,
    Context,
    Failed,
    GiveUp,
    Millpond,
    Retry,
    TaskCancelled,
    TaskFailed,
)
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.protocol import Batch

pytestmark = pytest.mark.usefixtures("any_pace")


class Press:
    """A pool with a batch task that notes the calls it got."""

    def __init__(self, size: int = 3, linger: float = 0.5, **options: Any) -> None:
        self.mp = Millpond()
        self.pool = self.mp.pool("work", max_concurrent=options.pop("max_concurrent", 100))
        self.calls: list[list[int]] = []
        self.times: list[float] = []
        loop = asyncio.get_running_loop()

        @self.pool.batch_task(size=size, linger=linger, **options)
        async def double(numbers: list[int]) -> list[int | Failed]:
            self.calls.append(numbers)
            self.times.append(loop.time())
            await asyncio.sleep(1)
            return [Failed("odd one out") if n == 13 else n * 2 for n in numbers]

        self.double = double


@pytest.mark.rows("DE-R19", "DE-R20")
async def test_a_full_batch_goes_at_once_and_the_rest_after_the_linger() -> None:
    """A batch gathers up to size items; its first item waits at most linger."""
    press = Press(size=3, linger=0.5)
    async with press.mp:
        handles = await press.pool.submit_many(press.double.each(range(7)))
        assert [0, 2, 4, 6, 8, 10, 12] == [await handle for handle in handles]
    assert [[0, 1, 2], [3, 4, 5], [6]] == press.calls
    assert [0, 0, 0.5] == [pytest.approx(at - press.times[0], abs=0.01) for at in press.times]


async def test_one_item_alone_is_a_batch() -> None:
    """A single task is run after the linger, and settled."""
    press = Press(size=64)
    async with press.mp:
        assert 42 == await asyncio.wait_for(_result(press, 21), 5)
    assert [[21]] == press.calls


async def test_a_size_of_one_runs_each_alone() -> None:
    """size=1 is allowed and does not linger."""
    press = Press(size=1, linger=100)
    async with press.mp:
        assert [2, 4] == [await asyncio.wait_for(_result(press, n), 5) for n in (1, 2)]


async def _result(press: Press, number: int) -> int:
    return await (await press.double.submit(number))


async def test_a_failed_item_fails_alone_and_is_tried_again() -> None:
    """Failed(...) is that item's error: it has its own retries, the others are completed."""
    press = Press(size=3, retry=Retry(attempts=2, initial=1.0, jitter=0.0))
    async with press.mp:
        handles = await press.pool.submit_many(press.double.each([1, 13, 2]))
        assert (2, 4) == (await handles[0], await handles[2])
        with pytest.raises(TaskFailed) as caught:
            await handles[1]
        assert (2, "odd one out") == (caught.value.attempts, caught.value.error_message)
    assert [[1, 13, 2], [13]] == press.calls


async def test_a_result_list_of_the_wrong_length_fails_every_item() -> None:
    """No result can be assigned to an item; the error message says so."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=10)

    @pool.batch_task(size=3, retry=Retry.never())
    async def short(items: list[int]) -> list[int]:
        return items[1:]

    @pool.batch_task(size=3, retry=Retry.never())
    async def none(items: list[int]) -> Any:
        return None

    async with mp:
        for task, count in ((short, "2 results"), (none, "no list")):
            for handle in await pool.submit_many(task.each([1, 2, 3])):
                with pytest.raises(TaskFailed, match=f"batch of 3 gave {count}"):
                    await handle


async def test_an_exception_fails_every_item_each_by_its_own_budget() -> None:
    """All are tried again with backoff; GiveUp ends all."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=10)
    calls: list[list[int]] = []

    @pool.batch_task(size=2, linger=0.1, retry=Retry(attempts=3, initial=1.0, jitter=0.0))
    async def flaky(items: list[int]) -> list[int]:
        calls.append(items)
        if len(calls) < 3:
            raise OSError("down")
        return items

    @pool.batch_task(size=2, linger=0.1)
    async def hopeless(items: list[int]) -> list[int]:
        raise GiveUp("no")

    async with mp:
        handles = await pool.submit_many(flaky.each([1, 2]))
        assert [1, 2] == [await handle for handle in handles]
        assert [3, 3] == [handle.attempt for handle in handles]
        for handle in await mp.wait(await pool.submit_many(hopeless.each([1, 2]))):
            assert ("failed", 1) == (handle.status, handle.attempt)


async def test_a_timeout_counts_from_the_call_and_ends_every_item() -> None:
    """The linger does not count; each item is charged and may be retried."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=10)
    calls = 0

    @pool.batch_task(size=2, linger=50, timeout=10, retry=Retry(attempts=2, initial=1))
    async def slow(items: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(1000 if calls == 1 else 1)
        return items

    async with mp:
        first = await slow.submit(1)
        await asyncio.sleep(30)
        second = await slow.submit(2)
        await asyncio.sleep(9)
        assert "running" == (await first.refresh()).status
        assert [1, 2] == [await first, await second]
        assert [2, 2] == [first.attempt, second.attempt]


async def test_an_item_cancelled_while_it_is_gathered_leaves_the_batch() -> None:
    """It has not begun, so either mode ends it at once; the others run without it."""
    press = Press(size=64, linger=10)
    async with press.mp:
        handles = await press.pool.submit_many(press.double.each([1, 2, 3]))
        await rounds()
        assert await handles[0].cancel()
        assert await handles[1].cancel("interrupt")
        await rounds()
        assert ["cancelled", "cancelled"] == [(await h.refresh()).status for h in handles[:2]]
        assert 6 == await handles[2]
    assert [[3]] == press.calls


@pytest.mark.rows("DE-R22")
async def test_an_empty_batch_does_not_run() -> None:
    """The only gathered item is cancelled: its batch ends, and the next item starts a new one."""
    press = Press(size=64, linger=10)
    async with press.mp:
        alone = await press.pool.submit(press.double.bind(1))
        await rounds()
        assert await alone.cancel()
        await asyncio.sleep(30)
        assert [] == press.calls
        start = asyncio.get_running_loop().time()
        assert 4 == await _result(press, 2)
        assert [10] == [pytest.approx(at - start, abs=0.1) for at in press.times]
    assert [[2]] == press.calls


async def test_an_item_cancelled_while_it_runs_may_still_be_completed() -> None:
    """A cancel of one item changes nothing for the others, nor for its own result."""
    press = Press(size=2)
    async with press.mp:
        one, two = await press.pool.submit_many(press.double.each([1, 2]))
        await rounds()
        assert await one.cancel()
        assert [2, 4] == [await one, await two]


async def test_interrupting_one_item_gives_the_others_back_uncharged() -> None:
    """The call is interrupted; the others run again and have lost no attempt."""
    press = Press(size=3, linger=0.5)
    async with press.mp:
        handles = await press.pool.submit_many(press.double.each([1, 2, 3]))
        await asyncio.sleep(0.5)
        assert await handles[1].cancel("interrupt")
        with pytest.raises(TaskCancelled):
            await handles[1]
        assert [2, 6] == [await handles[0], await handles[2]]
        assert [1, 1] == [handles[0].attempt, handles[2].attempt]
    assert [[1, 2, 3], [1, 3]] == press.calls


async def test_each_item_is_settled_once() -> None:
    """No end is stored twice, and none is refused as stale."""
    press = Press(size=4, retry=Retry.never())
    async with press.mp:
        await press.mp.wait(await press.pool.submit_many(press.double.each([1, 13, 2, 13, 4, 5])))
        snapshot = await press.pool.snapshot()
        assert (4, 2, 0, 0) == (
            snapshot.completed,
            snapshot.failed,
            snapshot.running,
            internals_of(press.mp).runtime.counts.stale_settles,
        )


async def test_an_item_with_a_bad_result_fails_alone() -> None:
    """An unstorable result of one item is that item's bad_result."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=10)

    @pool.batch_task(size=2)
    async def odd(items: list[int]) -> list[Any]:
        return [object() if item else item for item in items]

    async with mp:
        bad, good = await pool.submit_many(odd.each([1, 0]))
        assert 0 == await good
        assert ("failed", "bad_result") == ((await bad.wait()).status, bad.reason)


async def test_a_corrupt_item_is_set_aside_and_the_others_run(any_pace: Opened) -> None:  # noqa: F811
    """A record of a batch that cannot be read fails as corrupt, alone, and is counted."""
    press = Press(size=3, linger=0.5)
    async with press.mp:
        good = await press.double.submit(1)
        broken = NewTask(id=77, pool="work", call=Call("double", b"{not json"))
        answer = await any_pace.last.submit((Batch(tasks=(broken,)),))
        internals_of(press.mp).runtime.answers.apply(answer)
        assert 2 == await good
        handle = await (await press.mp.handle(77)).wait()
        assert ("failed", "corrupt", 1) == (
            handle.status,
            handle.reason,
            internals_of(press.mp).runtime.counts.corrupt,
        )
    assert [[1]] == press.calls


async def test_a_batch_never_holds_more_than_the_pool_allows() -> None:
    """Gathered items are running: they count for max_concurrent."""
    press = Press(size=10, linger=0.5, max_concurrent=4)
    async with press.mp:
        handles = await press.pool.submit_many(press.double.each(range(10)))
        await rounds()
        assert 4 == (await press.pool.snapshot()).running
        assert list(range(0, 20, 2)) == [await handle for handle in handles]
    assert [4, 4, 2] == [len(call) for call in press.calls]


async def test_a_batch_handler_may_have_a_context() -> None:
    """It is the context of the first item."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=5)
    seen: list[int] = []

    @pool.batch_task(size=2)
    async def job(ctx: Context, items: list[int]) -> list[int]:
        seen.append(ctx.task_id)
        return items

    async with mp:
        handles = await pool.submit_many(job.each([1, 2]))
        await mp.wait(handles)
        assert [handles[0].id] == seen


@pytest.mark.real_loop
async def test_a_batch_handler_may_be_a_plain_function() -> None:
    """It runs in a thread, and each item is settled on its own."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=5)

    @pool.batch_task(size=3, linger=0.01, retry=Retry.never())
    def job(items: list[int]) -> list[int | Failed]:
        return [Failed(ValueError("two")) if item == 2 else item for item in items]

    async with mp:
        one, two, three = await pool.submit_many(job.each([1, 2, 3]))
        assert [1, 3] == [await one, await three]
        with pytest.raises(TaskFailed, match="two"):
            await two


async def test_a_worker_that_stops_gives_a_gathering_batch_back() -> None:
    """Its items go back to the queue uncharged."""
    press = Press(size=64, linger=100)
    async with press.mp:
        handle = await press.double.submit(1)
        await rounds()
        (worker,) = internals_of(press.mp).runtime.workers
        await internals_of(press.mp).runtime.local_workers.stop(worker)
        await handle.refresh()
        assert ("queued", 0) == (handle.status, handle.attempt)
    assert [] == press.calls


async def test_batch_tasks_refuse_bad_declarations() -> None:
    """Sizes below one, lanes, and parameters that are no list are refused by name."""
    mp = Millpond()
    pool, laned = mp.pool("work"), mp.pool("laned", lanes=2)
    with pytest.raises(ConfigError, match="size"):
        pool.batch_task(size=0)
    with pytest.raises(ConfigError, match="linger"):
        pool.batch_task(linger=-1)
    with pytest.raises(ConfigError, match="lanes"):
        laned.batch_task()
    with pytest.raises(ConfigError, match="list"):

        @pool.batch_task()  # type: ignore[arg-type]
        async def wrong(item: int) -> list[int]:
            return [item]


async def test_items_are_checked_like_any_argument() -> None:
    """A wrong item is refused at submit, by the name of the parameter; nothing is stored."""
    press = Press()
    async with press.mp:
        await press.pool.pause()
        with pytest.raises(TypeError, match="numbers"):
            await press.double.submit("one")  # type: ignore[arg-type]
        assert 0 == await press.pool.size()
