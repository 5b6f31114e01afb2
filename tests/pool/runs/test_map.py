"""Map: a function over many items, results in order, with a bounded number of tasks."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import pytest
from tests.pool.moments import clock

from millpond import (
    Context,
    Millpond,
    Pool,
    Retry,
    RetryLater,
    TaskFailed,
    bounded,
    fail_fast,
    fair_round_robin,
    fifo,
    lifo,
    ring_buffer,
)
from millpond.errors import PoolClosed, TaskCancelled

ONCE = Retry.never()


async def squared(n: int) -> int:
    """Take longer for smaller numbers, so that later items end first."""
    await asyncio.sleep(1 / (n + 1))
    return n * n


async def ticking(count: int, seconds: float) -> AsyncIterator[int]:
    """Yield a number now and then."""
    for n in range(count):
        await asyncio.sleep(seconds)
        yield n


# Results


@pytest.mark.parametrize("count", [0, 1, 7, 64, 65, 500])
async def test_results_come_in_the_order_of_the_items(count: int) -> None:
    """The tasks end in another order; the list of results is in the order of the items."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=7)
    async with mp:
        assert [n * n for n in range(count)] == await pool.map(squared, range(count))
        assert 0 == await pool.size()


async def test_results_can_be_iterated_one_by_one() -> None:
    """Iterating gives each result when it and all results before it have arrived."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)

    async def work(n: int) -> int:
        await asyncio.sleep(10 if n == 0 else 1)
        return n

    async with mp:
        start = clock()
        seen = [(n, round(clock() - start)) async for n in pool.map(work, range(5))]

    assert [(0, 10), (1, 10), (2, 10), (3, 10), (4, 10)] == seen


async def test_nothing_to_map_gives_an_empty_list_at_once() -> None:
    """An empty list and an empty async iterable cost no time and no task."""
    mp = Millpond()
    pool = mp.pool("items")
    async with mp:
        start = clock()
        assert [] == await pool.map(squared, [])
        assert [] == [result async for result in pool.map(squared, iter(()))]
        assert [] == await pool.map(squared, ticking(0, 1))
        assert start == clock()
        assert 0 == await pool.size()


async def test_none_is_a_result_like_any_other() -> None:
    """A function that returns None gives a None for each item."""
    mp = Millpond()
    pool = mp.pool("items")

    async def nothing(_: int) -> None: ...

    @pool.task
    async def registered(n: int) -> None: ...

    async with mp:
        assert [None] * 3 == await pool.map(nothing, range(3))
        assert [None] * 3 == await pool.map(registered, range(3))


async def test_map_keeps_to_the_limit_and_uses_it() -> None:
    """A hundred seconds of work on ten slots take ten seconds, ten at a time."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=10)
    now, most = 0, 0

    async def work(n: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(1)
        now -= 1
        return n

    async with mp:
        start = clock()
        assert list(range(100)) == await pool.map(work, range(100))
        assert clock() - start == pytest.approx(10, abs=1e-2)

    assert 10 == most


# Functions and sources


async def test_map_takes_registered_tasks_with_and_without_a_context() -> None:
    """A registered function is submitted as calls, with its own defaults and the given options."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2, retry=ONCE)
    labels = []

    @pool.task
    async def double(n: int) -> int:
        return 2 * n

    @pool.task(retry=Retry.constant(0, attempts=2))
    async def shaky(ctx: Context, n: int) -> int:
        labels.append(ctx.labels)
        if not ctx.is_retry:
            raise OSError("again")
        return 3 * n

    async with mp:
        assert [0, 2, 4] == await pool.map(double, range(3))
        assert [0, 3, 6] == await pool.map(shaky, range(3), labels={"of": "map"})
        assert [0, 2, 4] == await pool.map(double.options(priority=5), range(3))
        assert {"double", "shaky"} == {task.function for task in await pool.tasks()}

    assert [{"of": "map"}] * 6 == labels


async def test_map_takes_closures_and_callable_objects() -> None:
    """Any async callable of one argument works, also with a closure."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    factor = 3

    class Adds:
        def __init__(self, n: int) -> None:
            self.n = n

        async def __call__(self, to: int) -> int:
            return to + self.n

    async def times(n: int) -> int:
        return n * factor

    async with mp:
        assert [0, 3, 6] == await pool.map(times, range(3))
        assert [5, 6, 7] == await pool.map(Adds(5), range(3))


@pytest.mark.real_loop
async def test_map_takes_plain_functions_and_runs_them_in_threads() -> None:
    """A def function runs off the loop, as many at a time as the pool allows."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=4)
    together = threading.Barrier(4, timeout=10)

    def meet(n: int) -> tuple[int, bool]:
        together.wait()
        return n, threading.current_thread() is threading.main_thread()

    @pool.task
    def registered(n: int) -> int:
        together.wait()
        return -n

    async with mp:
        assert [(n, False) for n in range(8)] == await pool.map(meet, range(8))
        assert [-n for n in range(8)] == await pool.map(registered, range(8))
        assert [0, 1, 4] == await pool.map(lambda n: squared(n), range(3))  # noqa: PLW0108


async def test_map_refuses_items_that_are_not_iterable() -> None:
    """Anything else is a TypeError that says so."""
    mp = Millpond()
    pool = mp.pool("items")
    async with mp:
        with pytest.raises(TypeError, match="iterable"):
            await pool.map(squared, 5)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="colour"):
            await pool.map(squared, [1], colour="red")  # type: ignore[call-overload]


@pytest.mark.parametrize("queue", [fifo(), lifo(), fair_round_robin()])
async def test_map_is_in_order_in_every_order(queue: object) -> None:
    """The queue order decides which task starts first; results stay in the order of the items."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=3, queue=queue)  # type: ignore[arg-type]
    async with mp:
        assert [n * n for n in range(200)] == await pool.map(squared, range(200))


async def test_map_works_over_lanes_with_registered_tasks() -> None:
    """Tasks of a laned pool can be mapped; each lane still runs one at a time."""
    mp = Millpond()
    pool = mp.pool("items", lanes=3)

    @pool.task(key=lambda n: str(n % 5))
    async def work(n: int) -> int:
        await asyncio.sleep(1)
        return n

    async with mp:
        assert list(range(50)) == await pool.map(work, range(50))


# Under bounds


@pytest.mark.parametrize(
    "backpressure",
    [
        bounded(1),
        bounded(5),
        bounded(5, on_full="drop_oldest"),
        bounded(5, on_full="drop_newest"),
        bounded(5, on_full="fail_submitter"),
        bounded(50, per_key=3),
        ring_buffer(3),
        fail_fast(),
    ],
    ids=str,
)
@pytest.mark.parametrize("limit", [1, 4])
async def test_map_works_on_a_bounded_pool_of_every_policy(
    backpressure: object, limit: int
) -> None:
    """Map never submits more than there is room for: nothing is dropped, refused or reordered."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=limit, backpressure=backpressure)  # type: ignore[arg-type]
    async with mp:
        assert [n * n for n in range(100)] == await pool.map(squared, range(100), key="one")
        assert [n * n for n in range(20)] == await pool.map(squared, ticking(20, 0.01))
        snapshot = await pool.snapshot()

    assert (120, 0, 0) == (snapshot.completed, snapshot.rejected, snapshot.cancelled)


async def test_two_maps_share_a_bounded_pool() -> None:
    """Maps that block each other's submits both come to their ends."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2, backpressure=bounded(3))
    async with mp:
        first, second = await asyncio.gather(
            _collect(pool, range(50)), _collect(pool, range(100, 150))
        )

    assert [n * n for n in range(50)] == first
    assert [n * n for n in range(100, 150)] == second


async def _collect(pool: Pool, items: range) -> list[int]:
    return await pool.map(squared, items)


# Lazily


@pytest.mark.parametrize("sync", [True, False])
async def test_an_endless_source_is_pulled_no_further_than_a_window_ahead(*, sync: bool) -> None:
    """Taking ten results of an endless source pulls a bounded number of items, and then stops."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    pulled = 0

    def numbers() -> Iterator[int]:
        nonlocal pulled
        while True:
            pulled += 1
            yield pulled

    async def async_numbers() -> AsyncIterator[int]:
        for n in numbers():
            yield n

    async def work(n: int) -> int:
        await asyncio.sleep(1)
        return n

    async with mp:
        mapped = pool.map(work, numbers() if sync else async_numbers())
        results = []
        async with contextlib.aclosing(aiter(mapped)) as taken:
            async for result in taken:
                results.append(result)
                if len(results) == 10:
                    break
        assert pulled <= 10 + 64
        at_end = pulled
        await asyncio.sleep(100)
        assert at_end == pulled
        assert 0 == await pool.size()

    assert list(range(1, 11)) == results


@pytest.mark.parametrize("sync", [True, False])
async def test_a_slow_first_item_does_not_let_the_source_run_away(*, sync: bool) -> None:
    """While the first result is waited for, only so many items are taken behind it."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=10)
    pulled = 0

    def numbers() -> Iterator[int]:
        nonlocal pulled
        for n in range(100_000):
            pulled += 1
            yield n

    async def async_numbers() -> AsyncIterator[int]:
        for n in numbers():
            yield n

    async def work(n: int) -> int:
        await asyncio.sleep(1000 if n == 0 else 0.01)
        return n

    async with mp:
        mapped = pool.map(work, numbers() if sync else async_numbers())
        async with contextlib.aclosing(aiter(mapped)) as taken:
            assert 0 == await anext(taken)
            assert pulled <= (10_000 if sync else 5 * 64)


async def test_an_item_starts_as_soon_as_a_slow_source_gives_it() -> None:
    """The source decides the pace; no item waits for the next one to be there."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=5)
    starts = []

    async def work(n: int) -> int:
        starts.append(round(clock()))
        await asyncio.sleep(25)
        return n

    async with mp:
        seen = [(n, round(clock())) async for n in pool.map(work, ticking(4, 10))]

    assert [10, 20, 30, 40] == starts
    assert [(0, 35), (1, 45), (2, 55), (3, 65)] == seen


async def test_a_source_that_pauses_while_items_end_out_of_order_is_only_waited_for() -> None:
    """With a slow source, a slow first item and quick ones behind it, the loop stays idle."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=5)

    async def source() -> AsyncIterator[int]:
        yield 100
        yield 1
        yield 1
        await asyncio.sleep(50)
        yield 1

    async def work(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    async with mp:
        mapping = asyncio.create_task(_list(pool, work, source()))
        await asyncio.sleep(10)
        # From here nothing happens until the source goes on: in a busy loop time would not pass.
        assert [100, 1, 1, 1] == await mapping
        assert 100 == round(clock())


async def _list(
    pool: Pool, work: Callable[..., object], source: AsyncIterator[int] | Iterable[int]
) -> list[object]:
    return await pool.map(work, source)


# Errors


async def test_the_first_failure_in_order_stops_the_map_and_leaves_nothing_behind() -> None:
    """The map takes no more items, cancels queued tasks, interrupts running ones, and raises."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=3, retry=ONCE)
    started: list[int] = []
    ended = []
    pulled = 0

    def numbers() -> Iterator[int]:
        nonlocal pulled
        for n in range(10_000):
            pulled += 1
            yield n

    async def work(n: int) -> int:
        started.append(n)
        try:
            await asyncio.sleep(1 if n == 1 else 5)
        finally:
            ended.append(n)
        if n == 1:
            raise ValueError("one is bad")
        return n

    async with mp:
        start = clock()
        with pytest.raises(TaskFailed, match="one is bad") as caught:
            await pool.map(work, numbers())
        assert clock() - start == pytest.approx(5, abs=1e-2)
        at_end = (list(started), pulled)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 == await pool.size()
        await asyncio.sleep(100)

    assert (started, pulled) == at_end
    assert sorted(started) == sorted(ended)
    assert pulled < 200
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_failing_source_stops_the_map_and_leaves_nothing_behind() -> None:
    """The map raises the error of the iterable unchanged, and cancels its tasks."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)

    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("broken source")

    async def async_broken() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise KeyError("broken source")

    async def work(n: int) -> int:
        await asyncio.sleep(10)
        return n

    async with mp:
        start = clock()
        with pytest.raises(KeyError):
            await pool.map(work, broken())
        with pytest.raises(KeyError):
            await pool.map(work, async_broken())
        await asyncio.sleep(1)
        assert 0 == await pool.size()
        assert 30 > clock() - start


async def test_cancelling_a_map_cancels_its_items() -> None:
    """Cancelling the wait leaves no task behind and closes the source."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    interrupted = []
    source_closed = []

    async def source() -> AsyncIterator[int]:
        try:
            for n in range(5):
                yield n
            await asyncio.sleep(3600)
        finally:
            source_closed.append(True)

    async def work(n: int) -> int:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            interrupted.append(n)
            raise
        return n

    async with mp:
        mapping = asyncio.create_task(_list(pool, work, source()))
        await asyncio.sleep(10)
        mapping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await mapping
        await asyncio.sleep(1)
        assert 0 == await pool.size()
        assert 5 == (await pool.snapshot()).cancelled

    assert [0, 1] == sorted(interrupted)
    assert [True] == source_closed


async def test_leaving_an_iteration_early_cancels_its_tasks() -> None:
    """Closing the iterator leaves no task behind."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)

    async def work(n: int) -> int:
        await asyncio.sleep(n)
        return n

    async with mp:
        async with contextlib.aclosing(aiter(pool.map(work, range(50)))) as results:
            async for result in results:
                if result == 2:
                    break
        await asyncio.sleep(1)
        assert 0 == await pool.size()


async def test_a_cancelled_item_is_an_error_of_the_map() -> None:
    """A cancel of one item from outside stops the map with TaskCancelled."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)

    async def work(n: int) -> int:
        await asyncio.sleep(1)
        return n

    async with mp:
        mapping = asyncio.create_task(_list(pool, work, ticking(5, 0.1)))
        await asyncio.sleep(0.9)
        await pool.purge()
        with pytest.raises(TaskCancelled):
            await mapping
        await asyncio.sleep(10)
        assert 0 == await pool.size()


async def test_a_map_on_a_closed_pool_is_refused() -> None:
    """A pool that takes no more work refuses a map as it does a submit."""
    mp = Millpond()
    pool = mp.pool("items")
    async with mp:
        await pool.close()
        with pytest.raises(PoolClosed):
            await pool.map(squared, [1])


async def test_a_map_does_not_cancel_a_task_that_it_found_by_a_known_key() -> None:
    """An item whose idempotency key names an earlier task leaves that task alone."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2, retry=ONCE)

    @pool.task
    async def slow(n: int) -> str:
        await asyncio.sleep(100)
        return "all mine"

    async with mp:
        mine = await pool.submit(slow.bind(1), idempotency_key="mine")
        mapping = asyncio.create_task(
            _list(pool, slow.options(idempotency_key="mine"), ticking(1, 1))  # type: ignore[arg-type]
        )
        await asyncio.sleep(10)
        mapping.cancel()
        with pytest.raises(BaseException):  # noqa: B017 - with whichever error
            await mapping
        assert "all mine" == await mine


async def test_items_may_be_mapped_inside_a_handler_of_another_pool() -> None:
    """A handler may map over another pool and wait for the results."""
    mp = Millpond()
    outer, inner = mp.pool("outer", max_concurrent=2), mp.pool("inner", max_concurrent=2)

    @outer.task
    async def total(n: int) -> int:
        return sum(await inner.map(squared, range(n)))

    async with mp:
        assert [0, 0, 1, 5, 14] == await outer.map(total, range(5))


@pytest.mark.real_loop
async def test_fire_and_forget_takes_one_call_per_item() -> None:
    """submit_many(fn.each(items)) submits a call for each item as one batch."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=4)

    @pool.task
    def work(n: int) -> int:
        return -n

    async with mp:
        handles = await pool.submit_many(work.each(range(10)))
        assert [-n for n in range(10)] == [await handle for handle in handles]


async def test_an_item_that_fails_is_tried_again_in_its_own_time() -> None:
    """Its retry waits for its backoff while the others run; its result keeps its place."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2, retry=Retry.constant(30, attempts=3, jitter=0))
    runs: dict[int, list[float]] = {}

    async def work(n: int) -> int:
        times = runs.setdefault(n, [])
        times.append(clock())
        if n == 1 and len(times) < 3:
            raise OSError("down")
        return n

    async with mp:
        assert list(range(6)) == await pool.map(work, range(6))
    assert [0.0, 30.0, 60.0] == pytest.approx(runs.pop(1), abs=0.01)
    assert all([pytest.approx(0.0, abs=0.01)] == times for times in runs.values())


@pytest.mark.parametrize(("spend", "fails"), [(False, False), (True, True)])
async def test_an_item_may_raise_retry_later(*, spend: bool, fails: bool) -> None:
    """RetryLater waits as long as it says, and costs an attempt only if it says so."""
    mp = Millpond()
    pool = mp.pool("items", retry=ONCE)
    starts: list[float] = []

    async def work(_: int) -> str:
        starts.append(clock())
        if len(starts) == 1:
            raise RetryLater(7, spend=spend)
        return "done"

    async with mp:
        if fails:
            with pytest.raises(TaskFailed):
                await pool.map(work, [1])
        else:
            assert ["done"] == await pool.map(work, [1])
    assert [0.0, 7.0][: 1 if fails else 2] == pytest.approx(starts, abs=0.01)


async def test_cancelling_all_of_a_pool_stops_the_map_over_it() -> None:
    """The map raises TaskCancelled; its running items are stopped."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    ended: list[int] = []

    async def work(n: int) -> int:
        await asyncio.sleep(10)
        ended.append(n)
        return n

    async with mp:
        mapping = asyncio.create_task(_list(pool, work, range(10)))
        await asyncio.sleep(5)
        await pool.cancel_all(mode="interrupt")
        with pytest.raises(TaskCancelled):
            await mapping
        await asyncio.sleep(100)
        assert ([], 0) == (ended, await pool.size())
