"""Four bugs that a well-known limiter shipped, and that this one must never have.

Each was found and fixed in anyio's CapacityLimiter; the tests are written from the descriptions.
"""

import asyncio

import pytest

from millpond import Bulkhead, Permit


def taken(llm: Bulkhead) -> Permit:
    permit = llm.try_acquire()
    assert permit
    return permit


@pytest.mark.rows("BH-09")
async def test_anyio_947_a_waiter_cancelled_in_the_turn_of_its_grant_passes_the_slot_on() -> None:
    """The slot was its own already; the next waiter gets it, and in the end it is free."""
    llm = Bulkhead("llm", 1, max_queue=2)
    permit = taken(llm)
    cancelled = asyncio.create_task(llm.acquire())
    heir = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    permit.release()
    cancelled.cancel()
    answer = await heir
    assert answer
    assert cancelled.cancelled()
    answer.release()
    assert (0, 0, 0) == (llm.stats().in_flight, llm.stats().pending, llm.stats().underflow)


@pytest.mark.rows("BH-09")
async def test_anyio_947_also_without_another_waiter() -> None:
    """Without an heir the slot is simply free again."""
    llm = Bulkhead("llm", 1, max_queue=2)
    permit = taken(llm)
    cancelled = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    permit.release()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert 0 == llm.stats().in_flight
    taken(llm).release()


@pytest.mark.rows("BH-09")
async def test_anyio_947_also_inside_async_with() -> None:
    """The body never runs, and the anonymous permit does not stay behind."""
    llm = Bulkhead("llm", 1, max_queue=2)
    permit = taken(llm)

    async def work() -> None:
        async with llm:
            pytest.fail("the body of a cancelled block ran")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    permit.release()
    task.cancel()
    await asyncio.wait([task])
    assert (0, 0) == (llm.stats().in_flight, llm.stats().pending)


@pytest.mark.rows("BH-01", "BH-05")
async def test_anyio_1170_try_acquire_cannot_take_the_slot_of_a_woken_waiter() -> None:
    """Between release and wake-up the slot belongs to the waiter: 2 of 1 is impossible."""
    llm = Bulkhead("llm", 1, max_queue=1)
    permit = taken(llm)
    waiter = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    permit.release()
    assert not llm.try_acquire()
    assert not await llm.acquire(timeout=0)
    assert 1 == llm.stats().in_flight
    answer = await waiter
    assert answer
    assert 1 == llm.stats().in_flight
    answer.release()


@pytest.mark.rows("BH-01", "BL-06")
async def test_anyio_1223_raising_the_limit_while_oversubscribed_does_not_over_grant() -> None:
    """Four inside, limit lowered to 1, raised to 3: no caller enters until fewer are inside."""
    llm = Bulkhead("llm", 4, max_queue=5)
    permits = [taken(llm) for _ in range(4)]
    tasks = [asyncio.create_task(llm.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    llm.resize(max_concurrent=1)
    llm.resize(max_concurrent=3)
    await asyncio.sleep(0)
    assert (4, 3) == (llm.stats().in_flight, llm.stats().pending)
    permits.pop().release()
    assert (3, 3) == (llm.stats().in_flight, llm.stats().pending)
    permits.pop().release()
    assert (3, 2) == (llm.stats().in_flight, llm.stats().pending)
    for permit in permits:
        permit.release()
    for task in tasks:
        answer = await task
        assert answer
        answer.release()


@pytest.mark.rows("BL-06")
async def test_anyio_646_raising_the_limit_admits_waiters_and_then_new_callers() -> None:
    """A higher limit is used at once, by waiters first, and does not shut out the next caller."""
    llm = Bulkhead("llm", 1, max_queue=5)
    permit = taken(llm)
    tasks = [asyncio.create_task(llm.acquire()) for _ in range(2)]
    await asyncio.sleep(0)
    llm.resize(max_concurrent=4)
    assert (3, 0) == (llm.stats().in_flight, llm.stats().pending)
    newcomer = taken(llm)
    for answer in [permit, newcomer, *await asyncio.gather(*tasks)]:
        assert answer
        answer.release()
    assert 0 == llm.stats().in_flight
