"""Control: pause, resume, resize, purge, cancel_all, redrive, close."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.pool.stores import any_pace, rounds  # noqa: F401 - a fixture

from millpond import (
    ConfigError,
    Context,
    Millpond,
    Outcome,
    Pool,
    Rate,
    Retry,
    StaleRevision,
    TaskCancelled,
    fifo,
)
from millpond.errors import PoolClosed

pytestmark = pytest.mark.usefixtures("any_pace")


class Work:
    """A pool whose tasks run until the test releases them, and a log of what they did."""

    def __init__(self, **options: Any) -> None:
        self.mp = Millpond()
        options.setdefault("queue", fifo())
        self.pool: Pool = self.mp.pool("work", **options)
        self.started: list[str] = []
        self.ended: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

        @self.pool.task
        async def hold(ctx: Context, name: str) -> str:
            self.started.append(name)
            await self.gate(name).wait()
            self.ended.append(name)
            return name

        self.hold = hold

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    async def let(self, *names: str) -> None:
        for name in names:
            self.gate(name).set()
        await rounds()


@pytest.mark.rows("CX-11")
async def test_a_paused_pool_starts_nothing_and_a_resumed_one_at_once() -> None:
    """Queued tasks wait while the pool is paused; resume wakes the loop."""
    work = Work(max_concurrent=2)
    async with work.mp:
        await work.pool.pause()
        handle = await work.hold.submit("a")
        await asyncio.sleep(3600)
        assert [] == work.started
        assert (await work.pool.snapshot()).paused
        await work.pool.resume()
        await work.let("a")
        assert "a" == await handle


@pytest.mark.rows("TRAP-7")
async def test_a_pause_takes_completions_and_keeps_backoff() -> None:
    """Running tasks end and are settled; a backoff that ends in the pause waits for the resume."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2, retry=Retry.constant(10.0, jitter=0.0))
    tries: list[float] = []
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    @pool.task
    async def flaky() -> str:
        tries.append(loop.time())
        if len(tries) == 1:
            raise OSError("first")
        return "ok"

    @pool.task
    async def steady() -> str:
        await go.wait()
        return "done"

    async with mp:
        first, second = await flaky.submit(), await steady.submit()
        await rounds()
        began = tries[0]
        await pool.pause()
        go.set()
        assert "done" == await second
        await asyncio.sleep(30)
        assert 1 == len(tries)
        await pool.resume()
        assert "ok" == await first
        assert began + 30 == pytest.approx(tries[1])


async def test_a_paused_key_leaves_the_others_alone() -> None:
    """Pause and resume by key hold and free that key only."""
    work = Work(max_concurrent=4)
    async with work.mp:
        await work.pool.pause(key="red")
        await work.hold.options(key="red").submit("red")
        await work.hold.options(key="blue").submit("blue")
        await rounds()
        assert ["blue"] == work.started
        assert ("red",) == (await work.pool.snapshot()).paused_units
        await work.pool.resume(key="red")
        await rounds()
        assert ["blue", "red"] == work.started
        await work.let("red", "blue")


async def test_an_order_by_lane_needs_an_existing_lane() -> None:
    """Pools without lanes, and lanes that do not exist, are refused."""
    mp = Millpond()
    plain, laned = mp.pool("plain"), mp.pool("laned", lanes=2)
    async with mp:
        with pytest.raises(ConfigError, match="no lanes"):
            await plain.pause(lane=0)
        with pytest.raises(ConfigError, match="from 0 to 1"):
            await laned.pause(lane=2)
        with pytest.raises(ConfigError, match="exclude"):
            await laned.purge(lane=1, key="a")


@pytest.mark.rows("CX-11", "CX-T41", "TRAP-15")
async def test_a_lowered_limit_stops_starts_and_no_running_task() -> None:
    """The next start waits until enough tasks have ended."""
    work = Work(max_concurrent=3)
    async with work.mp:
        handles = [await work.hold.submit(name) for name in "abcde"]
        await rounds()
        await work.pool.resize(1)
        assert 3 == (await work.pool.snapshot()).running
        await work.let("a")
        assert ["a", "b", "c"] == work.started
        await work.let("b")
        assert ["a", "b", "c"] == work.started
        await work.let("c")
        assert ["a", "b", "c", "d"] == work.started
        await work.let("d", "e")
        assert list("abcde") == [await handle for handle in handles]
        after = await work.pool.snapshot()
        assert (0, 0) == (after.running, after.queued)


async def test_a_raised_limit_starts_waiting_tasks() -> None:
    """Raising the limit wakes the loop, with nothing else going on."""
    work = Work(max_concurrent=1)
    async with work.mp:
        for name in "abc":
            await work.hold.submit(name)
        await rounds()
        assert ["a"] == work.started
        await work.pool.resize(3)
        await rounds()
        assert ["a", "b", "c"] == work.started
        await work.let(*"abc")


async def test_a_limit_of_zero_starts_nothing() -> None:
    """Running tasks end and are settled; nothing starts until the limit is raised."""
    work = Work(max_concurrent=1)
    async with work.mp:
        first, second = [await work.hold.submit(name) for name in "ab"]
        await rounds()
        await work.pool.resize(0)
        await work.let("a")
        assert "a" == await first
        await asyncio.sleep(3600)
        assert ["a"] == work.started
        await work.pool.resize(2)
        await work.let("b")
        assert "b" == await second


async def test_a_reset_restores_the_declared_limit() -> None:
    """resize() without a number removes the operator's limit."""
    work = Work(max_concurrent=2)
    async with work.mp:
        await work.pool.resize(7)
        assert 7 == (await work.pool.snapshot()).max_concurrent
        await work.pool.resize()
        assert 2 == (await work.pool.snapshot()).max_concurrent


async def test_a_stale_revision_is_refused_and_changes_nothing() -> None:
    """A resize that knows an older revision than the one in force is refused."""
    work = Work(max_concurrent=2)
    async with work.mp:
        revision = await work.pool.resize(3)
        await work.pool.resize(4, revision=revision + 1)
        with pytest.raises(StaleRevision):
            await work.pool.resize(9, revision=revision + 1)
        assert 4 == (await work.pool.snapshot()).max_concurrent


@pytest.mark.rows("CX-T03")
async def test_a_negative_limit_is_refused_by_name() -> None:
    """resize() refuses a negative max_concurrent."""
    mp = Millpond()
    with pytest.raises(ConfigError, match="max_concurrent"):
        mp.pool("work", max_concurrent=-1)
    pool = mp.pool("work")
    async with mp:
        with pytest.raises(ConfigError, match="max_concurrent"):
            await pool.resize(-1)


@pytest.mark.rows("CX-T02")
async def test_any_number_of_slots_is_accepted() -> None:
    """Ten thousand slots are as good as ten."""
    mp = Millpond()
    pool = mp.pool("wide", max_concurrent=10_000)
    running = most = 0

    @pool.task
    async def wait() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    async with mp:
        await mp.wait(await pool.submit_many(wait.bind() for _ in range(2_500)))
    assert 2_500 == most


async def test_purge_cancels_waiting_tasks_and_returns_how_many() -> None:
    """Waiting tasks become cancelled: purged, scheduled ones too; running ones go on."""
    work = Work(max_concurrent=1)
    async with work.mp:
        running = await work.hold.submit("a")
        await rounds()
        waiting = await work.hold.submit("b")
        later = await work.hold.options(delay=60).submit("c")
        assert 2 == await work.pool.purge()
        for handle in (waiting, later):
            with pytest.raises(TaskCancelled) as caught:
                await handle
            assert "purged" == caught.value.reason
        assert 0 == await work.pool.purge()
        await work.let("a")
        assert "a" == await running
        await asyncio.sleep(100)
        assert ["a"] == work.started


async def test_purge_of_one_key() -> None:
    """Purge by key leaves other keys waiting."""
    work = Work(max_concurrent=1)
    async with work.mp:
        await work.pool.pause()
        red = await work.hold.options(key="red").submit("red")
        blue = await work.hold.options(key="blue").submit("blue")
        assert 1 == await work.pool.purge(key="red")
        assert "cancelled" == (await red.wait()).status
        await work.pool.resume()
        await work.let("blue")
        assert "blue" == await blue


async def test_purge_of_one_lane() -> None:
    """Purge by lane leaves other lanes waiting."""
    work = Work(lanes=2, queue=None)
    async with work.mp:
        await work.pool.pause()
        handles = [await work.hold.submit(name) for name in "abcd"]
        first = handles[0].lane
        assert 2 == await work.pool.purge(lane=first)
        await work.pool.resume()
        await work.let(*"abcd")
        ended = [(await handle.wait()).status for handle in handles]
        assert ["cancelled" if h.lane == first else "completed" for h in handles] == ended


@pytest.mark.rows("CX-T07")
async def test_cancel_all_cancels_waiting_tasks_and_signals_running_ones() -> None:
    """Every queued task ends; a running one sees ctx.cancelled and runs on until it returns."""
    work = Work(max_concurrent=1)
    signalled = asyncio.Event()

    @work.pool.task
    async def listens(ctx: Context) -> str:
        await ctx.cancelled.wait()
        signalled.set()
        return "swept up"

    async with work.mp:
        running = await listens.submit()
        await rounds()
        waiting = [await work.hold.submit(name) for name in "abc"]
        assert 4 == await work.pool.cancel_all()
        assert 3 * ["cancelled"] == [(await handle.wait()).status for handle in waiting]
        assert "swept up" == await running
        assert signalled.is_set()


async def test_cancel_all_before_a_time() -> None:
    """It cancels only tasks submitted before that time."""
    work = Work(max_concurrent=1)
    async with work.mp:
        await work.pool.pause()
        old = await work.hold.submit("old")
        await asyncio.sleep(10)
        moment = asyncio.get_running_loop().time()
        young = await work.hold.submit("young")
        assert 1 == await work.pool.cancel_all(before=moment)
        assert "cancelled" == (await old.wait()).status
        assert "queued" == (await young.refresh()).status


async def test_cancel_all_of_one_key_interrupts_only_its_own() -> None:
    """By key, running or waiting; mode="interrupt" stops the running ones of that key alone."""
    work = Work(max_concurrent=4)
    async with work.mp:
        red = await work.hold.options(key="red").submit("red")
        blue = await work.hold.options(key="blue").submit("blue")
        await rounds()
        assert 1 == await work.pool.cancel_all(key="red", mode="interrupt")
        assert "cancelled" == (await red.wait()).status
        await work.let("blue")
        assert "blue" == await blue


async def test_redrive_gives_a_new_budget_at_the_tail() -> None:
    """A failed task runs again behind those that wait, with all its attempts."""
    mp = Millpond()
    pool = mp.pool("work", queue=fifo(), retry=Retry(attempts=2, initial=1.0, jitter=0.0))
    runs: list[tuple[str, int]] = []
    healthy = False

    @pool.task
    async def job(ctx: Context, name: str) -> str:
        runs.append((name, ctx.attempt))
        if name == "bad" and not healthy:
            raise OSError("down")
        return name

    async with mp:
        bad = await job.submit("bad")
        assert "failed" == (await bad.wait()).status
        assert [("bad", 1), ("bad", 2)] == runs
        await pool.pause()
        good = await job.submit("good")
        assert 1 == await pool.redrive([bad.id])
        assert "queued" == (await bad.refresh()).status
        runs.clear()
        await pool.resume()
        assert "good" == await good
        await bad.wait()
        assert "failed" == bad.status
        assert [("good", 1), ("bad", 1), ("bad", 2)] == runs
        healthy = True
        assert 1 == await pool.redrive([bad])
        await bad.refresh()
        assert "bad" == await bad


async def test_redrive_takes_only_failed_and_cancelled_tasks() -> None:
    """A completed, running or unknown task is not redriven."""
    work = Work(max_concurrent=1)
    async with work.mp:
        done = await work.hold.submit("a")
        await work.let("a")
        running = await work.hold.submit("b")
        await rounds()
        assert 0 == await work.pool.redrive([done.id, running.id, 12345])
        waiting = await work.hold.submit("c")
        await waiting.cancel()
        assert 1 == await work.pool.redrive([waiting, done])
        await work.let("b", "c")
        assert "c" == await (await waiting.refresh())


async def test_close_refuses_outside_work_and_runs_the_queue() -> None:
    """It refuses submits from outside; its tasks run, are retried and submit follow-ups."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=1, retry=Retry.constant(1.0))
    ran: list[str] = []

    @pool.task
    async def job(ctx: Context, name: str) -> str:
        if name == "parent":
            await ctx.submit(job.bind("child"))
        if name == "flaky" and not ctx.is_retry:
            raise OSError("once")
        ran.append(name)
        return name

    async with mp:
        await pool.pause()
        kept = [await job.submit(name) for name in ("parent", "flaky")]
        await pool.close()
        with pytest.raises(PoolClosed):
            await job.submit("late")
        with pytest.raises(PoolClosed):
            await pool.submit(rounds)
        refused = await pool.try_submit(job.bind("late"))
        assert not refused
        await pool.resume()
        await mp.wait(kept)
        await pool.drain()
        assert ["child", "flaky", "parent"] == sorted(ran)
        assert (await pool.snapshot()).closed


async def test_a_closed_pool_still_answers_a_known_idempotency_key() -> None:
    """The store checks the idempotency key before it checks whether the pool is closed."""
    work = Work()
    async with work.mp:
        first = await work.hold.options(idempotency_key="k").submit("a")
        await work.pool.close()
        again = await work.hold.options(idempotency_key="k").submit("a")
        assert (first.id, True) == (again.id, again.duplicate)
        await work.let("a")


@pytest.mark.rows("CX-05", "CX-T47", "CX-T49", "CX-T50", "CX-T51", "CX-T52", "CX-T53")
async def test_the_snapshot_has_the_state_of_the_loop() -> None:
    """Idle, scheduled, running and saturated, and back."""
    work = Work(max_concurrent=2)

    async def state() -> str:
        return (await work.pool.snapshot()).state

    async with work.mp:
        assert "idle" == await state()
        await work.hold.options(delay=60).submit("later")
        assert "scheduled" == await state()
        await work.hold.submit("a")
        await rounds()
        assert "running" == await state()
        await work.hold.submit("b")
        await rounds()
        assert "saturated" == await state()
        await work.hold.submit("c")
        await work.let("a")
        assert "saturated" == await state()
        await work.let("b")
        assert "running" == await state()
        await work.let("c")
        assert "scheduled" == await state()
        await asyncio.sleep(60)
        await work.let("later")
        assert "idle" == await state()


@pytest.mark.rows("CX-T39", "CX-T40", "CX-T38", "CX-T54")
async def test_seven_tasks_and_three_slots() -> None:
    """Three start, four wait, and each end starts the next task."""
    work = Work(max_concurrent=3)
    async with work.mp:
        handles = await work.pool.submit_many(work.hold.bind(name) for name in "abcdefg")
        await rounds()
        assert list("abc") == work.started
        snapshot = await work.pool.snapshot()
        assert (3, 4) == (snapshot.running, snapshot.queued)
        for count, name in enumerate("abcd", start=4):
            await work.let(name)
            assert list("abcdefg"[:count]) == work.started
        await work.let(*"efg")
        assert list("abcdefg") == [await handle for handle in handles]


@pytest.mark.rows("CX-T103")
async def test_twenty_tasks_on_three_slots_all_run() -> None:
    """None is lost, and never more than three run."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=3)
    running = most = 0

    @pool.task
    async def job(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1 * (number % 4))
        running -= 1
        return number

    async with mp:
        handles = [await job.submit(n) for n in range(20)]
        assert list(range(20)) == [await handle for handle in handles]
    assert 3 == most


async def test_orders_to_many_pools_reach_only_their_own() -> None:
    """Pausing, purging and closing one pool touches no other of the same store."""
    mp = Millpond()
    one, two = mp.pool("one"), mp.pool("two")

    @mp.task
    async def job() -> str:
        return "ran"

    async with mp:
        await one.pause()
        held = await one.submit(job)
        await one.purge()
        await one.close()
        assert "ran" == await (await two.submit(job))
        assert "cancelled" == (await held.wait()).status


Orders = Callable[[Pool], Coroutine[Any, Any, object]]


@pytest.mark.parametrize(
    "order",
    [
        lambda pool: pool.pause(),
        lambda pool: pool.resume(),
        lambda pool: pool.resize(3),
        lambda pool: pool.purge(),
        lambda pool: pool.cancel_all(),
        lambda pool: pool.close(),
        lambda pool: pool.size(),
        lambda pool: pool.snapshot(),
        lambda pool: pool.tasks(),
        lambda pool: pool.drain(),
    ],
)
async def test_a_pool_made_after_opening_takes_orders_first(order: Orders) -> None:
    """Each order works on a pool before its first submit."""
    mp = Millpond()
    async with mp:
        await order(mp.pool("young"))


async def test_every_order_raises_not_open_while_closed() -> None:
    """Orders need an open Millpond."""
    from millpond.errors import NotOpen

    pool = Millpond().pool("work")
    with pytest.raises(NotOpen):
        await pool.pause()
    with pytest.raises(NotOpen):
        await pool.submit(rounds)


async def test_a_rate_limited_pool_may_be_resized_and_keeps_its_rate() -> None:
    """Resizing does not refill the bucket."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=1, rate=Rate(1, per=10.0))
    at: list[float] = []
    loop = asyncio.get_running_loop()

    @pool.task
    async def job() -> None:
        at.append(loop.time())

    async with mp:
        handles = [await job.submit() for _ in range(3)]
        await rounds()
        await pool.resize(5)
        await mp.wait(handles)
    assert [0.0, 10.0, 20.0] == [pytest.approx(moment - at[0], abs=1e-3) for moment in at]


async def test_callbacks_run_while_the_pool_is_paused() -> None:
    """A purge of a paused pool still runs on_complete."""
    work = Work()
    statuses: list[str] = []

    @work.mp.task
    async def notify(outcome: Outcome) -> None:
        statuses.append(outcome.status)

    async with work.mp:
        await work.pool.pause()
        await work.hold.options(on_complete=notify.bind()).submit("a")
        await work.pool.purge()
        await rounds()
        assert ["cancelled"] == statuses
