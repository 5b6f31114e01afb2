"""Renewal on a thread of its own: also while a handler keeps the loop busy."""

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.runtime.durable import Harbour, Ship
from tests.waiting import eventually, never_ends

from millpond import Context, Millpond, Pool
from millpond.core.control import DeclareDead
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.real_loop

LEASE = 0.6


def process(harbour: Harbour, *, lease: float = LEASE) -> tuple[Millpond, Pool]:
    """A process that works."""
    mp = harbour.millpond(work=True, lease=lease)
    return mp, mp.pool("work", max_concurrent=50)


def ship_of(mp: Millpond) -> Ship:
    """The store as a process sees it."""
    ship: Any = internals_of(mp).runtime.store
    return ship  # type: ignore[no-any-return]


async def test_a_handler_that_keeps_the_loop_busy_keeps_its_lease() -> None:
    """Nobody else could renew while it lasts; the thread does, and nothing is run twice."""
    harbour = Harbour()
    (mp, pool), (other, _) = process(harbour), process(harbour)
    runs: list[int] = []

    @pool.task
    async def busy() -> int:
        runs.append(1)
        time.sleep(3 * LEASE)  # noqa: ASYNC251 - that is the point
        return len(runs)

    async with mp:
        handle = await busy.submit()
        # The other process lives in a thread with a loop of its own: it looks for lost leases.
        thread = threading.Thread(target=asyncio.run, args=(_recovering(other, harbour),))
        thread.start()
        assert 1 == await handle
        assert [1] == runs
        assert not internals_of(mp).runtime.workers[0].late
        assert 0 == mp.counts.leases_lost
        await asyncio.to_thread(thread.join)


async def _recovering(mp: Millpond, harbour: Harbour) -> None:
    until_then = time.monotonic() + 3 * LEASE
    while time.monotonic() < until_then:
        with harbour.lock:
            answer = harbour.store.recover()
            with pytest.raises(StopIteration) as told:
                answer.send(None)
        assert 0 == told.value.value.moved
        await asyncio.sleep(0.02)  # again and again, until the handler has ended


async def test_one_small_write_per_interval_however_many_tasks_run() -> None:
    """Renewal is of the worker; what it runs does not count."""
    harbour = Harbour()
    mp, pool = process(harbour)
    go = asyncio.Event()

    @pool.task
    async def wait() -> None:
        await go.wait()

    async with mp:
        handles = await pool.submit_many([wait.bind() for _ in range(40)])
        await eventually(lambda: len(internals_of(mp).runtime.workers[0].jobs) == 40)
        before, began = ship_of(mp).asked["renew"], time.monotonic()
        await eventually(lambda: ship_of(mp).asked["renew"] - before >= 4)
        took = time.monotonic() - began
        go.set()
        await mp.wait(handles)
        assert took > 3 * LEASE / 3 - 0.1
        assert ship_of(mp).asked["renew"] - before <= took / (LEASE / 3) + 2


async def test_what_a_renewal_hears_of_cancelled_tasks_is_told_on_the_loop() -> None:
    """Somebody else cancelled it: its handler hears of it at the next renewal at the latest."""
    harbour = Harbour(hints=False)
    mp, pool = process(harbour)
    heard: list[int] = []

    @pool.task
    async def work(ctx: Context) -> str:
        await ctx.cancelled.wait()
        heard.append(threading.get_ident())
        return "told"

    client = harbour.millpond(work=False)
    client.pool("work", max_concurrent=50)
    async with mp, client:
        handle = await work.submit()
        await eventually(lambda: internals_of(mp).runtime.workers[0].jobs)
        began = time.monotonic()
        await client.cancel(handle.id)
        assert "told" == await handle
        assert time.monotonic() - began < LEASE
    assert [threading.get_ident()] == heard


async def test_a_worker_that_was_buried_is_told_by_its_renewal_and_joins_anew() -> None:
    """Its handlers are told that the lease is lost; its successor has another name."""
    harbour = Harbour()
    mp, pool = process(harbour)
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
        with harbour.lock:
            await harbour.store.control(DeclareDead(name))
        assert 2 == await handle
        assert ["lost"] == ended
        assert name != worker.name
        before = ship_of(mp).asked["renew"]
        await eventually(lambda: ship_of(mp).asked["renew"] > before + 1)
        assert not worker.fenced


async def test_a_worker_that_cannot_renew_stops_before_its_lease_can_expire() -> None:
    """Its renewals fail; handlers are stopped when nine tenths of the lease are over, not later."""
    harbour = Harbour()
    mp, pool = process(harbour)
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
        ship = ship_of(mp)
        renewals = ship.asked["renew"]
        await eventually(lambda: ship.asked["renew"] > renewals)
        last = time.monotonic()
        ship.renewing = fail
        await eventually(lambda: stopped)
        assert stopped[0] - last < LEASE
        assert worker.late
        ship.renewing = None
        await eventually(lambda: not worker.late)
        assert all(one.closed for one in ship.renewers[:-1])


async def test_a_lease_counts_from_when_its_renewal_was_sent() -> None:
    """An answer that takes long is of no use for longer than what was asked for."""
    harbour = Harbour()
    mp, _ = process(harbour)
    sent: list[float] = []
    safe: list[float] = []

    def take_long(_worker: str) -> None:
        sent.append(time.monotonic())
        safe.append(worker.guard.safe_until)
        time.sleep(0.5 * LEASE)  # an answer that takes long, which is the point

    async with mp:
        worker = internals_of(mp).runtime.workers[0]
        ship_of(mp).renewing = take_long
        await eventually(lambda: len(sent) == 3)
    assert [one + 0.9 * LEASE for one in sent[:-1]] == pytest.approx(safe[1:], abs=0.02)


async def test_the_thread_begins_with_the_first_worker_and_ends_with_the_millpond() -> None:
    """A process that only submits needs none; nothing is left behind."""
    harbour = Harbour()
    mp = harbour.millpond(lease=LEASE)
    mp.pool("work")

    def threads() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name.endswith(owner)]

    async with mp:
        ship, owner = ship_of(mp), internals_of(mp).runtime.owner
        assert [] == threads()
        async with mp.worker():
            assert 1 == len(threads())
            await eventually(lambda: ship.asked["renew"])
        renewed = ship.asked["renew"]
        assert 1 == len(threads())
    assert [] == threads()
    assert [True] == [one.closed for one in ship.renewers]
    assert ship.asked["renew"] <= renewed + 1


async def test_a_store_that_does_not_answer_does_not_keep_anybody_from_closing() -> None:
    """A renewal that hangs is left to itself."""
    harbour = Harbour()
    mp, _ = process(harbour)
    hangs, free = threading.Event(), threading.Event()

    def hang(_worker: str) -> None:
        hangs.set()
        free.wait(20)

    try:
        async with mp:
            ship_of(mp).renewing = hang
            await eventually(hangs.is_set)
            began = time.monotonic()
        assert time.monotonic() - began < 5
    finally:
        free.set()


async def _left_open() -> Millpond:
    """A Millpond that works on something and that nobody closes."""
    mp, pool = process(Harbour())

    @pool.task
    async def never() -> None:
        await asyncio.Event().wait()

    await mp.__aenter__()
    await never.submit()
    await eventually(lambda: internals_of(mp).runtime.workers[0].jobs)
    return mp


def test_a_loop_that_was_closed_under_an_open_millpond_is_not_kept_alive() -> None:
    """Nothing runs there any more, so its leases end, and others take over what it held."""
    with asyncio.Runner() as runner:
        mp = runner.run(_left_open())
        name = f"millpond-renewal-{internals_of(mp).runtime.owner}"
        (thread,) = [one for one in threading.enumerate() if one.name == name]

    thread.join(5 * LEASE)

    assert not thread.is_alive()
