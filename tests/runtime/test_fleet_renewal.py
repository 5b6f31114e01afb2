"""Renewal on a thread of its own, which also runs while a handler keeps the loop busy."""

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.runtime.durable import Cluster, ProcessStore
from tests.waiting import eventually, never_ends

from millpond import Context, Millpond, Pool
from millpond.core.control import DeclareDead
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.real_loop

LEASE = 0.6


def process(cluster: Cluster, *, lease: float = LEASE) -> tuple[Millpond, Pool]:
    """A process that works."""
    mp = cluster.millpond(work=True, lease=lease)
    return mp, mp.pool("work", max_concurrent=50)


def store_of(mp: Millpond) -> ProcessStore:
    """The store as a process sees it."""
    store: Any = internals_of(mp).runtime.store
    return store  # type: ignore[no-any-return]


async def test_a_handler_that_keeps_the_loop_busy_keeps_its_lease() -> None:
    """The renewal thread renews meanwhile, and no task runs twice."""
    cluster = Cluster()
    (mp, pool), (other, _) = process(cluster), process(cluster)
    runs: list[int] = []

    @pool.task
    async def busy() -> int:
        runs.append(1)
        time.sleep(3 * LEASE)  # noqa: ASYNC251 - that is the point
        return len(runs)

    async with mp:
        handle = await busy.submit()
        # The other process runs in a thread with its own loop; it tries to recover lost leases.
        thread = threading.Thread(target=asyncio.run, args=(_recovering(other, cluster),))
        thread.start()
        assert 1 == await handle
        assert [1] == runs
        assert not internals_of(mp).runtime.workers[0].late
        assert 0 == mp.counts.leases_lost
        await asyncio.to_thread(thread.join)


async def _recovering(mp: Millpond, cluster: Cluster) -> None:
    until_then = time.monotonic() + 3 * LEASE
    while time.monotonic() < until_then:
        with cluster.lock:
            answer = cluster.store.recover()
            with pytest.raises(StopIteration) as answered:
                answer.send(None)
        assert 0 == answered.value.value.moved
        await asyncio.sleep(0.02)  # again and again, until the handler has ended


async def test_one_small_write_per_interval_however_many_tasks_run() -> None:
    """A renewal covers the worker with all its tasks."""
    cluster = Cluster()
    mp, pool = process(cluster)
    go = asyncio.Event()

    @pool.task
    async def wait() -> None:
        await go.wait()

    async with mp:
        handles = await pool.submit_many([wait.bind() for _ in range(40)])
        await eventually(lambda: len(internals_of(mp).runtime.workers[0].jobs) == 40)
        before, began = store_of(mp).calls["renew"], time.monotonic()
        await eventually(lambda: store_of(mp).calls["renew"] - before >= 4)
        took = time.monotonic() - began
        go.set()
        await mp.wait(handles)
        assert took > 3 * LEASE / 3 - 0.1
        assert store_of(mp).calls["renew"] - before <= took / (LEASE / 3) + 2


async def test_a_cancel_found_by_a_renewal_reaches_the_handler_on_the_loop() -> None:
    """Another process cancelled the task: the handler sees it by the next renewal."""
    cluster = Cluster(hints=False)
    mp, pool = process(cluster)
    heard: list[int] = []

    @pool.task
    async def work(ctx: Context) -> str:
        await ctx.cancelled.wait()
        heard.append(threading.get_ident())
        return "cancelled"

    client = cluster.millpond(work=False)
    client.pool("work", max_concurrent=50)
    async with mp, client:
        handle = await work.submit()
        await eventually(lambda: internals_of(mp).runtime.workers[0].jobs)
        began = time.monotonic()
        await client.cancel(handle.id)
        assert "cancelled" == await handle
        assert time.monotonic() - began < LEASE
    assert [threading.get_ident()] == heard


async def test_a_worker_declared_dead_learns_it_from_a_renewal_and_registers_again() -> None:
    """ctx.lease_lost is set for its handlers; it registers under another name."""
    cluster = Cluster()
    mp, pool = process(cluster)
    ended: list[str] = []

    @pool.task
    async def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            try:
                await ctx.lease_lost.wait()
            finally:
                ended.append("lost")
        return ctx.attempt

    async with mp:
        handle = await work.submit()
        worker = internals_of(mp).runtime.workers[0]
        name = worker.name
        await eventually(lambda: worker.jobs)
        with cluster.lock:
            await cluster.store.control(DeclareDead(name))
        assert 2 == await handle
        assert ["lost"] == ended
        assert name != worker.name
        before = store_of(mp).calls["renew"]
        await eventually(lambda: store_of(mp).calls["renew"] > before + 1)
        assert not worker.fenced


async def test_a_worker_that_cannot_renew_stops_before_its_lease_can_expire() -> None:
    """It stops its handlers when nine tenths of the lease are over."""
    cluster = Cluster()
    mp, pool = process(cluster)
    stopped: list[float] = []

    @pool.task
    async def work() -> None:
        try:
            await never_ends()
        finally:
            stopped.append(time.monotonic())

    def fail(_worker: str) -> None:
        raise ConnectionError("the store is away")

    async with mp:
        await work.submit()
        worker = internals_of(mp).runtime.workers[0]
        await eventually(lambda: worker.jobs)
        store = store_of(mp)
        renewals = store.calls["renew"]
        await eventually(lambda: store.calls["renew"] > renewals)
        last = time.monotonic()
        store.renewing = fail
        await eventually(lambda: stopped)
        assert stopped[0] - last < LEASE
        assert worker.late
        store.renewing = None
        await eventually(lambda: not worker.late)
        assert all(one.closed for one in store.renewers[:-1])


async def test_a_lease_counts_from_when_its_renewal_was_sent() -> None:
    """A slow answer does not extend it."""
    cluster = Cluster()
    mp, _ = process(cluster)
    sent: list[float] = []
    safe: list[float] = []

    def take_long(_worker: str) -> None:
        sent.append(time.monotonic())
        safe.append(worker.guard.safe_until)
        time.sleep(0.5 * LEASE)  # an answer that takes long, which is the point

    async with mp:
        worker = internals_of(mp).runtime.workers[0]
        store_of(mp).renewing = take_long
        await eventually(lambda: len(sent) == 3)
    assert [one + 0.9 * LEASE for one in sent[:-1]] == pytest.approx(safe[1:], abs=0.02)


async def test_the_renewal_thread_starts_with_the_first_worker_and_ends_with_the_millpond() -> None:
    """A process that only submits has none."""
    cluster = Cluster()
    mp = cluster.millpond(lease=LEASE)
    mp.pool("work")

    def threads() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name.endswith(owner)]

    async with mp:
        store, owner = store_of(mp), internals_of(mp).runtime.owner
        assert [] == threads()
        async with mp.worker():
            assert 1 == len(threads())
            await eventually(lambda: store.calls["renew"])
        renewed = store.calls["renew"]
        assert 1 == len(threads())
    assert [] == threads()
    assert [True] == [one.closed for one in store.renewers]
    assert store.calls["renew"] <= renewed + 1


async def test_closing_does_not_wait_for_a_store_that_does_not_answer() -> None:
    """Closing abandons a renewal that hangs."""
    cluster = Cluster()
    mp, _ = process(cluster)
    hangs, free = threading.Event(), threading.Event()

    def hang(_worker: str) -> None:
        hangs.set()
        free.wait(20)

    try:
        async with mp:
            store_of(mp).renewing = hang
            await eventually(hangs.is_set)
            began = time.monotonic()
        assert time.monotonic() - began < 5
    finally:
        free.set()


async def _left_open() -> Millpond:
    """Return an open Millpond that runs a task."""
    mp, pool = process(Cluster())

    @pool.task
    async def never() -> None:
        await asyncio.Event().wait()

    await mp.__aenter__()
    await never.submit()
    await eventually(lambda: internals_of(mp).runtime.workers[0].jobs)
    return mp


def test_a_loop_that_was_closed_under_an_open_millpond_is_not_kept_alive() -> None:
    """The renewal thread ends, so the leases expire, and other workers take over the tasks."""
    with asyncio.Runner() as runner:
        mp = runner.run(_left_open())
        name = f"millpond-renewal-{internals_of(mp).runtime.owner}"
        (thread,) = [one for one in threading.enumerate() if one.name == name]

    thread.join(5 * LEASE)

    assert not thread.is_alive()
