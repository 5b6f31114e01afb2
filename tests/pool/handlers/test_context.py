"""The context: what a handler knows about its attempt, and what it may do."""

import asyncio
from typing import Any

import pytest
from tests.pool.stores import any_pace, rounds  # noqa: F401 - a fixture

from millpond import (
    ConfigError,
    Context,
    Handle,
    Millpond,
    PoolFull,
    Retry,
    RetryLater,
    TaskFailed,
    bounded,
    fifo,
)
from millpond.errors import NotSupported, UnknownTask
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.usefixtures("any_pace")

ABOUT = (
    *("task_id", "pool", "attempt", "max_attempts", "is_retry", "key", "labels", "sequence"),
    *("lane", "submitted_at", "started_at", "deadline", "resources"),
)


async def test_the_context_describes_the_attempt() -> None:
    """Everything a handler may want to know about itself."""
    mp = Millpond()
    pool = mp.pool("work", lanes=2, retry=Retry.constant(5.0, attempts=4, jitter=0.0))
    seen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()

    @pool.task(timeout=60)
    async def job(ctx: Context) -> None:
        seen.append(
            {
                name: getattr(ctx, name)
                for name in [
                    "task_id",
                    "pool",
                    "attempt",
                    "max_attempts",
                    "is_retry",
                    "key",
                    "labels",
                    "sequence",
                    "lane",
                    "submitted_at",
                    "started_at",
                    "deadline",
                    "resources",
                ]
            }
        )
        if not ctx.is_retry:
            raise OSError

    async with mp:
        await asyncio.sleep(100)
        handle = await pool.submit(job, key="acme", labels={"a": "b"}, delay=10)
        await handle
    first = {
        "task_id": handle.id,
        "pool": "work",
        "attempt": 1,
        "max_attempts": 4,
        "is_retry": False,
        "key": "acme",
        "labels": {"a": "b"},
        "sequence": 1,
        "lane": handle.lane,
        "submitted_at": pytest.approx(100.0),
        "started_at": pytest.approx(110.0, abs=0.01),
        "deadline": pytest.approx(170.0, abs=0.01),
        "resources": None,
    }
    second = {
        **first,
        "attempt": 2,
        "is_retry": True,
        "started_at": pytest.approx(115.0, abs=0.01),
        "deadline": pytest.approx(175.0, abs=0.01),
    }
    assert [first, second] == seen
    assert loop.time() >= 115


# Follow-ups


async def test_follow_ups_are_stored_with_the_completion_and_not_before() -> None:
    """ctx.submit returns handles at once; the tasks are stored when the attempt completes."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=5)
    kept: list[Handle[str]] = []
    submitted = asyncio.Event()
    go = asyncio.Event()

    @pool.task
    async def child(name: str) -> str:
        return name

    @pool.task
    async def parent(ctx: Context) -> None:
        kept.append(await ctx.submit(child.bind("one"), priority=3))
        kept.extend(await ctx.submit_many(child.each(["two", "three"])))
        submitted.set()
        await go.wait()

    async with mp:
        handle = await parent.submit()
        await submitted.wait()
        await rounds()
        assert ["queued"] * 3 == [str(one.status) for one in kept]
        assert ["unknown"] * 3 == await mp.status(one.id for one in kept)
        go.set()
        await handle
        assert ["one", "two", "three"] == [await one for one in kept]
        info = next(i for i in await pool.tasks() if i.id == kept[0].id)
        assert (3, f"task:{handle.id}") == (info.priority, info.submitted_by)


@pytest.mark.parametrize("end", ["fail", "retry later", "timeout", "interrupt"])
async def test_an_attempt_that_does_not_complete_leaves_no_follow_ups(end: str) -> None:
    """Its ctx.submit calls are dropped; the attempt that completes stores one set."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=5, retry=Retry(attempts=2, initial=1))
    ran: list[int] = []
    lost: list[Handle[None]] = []

    @pool.task
    async def child(attempt: int) -> None:
        ran.append(attempt)

    @pool.task(timeout=10)
    async def parent(ctx: Context) -> None:
        handle = await ctx.submit(child.bind(len(lost)))
        lost.append(handle)
        if len(lost) > 1:
            return
        match end:
            case "fail":
                raise OSError
            case "retry later":
                raise RetryLater(1, spend=False)
            case _:
                await asyncio.sleep(1000)

    async with mp:
        handle = await parent.submit()
        await rounds()
        if end == "interrupt":
            await handle.cancel("interrupt")
        await handle.wait()
        await pool.drain()
        assert ([] if end == "interrupt" else [1]) == ran
        with pytest.raises(UnknownTask):
            await lost[0]


async def test_pool_submit_inside_a_handler_stores_at_once() -> None:
    """It is not part of the outcome: it stays when the attempt fails."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=5, retry=Retry(attempts=2, initial=1))
    ran: list[str] = []

    @pool.task
    async def child() -> None:
        ran.append("child")

    @pool.task
    async def parent(ctx: Context) -> None:
        await pool.submit(child, idempotency_key="once")
        if not ctx.is_retry:
            raise OSError

    async with mp:
        await (await parent.submit())
        await pool.drain()
        (info,) = [i for i in await pool.tasks() if i.function == "child"]
        assert (["child"], True) == (ran, info.submitted_by.startswith("task:"))


async def test_a_follow_up_is_never_refused_by_a_full_pool() -> None:
    """It does not count against the bound and does not wait for room."""
    mp = Millpond()
    pool = mp.pool("work", queue=fifo(), backpressure=bounded(1, on_full="fail_submitter"))
    ran: list[str] = []
    go = asyncio.Event()

    @pool.task
    async def job(ctx: Context, name: str) -> None:
        ran.append(name)
        if name == "parent":
            await go.wait()
            await ctx.submit_many(job.each(["a", "b", "c"]))

    async with mp:
        await job.submit("parent")
        await rounds()
        await job.submit("outside")
        with pytest.raises(PoolFull):
            await job.submit("too many")
        go.set()
        await pool.drain()
    assert ["parent", "outside", "a", "b", "c"] == ran


async def test_follow_ups_go_to_the_named_pool() -> None:
    """pool= says where; else the function's own pool; else the parent's."""
    mp = Millpond()
    one, two = mp.pool("one"), mp.pool("two")

    @mp.task
    async def homeless() -> None: ...

    @two.task
    async def settled() -> None: ...

    @one.task
    async def parent(ctx: Context) -> list[str]:
        handles = [
            await ctx.submit(homeless.bind()),
            await ctx.submit(settled.bind()),
            await ctx.submit(settled.bind(), pool=one),
        ]
        return [handle.pool for handle in handles]

    async with mp:
        assert ["one", "two", "one"] == await (await parent.submit())
        await one.drain()
        await two.drain()
        assert (3, 1) == ((await one.snapshot()).completed, (await two.snapshot()).completed)


async def test_a_context_refuses_submits_after_its_attempt() -> None:
    """The attempt has ended, so no settlement would store the follow-up."""
    mp = Millpond()
    pool = mp.pool("work")
    kept: list[Context] = []

    @pool.task
    async def job(ctx: Context) -> None:
        kept.append(ctx)

    async with mp:
        await (await job.submit())
        with pytest.raises(ConfigError, match="ended"):
            await kept[0].submit(job.bind())
        assert 0 == await pool.size()


async def test_only_calls_can_follow_up() -> None:
    """A closure cannot be part of an outcome."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())

    @pool.task
    async def job(ctx: Context) -> None:
        await ctx.submit_many([rounds])  # type: ignore[arg-type]

    async with mp:
        with pytest.raises(TaskFailed, match="must be a call"):
            await (await job.submit())


async def test_a_bad_follow_up_is_refused_in_the_handler() -> None:
    """ctx.submit checks the arguments, and its error names the parameter."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())

    @pool.task
    async def child(count: int) -> None: ...

    @pool.task
    async def parent(ctx: Context) -> str:
        try:
            await ctx.submit(child.bind("many"))  # type: ignore[arg-type]
        except TypeError as error:
            return str(error)
        return "taken"

    async with mp:
        assert "count" in await (await parent.submit())
        await pool.drain()
        assert 1 == (await pool.snapshot()).completed


# Steps


async def test_once_runs_a_step_once_over_retries() -> None:
    """Its result is stored and returned when the task runs again; the type is plain data."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=3, initial=1))
    charged: list[int] = []

    async def charge() -> dict[str, int]:
        charged.append(1)
        return {"cents": 1990}

    async def nothing() -> object:
        charged.append(2)
        return None

    @pool.task
    async def job(ctx: Context) -> dict[str, int]:
        receipt = await ctx.once("charge", charge)
        assert None is await ctx.once("nothing", nothing)
        if ctx.attempt < 3:
            raise OSError
        return receipt

    async with mp:
        assert {"cents": 1990} == await (await job.submit())
        assert [1, 2] == charged
        assert {"cents": 1990} == await (await job.submit())
        assert [1, 2, 1, 2] == charged


async def test_once_twice_in_one_attempt_is_once() -> None:
    """The same step of the same attempt is not run a second time."""
    mp = Millpond()
    pool = mp.pool("work")
    ran = 0

    async def step() -> int:
        nonlocal ran
        ran += 1
        return ran

    @pool.task
    async def job(ctx: Context) -> list[int]:
        return [await ctx.once("step", step), await ctx.once("step", step)]

    async with mp:
        assert [1, 1] == await (await job.submit())


async def test_a_step_that_fails_is_not_remembered() -> None:
    """It runs again with the next attempt."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=2, initial=1))
    tries = 0

    async def step() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError
        return "done"

    @pool.task
    async def job(ctx: Context) -> str:
        return await ctx.once("step", step)

    async with mp:
        assert ("done", 2) == (await (await job.submit()), tries)


async def test_a_step_result_that_cannot_be_stored_raises() -> None:
    """A value that would not be read back the same is refused."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())

    async def step() -> tuple[int, ...]:
        return (1, 2)

    @pool.task
    async def job(ctx: Context) -> None:
        await ctx.once("step", step)

    async with mp:
        with pytest.raises(TaskFailed, match="step"):
            await (await job.submit())


async def test_memory_has_no_transactions() -> None:
    """ctx.transaction and ctx.commit raise NotSupported."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job(ctx: Context) -> list[str]:
        missing = []
        try:
            ctx.transaction()
        except NotSupported as error:
            missing.append(error.feature)
        try:
            await ctx.commit(print)
        except NotSupported as error:
            missing.append(error.feature)
        return missing

    async with mp:
        assert ["transaction", "commit"] == await (await job.submit())
        with pytest.raises(NotSupported):
            await pool.submit(job, connection=object())


# Progress


async def test_progress_is_yielded_until_the_task_ends() -> None:
    """The latest report, each new one, and then the iterator ends."""
    mp = Millpond()
    pool = mp.pool("work")
    go = asyncio.Event()

    @pool.task
    async def job(ctx: Context) -> None:
        await ctx.progress(0.25, "quarter")
        await go.wait()
        await ctx.progress(0.5)
        await ctx.progress(1.0, "done")

    async with mp:
        handle = await job.submit()
        await rounds()
        seen: list[tuple[float, str]] = []

        async def watch() -> None:
            async for report in handle.progress():
                seen.append(report)
                go.set()

        await asyncio.wait_for(asyncio.gather(watch(), watch()), 5)
        assert [0.25, 0.25, 0.5, 0.5, 1.0, 1.0] == sorted(fraction for fraction, _ in seen)
        info = (await pool.tasks())[0]
        assert (1.0, "done") == info.progress
        assert [(1.0, "done")] == [report async for report in handle.progress()]


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
async def test_a_progress_fraction_is_between_zero_and_one(fraction: float) -> None:
    """Anything else is refused in the handler."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())

    @pool.task
    async def job(ctx: Context) -> None:
        await ctx.progress(fraction)

    async with mp:
        with pytest.raises(TaskFailed, match="fraction"):
            await (await job.submit())


async def test_a_watcher_that_leaves_early_leaves_nothing_behind() -> None:
    """Closing the iterator removes its callbacks."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job(ctx: Context) -> None:
        await ctx.progress(0.1)
        await asyncio.sleep(100)

    async with mp:
        handle = await job.submit()
        await rounds()
        watcher = handle.progress()
        assert (0.1, "") == await anext(watcher)
        await watcher.aclose()  # type: ignore[attr-defined]
        assert {} == internals_of(mp).runtime.progress._watchers
        assert not internals_of(mp).runtime.waiting.any_waiting


# Resources


async def test_resources_are_made_once_and_closed_last() -> None:
    """One per worker, there for every attempt, closed when its handlers have stopped."""
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    events: list[str] = []

    @asynccontextmanager
    async def clients() -> AsyncIterator[dict[str, int]]:
        events.append("open")
        yield {"calls": 0}
        events.append("close")

    mp = Millpond(resources=clients)
    pool = mp.pool("work", max_concurrent=3)

    @pool.task
    async def job(ctx: Context, seconds: float) -> int:
        ctx.resources["calls"] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            events.append("ended")
        return int(ctx.resources["calls"])

    async with mp:
        assert [1, 2, 3] == [await (await job.submit(0.0)) for _ in range(3)]
        await job.submit(1000.0)
        await rounds()
    assert ["open", "ended", "ended", "ended", "ended", "close"] == events


async def test_resources_that_cannot_be_made_stop_the_opening() -> None:
    """The error comes out, nothing stays open, and it can be opened again."""
    from contextlib import asynccontextmanager

    broken = True

    @asynccontextmanager
    async def clients():  # type: ignore[no-untyped-def]  # noqa: ANN202
        if broken:
            raise ConnectionError("no database")
        yield "client"

    mp = Millpond(resources=clients)
    pool = mp.pool("work")

    @pool.task
    async def job(ctx: Context) -> str:
        return str(ctx.resources)

    with pytest.raises(ConnectionError):
        async with mp:
            pytest.fail("it opened")
    assert not mp.is_open
    broken = False
    async with mp:
        assert "client" == await (await job.submit())


async def test_each_worker_has_its_own_resources() -> None:
    """Two workers of one process make two."""
    from contextlib import asynccontextmanager

    made = 0

    @asynccontextmanager
    async def clients():  # type: ignore[no-untyped-def]  # noqa: ANN202
        nonlocal made
        made += 1
        yield made

    mp = Millpond(work=False)
    pool = mp.pool("work", max_concurrent=2)

    @pool.task
    async def job(ctx: Context) -> int:
        await asyncio.sleep(1)
        return int(ctx.resources)

    one, two = (mp.worker(concurrency=1, resources=clients) for _ in range(2))
    async with mp, one, two:
        handles = [await job.submit(), await job.submit()]
        assert [1, 2] == sorted([await handle for handle in handles])


async def test_a_follow_up_that_may_be_too_late_expires_in_time() -> None:
    """A task stored by ctx.submit expires at its time without a read."""
    mp = Millpond()
    pool, later = mp.pool("work"), mp.pool("later")

    @later.task
    async def follow() -> None: ...

    @pool.task
    async def job(ctx: Context) -> int:
        return (await ctx.submit(follow.bind().options(expires_in=5), pool=later)).id

    async with mp:
        await later.pause()
        follower = await (await job.submit())
        await asyncio.sleep(4)
        assert ["queued"] == await mp.status([follower])
        await asyncio.sleep(1.1)
        assert ["failed"] == await mp.status([follower])
