"""prefetch: a worker claims tasks before a slot is free; order and limits still hold."""

import asyncio
from collections import Counter

import pytest
from tests.pool.moments import rounds
from tests.pool.stores import Watched, memory

from millpond import (
    ConfigError,
    Keep,
    Millpond,
    Pool,
    Rate,
    Status,
    TaskCancelled,
    fair_round_robin,
    lifo,
)
from millpond.pool.internals import internals_of
from millpond.store.protocol import LeaseAnswer


class Bench:
    """A pool with prefetch whose jobs last one second and note when they started."""

    def __init__(self, prefetch: int = 4, **options: object) -> None:
        self.mp = Millpond()
        self.pool: Pool = self.mp.pool("ahead", prefetch=prefetch, **options)  # type: ignore[arg-type]
        self.started: list[tuple[float, int]] = []
        self.most = 0
        self.now = 0

        @self.pool.task(key="key")
        async def job(n: int, key: str | None = None) -> int:
            self.now += 1
            self.most = max(self.most, self.now)
            self.started.append((asyncio.get_running_loop().time(), n))
            try:
                await asyncio.sleep(1)
            finally:
                self.now -= 1
            return n

        self.job = job


async def test_prefetched_tasks_show_as_queued_and_do_not_count_as_running() -> None:
    """Two run, four are prefetched; the snapshot shows all but the two as queued."""
    bench = Bench(max_concurrent=2)
    async with bench.mp:
        handles = [await bench.job.submit(n) for n in range(10)]
        await rounds()
        snapshot = await bench.pool.snapshot()
        assert (2, 8, 4) == (snapshot.running, snapshot.queued, snapshot.claimed)
        states = [str((await handle.refresh()).status) for handle in handles]
        assert ["running"] * 2 + ["queued"] * 8 == states
        assert list(range(10)) == [await handle for handle in handles]
        snapshot = await bench.pool.snapshot()
        assert (0, 0, 0, 10) == (
            snapshot.running,
            snapshot.queued,
            snapshot.claimed,
            snapshot.completed,
        )
    assert 2 == bench.most


async def test_order_is_that_of_the_claims_and_no_slot_waits() -> None:
    """Ten jobs of a second on two slots take five seconds, in the order they came."""
    bench = Bench(max_concurrent=2)
    async with bench.mp:
        await bench.mp.wait([await bench.job.submit(n) for n in range(10)])
    assert list(range(10)) == [n for _, n in bench.started]
    assert [float(n // 2) for n in range(10)] == [round(at, 3) for at, _ in bench.started]


async def test_a_pause_gives_prefetched_tasks_back_uncharged() -> None:
    """They return to their places in the queue, and start first after the resume."""
    bench = Bench(max_concurrent=1)
    async with bench.mp:
        handles = [await bench.job.submit(n) for n in range(6)]
        await rounds()
        await bench.pool.pause()
        await rounds()
        snapshot = await bench.pool.snapshot()
        assert (1, 5, 0) == (snapshot.running, snapshot.queued, snapshot.claimed)
        await asyncio.sleep(10)
        assert 1 == len(bench.started)
        await bench.pool.resume()
        await bench.mp.wait(handles)
        assert [1] * 6 == [handle.attempt for handle in handles]
    assert list(range(6)) == [n for _, n in bench.started]


async def test_a_cancelled_claim_never_starts() -> None:
    """It is given back and ends cancelled; the others go on."""
    bench = Bench(max_concurrent=1)
    async with bench.mp:
        handles = [await bench.job.submit(n) for n in range(4)]
        await rounds()
        await handles[2].cancel()
        await bench.mp.wait(handles)
        with pytest.raises(TaskCancelled):
            await handles[2]
        assert [Status.COMPLETED] * 3 == [handles[n].status for n in (0, 1, 3)]
    assert [0, 1, 3] == [n for _, n in bench.started]


async def test_claims_count_for_the_limit_of_a_key() -> None:
    """With one per key, two of one key are never held at once, running or ahead."""
    bench = Bench(max_concurrent=4, max_per_key=1)
    async with bench.mp:
        for n in range(12):
            await bench.job.submit(n, "acme" if n % 2 else "bolt")
        await rounds()
        snapshot = await bench.pool.snapshot()
        assert (2, 0) == (snapshot.running, snapshot.claimed)
        await bench.pool.drain()
    assert 2 == bench.most


async def test_a_claim_takes_a_token_of_the_rate_and_brings_it_back() -> None:
    """Three may be claimed in a second; a claim that a pause gives back frees its token."""
    bench = Bench(max_concurrent=1, rate=Rate(3, per=60.0))
    async with bench.mp:
        for n in range(9):
            await bench.job.submit(n)
        await rounds()
        assert 2 == (await bench.pool.snapshot()).claimed
        await bench.pool.pause()
        await rounds()
        await bench.pool.resume()
        await rounds()
        assert 2 == (await bench.pool.snapshot()).claimed
        await asyncio.sleep(15)
        assert [0, 1, 2] == [n for _, n in bench.started]


async def test_closing_gives_everything_back() -> None:
    """A worker that stops gives its prefetched tasks back to the queue, uncharged."""
    bench = Bench(max_concurrent=1)
    mp = bench.mp
    async with mp:
        handles = [await bench.job.submit(n) for n in range(5)]
        await rounds()
        (worker,) = internals_of(mp).runtime.workers
        await internals_of(mp).runtime.local_workers.stop(worker)
        states = [await handle.refresh() for handle in handles]
        assert [(Status.QUEUED, 0)] * 5 == [(one.status, one.attempt) for one in states]
        assert 0 == (await bench.pool.snapshot()).claimed
        async with mp.worker():
            await mp.wait(handles)
        assert [1] * 5 == [handle.attempt for handle in handles]


async def test_fair_order_applies_when_tasks_are_claimed() -> None:
    """Prefetched tasks keep the fair order of the moment of their claim."""
    bench = Bench(max_concurrent=1, prefetch=3, queue=fair_round_robin("key"))
    async with bench.mp:
        for n, key in enumerate("aaaabb"):
            await bench.job.submit(n, key)
        await bench.pool.drain()
    assert sorted(range(6)) == sorted(n for _, n in bench.started)
    assert 1 == bench.most


@pytest.mark.parametrize(
    "options",
    [{"lanes": 2}, {"ordered": True}, {"queue": lifo()}],
    ids=["lanes", "ordered", "lifo"],
)
def test_prefetch_is_refused_by_name_where_order_is_exact_to_the_start(
    options: dict[str, object],
) -> None:
    """Prefetched tasks would start out of order there."""
    with pytest.raises(ConfigError, match="prefetch"):
        Millpond().pool("ahead", prefetch=1, **options)  # type: ignore[arg-type]


async def test_the_audit_never_shows_more_running_than_may() -> None:
    """Replayed record by record, with retries, cancels and pauses, the limits hold."""
    mp = Millpond(keep=Keep(completed=10_000))
    pool = mp.pool("ahead", prefetch=5, max_concurrent=3, max_per_key=2)

    @pool.task(key="key", timeout=5)
    async def job(n: int, key: str) -> int:
        await asyncio.sleep(n % 3)
        if n % 7 == 0:
            raise ValueError("again")
        return n

    async with mp:
        handles = [await job.submit(n, "abc"[n % 3]) for n in range(60)]
        for _ in range(3):
            await asyncio.sleep(2.5)
            await pool.pause()
            await asyncio.sleep(2.5)
            await pool.resume()
        await handles[41].cancel()
        await pool.drain()
        running = 0
        async for record in mp.audit(pool):
            running += (record.after == "running") - (record.before == "running")
            assert running <= 3
        ended = [(await handle.refresh()).status.terminal for handle in handles]
        assert [True] * 60 == ended


@pytest.mark.parametrize("pauses", [1, 3, 8])
async def test_a_claim_that_began_here_is_not_begun_again_by_a_slow_answer(pauses: int) -> None:
    """While a lease is on its way a claim may begin and end; the store may have started it, too."""
    store = Watched(memory(), pauses=pauses)
    mp = Millpond()
    internals_of(mp).owner.make_store = lambda: store
    pool = mp.pool("ahead", prefetch=3, max_concurrent=4)
    ran: list[int] = []

    @pool.task
    async def job(n: int) -> None:
        ran.append(n)
        for _ in range(n % 3):
            await asyncio.sleep(0)

    async with mp:
        for first in range(0, 300, 5):
            await pool.submit_many(job.each(range(first, first + 5)))
            for _ in range(first % 7):
                await asyncio.sleep(0)
        await pool.drain()
        assert 0 == mp.counts.stale_settles
    assert sorted(ran) == list(range(300))


async def test_claims_that_the_store_starts_are_started_once() -> None:
    """A raised limit turns claims into starts: each task runs once, and none is left behind."""
    bench = Bench(max_concurrent=1)
    async with bench.mp:
        handles = [await bench.job.submit(n) for n in range(12)]
        await rounds()
        await bench.pool.resize(3)
        await rounds()
        assert 3 == (await bench.pool.snapshot()).running
        assert list(range(12)) == [await handle for handle in handles]
        assert 0 == bench.mp.counts.stale_settles
    assert list(range(12)) == sorted(n for _, n in bench.started)
    assert 3 == bench.most


async def test_claims_start_while_the_store_takes_its_time() -> None:
    """The next job takes a free slot at once, without waiting for the store."""
    bench = Bench(max_concurrent=1, prefetch=3)
    store = Watched(memory())
    internals_of(bench.mp).owner.make_store = lambda: store
    async with bench.mp:
        handles = [await bench.job.submit(n) for n in range(5)]
        await rounds()
        store.freeze()
        await asyncio.sleep(10)
        assert [0, 1, 2, 3] == [n for _, n in bench.started]
        assert [0.0, 1.0, 2.0, 3.0] == pytest.approx([at for at, _ in bench.started], abs=0.01)
        store.thaw()
        assert list(range(5)) == [await handle for handle in handles]
        assert 0 == bench.mp.counts.stale_settles


async def test_a_prefetched_task_that_a_lease_started_is_not_prefetched_any_more() -> None:
    """The task is running: it would run twice if it were still prefetched."""
    bench = Bench(max_concurrent=1)
    async with bench.mp:
        for n in range(4):
            await bench.job.submit(n)
        await rounds()
        (worker,) = internals_of(bench.mp).runtime.workers
        first, *others = worker.prefetch.held["ahead"]
        worker.prefetch.take_in("ahead", LeaseAnswer(leased=(first,)))
        assert [claim.fence.task for claim in others] == worker.prefetch.tasks()


@pytest.mark.parametrize("pauses", [1, 2, 3, 5, 8])
async def test_a_claim_that_was_given_back_is_not_begun_by_a_slow_answer(pauses: int) -> None:
    """While a lease is on its way an order may want claims back that the store starts with it."""
    store = Watched(memory(), pauses=pauses)
    mp = Millpond()
    internals_of(mp).owner.make_store = lambda: store
    pool = mp.pool("ahead", prefetch=3, max_concurrent=2)
    at_work: Counter[int] = Counter()
    twice: list[int] = []
    ran: list[int] = []

    @pool.task
    async def job(n: int) -> None:
        ran.append(n)
        at_work[n] += 1
        twice.extend([n] if at_work[n] > 1 else [])
        for _ in range(n % 5):
            await asyncio.sleep(0)
        at_work[n] -= 1

    async with mp:
        for first in range(0, 200, 4):
            await pool.submit_many(job.each(range(first, first + 4)))
            for _ in range(first % 7):
                await asyncio.sleep(0)
            await (pool.pause() if first % 3 else pool.resume())
            await pool.resume()
        await pool.drain()
        assert 0 == mp.counts.stale_settles
    assert [] == twice
    assert sorted(ran) == list(range(200))
