"""Drain: run a seed and all its follow-ups, and return when the last of them has ended."""

import asyncio
import sys
from collections import Counter

import pytest
from tests.pool.moments import clock
from tests.stores import DURABLE

from millpond import (
    Context,
    Handle,
    Millpond,
    Outcome,
    Retry,
    RunFailed,
    RunOverBudget,
    RunReport,
    SyncContext,
    TaskCancelled,
    bounded,
    fifo,
)
from millpond.errors import BadPayload, ConfigError, PoolClosed, UnknownTask

ONCE = Retry.never()


class AtWork:
    """Counts how many handlers run, and how many ran at most at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.runs = 0

    async def hold(self, seconds: float) -> None:
        """Count as running for a while."""
        self.now += 1
        self.runs += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now -= 1


# Concurrency


@pytest.mark.rows("DP-01")
@pytest.mark.parametrize("limit", [1, 3, 4])
async def test_a_deep_tree_of_follow_ups_runs_exactly_max_concurrent_at_once(
    limit: int,
) -> None:
    """A tree four levels deep, three wide, keeps exactly max_concurrent busy, never N^depth."""
    mp = Millpond()
    crawl = mp.pool("crawl", max_concurrent=limit)
    at_work = AtWork()

    @crawl.task
    async def fetch(ctx: Context, depth: int) -> None:
        await at_work.hold(1.0)
        if depth < 4:
            await ctx.submit_many(fetch.bind(depth + 1) for _ in range(3))

    async with mp:
        report = await crawl.drain([fetch.bind(0), fetch.bind(0), fetch.bind(0)])

    assert 3 * (1 + 3 + 9 + 27 + 81) == report.total == report.completed == at_work.runs
    assert limit == at_work.most


@pytest.mark.rows("DP-01")
async def test_no_slot_idles_while_tasks_are_queued() -> None:
    """Forty tasks of one second on four slots take ten seconds."""
    mp = Millpond()
    pool = mp.pool("crawl", max_concurrent=4)
    at_work = AtWork()

    @pool.task
    async def fetch(ctx: Context, left: int) -> None:
        await at_work.hold(1.0)
        if left:
            await ctx.submit(fetch.bind(left - 1))

    async with mp:
        start = clock()
        await pool.drain(fetch.each([9] * 4))
        took = clock() - start

    assert 40 == at_work.runs
    assert took == pytest.approx(10.0, abs=1e-3)


@pytest.mark.rows("DP-T7", "DP-07", "DP-08")
async def test_eight_workers_over_a_hundred_tasks_run_each_exactly_once() -> None:
    """Eight workers share a hundred tasks, and each task runs once."""
    mp = Millpond(work=False)
    pool = mp.pool("items", max_concurrent=8)
    seen: Counter[int] = Counter()
    at_work = AtWork()

    @pool.task
    async def item(n: int) -> None:
        seen[n] += 1
        await at_work.hold(0.1 + n % 7 / 10)

    async with mp:
        workers = [mp.worker() for _ in range(8)]
        async with (
            workers[0],
            workers[1],
            workers[2],
            workers[3],
            workers[4],
            workers[5],
            workers[6],
            workers[7],
        ):
            report = await pool.drain(item.each(range(100)))

    assert dict.fromkeys(range(100), 1) == seen
    assert 100 == report.completed
    assert 8 == at_work.most


# When it ends


@pytest.mark.rows("DP-T1", "DP-T4", "DP-02")
async def test_a_seed_of_four_ends_with_four_completed() -> None:
    """Draining four tasks returns when all four are done, and reports four completed."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    done = []

    @pool.task
    async def item(n: int) -> None:
        await asyncio.sleep(1)
        done.append(n)

    async with mp:
        report = await pool.drain(item.each(range(4)))
        snapshot = await pool.snapshot()
        kept = await pool.tasks(status="completed")

    assert (
        RunReport(pool="items", name=None, total=4, completed=4, failed=0, cancelled=0, rejected=0)
        == report
    )
    assert report.ok
    assert [0, 1, 2, 3] == sorted(done)
    assert (4, 0, 0, 0) == (
        snapshot.completed,
        snapshot.queued,
        snapshot.running,
        snapshot.failed,
    )
    assert 4 == len(kept)


@pytest.mark.rows("DP-T5", "DP-E2")
async def test_an_empty_seed_drains_at_once() -> None:
    """A drain of nothing takes no time, and its report counts zero tasks."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, queue=fifo())
    async with mp:
        start = clock()
        report = await pool.drain([])
        assert start == clock()
        assert 0 == report.total
        assert report.ok
        await pool.drain()
        assert start == clock()


@pytest.mark.rows("DP-T6")
async def test_one_task_on_a_pool_of_one_is_run_once() -> None:
    """One task, one slot, one run."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    seen = []

    @pool.task
    async def item(n: int) -> int:
        seen.append(n)
        return n

    async with mp:
        report = await pool.drain([item.bind(7)])

    assert [7] == seen
    assert 1 == report.completed


@pytest.mark.rows("DP-03", "DP-04", "DP-T13", "DP-05")
async def test_a_run_waits_for_a_handler_that_may_still_submit() -> None:
    """A slow handler is the only task left; its late follow-up still belongs to the run."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=3)
    seen = []

    @pool.task
    async def slow(ctx: Context) -> None:
        await asyncio.sleep(100)
        await ctx.submit(quick.bind("late"))

    @pool.task
    async def quick(name: str) -> None:
        seen.append((name, clock()))

    async with mp:
        start = clock()
        report = await pool.drain([slow.bind(), quick.bind("a"), quick.bind("b")])
        end = clock()

    assert ["a", "b", "late"] == [name for name, _ in seen]
    assert end - start == pytest.approx(100, abs=1e-3)
    assert 4 == report.completed


@pytest.mark.rows("DP-02", "DP-03")
async def test_a_run_waits_for_delayed_tasks_and_for_those_that_back_off() -> None:
    """Neither a task for later nor one between two attempts lets its run end before it."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=5)
    tries = []

    @pool.task(retry=Retry(attempts=3, initial=100, factor=2, max_delay=1000, jitter=0))
    async def flaky() -> None:
        tries.append(clock())
        if len(tries) < 3:
            raise OSError("not yet")

    @pool.task
    async def later() -> None: ...

    async with mp:
        start = clock()
        report = await pool.drain([flaky.bind(), later.bind().options(delay=250)])
        assert clock() - start == pytest.approx(300, abs=1e-3)
        assert 2 == report.completed
        start = clock()
        await pool.drain([later.bind().options(delay=500)])
        assert clock() - start == pytest.approx(500, abs=1e-3)


@pytest.mark.rows("DP-02", "DP-03")
async def test_a_run_ends_whatever_else_the_pool_does() -> None:
    """A drain returns at the moment its own last task ends, under an endless load of others."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=4)
    stop = asyncio.Event()

    @pool.task
    async def other(ctx: Context) -> None:
        await asyncio.sleep(1)
        if not stop.is_set():
            await ctx.submit(other.bind())

    @pool.task
    async def mine(ctx: Context, left: int) -> None:
        await asyncio.sleep(1)
        if left:
            await ctx.submit(mine.bind(left - 1))

    async with mp:
        for _ in range(3):
            await other.submit()
        start = clock()
        report = await pool.drain([mine.bind(9)])
        took = clock() - start
        assert 3 == await pool.size()
        stop.set()
        await pool.drain()

    assert 10 == report.total == report.completed
    assert took == pytest.approx(10, abs=1e-3)


@pytest.mark.rows("DP-02")
async def test_each_of_a_thousand_runs_ends_with_its_own_last_task() -> None:
    """A thousand concurrent drains on one pool each return when their own last task ends."""
    runs = 100 if DURABLE else 1000
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=50)
    last: dict[int, float] = {}

    @pool.task
    async def item(ctx: Context, run: int, left: int) -> None:
        await asyncio.sleep(1 + run % 3)
        last[run] = clock()
        if left:
            await ctx.submit(item.bind(run, left - 1))

    async def one(run: int) -> float:
        report = await pool.drain([item.bind(run, 1), item.bind(run, 0)])
        assert 3 == report.total == report.completed
        return clock()

    async with mp:
        ends = await asyncio.gather(*(one(n) for n in range(runs)))

    assert [last[n] for n in range(runs)] == ends
    assert min(10, runs // 20) < len(set(ends))


# The tasks of a run


@pytest.mark.rows("DP-T8", "DP-T9", "DP-05")
async def test_follow_ups_of_follow_ups_are_drained_level_by_level() -> None:
    """The drain waits for follow-ups, and for their follow-ups."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    seen: list[str] = []

    @pool.task
    async def item(ctx: Context, name: str) -> None:
        seen.append(name)
        if len(name) < 3:
            await ctx.submit_many([item.bind(name + "a"), item.bind(name + "b")])

    async with mp:
        report = await pool.drain([item.bind("x")])

    assert ["x", "xa", "xaa", "xab", "xb", "xba", "xbb"] == sorted(seen)
    assert 7 == report.completed


@pytest.mark.rows("DP-T8", "DP-03")
async def test_follow_ups_into_other_pools_belong_to_the_run() -> None:
    """A run waits for its tasks in any pool of its Millpond."""
    mp = Millpond()
    crawl = mp.pool("crawl", max_concurrent=2)
    parse = mp.pool("parse", max_concurrent=1)
    write = mp.pool("write", max_concurrent=1)
    written = []

    @crawl.task
    async def fetch(ctx: Context, page: int) -> None:
        await ctx.submit(parsed.bind(page))

    @parse.task
    async def parsed(ctx: Context, page: int) -> None:
        await asyncio.sleep(10)
        await ctx.submit(store.bind(page), pool=write)

    @mp.task
    async def store(ctx: Context, page: int) -> None:
        await asyncio.sleep(5)
        written.append((page, ctx.pool))

    async with mp:
        start = clock()
        report = await crawl.drain(fetch.each(range(3)))
        assert clock() - start == pytest.approx(35, abs=1e-3)

    assert [(0, "write"), (1, "write"), (2, "write")] == written
    assert 9 == report.total == report.completed


async def test_a_follow_up_without_a_pool_goes_to_the_pool_of_its_submitter() -> None:
    """ctx.submit of an @mp.task puts it into the pool of the task that submits it."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    where = []

    @mp.task
    async def loose(ctx: Context, left: int) -> None:
        where.append(ctx.pool)
        if left:
            await ctx.submit(loose.bind(left - 1))

    async with mp:
        await pool.drain([loose.bind(2)])

    assert ["items"] * 3 == where


@pytest.mark.real_loop
@pytest.mark.rows("DP-T8")
async def test_follow_ups_from_a_thread_belong_to_the_run_too() -> None:
    """A def handler's SyncContext submits as part of its outcome, like any other."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=3)
    seen: list[str] = []

    @pool.task
    def item(ctx: SyncContext, name: str) -> None:
        seen.append(name)
        if len(name) < 3:
            ctx.submit(item.bind(name + "a"))
            ctx.submit_many([item.bind(name + "b")])

    async with mp:
        report = await pool.drain([item.bind("x")])

    assert ["x", "xa", "xaa", "xab", "xb", "xba", "xbb"] == sorted(seen)
    assert 7 == report.completed


async def test_follow_ups_of_a_callback_belong_to_the_run() -> None:
    """A callback submits through its ctx, and the drain waits for that task."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    seen = []

    @pool.task
    async def item(n: int) -> int:
        seen.append(n)
        await asyncio.sleep(1)
        return n

    @mp.task
    async def more(ctx: Context, outcome: Outcome) -> None:
        await asyncio.sleep(10)
        await ctx.submit(item.bind(outcome.result + 1), pool=pool)

    async with mp:
        callback = more.bind()
        start = clock()
        report = await pool.drain([item.bind(1).options(on_complete=callback)])
        assert clock() - start == pytest.approx(12, abs=1e-2)

    assert [1, 2] == seen
    assert 2 == report.total == report.completed


async def test_a_follow_up_under_a_known_key_has_the_result_of_the_known_task() -> None:
    """Under a known key ctx.submit stores nothing new; its handle gives the known task's result."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    made: list[Handle[str]] = []

    @pool.task
    async def parent(ctx: Context) -> None:
        made.append(await ctx.submit(child.bind(), idempotency_key="one"))

    @pool.task
    async def child() -> str:
        await asyncio.sleep(5)
        return "the only one"

    async with mp:
        await (await parent.submit())
        await (await parent.submit())
        first, second = made
        assert "the only one" == await first
        assert "the only one" == await second
        assert first.id == second.id
        assert (False, True) == (first.duplicate, second.duplicate)
        assert 3 == (await pool.snapshot()).completed


async def test_a_follow_up_may_go_to_a_pool_that_was_made_meanwhile() -> None:
    """A pool that the handler declares is registered before the follow-up is stored."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    seen = []

    @pool.task
    async def parent(ctx: Context) -> None:
        await ctx.submit(child.bind(), pool=mp.pool("late"))

    @mp.task
    async def child(ctx: Context) -> None:
        seen.append(ctx.pool)

    async with mp:
        report = await pool.drain([parent.bind()])

    assert ["late"] == seen
    assert 2 == report.completed


@pytest.mark.rows("DP-22")
async def test_follow_ups_submitted_together_are_all_noted_or_none() -> None:
    """One bad call refuses the whole batch, also when the handler catches the error."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    seen = []

    @pool.task
    async def parent(ctx: Context) -> None:
        with pytest.raises(BadPayload):
            await ctx.submit_many([child.bind(1), child.bind("two")])  # type: ignore[arg-type]
        await ctx.submit(child.bind(3))

    @pool.task
    async def child(n: int) -> None:
        seen.append(n)

    async with mp:
        report = await pool.drain([parent.bind()])

    assert [3] == seen
    assert 2 == report.total


@pytest.mark.rows("DP-05", "DP-22")
async def test_an_attempt_that_fails_leaves_no_follow_ups() -> None:
    """Its ctx.submit calls are dropped; only the attempt that completes counts."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=4, retry=Retry.constant(1, attempts=3, jitter=0))
    children = []

    @pool.task
    async def parent(ctx: Context) -> None:
        made = await ctx.submit_many(child.bind(ctx.attempt, n) for n in range(3))
        assert 3 == len({handle.id for handle in made})
        if ctx.attempt < 3:
            raise OSError("late failure")

    @pool.task(retry=ONCE)
    async def hopeless(ctx: Context) -> None:
        await ctx.submit(child.bind(99, 0))
        raise OSError("never")

    @pool.task
    async def child(attempt: int, n: int) -> None:
        children.append((attempt, n))

    async with mp:
        report = await pool.drain([parent.bind(), hopeless.bind()])

    assert [(3, 0), (3, 1), (3, 2)] == sorted(children)
    assert (5, 4, 1) == (report.total, report.completed, report.failed)


@pytest.mark.rows("DP-05", "DP-22")
async def test_a_follow_up_is_stored_with_the_completion_and_not_before() -> None:
    """No process sees the follow-up before the task completes; then both are visible at once."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=4)
    made: list[Handle[str]] = []
    seen = []

    @pool.task
    async def parent(ctx: Context) -> None:
        handle = await ctx.submit(child.bind())
        made.append(handle)
        await asyncio.sleep(10)

    @pool.task
    async def child() -> str:
        await asyncio.sleep(10)
        return "grown up"

    async with mp:
        maker = await parent.submit()
        await asyncio.sleep(5)
        seen.append(await mp.status([made[0].id]))
        with pytest.raises(UnknownTask):
            await made[0].refresh()
        await maker
        seen.append(await mp.status([maker.id, made[0].id]))
        assert "grown up" == await made[0]

    assert [["unknown"], ["completed", "running"]] == seen


async def test_a_handler_may_submit_to_its_own_full_pool_and_go_on() -> None:
    """Follow-ups are never refused by a bound, and do not count towards it."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, backpressure=bounded(2, on_full="fail_submitter"))

    @pool.task
    async def grow(ctx: Context, width: int) -> None:
        await ctx.submit_many(grow.bind(0) for _ in range(width))

    async with mp:
        report = await pool.drain([grow.bind(50), grow.bind(50)])

    assert 102 == report.completed


async def test_pool_submit_inside_a_handler_is_not_part_of_the_run() -> None:
    """pool.submit inside a handler stores at once, and its run does not wait for it."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=4)

    @pool.task
    async def parent() -> None:
        await slow.submit()
        raise OSError("and the submit stays")

    @pool.task
    async def slow() -> None:
        await asyncio.sleep(1000)

    async with mp:
        start = clock()
        report = await pool.drain([parent.bind().options(retry=ONCE)])
        assert (1, 1) == (report.total, report.failed)
        assert 1 > clock() - start
        await pool.drain()
        assert clock() - start == pytest.approx(1000, abs=1e-2)


@pytest.mark.rows("DP-06", "TRAP-19")
async def test_a_task_submitted_from_outside_during_a_drain_runs() -> None:
    """Tasks submitted from outside while a drain ends all run."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    outside = []
    report = None

    @pool.task
    async def inside(n: int) -> None:
        await asyncio.sleep(1)

    @pool.task
    async def extra(n: int) -> None:
        outside.append(n)

    async def disturb() -> None:
        for n in range(50):
            await extra.submit(n)
            await asyncio.sleep(0.1)

    async with mp:
        disturbing = asyncio.create_task(disturb())
        report = await pool.drain(inside.each(range(4)))
        await disturbing
        await pool.drain()

    assert 4 == report.total
    assert list(range(50)) == outside


@pytest.mark.rows("DP-06", "TRAP-19")
@pytest.mark.parametrize("steps", range(12))
async def test_a_submit_that_races_with_going_idle_is_never_lost(steps: int) -> None:
    """Submitted any number of loop turns around the pool's last settle, a task runs at once."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    ending = asyncio.Event()

    @pool.task
    async def first() -> None:
        await asyncio.sleep(1)
        ending.set()

    @pool.task
    async def second() -> float:
        return clock()

    async with mp:
        for _ in range(5):
            ending.clear()
            await first.submit()
            await ending.wait()
            for _ in range(steps):
                await asyncio.sleep(0)
            start = clock()
            assert start == await (await second.submit())


async def test_a_retry_of_the_whole_seed_under_one_key_per_run_makes_each_page_once() -> None:
    """dedupe="run" makes one task of a key in a run, and another one in the next run."""
    mp = Millpond()
    crawl = mp.pool("crawl", max_concurrent=3)
    links = {"a": "bcd", "b": "acd", "c": "abd", "d": "abc"}
    seen: Counter[str] = Counter()

    @crawl.task
    async def fetch(ctx: Context, url: str) -> None:
        seen[url] += 1
        await asyncio.sleep(1)
        await ctx.submit_many(
            fetch.bind(to).options(idempotency_key=to, dedupe="run") for to in links[url]
        )

    async with mp:
        first = await crawl.drain([fetch.bind("a").options(idempotency_key="a", dedupe="run")])
        assert dict.fromkeys("abcd", 1) == seen
        second = await crawl.drain([fetch.bind("b").options(idempotency_key="b", dedupe="run")])
        assert dict.fromkeys("abcd", 2) == seen
        with pytest.raises(ConfigError, match="dedupe"):
            await crawl.submit(fetch.bind("a"), idempotency_key="a", dedupe="run")

    assert 4 == first.total == second.total


# Without a seed


async def test_drain_without_a_seed_waits_for_an_idle_pool() -> None:
    """It waits for queued, scheduled and running tasks of the pool, and counts them."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    other = mp.pool("other", max_concurrent=1)

    @pool.task
    async def item(fail: bool) -> None:
        await asyncio.sleep(1)
        if fail:
            raise ValueError("bad")

    @other.task
    async def elsewhere() -> None:
        await asyncio.sleep(10_000)

    async with mp:
        await elsewhere.submit()
        await item.submit(fail=False)
        await item.options(retry=ONCE).submit(fail=True)
        await item.options(delay=99).submit(fail=False)
        start = clock()
        report = await pool.drain()
        assert clock() - start == pytest.approx(100, abs=1e-3)
        assert (3, 2, 1) == (report.total, report.completed, report.failed)
        assert 1 == await other.size()


async def test_drain_without_a_seed_waits_for_callbacks_too() -> None:
    """A pool is idle only after the callbacks of its tasks have run."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    results = []

    @pool.task
    async def item() -> int:
        return 5

    @mp.task
    async def notify(outcome: Outcome) -> None:
        await asyncio.sleep(50)
        results.append(outcome.result)

    async with mp:
        start = clock()
        # Millpond calls it with the outcome as first argument.
        callback = notify.bind()
        await item.options(on_complete=callback).submit()
        await pool.drain()
        assert clock() - start == pytest.approx(50, abs=1e-3)
        assert [5] == results


async def test_a_run_waits_for_the_callbacks_of_its_tasks() -> None:
    """A drain with a seed returns after the callbacks it caused, which it does not count."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    results = []

    @pool.task
    async def item() -> int:
        return 5

    @mp.task
    async def notify(outcome: Outcome) -> None:
        await asyncio.sleep(50)
        results.append(outcome.result)

    async with mp:
        start = clock()
        callback = notify.bind()
        report = await pool.drain([item.bind().options(on_complete=callback)])
        assert clock() - start == pytest.approx(50, abs=1e-3)

    assert [5] == results
    assert 1 == report.total


async def test_a_drain_may_be_given_a_time_limit_and_the_run_goes_on() -> None:
    """timeout= bounds the wait, not the work."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    done = []

    @pool.task
    async def item() -> None:
        await asyncio.sleep(100)
        done.append(clock())

    async with mp:
        with pytest.raises(TimeoutError):
            await pool.drain([item.bind()], timeout=10)
        with pytest.raises(TimeoutError):
            await pool.drain(timeout=10)
        assert [] == done
        await pool.drain()
        assert 1 == len(done)


# When tasks fail


@pytest.mark.rows("DP-11", "DP-T10", "DP-13")
async def test_skip_leaves_a_failure_on_its_own_task() -> None:
    """Under "skip" one bad task of ten fails with its error, and nine complete."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=3, retry=ONCE)

    @pool.task
    async def item(n: int) -> int:
        if n == 4:
            raise ValueError("four is bad")
        return n * n

    async with mp:
        report = await pool.drain(item.each(range(10)))
        (bad,) = await pool.tasks(status="failed")
        good = [await (await mp.handle(t.id)) for t in await pool.tasks(status="completed")]

    assert (10, 9, 1) == (report.total, report.completed, report.failed)
    assert not report.ok
    assert bad.error is not None
    assert ("ValueError", "four is bad") == (bad.error.type, bad.error.message)
    assert [n * n for n in range(10) if n != 4] == sorted(good)


@pytest.mark.rows("DP-14", "DP-15", "DP-T11")
async def test_on_error_fail_cancels_waiting_tasks_lets_running_ones_end_and_raises() -> None:
    """Under "fail" queued tasks are cancelled, running ones complete, then drain raises."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=3, retry=ONCE)
    done = []

    @pool.task
    async def item(n: int) -> None:
        await asyncio.sleep(1 if n == 0 else 10)
        if n == 0:
            raise ValueError("the first is bad")
        done.append(n)

    async with mp:
        start = clock()
        with pytest.raises(RunFailed, match="ValueError: the first is bad") as caught:
            await pool.drain(item.each(range(10)), on_error="fail")
        assert clock() - start == pytest.approx(10, abs=1e-3)
        (bad,) = await pool.tasks(status="failed")
        cancelled = await pool.tasks(status="cancelled")
        assert 0 == await pool.size()

    assert [1, 2] == sorted(done)
    assert bad.id == caught.value.task_id
    assert ("items", None) == (caught.value.pool, caught.value.run)
    assert isinstance(caught.value.__cause__, ValueError)
    report = caught.value.report
    assert isinstance(report, RunReport)
    assert (10, 2, 1, 7) == (report.total, report.completed, report.failed, report.cancelled)
    assert ["run_failed"] * 7 == [task.reason for task in cancelled]


@pytest.mark.rows("DP-14")
async def test_fail_waits_until_the_attempts_of_a_task_are_used_up() -> None:
    """An attempt that fails and is tried again does not stop a run; the last one does."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, retry=Retry.constant(1, attempts=3, jitter=0))
    tries = []

    @pool.task
    async def flaky(fatal: bool) -> None:
        tries.append(fatal)
        if fatal or len(tries) < 3:
            raise OSError("again")

    async with mp:
        report = await pool.drain([flaky.bind(fatal=False)], on_error="fail")
        assert (1, 3) == (report.completed, len(tries))
        tries.clear()
        with pytest.raises(RunFailed):
            await pool.drain([flaky.bind(fatal=True)], on_error="fail")
        assert 3 == len(tries)


async def test_a_run_that_fails_in_another_pool_cancels_its_tasks_everywhere() -> None:
    """on_error="fail" cancels the run's queued tasks in every pool, and no other tasks."""
    mp = Millpond()
    first = mp.pool("first", max_concurrent=1)
    second = mp.pool("second", max_concurrent=1, retry=ONCE)
    ran = []

    @first.task
    async def start(ctx: Context) -> None:
        await ctx.submit(bad.bind())
        await ctx.submit_many(waits.bind("mine") for _ in range(3))

    @second.task
    async def bad() -> None:
        await asyncio.sleep(0.5)
        raise ValueError("bad")

    @first.task
    async def waits(whose: str) -> None:
        await asyncio.sleep(1)
        ran.append(whose)

    async with mp:
        draining = asyncio.create_task(first.drain([start.bind()], on_error="fail"))
        await asyncio.sleep(0.1)
        others = await first.submit_many(waits.each(["other"] * 2))
        with pytest.raises(RunFailed):
            await draining
        await mp.wait(others)

    assert ["mine", "other", "other"] == ran


async def test_follow_ups_of_tasks_that_ran_when_a_run_stopped_are_not_started() -> None:
    """A task that still completes after its run failed has its follow-ups cancelled."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2, retry=ONCE)
    made = []

    @pool.task
    async def slow(ctx: Context) -> None:
        await asyncio.sleep(5)
        made.append(await ctx.submit(child.bind()))

    @pool.task
    async def bad() -> None:
        await asyncio.sleep(1)
        raise ValueError("bad")

    @pool.task
    async def child() -> None:
        raise AssertionError("must not run")

    async with mp:
        with pytest.raises(RunFailed) as caught:
            await pool.drain([slow.bind(), bad.bind()], on_error="fail")
        with pytest.raises(TaskCancelled, match="run_failed"):
            await made[0]

    report = caught.value.report
    assert isinstance(report, RunReport)
    assert (1, 1, 1) == (report.completed, report.failed, report.cancelled)


@pytest.mark.rows("DP-E6", "DP-14")
async def test_draining_a_serial_queue_raises_the_handlers_error() -> None:
    """max_concurrent=1, fifo() and "fail": nothing behind the failure runs."""
    mp = Millpond()
    serial = mp.pool("events", max_concurrent=1, queue=fifo(), retry=ONCE)
    ran = []

    @serial.task
    async def event(n: int) -> None:
        ran.append(n)
        if n == 2:
            raise KeyError("missing")

    async with mp:
        with pytest.raises(RunFailed, match="missing"):
            await serial.drain(event.each(range(5)), on_error="fail")

    assert [0, 1, 2] == ran


# Its budget


@pytest.mark.rows("DP-21", "DP-E4")
@pytest.mark.parametrize("budget", [1, 2, 7])
async def test_max_tasks_stops_a_chain_at_exactly_that_many_and_raises(budget: int) -> None:
    """An endless chain runs `max_tasks` handlers, then raises with the number of tasks left."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    ran = []

    @pool.task
    async def link(ctx: Context, n: int) -> None:
        ran.append(n)
        await ctx.submit(link.bind(n + 1))

    async with mp:
        with pytest.raises(RunOverBudget) as caught:
            await pool.drain([link.bind(1)], max_tasks=budget)
        assert 0 == await pool.size()

    assert list(range(1, budget + 1)) == ran
    assert budget == caught.value.max_tasks
    report = caught.value.report
    assert isinstance(report, RunReport)
    assert (budget, 1) == (report.completed, report.cancelled)
    assert f"max_tasks={budget}" in str(caught.value)


@pytest.mark.rows("DP-21")
async def test_a_run_that_uses_its_budget_to_the_last_task_is_not_stopped() -> None:
    """Exactly max_tasks tasks are within the budget."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)

    @pool.task
    async def item(ctx: Context, n: int) -> None:
        if n:
            await ctx.submit(item.bind(n - 1))

    async with mp:
        report = await pool.drain([item.bind(4)], max_tasks=5)

    assert 5 == report.completed


@pytest.mark.rows("DP-21")
async def test_a_seed_beyond_the_budget_runs_nothing() -> None:
    """Three seeds with max_tasks=2 are refused before any of them is stored."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)

    @pool.task
    async def item(n: int) -> None:
        raise AssertionError("must not run")

    async with mp:
        with pytest.raises(RunOverBudget):
            await pool.drain(item.each(range(3)), max_tasks=2)
        assert 0 == (await pool.snapshot()).total


async def test_known_keys_cost_no_budget() -> None:
    """A duplicate under dedupe="run" is not one task more."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)

    @pool.task
    async def item(ctx: Context, n: int) -> None:
        await ctx.submit(item.bind(1 - n).options(idempotency_key=str(1 - n), dedupe="run"))

    async with mp:
        seed = item.bind(0).options(idempotency_key="0", dedupe="run")
        report = await pool.drain([seed], max_tasks=2)

    assert 2 == report.completed


# Its options


@pytest.mark.parametrize(
    ("option", "given"),
    [("on_error", {"on_error": "ignore"}), ("max_tasks", {"max_tasks": 0}), ("run", {"run": ""})],
)
async def test_an_impossible_option_is_refused_by_name(
    option: str, given: dict[str, object]
) -> None:
    """drain() names the option, and stores nothing."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item() -> None: ...

    async with mp:
        with pytest.raises(ConfigError) as caught:
            await pool.drain([item.bind()], **given)  # type: ignore[arg-type]
        assert option == caught.value.option
        assert 0 == (await pool.snapshot()).total


@pytest.mark.rows("DP-T2", "DP-T3")
def test_impossible_limits_are_refused_where_they_are_declared() -> None:
    """A negative max_concurrent and attempts below one are refused by name; zero is allowed."""
    mp = Millpond()
    with pytest.raises(ConfigError, match="max_concurrent=-1"):
        mp.pool("items", max_concurrent=-1)
    with pytest.raises(ConfigError, match=r"retry\.attempts=0"):
        mp.pool("items", retry=Retry(attempts=0))
    assert 0 == mp.pool("items", max_concurrent=0).spec.max_concurrent


@pytest.mark.rows("DP-T14", "DE-14", "DE-T03")
async def test_a_seed_with_a_bad_argument_stores_nothing() -> None:
    """Arguments are checked against annotations when submitted; one bad call refuses the seed."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item(n: int) -> None: ...

    async with mp:
        with pytest.raises(BadPayload, match="n"):
            await pool.drain([item.bind(1), item.bind("two")])  # type: ignore[arg-type]
        with pytest.raises(BadPayload, match="n"):
            await item.submit("two")  # type: ignore[arg-type]
        assert 0 == (await pool.snapshot()).total


@pytest.mark.rows("DP-T15")
async def test_a_new_pool_counts_zero_in_every_status() -> None:
    """Before its first task a pool's snapshot is all zeros, and idle."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=3)
    async with mp:
        found = await pool.snapshot()
    counts = (
        found.running,
        found.queued,
        found.scheduled,
        found.parked,
        found.completed,
        found.failed,
        found.cancelled,
        found.rejected,
        found.kept,
        found.blocked_submitters,
    )
    assert (0,) * 10 == counts
    assert "idle" == found.state
    assert 0 == found.total


@pytest.mark.rows("DP-17")
async def test_a_handler_gets_its_arguments_and_its_context_only_if_it_asks() -> None:
    """Without Context a handler sees the payload only; with it, the id and attempt too."""
    mp = Millpond()
    pool = mp.pool("items")
    seen: list[object] = []

    @pool.task
    async def plain(*payload: int) -> None:
        seen.append(payload)

    @pool.task
    async def knowing(ctx: Context, n: int) -> int:
        seen.append((ctx.task_id, ctx.attempt, n))
        return ctx.task_id

    async with mp:
        await pool.drain([plain.bind(1, 2)])
        handle = await knowing.submit(3)
        assert handle.id == await handle

    assert [(1, 2), (handle.id, 1, 3)] == seen


# A serial queue


@pytest.mark.rows("DP-E1", "DP-E3")
async def test_a_serial_queue_runs_in_order_and_follow_ups_go_to_the_tail() -> None:
    """One at a time, first come first served; a follow-up goes to the tail."""
    mp = Millpond()
    serial = mp.pool("events", max_concurrent=1, queue=fifo())
    order = []
    at_work = AtWork()

    @serial.task
    async def event(ctx: Context, name: str, then: str = "") -> None:
        order.append(name)
        await at_work.hold(1)
        if then:
            await ctx.submit(event.bind(then))

    async with mp:
        await serial.drain([event.bind("a", "d"), event.bind("b", "e"), event.bind("c")])

    assert ["a", "b", "c", "d", "e"] == order
    assert 1 == at_work.most


# The progress bar


async def test_progress_draws_a_bar_on_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """progress=True shows ended/total on stderr during the run, and ends the line."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, retry=ONCE)

    @pool.task
    async def item(n: int) -> None:
        await asyncio.sleep(1)
        if n == 1:
            raise ValueError("bad")

    async with mp:
        start = clock()
        await pool.drain(item.each(range(4)), progress=True)
        assert clock() - start == pytest.approx(4, abs=1e-3)

    shown = capsys.readouterr()
    assert "" == shown.out
    lines = shown.err.removesuffix("\n").split("\r")[1:]
    assert ["0/4", "1/4", "2/4", "3/4", "4/4"] == [line.split()[1] for line in lines]
    bars = [line.split()[0] for line in lines]
    assert [0, 7, 15, 22, 30] == [bar.count("█") for bar in bars]
    assert {30} == {len(bar) for bar in bars}
    assert lines[-1].endswith("1 failed")
    assert shown.err.endswith("\n")


async def test_progress_of_an_idle_drain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without calls, the bar counts the tasks that had not ended when the drain began."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, retry=ONCE)

    @pool.task
    async def item(n: int) -> None:
        await asyncio.sleep(1)

    async with mp:
        await pool.drain(item.each(range(2)))
        await pool.submit_many(item.each(range(3)))
        await pool.drain(progress=True)

    lines = capsys.readouterr().err.removesuffix("\n").split("\r")[1:]
    assert ["0/3", "1/3", "2/3", "3/3"] == [line.split()[1] for line in lines]


async def test_progress_in_a_log_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Where stderr is no terminal, as under cron, only the last state of the bar is written."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item(n: int) -> None: ...

    async with mp:
        await pool.drain(item.each(range(4)), progress=True)
    assert f"{'█' * 30} 4/4\n" == capsys.readouterr().err


async def test_without_progress_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """A drain writes no progress by default."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item() -> None: ...

    async with mp:
        await pool.drain([item.bind()])

    assert ("", "") == tuple(capsys.readouterr())


async def test_a_closed_pool_refuses_a_seed() -> None:
    """drain() with a seed on a closed pool raises, and nothing runs."""
    mp = Millpond()
    pool = mp.pool("items")
    ran = []

    @pool.task
    async def item(n: int) -> None:
        ran.append(n)

    async with mp:
        await pool.close()
        with pytest.raises(PoolClosed):
            await pool.drain(item.each(range(3)))
        assert ([], 0) == (ran, (await pool.snapshot()).total)
