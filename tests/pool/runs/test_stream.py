"""Stream: the outcomes of a run as they come."""

import asyncio

import pytest
from tests.pool.moments import clock

from millpond import Context, Millpond, Outcome, Retry, RunFailed, RunOverBudget, Stuck, bounded
from millpond.pool.internals import internals_of

ONCE = Retry.never()


async def test_a_stream_yields_each_outcome_once_as_it_comes() -> None:
    """Outcomes come at the moment their tasks end, with results, in the order of their ends."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=3)

    @pool.task(key="name")
    async def item(name: str, seconds: int) -> str:
        await asyncio.sleep(seconds)
        return name.upper()

    seen = []
    async with mp:
        start = clock()
        seed = [item.bind("c", 3), item.bind("a", 1), item.bind("b", 2)]
        async with pool.stream(seed) as outcomes:
            async for outcome in outcomes:
                seen.append((outcome.result, outcome.key, round(clock() - start)))
                assert ("completed", "items", "item", 1) == (
                    outcome.status,
                    outcome.pool,
                    outcome.function,
                    outcome.attempts,
                )
        assert outcomes.report is not None
        assert 3 == outcomes.report.completed

    assert [("A", "a", 1), ("B", "b", 2), ("C", "c", 3)] == seen


async def test_a_stream_yields_follow_ups_failures_and_cancellations() -> None:
    """Every task of the run has one outcome, in any pool and with any end."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, retry=Retry.constant(1, attempts=2, jitter=0))
    other = mp.pool("other", max_concurrent=1)

    @pool.task
    async def item(ctx: Context, name: str) -> str:
        await asyncio.sleep(1)
        if name == "bad":
            raise ValueError("bad one")
        if name == "parent":
            await ctx.submit(child.bind(), pool=other)
        return name

    @mp.task
    async def child() -> str:
        return "child"

    seen: list[Outcome] = []
    async with mp:
        await item.submit("not of this run")
        seed = [item.bind("parent"), item.bind("bad"), item.bind("unlucky")]
        async with pool.stream(seed) as outcomes:
            unlucky = (await pool.tasks(status="queued"))[-1]
            await pool.cancel(unlucky.id)
            seen.extend([outcome async for outcome in outcomes])

    by_status = {
        status: [one.result for one in seen if one.status == status]
        for status in ("completed", "failed", "cancelled")
    }
    assert {"completed": ["parent", "child"], "failed": [None], "cancelled": [None]} == by_status
    (bad,) = [one for one in seen if one.status == "failed"]
    assert bad.error is not None
    assert ("ValueError", "bad one", 2) == (bad.error.type, bad.error.message, bad.attempts)
    (gone,) = [one for one in seen if one.status == "cancelled"]
    assert (unlucky.id, "cancelled", False) == (gone.task_id, gone.reason, gone.ok)
    assert outcomes.report is not None
    assert (4, 2, 1, 1) == (
        outcomes.report.total,
        outcomes.report.completed,
        outcomes.report.failed,
        outcomes.report.cancelled,
    )


async def test_a_slow_consumer_loses_no_outcome() -> None:
    """Outcomes of tasks that end between two reads are kept, and come once."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=10)

    @pool.task
    async def item(n: int) -> int:
        return n

    seen = []
    async with mp, pool.stream(item.each(range(100))) as outcomes:
        async for outcome in outcomes:
            seen.append(outcome.result)
            if len(seen) % 25 == 1:
                await asyncio.sleep(10)

    assert list(range(100)) == sorted(seen)


async def test_two_streams_yield_only_tasks_of_their_own_runs() -> None:
    """Concurrent streams on one pool do not get each other's outcomes."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=4)

    @pool.task
    async def item(n: int) -> int:
        await asyncio.sleep(1)
        return n

    async def collect(start: int) -> list[int]:
        async with pool.stream(item.each(range(start, start + 10))) as outcomes:
            return sorted([outcome.result async for outcome in outcomes])

    async with mp:
        found = await asyncio.gather(*(collect(start) for start in (0, 100, 200)))

    assert [list(range(n, n + 10)) for n in (0, 100, 200)] == found


async def test_leaving_early_cancels_the_rest() -> None:
    """Queued tasks are cancelled, running ones see ctx.cancelled, and the run ends."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    ran: list[int] = []
    cancels = []

    @pool.task
    async def item(ctx: Context, n: int) -> int:
        ran.append(n)
        await asyncio.sleep(1 + n)
        cancels.append((n, ctx.cancelled.is_set()))
        if n == 1:
            await ctx.submit(item.bind(100))
        return n

    async with mp:
        async with pool.stream(item.each(range(10)), run="cut short") as outcomes:
            async for outcome in outcomes:
                assert 0 == outcome.result
                break
        await asyncio.sleep(0)
        left = {task.status for task in await pool.tasks()}
        assert {"completed", "running", "cancelled"} == left
        await pool.drain()
        snapshot = await pool.snapshot()
        again = await pool.drain([], run="cut short")

    assert [0, 1, 2] == sorted(ran)
    assert [(0, False), (1, True), (2, True)] == sorted(cancels)
    assert (3, 8) == (snapshot.completed, snapshot.cancelled)
    assert (True, 3, 8) == (again.finished_before, again.completed, again.cancelled)


async def test_an_error_in_the_block_cancels_the_rest_too() -> None:
    """The error propagates, and no task of the run stays queued."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)

    @pool.task
    async def item(n: int) -> int:
        await asyncio.sleep(1)
        return n

    async with mp:
        with pytest.raises(ZeroDivisionError):
            async with pool.stream(item.each(range(10))) as outcomes:
                async for _ in outcomes:
                    raise ZeroDivisionError
        await pool.drain()
        snapshot = await pool.snapshot()

    assert (2, 8) == (snapshot.completed, snapshot.cancelled)


async def test_an_empty_stream_ends_at_once() -> None:
    """No seed, no outcomes, a report of nothing."""
    mp = Millpond()
    pool = mp.pool("items")
    async with mp:
        start = clock()
        async with pool.stream([]) as outcomes:
            assert [] == [outcome async for outcome in outcomes]
        assert start == clock()
        assert outcomes.report is not None
        assert 0 == outcomes.report.total


async def test_a_stream_under_a_known_name_joins_its_run() -> None:
    """A finished run yields no outcomes and has its report; an unfinished one goes on."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)

    @pool.task
    async def item(n: int) -> int:
        await asyncio.sleep(1)
        return n

    async with mp:
        draining = asyncio.create_task(pool.drain(item.each(range(4)), run="nightly"))
        await asyncio.sleep(1.5)
        async with pool.stream(item.each([7]), run="nightly") as rest:
            assert [1, 2, 3] == [outcome.result async for outcome in rest]
        await draining
        async with pool.stream(item.each([7]), run="nightly") as nothing:
            assert [] == [outcome async for outcome in nothing]

    assert rest.report is not None
    assert nothing.report is not None
    assert (True, False, 4) == (
        rest.report.resumed,
        rest.report.finished_before,
        rest.report.completed,
    )
    assert (False, True, 4) == (
        nothing.report.resumed,
        nothing.report.finished_before,
        nothing.report.completed,
    )


async def test_a_stream_raises_the_error_of_its_run_after_the_last_outcome() -> None:
    """Outcomes first, the cancelled ones too; then RunFailed or RunOverBudget."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, retry=ONCE)

    @pool.task
    async def item(n: int) -> int:
        if n == 1:
            raise ValueError("one is bad")
        return n

    @pool.task
    async def grows(ctx: Context) -> None:
        await ctx.submit(grows.bind())

    statuses: list[str] = []
    async with mp:
        with pytest.raises(RunFailed, match="one is bad"):
            async with pool.stream(item.each(range(4)), on_error="fail") as outcomes:
                async for outcome in outcomes:
                    statuses.append(outcome.status)  # noqa: PERF401 - kept when it raises
        assert ["completed", "failed", "cancelled", "cancelled"] == statuses
        statuses.clear()
        with pytest.raises(RunOverBudget):
            async with pool.stream([grows.bind()], max_tasks=2) as outcomes:
                async for outcome in outcomes:
                    statuses.append(outcome.status)  # noqa: PERF401
        assert ["completed", "completed", "cancelled"] == statuses


async def test_a_stream_that_cannot_go_on_raises_stuck() -> None:
    """When only paused tasks are left, the stream raises instead of waiting for ever."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item() -> None: ...

    async with mp:
        await pool.pause()
        with pytest.raises(Stuck, match="paused"):
            async with pool.stream([item.bind()]) as outcomes:
                async for _ in outcomes:
                    pass


async def test_a_seed_that_is_refused_leaves_nothing_behind() -> None:
    """A stream over its budget raises on entering, and registers no watcher."""
    mp = Millpond()
    pool = mp.pool("items", backpressure=bounded(100))

    @pool.task
    async def item(n: int) -> None: ...

    async with mp:
        with pytest.raises(RunOverBudget):
            async with pool.stream(item.each(range(3)), max_tasks=2):
                pass
        assert 0 == (await pool.snapshot()).total
        assert not internals_of(mp).runtime.waiting.has_watchers
