"""Who gets in, who waits, who is refused."""

import asyncio

import pytest

from millpond import Bulkhead, BulkheadRejected, Permit, PermitRejection, RejectReason


def admitted(answer: Permit | PermitRejection) -> Permit:
    """The permit, where a refusal would be the bug."""
    assert isinstance(answer, Permit), answer
    return answer


@pytest.mark.rows("BH-01", "BH-03")
async def test_admits_up_to_the_limit_and_no_further() -> None:
    """Three slots admit three callers at once; the fourth is refused."""
    llm = Bulkhead("llm", 3)
    permits = [admitted(await llm.acquire()) for _ in range(3)]
    refused = await llm.acquire()
    assert isinstance(refused, PermitRejection)
    assert RejectReason.CONCURRENCY_LIMIT == refused.reason
    assert 3 == llm.stats().in_flight
    for permit in permits:
        permit.release()
    assert 0 == llm.stats().in_flight


@pytest.mark.rows("BH-04")
async def test_fails_fast_by_default() -> None:
    """Without `max_queue` no caller waits: a full bulkhead refuses at once."""
    llm = Bulkhead("llm", 1)
    with admitted(llm.try_acquire()):
        async with asyncio.timeout(0.001):
            assert not await llm.acquire(timeout=60)


@pytest.mark.rows("BH-02", "BH-03")
async def test_a_full_queue_refuses_at_once() -> None:
    """Two may wait; the third gets `queue_limit` while the first two keep their places."""
    llm = Bulkhead("llm", 1, max_queue=2)
    permit = admitted(llm.try_acquire())
    waiting = [asyncio.create_task(llm.acquire()) for _ in range(2)]
    await asyncio.sleep(0)
    refused = await llm.acquire()
    assert isinstance(refused, PermitRejection)
    assert RejectReason.QUEUE_LIMIT == refused.reason
    assert 2 == llm.stats().pending
    permit.release()
    for task in waiting:
        admitted(await task).release()


@pytest.mark.rows("BH-03", "BH-08")
async def test_waiters_are_admitted_in_the_order_they_came() -> None:
    """Ten waiters behind one slot get it first come, first served."""
    llm = Bulkhead("llm", 1, max_queue=10)
    order: list[int] = []

    async def work(number: int) -> None:
        async with llm:
            order.append(number)
            await asyncio.sleep(1)

    await asyncio.gather(*[work(number) for number in range(10)])
    assert list(range(10)) == order


@pytest.mark.rows("BH-05")
async def test_try_acquire_never_queues() -> None:
    """With room in the queue and no free slot, `try_acquire` is refused and does not wait."""
    llm = Bulkhead("llm", 1, max_queue=5)
    permit = admitted(llm.try_acquire())
    refused = llm.try_acquire()
    assert isinstance(refused, PermitRejection)
    assert RejectReason.CONCURRENCY_LIMIT == refused.reason
    assert 0 == llm.stats().pending
    permit.release()


@pytest.mark.rows("BH-05")
async def test_try_acquire_does_not_overtake_waiters() -> None:
    """A slot handed over at release is gone before the waiter has noticed."""
    llm = Bulkhead("llm", 1, max_queue=5)
    permit = admitted(llm.try_acquire())
    waiting = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    permit.release()
    assert not llm.try_acquire()
    admitted(await waiting).release()


@pytest.mark.rows("BH-10")
async def test_run_releases_after_success_and_after_failure() -> None:
    """`run` gives the result or the error of its function, and the slot back in both cases."""
    llm = Bulkhead("llm", 1)

    async def double(number: int) -> int:
        return 2 * number

    async def fail() -> None:
        raise LookupError

    assert 42 == await llm.run(double, 21)
    with pytest.raises(LookupError):
        await llm.run(fail)
    assert (0, 2, 2) == (llm.stats().in_flight, llm.stats().admitted, llm.stats().released)


@pytest.mark.rows("BH-10")
async def test_run_releases_when_cancelled() -> None:
    """Cancelling the task inside `run` frees its slot."""
    llm = Bulkhead("llm", 1)
    task = asyncio.create_task(llm.run(asyncio.sleep, 60))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert 0 == llm.stats().in_flight


@pytest.mark.rows("BL-04")
async def test_a_rejection_has_the_capacity_at_its_moment() -> None:
    """The refusal carries its reason, the weight asked for and the capacity of that moment."""
    llm = Bulkhead("llm", 2, max_weight=100)
    with admitted(llm.try_acquire(weight=70)):
        refused = llm.try_acquire(weight=40)
        assert isinstance(refused, PermitRejection)
        assert ("llm", RejectReason.WEIGHT_LIMIT, 40) == (
            refused.bulkhead,
            refused.reason,
            refused.weight,
        )
        assert (1, 2, 70, 100) == (
            refused.capacity.in_flight,
            refused.capacity.max_concurrent,
            refused.capacity.weight_in_flight,
            refused.capacity.max_weight,
        )
    assert 1 == refused.capacity.in_flight


@pytest.mark.rows("BL-04")
async def test_the_error_has_the_fields_of_the_rejection() -> None:
    """`async with` and `run` raise what `acquire` would have returned."""
    llm = Bulkhead("llm", 1)
    async with llm:
        with pytest.raises(BulkheadRejected) as caught:
            async with llm:
                pass
        refused = llm.try_acquire()
    assert isinstance(refused, PermitRejection)
    assert ("MILL-004", "llm", refused.reason, refused.capacity) == (
        caught.value.code,
        caught.value.bulkhead,
        caught.value.reason,
        caught.value.capacity,
    )


async def test_async_with_takes_one_permit_each_time_it_is_entered() -> None:
    """Nesting takes a second permit, and a limit of one refuses it."""
    llm = Bulkhead("llm", 2)
    async with llm, llm:
        assert 2 == llm.stats().in_flight
    assert 0 == llm.stats().in_flight


async def test_many_tasks_may_share_one_async_with() -> None:
    """Anonymous permits need no owner: a hundred tasks never exceed the limit and end at zero."""
    llm = Bulkhead("llm", 7, max_queue=100)
    most = 0

    async def work() -> None:
        nonlocal most
        async with llm:
            most = max(most, llm.stats().in_flight)
            await asyncio.sleep(1)

    await asyncio.gather(*[work() for _ in range(100)])
    assert (7, 0) == (most, llm.stats().in_flight)


async def test_permit_is_a_context_that_gives_the_permit() -> None:
    """`permit()` holds its weight for the length of the block, also when the block fails."""
    llm = Bulkhead("llm", 2, max_weight=10)
    with pytest.raises(LookupError):
        async with llm.permit(weight=4) as permit:
            assert (4, 4) == (permit.weight, llm.stats().weight_in_flight)
            raise LookupError
    assert (0, 0) == (llm.stats().in_flight, llm.stats().weight_in_flight)


def test_a_bulkhead_is_born_outside_any_loop_and_serves_several() -> None:
    """One object may be used from one loop after another."""
    llm = Bulkhead("llm", 1, max_queue=1)

    async def contend() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(llm.run(asyncio.sleep, 0.001))
            group.create_task(llm.run(asyncio.sleep, 0.001))

    asyncio.run(contend())
    asyncio.run(contend())
    assert (4, 0) == (llm.stats().admitted, llm.stats().in_flight)
