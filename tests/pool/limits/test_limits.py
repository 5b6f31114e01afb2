"""Limits: how many run, of the pool and of a key, and how many start in a time."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise

import pytest

from millpond import ConfigError, Context, Millpond, Rate, RetryLater, StaleRevision, fifo
from millpond.errors import PoolClosed


class Gauge:
    """Counts running tasks, in all and by key, and notes each start."""

    def __init__(self) -> None:
        self.now: dict[str | None, int] = {}
        self.most: dict[str | None, int] = {}
        self.most_in_all = 0
        self.starts: list[float] = []

    async def work(self, ctx: Context, seconds: float) -> None:
        self.starts.append(asyncio.get_running_loop().time())
        self.now[ctx.key] = self.now.get(ctx.key, 0) + 1
        self.most[ctx.key] = max(self.most.get(ctx.key, 0), self.now[ctx.key])
        self.most_in_all = max(self.most_in_all, sum(self.now.values()))
        await asyncio.sleep(seconds)
        self.now[ctx.key] -= 1


def most_within(starts: Iterable[float], seconds: float) -> int:
    """Return the largest number of starts in any stretch of time of that length."""
    moments = sorted(starts)
    return max(sum(a <= b < a + seconds - 1e-6 for b in moments) for a in moments)


@pytest.mark.rows("HN-01")
async def test_max_concurrent_is_one_budget_for_every_submitter() -> None:
    """Ten submitters at once share three slots: three run, never more, and never fewer."""
    mp = Millpond()
    pool = mp.pool("budget", max_concurrent=3)
    gauge = Gauge()
    work = pool.task(name="work")(gauge.work)

    async def submitter() -> None:
        for _ in range(5):
            await work.submit(1.0)

    async with mp:
        await asyncio.gather(*(submitter() for _ in range(10)))
        await pool.drain()
        assert 17.0 == pytest.approx(asyncio.get_running_loop().time(), abs=0.01)
    assert 3 == gauge.most_in_all
    assert 50 == len(gauge.starts)


@pytest.mark.rows("HN-01")
async def test_max_concurrent_is_one_budget_for_every_worker() -> None:
    """Three workers on one pool together run no more than its limit."""
    mp = Millpond(work=False)
    pool = mp.pool("budget", max_concurrent=4)
    gauge = Gauge()
    work = pool.task(name="work")(gauge.work)
    async with mp, mp.worker(), mp.worker(), mp.worker():
        await pool.submit_many(work.bind(1.0) for _ in range(40))
        await pool.drain()
    assert 4 == gauge.most_in_all


async def test_without_max_concurrent_one_task_runs() -> None:
    """The default limit is 1."""
    mp = Millpond()
    pool = mp.pool("one")
    gauge = Gauge()
    work = pool.task(name="work")(gauge.work)
    async with mp:
        await pool.submit_many(work.bind(1.0) for _ in range(5))
        await pool.drain()
    assert 1 == gauge.most_in_all


async def test_a_serial_queue_is_one_slot_and_fifo() -> None:
    """max_concurrent=1, queue=fifo() runs one after another in order of submission."""
    mp = Millpond()
    pool = mp.pool("serial", queue=fifo())
    ran: list[int] = []

    @pool.task
    async def work(n: int) -> None:
        await asyncio.sleep(10 - n)
        ran.append(n)

    async with mp:
        await pool.submit_many(work.each(range(10)))
        await pool.drain()
    assert list(range(10)) == ran


async def test_max_per_key_limits_each_key_alone() -> None:
    """At most two of a key run; keyless tasks are not limited by it."""
    mp = Millpond()
    pool = mp.pool("keys", max_concurrent=9, max_per_key=2)
    gauge = Gauge()
    work = pool.task(name="work")(gauge.work)
    async with mp:
        for key in ("a", "b"):
            await pool.submit_many((work.bind(1.0) for _ in range(6)), key=key)
        await pool.submit_many(work.bind(1.0) for _ in range(10))
        await pool.drain()
    assert (2, 2) == (gauge.most["a"], gauge.most["b"])
    assert gauge.most[None] > 2
    assert 9 == gauge.most_in_all


async def test_a_key_at_its_limit_does_not_hold_up_other_keys() -> None:
    """In a fifo pool too a task whose key is at its limit is passed over, and keeps its place."""
    mp = Millpond()
    pool = mp.pool("keys", max_concurrent=2, max_per_key=1, queue=fifo())
    ran: list[str] = []

    @pool.task
    async def work(name: str) -> None:
        ran.append(name)
        await asyncio.sleep(1)

    async with mp:
        await pool.pause()
        for name in ("a1", "a2", "b1"):
            await pool.submit(work.bind(name), key=name[0])
        await pool.resume()
        await asyncio.sleep(0.5)
        assert ["a1", "b1"] == ran
        await pool.drain()
    assert ["a1", "b1", "a2"] == ran


# Rates


@pytest.mark.parametrize(
    ("rate", "burst"), [(Rate(5, per=10.0), 5), (Rate(5, per=10.0, burst=2), 2)]
)
async def test_a_rate_allows_its_burst_and_then_its_pace(rate: Rate, burst: int) -> None:
    """At once the burst, then one start each two seconds; over any time t burst + t*n/per."""
    mp = Millpond()
    pool = mp.pool("rated", max_concurrent=100, rate=rate)
    gauge = Gauge()
    work = pool.task(name="work")(gauge.work)
    async with mp:
        await pool.submit_many(work.bind(0.1) for _ in range(20))
        await pool.drain()
    assert burst == sum(start == 0.0 for start in gauge.starts)
    later = gauge.starts[burst - 1 :]
    assert all(2.0 == pytest.approx(b - a, abs=0.001) for a, b in pairwise(later))
    for seconds in (1.0, 2.0, 7.0, 10.0, 25.0):
        assert most_within(gauge.starts, seconds) <= burst + seconds * 5 / 10


async def test_a_rate_saves_up_its_burst_and_no_more() -> None:
    """After a long pause the burst is available again, and no more than the burst."""
    mp = Millpond()
    pool = mp.pool("rated", max_concurrent=100, rate=Rate(2, per=1.0, burst=4))
    gauge = Gauge()
    work = pool.task(name="work")(gauge.work)
    async with mp:
        await pool.submit_many(work.bind(0.0) for _ in range(10))
        await pool.drain()
        await asyncio.sleep(3600)
        rested = asyncio.get_running_loop().time()
        await pool.submit_many(work.bind(0.0) for _ in range(10))
        await pool.drain()
    assert 4 == sum(rested <= start < rested + 0.4 for start in gauge.starts)


async def test_every_attempt_counts_for_the_rate() -> None:
    """A retry is a start too."""
    mp = Millpond()
    pool = mp.pool("rated", max_concurrent=100, rate=Rate(1, per=10.0))
    starts: list[float] = []

    @pool.task
    async def work(ctx: Context) -> None:
        starts.append(asyncio.get_running_loop().time())
        if not ctx.is_retry:
            raise RetryLater(0.0)

    async with mp:
        await (await work.submit())
        await (await work.submit())
    assert [0.0, 10.0, 20.0, 30.0] == [pytest.approx(start, abs=0.001) for start in starts]


async def test_a_rate_per_key_holds_back_only_its_key() -> None:
    """Each key has its own bucket; keyless tasks have none."""
    mp = Millpond()
    pool = mp.pool("rated", max_concurrent=100, rate_per_key=Rate(1, per=10.0))
    starts: dict[str | None, list[float]] = {}

    @pool.task
    async def work(ctx: Context) -> None:
        starts.setdefault(ctx.key, []).append(asyncio.get_running_loop().time())

    async with mp:
        for key in ("a", "b", "a", "b"):
            await work.options(key=key).submit()
        await pool.submit_many(work.bind() for _ in range(3))
        await pool.drain()
    expected = pytest.approx([0.0, 10.0], abs=0.001)
    assert expected == starts["a"]
    assert expected == starts["b"]
    assert pytest.approx([0.0] * 3, abs=0.001) == starts[None]


async def test_several_rates_hold_together_and_one_may_count_weight() -> None:
    """The slower of the two decides; weight is the declared cost of a task."""
    mp = Millpond()
    rates = [Rate(10, per=1.0), Rate(100, per=10.0, of="weight")]
    pool = mp.pool("rated", max_concurrent=100, rate=rates)
    gauge = Gauge()
    work = pool.task(name="work")(gauge.work)
    async with mp:
        await pool.submit_many((work.bind(0.0) for _ in range(4)), weight=50)
        await pool.drain()
        assert [0.0, 0.0, 5.0, 10.0] == pytest.approx(gauge.starts, abs=0.001)
        with pytest.raises(ConfigError, match="weight"):
            await pool.submit(work.bind(0.0), weight=101)


# Control


async def test_resize_raises_at_once_and_shrinks_by_attrition() -> None:
    """A raised limit starts more at once; a lowered one is reached as work ends; 0 pauses."""
    mp = Millpond()
    pool = mp.pool("sized", max_concurrent=1)

    async def work() -> None:
        await asyncio.sleep(10)

    async def running() -> int:
        await asyncio.sleep(0.1)
        return (await pool.snapshot()).running

    async with mp:
        for _ in range(20):
            await pool.submit(work)
        assert 1 == await running()
        await pool.resize(4)
        assert 4 == await running()
        await pool.resize(max_concurrent=2)
        assert 4 == await running()
        await asyncio.sleep(10)
        assert 2 == await running()
        await pool.resize(0)
        await asyncio.sleep(20)
        assert 0 == await running()
        await pool.resize(None)
        assert 1 == await running()
        assert 1 == (await pool.snapshot()).config.max_concurrent


async def test_a_stale_revision_of_a_resize_is_refused() -> None:
    """revision= numbers the changes: one that is not newer than the current one is refused."""
    mp = Millpond()
    pool = mp.pool("sized")
    async with mp:
        revision = await pool.resize(3)
        assert revision == (await pool.snapshot()).revision
        assert revision + 1 == await pool.resize(4, revision=revision + 1)
        with pytest.raises(StaleRevision):
            await pool.resize(5, revision=revision)
        assert 4 == (await pool.snapshot()).max_concurrent


async def test_pause_keeps_timers_and_takes_completions() -> None:
    """While paused, running tasks end and are settled, and delays pass; nothing starts."""
    mp = Millpond()
    pool = mp.pool("paused", max_concurrent=5)
    started: list[float] = []

    @pool.task
    async def work() -> str:
        started.append(asyncio.get_running_loop().time())
        await asyncio.sleep(10)
        return "done"

    async with mp:
        running = await work.submit()
        delayed = await work.options(delay=20).submit()
        await asyncio.sleep(1)
        await pool.pause()
        assert (await pool.snapshot()).paused
        assert "done" == await running
        await asyncio.sleep(100)
        assert [0.0] == started
        await pool.resume()
        await delayed
    assert 1 == sum(start > 100 for start in started)


async def test_purge_cancels_waiting_tasks_and_returns_how_many() -> None:
    """Queued and scheduled tasks become cancelled (purged); running tasks go on."""
    mp = Millpond()
    pool = mp.pool("purged")

    @pool.task
    async def work() -> str:
        await asyncio.sleep(10)
        return "done"

    async with mp:
        running = await work.submit()
        await asyncio.sleep(1)
        waiting = [await work.submit(), await work.options(delay=100).submit()]
        assert 2 == await pool.purge()
        assert 0 == await pool.purge()
        for handle in await mp.wait(waiting):
            assert ("cancelled", "purged") == (handle.status, handle.reason)
        assert "done" == await running


async def test_pause_purge_and_cancel_all_may_be_about_one_key() -> None:
    """With key= the others are not touched."""
    mp = Millpond()
    pool = mp.pool("keyed")

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        a, b, c = [await work.options(key=key).submit() for key in "abc"]
        assert 1 == await pool.purge(key="a")
        assert 1 == await pool.cancel_all(key="b")
        assert ["cancelled", "cancelled", "queued"] == await mp.status([a.id, b.id, c.id])
        await pool.pause(key="c")
        await pool.resume()
        other = await work.options(key="d").submit()
        await other
        assert ["queued"] == await mp.status([c.id])
        await pool.resume(key="c")
        await c


async def test_cancel_all_before_a_time_keeps_later_tasks() -> None:
    """before= is compared with the time of submission; running tasks see ctx.cancelled."""
    mp = Millpond()
    pool = mp.pool("before")

    @pool.task
    async def work(ctx: Context) -> str:
        await ctx.cancelled.wait()
        raise asyncio.CancelledError

    async with mp:
        running, early = await work.submit(), await work.submit()
        await asyncio.sleep(100)
        late = await work.submit()
        assert 2 == await pool.cancel_all(before=50.0)
        await mp.wait([running, early], timeout=5)
        assert ["cancelled", "cancelled"] == [running.status, early.status]
        assert (await mp.status([late.id]))[0] in ("queued", "running")


async def test_a_closed_pool_refuses_new_tasks_and_runs_its_queue() -> None:
    """close() refuses work from outside for good; queued tasks still run."""
    mp = Millpond()
    pool = mp.pool("closed")

    @pool.task
    async def work() -> str:
        await asyncio.sleep(1)
        return "done"

    async with mp:
        handles = [await work.submit() for _ in range(3)]
        await pool.close()
        assert (await pool.snapshot()).closed
        with pytest.raises(PoolClosed) as caught:
            await work.submit()
        assert "closed" == caught.value.pool
        assert ["done"] * 3 == [await handle for handle in handles]
