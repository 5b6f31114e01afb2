"""Runs: named, resumed, stopped, stuck; and the block that keeps one open."""

import asyncio
from collections import Counter

import pytest
from tests.pool.fleet import Fleet, until
from tests.pool.moments import clock

from millpond import (
    Context,
    Keep,
    Millpond,
    Retry,
    RunFailed,
    RunOverBudget,
    Stuck,
    TaskCancelled,
)
from millpond.core.control import DeclareDead
from millpond.errors import ConfigError, NotOpen, RunStopped
from millpond.pool.internals import internals_of

ONCE = Retry.never()


# Named runs


async def test_a_report_shows_how_far_a_run_is() -> None:
    """A caller reads it by name: before the run exists, during the run, and after its end."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, retry=ONCE)
    gate = asyncio.Event()

    @pool.task
    async def item(n: int) -> None:
        if n == 1:
            await gate.wait()

    async with mp:
        assert await pool.report("nightly") is None
        drained = asyncio.create_task(pool.drain(item.each(range(3)), run="nightly"))
        await asyncio.sleep(1)
        half = await pool.report("nightly")
        gate.set()
        ended = await drained
        report = await pool.report("nightly")

    assert half is not None
    assert (3, 1, False, False) == (half.total, half.completed, half.finished, half.ok)
    assert ended == report
    assert (True, True, 3) == (ended.finished, ended.ok, ended.completed)


async def test_a_report_shows_why_a_run_was_stopped() -> None:
    """A run of which one task failed under on_error="fail"."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, retry=ONCE)

    @pool.task
    async def item(n: int) -> None:
        raise ValueError(n)

    async with mp:
        with pytest.raises(RunFailed):
            await pool.drain(item.each(range(3)), run="nightly", on_error="fail")
        report = await pool.report("nightly")
    assert report is not None
    assert ("run_failed", True, 1, 2) == (
        report.stopped,
        report.finished,
        report.failed,
        report.cancelled,
    )


@pytest.mark.rows("DP-19")
async def test_a_finished_run_gives_its_stored_report_and_runs_nothing() -> None:
    """The second drain under a name returns the report of the first, also with another seed."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2, retry=ONCE)
    ran = []

    @pool.task
    async def item(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(1)
        if n == 1:
            raise ValueError("bad")

    async with mp:
        first = await pool.drain(item.each([0, 1, 2]), run="nightly")
        start = clock()
        again = await pool.drain(item.each([0, 1, 2]), run="nightly")
        other = await pool.drain(item.each([7, 8]), run="nightly")
        assert start == clock()

    assert [0, 1, 2] == ran
    assert (False, False, "nightly") == (first.finished_before, first.resumed, first.name)
    for report in (again, other):
        assert (True, False) == (report.finished_before, report.resumed)
        assert (3, 2, 1) == (report.total, report.completed, report.failed)


@pytest.mark.rows("DP-19", "DP-20")
async def test_a_drain_joins_an_unfinished_run_and_does_not_seed_it_again() -> None:
    """The second drain under the name stores nothing, and both get a report."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    ran = []

    @pool.task
    async def item(n: int) -> None:
        await asyncio.sleep(1)
        ran.append(n)

    async with mp:
        first = asyncio.create_task(pool.drain(item.each([0, 1, 2]), run="nightly"))
        await asyncio.sleep(1.5)
        second = await pool.drain(item.each([7, 8, 9]), run="nightly")
        report = await first

    assert [0, 1, 2] == ran
    assert (True, False) == (second.resumed, second.finished_before)
    assert (False, False) == (report.resumed, report.finished_before)
    assert 3 == report.completed == second.completed


@pytest.mark.rows("TRAP-13")
async def test_a_run_without_a_name_is_always_new() -> None:
    """run=None seeds every time, also while the last run's tasks are still kept."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    ran: Counter[int] = Counter()

    @pool.task
    async def item(n: int) -> None:
        ran[n] += 1

    async with mp:
        for _ in range(3):
            report = await pool.drain(item.each([1, 2]))
            assert (2, None, False, False) == (
                report.completed,
                report.name,
                report.finished_before,
                report.resumed,
            )

    assert {1: 3, 2: 3} == ran


@pytest.mark.rows("TRAP-13")
async def test_a_run_name_is_unique_within_its_pool() -> None:
    """Another name, or the same name on another pool, is another run with its own seed."""
    mp = Millpond()
    one, two = mp.pool("one"), mp.pool("two")
    ran = []

    @mp.task
    async def item(n: int) -> None:
        ran.append(n)

    async with mp:
        await one.drain([item.bind(1)], run="nightly")
        await two.drain([item.bind(2)], run="nightly")
        await one.drain([item.bind(3)], run="weekly")

    assert [1, 2, 3] == ran


async def test_two_drains_that_open_one_name_together_seed_it_once() -> None:
    """The first one seeds the run; the other joins."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=4)
    ran: Counter[int] = Counter()

    @pool.task
    async def item(n: int) -> None:
        ran[n] += 1
        await asyncio.sleep(1)

    async with mp:
        reports = await asyncio.gather(
            *(pool.drain(item.each(range(10 * n, 10 * n + 5)), run="once") for n in range(6))
        )

    assert dict.fromkeys(range(5), 1) == ran
    assert [False] + [True] * 5 == sorted(report.resumed for report in reports)
    assert [5] * 6 == [report.completed for report in reports]


async def test_a_stopped_run_that_has_ended_is_reported_as_it_ended() -> None:
    """After a failed run its name gives the stored report, not a second failure."""
    mp = Millpond()
    pool = mp.pool("items", retry=ONCE)

    @pool.task
    async def bad() -> None:
        raise ValueError("bad")

    async with mp:
        with pytest.raises(RunFailed):
            await pool.drain([bad.bind(), bad.bind()], run="nightly", on_error="fail")
        report = await pool.drain([bad.bind()], run="nightly", on_error="fail")

    assert (True, 1, 1) == (report.finished_before, report.failed, report.cancelled)


async def test_a_redriven_task_opens_its_run_again() -> None:
    """An operator's redrive makes the run unfinished: the next drain under its name waits."""
    mp = Millpond()
    pool = mp.pool("items", retry=ONCE)
    broken = True

    @pool.task
    async def item() -> None:
        await asyncio.sleep(10)
        if broken:
            raise ValueError("bad")

    async with mp:
        first = await pool.drain([item.bind()], run="nightly")
        broken = False
        assert 1 == await pool.redrive([task.id for task in await pool.tasks(status="failed")])
        second = await pool.drain([item.bind()], run="nightly")

    assert (1, 0) == (first.failed, first.completed)
    assert (True, False) == (second.resumed, second.finished_before)
    assert (0, 1, 1) == (second.failed, second.completed, second.total)


async def test_the_report_of_a_named_run_outlives_its_tasks() -> None:
    """Retention prunes tasks before it prunes the report of their run."""
    mp = Millpond(keep=Keep(completed=60, failed=60, keys=86_400))
    pool = mp.pool("items")

    @pool.task
    async def item() -> None: ...

    async with mp:
        await pool.drain([item.bind()], run="nightly")
        await asyncio.sleep(3600)
        assert [] == await pool.tasks()
        report = await pool.drain([item.bind()], run="nightly")

    assert (True, 1) == (report.finished_before, report.completed)


async def test_the_name_of_a_run_is_forgotten_with_its_keys() -> None:
    """After Keep(keys=...) the same name is a new run; before that it is not."""
    mp = Millpond(keep=Keep(completed=60, failed=60, keys=3600))
    pool = mp.pool("items")
    ran = []

    @pool.task
    async def item() -> None:
        ran.append(clock())

    async with mp:
        await pool.drain([item.bind()], run="nightly")
        await asyncio.sleep(3000)
        assert (await pool.drain([item.bind()], run="nightly")).finished_before
        await asyncio.sleep(3600)
        assert not (await pool.drain([item.bind()], run="nightly")).finished_before

    assert 2 == len(ran)


# After a crash


@pytest.mark.rows("DP-19", "DP-20", "DE-T17")
@pytest.mark.parametrize("found_dead", [True, False])
async def test_a_run_goes_on_after_a_crash_with_its_remaining_tasks(*, found_dead: bool) -> None:
    """The next process runs the queued and the lost tasks, with counters and attempts unchanged."""
    fleet = Fleet()
    ran: list[tuple[str, int, int]] = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("items", max_concurrent=2)

        @pool.task
        async def item(ctx: Context, n: int) -> None:
            await asyncio.sleep(10)
            ran.append((name, n, ctx.attempt))
            if n < 100:
                await ctx.submit(item.bind(n + 100))

        return mp

    first, second = process("first"), process("second")
    await first.__aenter__()
    seed = first.tasks["item"].each(range(4))
    draining = asyncio.create_task(first.get_pool("items").drain(seed, run="nightly"))
    await asyncio.sleep(15)  # 0 and 1 are done, 2 and 3 run, 100 and 101 wait
    draining.cancel()
    await fleet.crash(first, found_dead=found_dead)
    async with second:
        again = second.tasks["item"].each(range(4))
        report = await second.get_pool("items").drain(again, run="nightly")

    assert (True, False) == (report.resumed, report.finished_before)
    assert (8, 8) == (report.total, report.completed)
    by_first = sorted((n, attempt) for name, n, attempt in ran if name == "first")
    by_second = sorted((n, attempt) for name, n, attempt in ran if name == "second")
    assert [(0, 1), (1, 1)] == by_first
    assert [(2, 2), (3, 2), (100, 1), (101, 1), (102, 1), (103, 1)] == by_second


@pytest.mark.rows("DP-16", "DE-18", "TRAP-6")
async def test_a_crash_between_the_handlers_end_and_its_settle_runs_the_task_again() -> None:
    """Delivery is at least once: a task that was not settled runs again."""
    fleet = Fleet()
    effects = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("items")

        @pool.task
        async def item(ctx: Context) -> None:
            effects.append((name, ctx.attempt, ctx.is_retry))
            if name == "first":
                fleet.cables[mp].cut = True

        return mp

    first, second = process("first"), process("second")
    await first.__aenter__()
    await first.get_pool("items").submit(first.tasks["item"].bind())
    await asyncio.sleep(1)
    await fleet.crash(first)
    async with second:
        await second.get_pool("items").drain()

    assert [("first", 1, False), ("second", 2, True)] == effects


@pytest.mark.rows("TRAP-2", "DE-R18")
async def test_a_task_that_kills_its_process_runs_as_often_as_it_has_attempts() -> None:
    """A lost lease is a charged attempt: after the last one the task is failed, not tried again."""
    fleet = Fleet()
    deaths = []

    def process() -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("items", retry=Retry(attempts=3))

        @pool.task
        async def poison(ctx: Context) -> None:
            deaths.append(ctx.attempt)
            await asyncio.sleep(3600)

        return mp

    mp = process()
    await mp.__aenter__()
    handle = await mp.get_pool("items").submit(mp.tasks["poison"].bind())
    for _ in range(3):
        await asyncio.sleep(1)
        await fleet.crash(mp)
        mp = process()
        await mp.__aenter__()
    await asyncio.sleep(100)
    (found,) = await mp.get_pool("items").tasks()
    await mp.__aexit__(None, None, None)

    assert [1, 2, 3] == deaths
    assert (handle.id, "failed", "lease_lost", 3) == (
        found.id,
        found.status,
        found.reason,
        found.attempt,
    )


@pytest.mark.rows("DP-09", "DP-10", "DE-R17", "DE-R16")
async def test_a_lease_that_is_not_renewed_passes_to_another_worker_when_it_expires() -> None:
    """Until it expires no worker claims the task; then any worker does, as a further attempt."""
    fleet = Fleet()
    starts = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("items", max_concurrent=1)

        @pool.task
        async def item(ctx: Context) -> None:
            starts.append((name, ctx.attempt, clock()))
            await asyncio.sleep(20)

        return mp

    first, second = process("first"), process("second")
    await first.__aenter__()
    await first.get_pool("items").submit(first.tasks["item"].bind())
    await asyncio.sleep(15)
    await fleet.crash(first, found_dead=False)
    async with second:
        pool = second.get_pool("items")
        await asyncio.sleep(10)
        assert 1 == len(starts)
        assert 1 == (await pool.snapshot()).running
        await pool.drain()
        assert (0, 0, 1) == (
            (await pool.snapshot()).running,
            (await pool.snapshot()).queued,
            (await pool.snapshot()).completed,
        )

    assert [("first", 1), ("second", 2)] == [start[:2] for start in starts]
    assert 25 < starts[1][2] - starts[0][2] <= 45


@pytest.mark.rows("TRAP-1")
async def test_a_late_settle_after_the_task_was_leased_again_changes_nothing() -> None:
    """The store refuses the settle of a worker declared dead; it is counted and reported."""
    fleet = Fleet()
    seen = []

    def process(answer: str) -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("items", max_concurrent=1)

        @pool.task
        async def item() -> str:
            try:
                await asyncio.sleep(50)
            except asyncio.CancelledError:
                seen.append(f"{answer} was interrupted")
            return answer

        mp.observe(lambda event: seen.append(f"{answer} {event.kind}"))
        return mp

    first, second = process("late"), process("good")
    async with first:
        handle = await first.get_pool("items").submit(first.tasks["item"].bind())
        await asyncio.sleep(5)
        (worker,) = await fleet.store.view.workers()
        await fleet.store.control(DeclareDead(worker))
        async with second:
            await until(lambda: _is(second, handle.id, "completed"))
            assert "good" == await (await second.handle(handle.id))
            snapshot = await second.get_pool("items").snapshot()

    assert ["late was interrupted", "late stale", "good completed"] == seen
    assert (1, 1) == (snapshot.completed, snapshot.stale_settles)


async def _is(mp: Millpond, task: int, status: str) -> bool:
    return [status] == await mp.status([task])


# Stuck


async def test_a_run_of_paused_tasks_is_stuck_and_names_them() -> None:
    """When only paused tasks are left, drain raises Stuck, which names task and pool."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)

    @pool.task
    async def item(n: int) -> None:
        await asyncio.sleep(1)

    async with mp:
        draining = asyncio.create_task(pool.drain(item.each(range(3)), run="nightly"))
        await asyncio.sleep(0.5)
        await pool.pause()
        start = clock()
        with pytest.raises(Stuck, match="paused") as caught:
            await draining
        assert 20 > clock() - start
        left = [task.id for task in await pool.tasks(status="queued")]
        assert ("items", "nightly") == (caught.value.pool, caught.value.run)
        assert 2 == len(left) == len(caught.value.tasks)
        assert all(str(one) in str(caught.value) for one in left)
        await pool.resume()
        report = await pool.drain([], run="nightly")

    assert (True, 3) == (report.resumed, report.completed)


@pytest.mark.parametrize("stop", ["lane", "key", "resize", "unserved"])
async def test_a_run_is_stuck_whatever_holds_its_last_tasks_back(stop: str) -> None:
    """A paused lane, a paused key, a limit of zero, a pool without a worker: Stuck names each."""
    mp = Millpond(work=False)
    pool = mp.pool("items", lanes=2) if stop == "lane" else mp.pool("items", max_concurrent=2)
    other = mp.pool("other")

    @pool.task(key="to")
    async def item(to: str) -> None: ...

    @other.task
    async def start(ctx: Context) -> None:
        await ctx.submit_many([item.bind("a"), item.bind("a")])

    async with mp, mp.worker(pools=["other"] if stop == "unserved" else None):
        match stop:
            case "lane":
                lane = (await item.submit("a")).lane
                await pool.drain()
                await pool.pause(lane=lane)
            case "key":
                await pool.pause(key="a")
            case "resize":
                await pool.resize(0)
            case _:
                pass
        expected = {
            "lane": "paused",
            "key": "'a' of pool 'items' is paused",
            "resize": "max_concurrent=0",
            "unserved": "no worker serves pool 'items'",
        }[stop]
        with pytest.raises(Stuck, match=expected):
            await other.drain([start.bind()])


@pytest.mark.rows("DP-E5", "TRAP-17")
async def test_a_run_of_unknown_functions_is_stuck_and_names_the_function() -> None:
    """A task whose function no worker has is parked, named, and fails after a day."""
    fleet = Fleet()
    first, second = fleet.millpond(work=False), fleet.millpond()
    pool = first.pool("items")
    second.pool("items")

    @pool.task
    async def gone() -> None: ...

    async with first, second:
        run = pool.run("nightly")
        await run.__aenter__()
        handle = await run.submit(gone.bind())
        internals_of(second).runtime.workers[0].look_everywhere()
        with pytest.raises(Stuck, match="'gone'"):
            await second.get_pool("items").drain([], run="nightly")
        assert "queued" == (await handle.refresh()).status
        assert 0 == handle.attempt
    # The day takes no real time: no process polls.
    await asyncio.sleep(86_400)
    async with first, second:
        await asyncio.sleep(60)
        assert ["failed"] == await first.status([handle.id])
        assert "unknown_function" == (await first.handle(handle.id)).reason


async def test_a_run_with_one_task_that_can_move_is_not_stuck() -> None:
    """A hundred paused tasks and one long one elsewhere: the run waits for it, then is stuck."""
    mp = Millpond()
    asleep = mp.pool("a-paused", max_concurrent=1)
    awake = mp.pool("z-busy", max_concurrent=1)

    @mp.task
    async def start(ctx: Context) -> None:
        await ctx.submit_many((item.bind(0) for _ in range(100)), pool=asleep)
        await ctx.submit(item.bind(100), pool=awake)

    @mp.task
    async def item(seconds: int) -> None:
        await asyncio.sleep(seconds)

    async with mp:
        await asleep.pause()
        began = clock()
        with pytest.raises(Stuck, match="100 task"):
            await awake.drain([start.bind()])
        assert 100 <= clock() - began < 120


async def test_a_run_that_waits_for_a_timer_or_a_short_pause_is_not_stuck() -> None:
    """The timer is an hour away; the pause lasts three seconds."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)

    @pool.task
    async def item() -> None: ...

    async with mp:
        report = await pool.drain([item.bind().options(delay=3600)])
        assert report.ok
        await pool.pause()
        draining = asyncio.create_task(pool.drain([item.bind()]))
        await asyncio.sleep(3)
        await pool.resume()
        assert (await draining).ok


# Temporary workers


async def test_drain_map_and_stream_start_a_worker_where_none_serves_their_pool() -> None:
    """On a Millpond with work=False, each starts a worker and stops it at the end."""
    mp = Millpond(work=False)
    pool = mp.pool("items", max_concurrent=2)
    other = mp.pool("other")

    @pool.task
    async def item(n: int) -> int:
        await asyncio.sleep(1)
        return n

    @other.task
    async def elsewhere() -> None: ...

    async with mp:
        waiting = await elsewhere.submit()
        assert 2 == (await pool.drain(item.each(range(2)))).completed
        assert [0, 1, 2] == await pool.map(item, range(3))
        assert [0, 1, 2] == [n async for n in pool.map(squared, range(3))]
        async with pool.stream(item.each(range(3))) as outcomes:
            assert [0, 1, 2] == sorted([outcome.result async for outcome in outcomes])
        await item.submit(5)
        assert 1 == (await pool.drain()).completed
        assert [] == internals_of(mp).runtime.workers
        left = await item.submit(6)
        await asyncio.sleep(100)
        assert ["queued", "queued"] == await mp.status([left.id, waiting.id])


async def squared(n: int) -> int:
    """Be a plain function to map."""
    return n


async def test_a_temporary_worker_runs_until_its_last_user_ends() -> None:
    """Two drains at once share one worker; the end of the shorter one does not stop it."""
    mp = Millpond(work=False)
    pool = mp.pool("items", max_concurrent=4)

    @pool.task
    async def item(seconds: int) -> None:
        await asyncio.sleep(seconds)

    async with mp:
        short = asyncio.create_task(pool.drain([item.bind(1)]))
        long = asyncio.create_task(pool.drain([item.bind(10), item.bind(10)]))
        await short
        assert 1 == len(internals_of(mp).runtime.workers)
        assert 2 == (await long).completed
        assert [] == internals_of(mp).runtime.workers
        assert 10 == round(clock())


# The block


async def test_a_run_block_waits_for_everything_submitted_through_it() -> None:
    """The end of the block waits for its tasks and their follow-ups, and sets run.report."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2)
    other = mp.pool("other", max_concurrent=2)

    @pool.task
    async def item(ctx: Context, n: int) -> int:
        await asyncio.sleep(1)
        if n:
            await ctx.submit(item.bind(n - 1), pool=other)
        return n

    async with mp:
        start = clock()
        async with pool.run("nightly") as run:
            first = await run.submit(item.bind(3))
            await asyncio.sleep(10)  # nothing is left, and yet the run is open
            handles = await run.submit_many(item.each([1, 1]))
        assert clock() - start == pytest.approx(12, abs=1e-2)
        assert [3, 1, 1] == [await handle for handle in (first, *handles)]

    assert run.report is not None
    assert (8, 8, "nightly", False) == (
        run.report.total,
        run.report.completed,
        run.report.name,
        run.report.finished_before,
    )


async def test_leaving_a_run_block_with_an_error_cancels_its_waiting_tasks() -> None:
    """The error propagates, queued tasks are cancelled, running ones see ctx.cancelled."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    cancels = []

    @pool.task
    async def item(ctx: Context) -> str:
        await asyncio.sleep(5)
        cancels.append(ctx.cancelled.is_set())
        return "done anyway"

    handles = []
    async with mp:
        with pytest.raises(ZeroDivisionError):
            async with pool.run() as run:
                handles = await run.submit_many([item.bind(), item.bind()])
                await asyncio.sleep(1)
                raise ZeroDivisionError
        assert "cancelled" == (await handles[1].wait()).status
        with pytest.raises(TaskCancelled):
            await handles[1]
        assert "done anyway" == await handles[0]

    assert [True] == cancels


async def test_a_run_block_of_a_finished_run_refuses_tasks() -> None:
    """finished_before is true on entering; submits raise; the report is the stored one."""
    mp = Millpond()
    pool = mp.pool("items")
    ran = []

    @pool.task
    async def item(n: int) -> None:
        ran.append(n)

    async with mp:
        await pool.drain([item.bind(1)], run="nightly")
        async with pool.run("nightly") as run:
            assert run.finished_before
            with pytest.raises(RunStopped, match="takes no more tasks") as caught:
                await run.submit(item.bind(2))
            assert ("items", "nightly") == (caught.value.pool, caught.value.run)

    assert [1] == ran
    assert run.report is not None
    assert (True, 1) == (run.report.finished_before, run.report.completed)


async def test_a_run_block_may_dedupe_and_has_a_budget() -> None:
    """dedupe="run" and max_tasks apply to submits through the block."""
    mp = Millpond()
    pool = mp.pool("items")
    ran = []

    @pool.task
    async def item(n: int) -> None:
        ran.append(n)

    async with mp:
        with pytest.raises(RunOverBudget) as caught:
            async with pool.run("small", max_tasks=2) as run:
                for n in (1, 1, 2):
                    await run.submit(item.bind(n), idempotency_key=str(n), dedupe="run")
                await asyncio.sleep(1)
                await run.submit(item.bind(3))

    assert [1, 2] == ran
    assert (2, "small") == (caught.value.max_tasks, caught.value.run)


async def test_a_run_block_raises_the_error_that_stopped_its_run() -> None:
    """on_error="fail" and follow-ups over the budget raise at the end of the block."""
    mp = Millpond()
    pool = mp.pool("items", retry=ONCE)

    @pool.task
    async def bad() -> None:
        raise ValueError("bad one")

    @pool.task
    async def grows(ctx: Context) -> None:
        await ctx.submit(grows.bind())

    async with mp:
        with pytest.raises(RunFailed, match="bad one"):
            async with pool.run(on_error="fail") as run:
                await run.submit(bad.bind())
        with pytest.raises(RunOverBudget, match="max_tasks=3"):
            async with pool.run(max_tasks=3) as run:
                await run.submit(grows.bind())


async def test_a_run_that_was_not_entered_takes_nothing() -> None:
    """submit outside the block is a mistake that is named."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item() -> None: ...

    async with mp:
        with pytest.raises(ConfigError, match="not open"):
            await pool.run("nightly").submit(item.bind())
    with pytest.raises(NotOpen):
        async with pool.run("nightly"):
            pass


async def test_a_run_held_open_by_a_process_that_dies_can_end() -> None:
    """The crash of that process releases the run: the next drain under its name ends."""
    fleet = Fleet()
    first, second = fleet.millpond(), fleet.millpond()
    for mp in (first, second):
        pool = mp.pool("items")

        @pool.task(name="item")
        async def item() -> None: ...

    await first.__aenter__()
    held = first.get_pool("items").run("nightly")
    await held.__aenter__()
    await held.submit(first.tasks["item"].bind())
    await asyncio.sleep(1)
    async with second:
        draining = asyncio.create_task(second.get_pool("items").drain([], run="nightly"))
        await asyncio.sleep(100)
        assert not draining.done()
        await fleet.crash(first)
        report = await draining

    assert (True, 1) == (report.resumed, report.completed)


async def test_closing_the_millpond_ends_drains_with_not_open() -> None:
    """A drain raises NotOpen when its Millpond closes, and does not hang."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item() -> None:
        await asyncio.sleep(3600)

    async with mp:
        seeded = asyncio.create_task(pool.drain([item.bind()]))
        idle = asyncio.create_task(pool.drain())
        await asyncio.sleep(1)
    for waiting in (seeded, idle):
        with pytest.raises(NotOpen):
            await waiting
