"""The loop: it never spins, never sleeps through work, and survives errors of the store."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.pool.moments import result_of, timers
from tests.pool.stores import Opened, Watched, any_pace, memory, opened, rounds  # noqa: F401

from millpond import (
    Context,
    Handle,
    Keep,
    Millpond,
    Observed,
    Pool,
    Rate,
    Retry,
    bounded,
    fail_fast,
    fair_round_robin,
    fifo,
    lifo,
    priority,
    ring_buffer,
)
from millpond.core.control import Prune
from millpond.pool.internals import internals_of
from millpond.runtime.fleet.poll import POLL_FLOOR
from millpond.runtime.observe.watchdog import PATIENCE
from millpond.runtime.worker.state import MOST_AT_ONCE
from millpond.store.protocol import RecoverAnswer, Store

HOUR = 3600.0


def every_kind(mp: Millpond) -> list[Pool]:
    """One pool of each kind."""
    return [
        mp.pool("priority", queue=priority(aging=10)),
        mp.pool("fifo", queue=fifo()),
        mp.pool("lifo", queue=lifo()),
        mp.pool("fair", queue=fair_round_robin("tenant"), max_per_key=1),
        mp.pool("lanes", lanes=4),
        mp.pool("ordered", ordered=True, max_concurrent=5),
        mp.pool("rate", rate=Rate(5, per=1.0), rate_per_key=Rate(1, per=1.0)),
        mp.pool("block", backpressure=bounded(3)),
        mp.pool("ring", backpressure=ring_buffer(3)),
        mp.pool("fast", backpressure=fail_fast()),
        mp.pool("stopped", max_concurrent=0),
        mp.pool("wide", max_concurrent=500),
    ]


# It never spins


async def test_an_idle_private_store_gets_no_calls(opened: Opened) -> None:  # noqa: F811
    """With no tasks and no retention, an hour costs no verb."""
    mp = Millpond()
    every_kind(mp)
    async with mp:
        await rounds()
        before = opened.last.total
        await asyncio.sleep(HOUR)
        assert before == opened.last.total


async def test_hundreds_of_idle_pools_cost_no_timers(opened: Opened) -> None:  # noqa: F811
    """Nothing is armed for a pool that has nothing to do."""
    mp = Millpond()
    for number in range(300):
        mp.pool(f"pool-{number}", max_concurrent=3, rate=Rate(1, per=1.0))
    async with mp:
        await asyncio.sleep(60)
        assert 0 == timers()


async def test_no_timer_is_left_after_the_work(opened: Opened) -> None:  # noqa: F811
    """Also after timeouts, delays, retries, rates and retention."""
    mp = Millpond(keep=Keep(completed=1, failed=1, keys=1))
    pool = mp.pool("work", max_concurrent=5, rate=Rate(50, per=1.0), retry=Retry.constant(1.0))

    @pool.task(timeout=5)
    async def job(ctx: Context) -> None:
        if ctx.attempt < 2:
            raise OSError

    async with mp:
        await mp.wait([await pool.submit(job, delay=n) for n in range(5)])
        await asyncio.sleep(200)
        before = opened.last.total
        await asyncio.sleep(HOUR)
        assert (0, before) == (timers(), opened.last.total)


async def test_retention_reads_the_store_once_a_minute(opened: Opened) -> None:  # noqa: F811
    """Maintenance reads only pools that keep something, once a minute."""
    mp = Millpond(keep=Keep(completed=2 * HOUR))
    one = mp.pool("one")
    for number in range(20):
        mp.pool(f"pool-{number}")

    @one.task
    async def job() -> None: ...

    async with mp:
        await (await job.submit())
        await asyncio.sleep(100)
        store = opened.last
        before = store.verbs.copy()
        await asyncio.sleep(HOUR)
        spent = store.verbs - before
        assert 61 >= spent["control"]
        assert 61 >= spent["recover"]
        assert 0 == spent["lease"] + spent["settle"] + spent["renew"]
        pruned = {order.pool for _, order in store.log if isinstance(order, Prune)}
        assert {"one"} == pruned


@pytest.mark.rows("CX-T61")
@pytest.mark.parametrize(
    "kind", ["paused", "nought", "saturated", "scheduled", "capped", "paused key", "held lane"]
)
async def test_a_backlog_that_cannot_start_costs_nothing(kind: str, opened: Opened) -> None:  # noqa: F811
    """A thousand seconds of waiting, with ready tasks or timers, cost a handful of verbs."""
    mp = Millpond(keep=Keep(completed=HOUR))
    options: dict[str, dict[str, Any]] = {
        "nought": {"max_concurrent": 0},
        "capped": {"max_per_key": 1, "max_concurrent": 9},
        "held lane": {"lanes": 3},
    }
    pool = mp.pool("work", **options.get(kind, {"max_concurrent": 1}))

    @pool.task
    async def job() -> None:
        await asyncio.sleep(5000)

    async with mp:
        if kind == "paused":
            await pool.pause()
        if kind == "paused key":
            await pool.pause(key="a")
        delay = 5000 if kind == "scheduled" else 0
        for _ in range(20):
            await pool.submit(job, key="a", delay=delay)
        await asyncio.sleep(10)
        before = opened.last.total
        await asyncio.sleep(1000)
        assert 3 >= opened.last.total - before


async def test_a_rate_costs_one_lease_for_each_start(opened: Opened) -> None:  # noqa: F811
    """The loop sleeps until the bucket has a token again."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=100, rate=Rate(1, per=10.0))
    starts: list[float] = []
    loop = asyncio.get_running_loop()

    @pool.task
    async def job() -> None:
        starts.append(loop.time())

    async with mp:
        await pool.submit_many(job.bind() for _ in range(30))
        await asyncio.sleep(285)
        assert [n * 10 for n in range(29)] == [round(at - starts[0]) for at in starts]
        calls = opened.last.verbs["lease"] + opened.last.verbs["settle"]
        assert 29 * 3 >= calls


async def test_an_idle_shared_store_is_polled_once_per_interval() -> None:
    """Hints can be lost, so each pool is polled once per interval, and not more often."""
    mp = Millpond()
    store = Watched(memory())
    internals_of(mp).owner.make_store = lambda: store
    pools = every_kind(mp)
    async with mp:
        await rounds()
        before = store.verbs.copy()
        await asyncio.sleep(HOUR)
        spent = store.verbs - before
        floors = HOUR / POLL_FLOOR + 1
        assert floors * 2 * len(pools) >= spent["lease"]
        assert HOUR / 10 + 1 >= spent["renew"]
        assert floors + HOUR / 10 + 1 >= spent["recover"]
        assert 0 == spent["settle"] + spent["submit"]


# It never sleeps through work


Scene = Callable[[Millpond, Pool], Awaitable[Handle[Any]]]


async def _by_submit(_: Millpond, pool: Pool) -> Handle[Any]:
    return await pool.submit(rounds)


async def _by_settle(_: Millpond, pool: Pool) -> Handle[Any]:
    async def hold() -> None:
        await asyncio.sleep(5)

    await pool.submit(hold)
    handle = await pool.submit(rounds)
    await asyncio.sleep(5)
    return handle


async def _by_cancel(_: Millpond, pool: Pool) -> Handle[Any]:
    async def hold() -> None:
        await asyncio.sleep(1000)

    first = await pool.submit(hold)
    handle = await pool.submit(rounds)
    await asyncio.sleep(5)
    await first.cancel("interrupt")
    return handle


async def _by_timer(_: Millpond, pool: Pool) -> Handle[Any]:
    handle = await pool.submit(rounds, delay=30)
    await asyncio.sleep(30)
    return handle


async def _by_raised_limit(_: Millpond, pool: Pool) -> Handle[Any]:
    await pool.resize(0)
    handle = await pool.submit(rounds)
    await asyncio.sleep(30)
    await pool.resize(1)
    return handle


async def _by_resume(_: Millpond, pool: Pool) -> Handle[Any]:
    await pool.pause()
    handle = await pool.submit(rounds)
    await asyncio.sleep(30)
    await pool.resume()
    return handle


async def _by_redrive(mp: Millpond, pool: Pool) -> Handle[Any]:
    await pool.pause()
    handle = await pool.submit(mp.tasks["job"])
    await handle.cancel()
    await pool.resume()
    await asyncio.sleep(30)
    await pool.redrive([handle])
    return await handle.refresh()


async def _by_worker(mp: Millpond, pool: Pool) -> Handle[Any]:
    (worker,) = internals_of(mp).runtime.workers
    await internals_of(mp).runtime.local_workers.stop(worker)
    handle = await pool.submit(mp.tasks["job"])
    await asyncio.sleep(30)
    await internals_of(mp).runtime.local_workers.start()
    return handle


SCENES: dict[str, Scene] = {
    "submit": _by_submit,
    "settle": _by_settle,
    "cancel": _by_cancel,
    "timer": _by_timer,
    "raised limit": _by_raised_limit,
    "resume": _by_resume,
    "redrive": _by_redrive,
    "a worker comes": _by_worker,
}


@pytest.mark.rows("CX-22", "CX-T24", "CX-T28", "CX-T35", "CX-06", "CX-T61")
@pytest.mark.parametrize("source", SCENES)
async def test_each_source_of_readiness_wakes_the_loop(source: str, any_pace: Opened) -> None:  # noqa: F811
    """A task starts when it becomes ready, not at the next poll."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=1)

    @pool.task
    async def job() -> None: ...

    async with mp:
        handle = await SCENES[source](mp, pool)
        await asyncio.wait_for(result_of(handle), 0.01)


@pytest.mark.rows("CX-T33", "CX-T27")
async def test_an_earlier_wake_replaces_a_later_one(any_pace: Opened) -> None:  # noqa: F811
    """A loop that sleeps until a late time wakes for an earlier one, and again for the late one."""
    mp = Millpond()
    pool = mp.pool("work")
    starts: list[tuple[str, int]] = []
    loop = asyncio.get_running_loop()

    @pool.task
    async def job(name: str) -> None:
        starts.append((name, round(loop.time())))

    async with mp:
        handles = [await job.options(delay=d).submit(f"in {d}") for d in (100, 10, 0, 50)]
        await mp.wait(handles)
    assert [("in 0", 0), ("in 10", 10), ("in 50", 50), ("in 100", 100)] == starts


@pytest.mark.rows("CX-T29", "CX-06")
async def test_producers_do_not_wake_a_saturated_pool(opened: Opened) -> None:  # noqa: F811
    """A thousand submits to a full pool cost a thousand submits and not one lease."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2)
    go = asyncio.Event()

    @pool.task
    async def job() -> None:
        await go.wait()

    async with mp:
        await mp.wait([])
        for _ in range(2):
            await job.submit()
        await rounds()
        before = opened.last.verbs.copy()
        for _ in range(1000):
            await job.submit()
        await rounds()
        assert {"submit": 1000} == dict(opened.last.verbs - before)
        go.set()
        await pool.drain()
        assert 1002 == (await pool.snapshot()).completed


@pytest.mark.rows("CX-T31", "CX-T26", "CX-T38")
async def test_ten_wakeups_at_once_are_one_turn() -> None:
    """Ten submits to a shared store before the next turn are leased together."""
    mp = Millpond()
    store = Watched(memory())
    internals_of(mp).owner.make_store = lambda: store
    pool = mp.pool("work", max_concurrent=10)

    @pool.task
    async def job() -> None:
        await asyncio.sleep(1)

    async with mp:
        await rounds()
        before = store.verbs["lease"]
        await asyncio.gather(*(job.submit() for _ in range(10)))
        await rounds()
        assert 10 == (await pool.snapshot()).running
        assert 2 >= store.verbs["lease"] - before


@pytest.mark.rows("CX-10", "CX-T117", "CX-T118")
async def test_tasks_that_end_together_are_settled_in_one_verb(opened: Opened) -> None:  # noqa: F811
    """One verb settles the ended tasks, in order, and leases the next; no verb is empty."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=50, queue=fifo())

    over: list[int] = []

    @pool.task
    async def job(ctx: Context, number: int) -> int:
        await asyncio.sleep(1)
        over.append(ctx.task_id)
        return number

    async with mp:
        handles = await pool.submit_many(job.each(range(200)))
        await mp.wait(handles)
        settles = [what for verb, what in opened.last.log if verb == "settle"]
        assert 8 >= len(settles)
        assert all(ended for ended, _ in settles)
        assert sum(then is not None for _, then in settles) >= 3
        order = [one.fence.task for ended, _ in settles for one in ended]
        assert over == order
        asks = [what for verb, what in opened.last.log if verb == "lease"]
        assert all(1000 >= ask.want for ask in asks)


@pytest.mark.rows("TRAP-19", "CX-22")
@pytest.mark.parametrize("after", range(30))
async def test_a_submit_while_the_worker_becomes_idle_starts_at_once(
    after: int,
    any_pace: Opened,  # noqa: F811
) -> None:
    """Also while the last task ends, while it is settled, or right after."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=1)

    @pool.task
    async def job() -> int:
        return 1

    async with mp:
        for _ in range(3):
            await job.submit()
            await rounds(after)
            second = await job.submit()
            assert 1 == await asyncio.wait_for(result_of(second), 0.01)


@pytest.mark.rows("CX-T34", "DE-T26", "DE-19")
async def test_work_is_done_without_any_wake() -> None:
    """A shared store whose answers never name other pools with work still has all work done."""
    store = memory()
    submitter, worker = Millpond(work=False), Millpond()
    for mp in (submitter, worker):
        internals_of(mp).owner.make_store = lambda: Watched(store)

    def declare(mp: Millpond) -> Pool:
        pool = mp.pool("work", max_concurrent=3)

        @pool.task
        async def job(number: int) -> int:
            return number

        return pool

    ours, _ = declare(submitter), declare(worker)
    async with submitter, worker:
        await asyncio.sleep(100)
        task = submitter.tasks["job"]
        handles = await ours.submit_many(task.each(range(10)))
        await asyncio.sleep(2 * POLL_FLOOR)
        assert 10 * ["completed"] == [(await handle.refresh()).status for handle in handles]


class Recovering(Watched):
    """A store that notes the times of its `recover` calls."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.recovered_at: list[float] = []

    async def recover(
        self,
        *,
        limit: int = 1000,
        generation: int | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> RecoverAnswer:
        self.recovered_at.append(asyncio.get_running_loop().time())
        return await super().recover(limit=limit, generation=generation, now=now, entropy=entropy)


@pytest.mark.rows("CX-T55", "CX-T62", "CX-06")
async def test_recovery_comes_when_a_lease_expires_and_wakes_a_saturated_pool() -> None:
    """Recovery runs on its own schedule, and earlier when a lease runs out."""
    shared = memory()
    stores = [Recovering(shared), Recovering(shared)]
    loop = asyncio.get_running_loop()
    starts: list[tuple[int, float]] = []

    def process(number: int) -> Millpond:
        mp = Millpond(lease=30.0)
        internals_of(mp).owner.make_store = lambda: stores[number]
        pool = mp.pool("work", max_concurrent=1, retry=Retry.constant(0.0))

        @pool.task
        async def job() -> None:
            starts.append((number, loop.time()))
            await asyncio.sleep(1000)

        return mp

    dead, alive = process(0), process(1)
    async with dead:
        await dead.tasks["job"].submit()
        await rounds()
        stores[0].freeze()
        await asyncio.sleep(0.4)  # so that no poll falls on the moment the lease runs out
        async with alive:
            await asyncio.sleep(300)
        stores[0].thaw()
    assert [0, 1] == [who for who, _ in starts]
    assert [0.0, 30.0] == pytest.approx([at for _, at in starts], abs=0.05)
    calls = stores[1].recovered_at
    assert any(at == pytest.approx(30.0, abs=0.05) for at in calls)
    assert 11 >= max(later - earlier for earlier, later in pairwise(calls))
    assert 300 / 10 + 300 / 60 + 5 >= len(calls)


@pytest.mark.rows("CX-12")
async def test_leases_and_settles_are_bounded_batches(opened: Opened) -> None:  # noqa: F811
    """One verb leases or settles about a thousand tasks at most."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=5000)
    go = asyncio.Event()

    @pool.task
    async def job() -> None:
        await go.wait()

    async with mp:
        handles = await pool.submit_many(job.bind() for _ in range(2500))
        await rounds()
        assert 2500 == (await pool.snapshot()).running
        asks = [what for verb, what in opened.last.log if verb == "lease"]
        assert all(MOST_AT_ONCE >= ask.want for ask in asks)
        go.set()
        await mp.wait(handles)
        settles = [
            ended for verb, what in opened.last.log if verb == "settle" for ended in what[:1]
        ]
        assert all(MOST_AT_ONCE >= len(ended) for ended in settles)
        assert 2500 == sum(len(ended) for ended in settles)
        assert 2500 == (await pool.snapshot()).completed


@pytest.mark.rows("CX-T121")
async def test_the_slots_of_one_worker_are_its_own() -> None:
    """A worker of one slot and one of three run that many tasks each."""
    mp = Millpond(work=False)
    pool = mp.pool("work", max_concurrent=10)
    at_work: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @pool.task
    async def job(ctx: Context) -> None:
        at_work[ctx.resources] += 1
        most[ctx.resources] = max(most[ctx.resources], at_work[ctx.resources])
        await asyncio.sleep(1)
        at_work[ctx.resources] -= 1

    @asynccontextmanager
    async def small() -> AsyncIterator[str]:
        yield "small"

    @asynccontextmanager
    async def large() -> AsyncIterator[str]:
        yield "large"

    async with (
        mp,
        mp.worker(concurrency=1, resources=small),
        mp.worker(concurrency=3, resources=large),
    ):
        await pool.submit_many(job.bind() for _ in range(40))
        await pool.drain()
        assert 10 == pytest.approx(asyncio.get_running_loop().time(), abs=0.01)
    assert {"small": 1, "large": 3} == dict(most)


# Errors of the store


@pytest.mark.rows("CX-T116")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_fails_loses_nothing(when: str, opened: Opened) -> None:  # noqa: F811
    """Each verb of the loop fails once, before or after it was done: every task still ends once."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2, retry=Retry.never())
    runs: list[int] = []

    @pool.task
    async def job(number: int) -> int:
        runs.append(number)
        await asyncio.sleep(0.01)
        return number

    async with mp:
        store = opened.last
        handles = await pool.submit_many(job.each(range(12)))
        for _ in range(6):
            queue = store.failures if when == "before" else store.failures_after
            queue.append(ConnectionError("gone"))
            await asyncio.sleep(0.02)
        assert list(range(12)) == [await asyncio.wait_for(result_of(h), 60) for h in handles]
        assert sorted(runs) == list(range(12))
        snapshot = await pool.snapshot()
        assert (12, 0, 0) == (snapshot.completed, snapshot.running, snapshot.queued)
        assert 0 == internals_of(mp).runtime.counts.stale_settles


async def test_calls_to_a_store_that_is_away_back_off(opened: Opened) -> None:  # noqa: F811
    """The pauses grow to five seconds; when the store is back, all tasks run."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job() -> str:
        return "ran"

    async with mp:
        store = opened.last
        await pool.pause()
        handle = await job.submit()
        await pool.resume()
        store.failures.extend(ConnectionError("away") for _ in range(1000))
        before = store.total
        await asyncio.sleep(300)
        # The loop and the calls that give leases back: both back off.
        assert 150 >= store.total - before
        store.failures.clear()
        assert "ran" == await asyncio.wait_for(result_of(handle), 6)


async def test_a_settle_is_not_lost_when_the_worker_stops(opened: Opened) -> None:  # noqa: F811
    """The store fails as the worker stops: the worker repeats the settle before it ends."""
    mp = Millpond()
    pool = mp.pool("work")
    go = asyncio.Event()

    @pool.task
    async def job() -> str:
        await go.wait()
        return "ran"

    async with mp:
        handle = await job.submit()
        await rounds()
        store = opened.last
        store.failures.append(ConnectionError("busy"))
        go.set()
        (worker,) = internals_of(mp).runtime.workers
        await internals_of(mp).runtime.local_workers.stop(worker, grace=1.0)
        assert "completed" == (await handle.refresh()).status


async def test_stopping_during_a_verb_loses_no_task(any_pace: Opened) -> None:  # noqa: F811
    """Each task is completed or back in the queue."""
    for after in range(25):
        mp = Millpond()
        pool = mp.pool("work", max_concurrent=3)
        ran: list[int] = []

        @pool.task
        async def job(number: int, ran: list[int] = ran) -> None:
            await asyncio.sleep(0)
            ran.append(number)

        async with mp:
            handles = [await job.submit(n) for n in range(5)]
            await rounds(after)
            (worker,) = internals_of(mp).runtime.workers
            await internals_of(mp).runtime.local_workers.stop(worker)
            left = [(await handle.refresh()).status for handle in handles]
            assert {"completed", "queued"} >= set(left)
            assert 0 == (await pool.snapshot()).running
            assert 0 == internals_of(mp).runtime.counts.stale_settles


# The watchdog


@pytest.mark.rows("CX-23", "TRAP-4")
async def test_a_store_that_hangs_is_reported_as_stalled_ever_more_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker counts, logs and reports each stall, with growing pauses; then work goes on."""
    mp = Millpond()
    store = Watched(memory())
    internals_of(mp).owner.make_store = lambda: store
    pool = mp.pool("work")
    seen: list[Observed] = []
    mp.observe(seen.append)

    @pool.task
    async def job() -> str:
        return "ran"

    async with mp:
        handle = await job.submit()
        store.freeze()
        await asyncio.sleep(HOUR)
        stalls = [happened for happened in seen if happened.kind == "stalled"]
        assert 8 <= len(stalls) <= 20
        gaps = [b.at - a.at for a, b in pairwise(stalls)]
        assert gaps == sorted(gaps)
        assert len(stalls) == internals_of(mp).runtime.counts.stalls
        assert any("stalled" in record.message for record in caplog.records)
        assert store.total < 100
        store.thaw()
        assert "ran" == await handle
        await asyncio.sleep(3 * PATIENCE)
        before = internals_of(mp).runtime.counts.stalls
        await asyncio.sleep(HOUR)
        assert before == internals_of(mp).runtime.counts.stalls


@pytest.mark.rows("CX-T112")
async def test_a_watchdog_started_twice_is_one_and_stops_with_its_worker() -> None:
    """Starting it twice arms one timer; closing the Millpond leaves none."""
    mp = Millpond()
    store = Watched(memory())
    internals_of(mp).owner.make_store = lambda: store
    mp.pool("work")
    seen: list[Observed] = []
    mp.observe(seen.append)
    async with mp:
        await rounds()
        (worker,) = internals_of(mp).runtime.workers
        worker.watchdog.stop()
        before = timers()
        worker.watchdog.watch()
        worker.watchdog.watch()
        assert (True, before + 1) == (worker.watchdog.watching, timers())
        store.freeze()
        worker.look_everywhere()
        worker.watchdog.watch()
        await asyncio.sleep(PATIENCE + 1)
        assert ["stalled"] == [
            str(happened.kind) for happened in seen if happened.kind == "stalled"
        ]
        store.thaw()
        await rounds()
        worker.watchdog.watch()
    assert (False, 0) == (worker.watchdog.watching, timers())


@pytest.mark.rows("CX-23", "TRAP-4")
async def test_a_loop_that_breaks_starts_again_with_backoff(
    opened: Opened,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug in a turn is reported as a stall, and the loop goes on after a pause."""
    mp = Millpond()
    pool = mp.pool("work")
    broken = True
    calls: list[float] = []
    loop = asyncio.get_running_loop()

    @pool.task
    async def job(number: int) -> int:
        return number

    async with mp:
        (worker,) = internals_of(mp).runtime.workers
        plan = worker.queues.next_ask

        def breaks(**kwargs: bool) -> Any:
            calls.append(loop.time())
            if broken:
                raise RuntimeError("a bug")
            return plan(**kwargs)

        monkeypatch.setattr(worker.queues, "next_ask", breaks)
        handles = [await job.submit(n) for n in range(5)]
        await asyncio.sleep(60)
        assert 25 >= len(calls)
        assert 2 <= internals_of(mp).runtime.counts.stalls <= 5
        broken = False
        assert list(range(5)) == [await asyncio.wait_for(result_of(h), 6) for h in handles]


# The report


@pytest.mark.rows("CX-T105", "CX-T106", "CX-T104")
async def test_the_report_is_one_record_a_minute_while_there_is_something(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It counts ended, running and queued tasks of pools with changes, and omits other pools."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2)
    mp.pool("idle")

    @pool.task
    async def job() -> None:
        await asyncio.sleep(25)

    with caplog.at_level(logging.INFO, "millpond.report"):
        async with mp:
            await pool.submit_many(job.bind() for _ in range(9))
            await asyncio.sleep(86)
            records = [r for r in caplog.records if r.name == "millpond.report"]
            assert ["work: 6 completed, 2 running, 1 queued"] == [r.message for r in records]
            assert ("work",) == records[0].__dict__["pools"]
            await asyncio.sleep(10 * HOUR)
        records = [r for r in caplog.records if r.name == "millpond.report"]
        assert ["work: 3 completed, 0 running, 0 queued"] == [r.message for r in records[1:]]


@pytest.mark.rows("CX-T104", "CX-T105")
async def test_a_level_turns_the_report_off(caplog: pytest.LogCaptureFixture) -> None:
    """Above INFO the report is neither logged nor computed."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job() -> None: ...

    with caplog.at_level(logging.WARNING, "millpond"):
        async with mp:
            await (await job.submit())
            await asyncio.sleep(200)
    assert [] == [r for r in caplog.records if r.name == "millpond.report"]
