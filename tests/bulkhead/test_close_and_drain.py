"""The end: closing refuses, draining watches."""

import asyncio

import pytest

from millpond import Bulkhead, BulkheadRejected, Leftover, Permit, RejectReason
from millpond.pool.internals import internals_of


def taken(llm: Bulkhead) -> Permit:
    permit = llm.try_acquire()
    assert permit
    return permit


@pytest.mark.rows("BH-12")
async def test_close_refuses_everyone_to_come() -> None:
    """Every door answers `shutdown`, also with all slots free."""
    llm = Bulkhead("llm", 1, max_queue=1)
    llm.close()
    for answer in (llm.try_acquire(), await llm.acquire(), llm.would_admit()):
        assert not answer
        assert RejectReason.SHUTDOWN == answer.reason
    with pytest.raises(BulkheadRejected, match="shutdown"):
        await llm.run(asyncio.sleep, 0)
    with pytest.raises(BulkheadRejected, match="shutdown"):
        async with llm:
            pass
    assert llm.stats().closed


@pytest.mark.rows("BH-12")
async def test_close_refuses_waiters_and_leaves_permits_alone() -> None:
    """Waiters get `shutdown`; a permit that was granted stays valid until its release."""
    llm = Bulkhead("llm", 1, max_queue=3)
    permit = taken(llm)
    tasks = [asyncio.create_task(llm.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    llm.close()
    assert (1, 0) == (llm.stats().in_flight, llm.stats().pending)
    for answer in await asyncio.gather(*tasks):
        assert not answer
        assert RejectReason.SHUTDOWN == answer.reason
    permit.release()
    assert (0, 1) == (llm.stats().in_flight, llm.stats().released)
    assert not llm.try_acquire()


@pytest.mark.rows("BH-12")
async def test_close_may_be_repeated_and_cannot_be_undone() -> None:
    """The second call changes nothing; a raised limit does not reopen it."""
    llm = Bulkhead("llm", 1)
    llm.close()
    before = llm.stats()
    llm.close()
    assert before == llm.stats()
    llm.resize(max_concurrent=5)
    assert not llm.try_acquire()


@pytest.mark.rows("BH-13")
async def test_drain_of_an_idle_bulkhead_returns_at_once() -> None:
    """No caller is inside or waits: `drain` has nothing to wait for, and nothing is left."""
    left = await Bulkhead("llm", 1).drain()
    assert Leftover(0, 0) == left
    assert not left


@pytest.mark.rows("BH-13")
async def test_drain_waits_for_callers_inside_and_in_the_queue() -> None:
    """It ends when the last of them is gone, and many drains end together."""
    llm = Bulkhead("llm", 1, max_queue=3)
    loop = asyncio.get_running_loop()
    work = [asyncio.create_task(llm.run(asyncio.sleep, 1)) for _ in range(3)]
    await asyncio.sleep(0)
    ended: list[float] = []

    async def drain() -> None:
        await llm.drain()
        ended.append(loop.time())

    await asyncio.gather(*[drain() for _ in range(5)])
    assert [pytest.approx(3)] * 5 == ended
    assert all(task.done() for task in work)


@pytest.mark.rows("BH-13")
async def test_drain_does_not_stop_new_admissions() -> None:
    """Without `close` it only watches."""
    llm = Bulkhead("llm", 2)
    permit = taken(llm)
    drain = asyncio.create_task(llm.drain())
    await asyncio.sleep(0)
    other = taken(llm)
    permit.release()
    await asyncio.sleep(0)
    assert not drain.done()
    other.release()
    assert not await drain
    taken(llm).release()


@pytest.mark.rows("BH-12", "BH-13")
@pytest.mark.parametrize("close_first", [True, False])
async def test_close_and_drain_work_in_either_order(close_first: bool) -> None:
    """The graceful pattern: refuse, then wait for what is inside."""
    llm = Bulkhead("llm", 1, max_queue=1)
    permit = taken(llm)
    waiter = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    if close_first:
        llm.close()
    drain = asyncio.create_task(llm.drain())
    await asyncio.sleep(0)
    llm.close()
    assert not await waiter
    assert not drain.done()
    permit.release()
    assert not await drain


@pytest.mark.rows("BH-13")
async def test_drain_ends_when_the_last_waiter_gives_up() -> None:
    """With nothing inside and the limit at 0, a timeout can be what makes it idle."""
    llm = Bulkhead("llm", 1, max_queue=1)
    permit = taken(llm)
    waiter = asyncio.create_task(llm.acquire(timeout=5))
    await asyncio.sleep(0)
    llm.resize(max_concurrent=0)
    permit.release()
    assert (0, 1) == (llm.stats().in_flight, llm.stats().pending)
    assert not await llm.drain()
    assert not await waiter


@pytest.mark.rows("BL-10")
async def test_a_drain_with_a_timeout_returns_how_many_were_left() -> None:
    """It never raises; after the timeout it returns how many callers are inside or wait."""
    llm = Bulkhead("llm", 2, max_queue=1)
    permits = [taken(llm), taken(llm)]
    waiter = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    left = await llm.drain(timeout=3)
    assert Leftover(2, 1) == left
    assert left
    assert Leftover(2, 1) == await llm.drain(timeout=0), "0 is a snapshot"
    for permit in permits:
        permit.release()
    answer = await waiter
    assert answer
    answer.release()
    assert not await llm.drain(timeout=3)


async def test_a_drain_that_is_over_leaves_nothing_behind() -> None:
    """Ended, timed out or cancelled: the hot path is as plain as before."""
    llm = Bulkhead("llm", 1)
    permit = taken(llm)
    await llm.drain(timeout=1)
    cancelled = asyncio.create_task(llm.drain())
    await asyncio.sleep(0)
    assert internals_of(llm).alert
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert ([], False) == (internals_of(llm).drains, internals_of(llm).alert)
    ended = asyncio.create_task(llm.drain())
    await asyncio.sleep(0)
    permit.release()
    await ended
    assert ([], False) == (internals_of(llm).drains, internals_of(llm).alert)
