"""Leaving the queue: timeouts, aborts, cancellation, and the races between them."""

import asyncio
import gc
import math
import weakref
from datetime import timedelta

import pytest

from millpond import Bulkhead, Permit, PermitRejection, RejectReason
from millpond.pool.internals import internals_of


def full(max_queue: int = 10, max_concurrent: int = 1) -> tuple[Bulkhead, list[Permit]]:
    """A bulkhead with every slot taken."""
    llm = Bulkhead("llm", max_concurrent, max_queue=max_queue)
    permits = [llm.try_acquire() for _ in range(max_concurrent)]
    return llm, [permit for permit in permits if permit]


def let_go(answer: Permit | PermitRejection) -> bool:
    """Whether it was admitted; if so, it leaves at once."""
    if answer:
        answer.release()
    return bool(answer)


def reason(answer: Permit | PermitRejection) -> RejectReason | None:
    return None if answer else answer.reason


@pytest.mark.rows("BH-06")
async def test_a_timeout_bounds_the_wait() -> None:
    """A waiter gives up after its timeout, exactly then."""
    llm, [permit] = full()
    start = asyncio.get_running_loop().time()
    assert RejectReason.TIMEOUT == reason(await llm.acquire(timeout=5))
    assert 5 == pytest.approx(asyncio.get_running_loop().time() - start)
    assert 1 == llm.stats().timed_out
    permit.release()


@pytest.mark.rows("BH-06")
async def test_a_timeout_does_not_bound_the_work() -> None:
    """Once admitted, `run` may take as long as it likes."""
    llm, [permit] = full()
    asyncio.get_running_loop().call_later(1, permit.release)
    assert "done" == await llm.run(asyncio.sleep, 60, "done", timeout=2)


async def test_seconds_may_be_a_timedelta() -> None:
    """`timedelta` is taken wherever seconds are."""
    llm, [permit] = full()
    assert RejectReason.TIMEOUT == reason(await llm.acquire(timeout=timedelta(milliseconds=5)))
    assert 1 == (await llm.drain(timeout=timedelta(seconds=1))).in_flight
    permit.release()


@pytest.mark.rows("BH-15")
@pytest.mark.parametrize("timeout", [0, -1, -math.inf, math.nan, timedelta(seconds=-1)])
async def test_no_time_to_wait_is_an_immediate_timeout(timeout: float | timedelta) -> None:  # noqa: ASYNC109
    """Zero, negative and NaN timeouts are refused at once, where a wait would begin."""
    llm, [permit] = full()
    task = asyncio.create_task(llm.acquire(timeout=timeout))
    await asyncio.sleep(0)
    assert task.done()
    assert RejectReason.TIMEOUT == reason(task.result())
    assert 0 == llm.stats().pending
    permit.release()
    assert let_go(await llm.acquire(timeout=timeout)), "a free slot needs no waiting"


@pytest.mark.rows("BH-15")
async def test_a_full_queue_comes_before_the_timeout() -> None:
    """A caller that cannot wait gets that reason, not a timeout."""
    llm, [permit] = full(max_queue=0)
    assert RejectReason.CONCURRENCY_LIMIT == reason(await llm.acquire(timeout=-1))
    permit.release()


async def test_an_infinite_timeout_is_none() -> None:
    """`math.inf` waits for as long as it takes."""
    llm, [permit] = full()
    asyncio.get_running_loop().call_later(1e6, permit.release)
    assert let_go(await llm.acquire(timeout=math.inf))


@pytest.mark.rows("BH-07")
async def test_a_signal_aborts_the_wait() -> None:
    """Setting the event refuses the waiter, and nothing is granted to it later."""
    llm, [permit] = full()
    signal = asyncio.Event()
    task = asyncio.create_task(llm.acquire(signal=signal))
    await asyncio.sleep(1)
    signal.set()
    assert RejectReason.ABORTED == reason(await task)
    permit.release()
    assert (0, 0, 1) == (llm.stats().in_flight, llm.stats().pending, llm.stats().aborted)


@pytest.mark.rows("BH-07")
async def test_a_signal_never_touches_work_that_has_begun() -> None:
    """The event concerns admission; a running function goes on."""
    llm = Bulkhead("llm", 1)
    signal = asyncio.Event()
    asyncio.get_running_loop().call_later(1, signal.set)
    assert "done" == await llm.run(asyncio.sleep, 2, "done", signal=signal)


@pytest.mark.rows("BH-07", "TRAP-11")
async def test_a_signal_set_beforehand_is_refused_although_a_slot_is_free() -> None:
    """The bulkhead checks the signal first: the trap of the pre-aborted waiter."""
    llm = Bulkhead("llm", 1)
    signal = asyncio.Event()
    signal.set()
    assert RejectReason.ABORTED == reason(await llm.acquire(signal=signal))
    assert (0, 0) == (llm.stats().admitted, llm.stats().in_flight)


@pytest.mark.rows("BH-08", "TRAP-11")
async def test_waiters_that_gave_up_behind_a_stuck_head_leave_memory_at_once() -> None:
    """A thousand timeouts behind one head that stays leave one entry, not a thousand and one."""
    llm, [permit] = full(max_queue=1001)
    head = asyncio.create_task(llm.acquire())
    others = [asyncio.create_task(llm.acquire(timeout=1)) for _ in range(1000)]
    await asyncio.sleep(0)
    assert 1001 == llm.stats().pending
    await asyncio.wait(others)
    assert 1 == llm.stats().pending
    assert 1 == len(internals_of(llm).gate._waiting)
    permit.release()
    assert let_go(await head)


@pytest.mark.rows("BH-08", "TRAP-11")
async def test_churn_behind_a_stuck_head_keeps_nothing_alive() -> None:
    """The tickets themselves are gone, not only their places."""
    llm, [permit] = full(max_queue=2)
    head = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    for _ in range(50):
        await llm.acquire(timeout=1)
    await asyncio.sleep(0)  # the loop itself remembers the last callback it ran
    gc.collect()
    alive = [entry for entry in gc.get_objects() if type(entry).__name__ == "LoopWaiter"]
    assert 1 == len([entry for entry in alive if entry._batches is internals_of(llm).batches])
    permit.release()
    assert let_go(await head)


@pytest.mark.rows("BH-08")
async def test_a_waiter_that_gave_up_frees_its_place_in_the_queue() -> None:
    """Wherever it stood: head, middle or tail; the order of the rest is kept."""
    llm, [permit] = full(max_queue=5)
    order: list[int] = []

    async def wait(number: int) -> None:
        answer = await llm.acquire()
        assert answer
        order.append(number)
        answer.release()

    tasks = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    for number in (0, 2, 4):
        tasks[number].cancel()
    await asyncio.sleep(0)
    assert 2 == llm.stats().pending
    tasks += [asyncio.create_task(wait(number)) for number in (5, 6, 7)]
    await asyncio.sleep(0)
    permit.release()
    await asyncio.wait(tasks)
    assert [1, 3, 5, 6, 7] == order


@pytest.mark.rows("BH-08", "BH-09")
async def test_a_storm_of_cancellations_does_not_starve_a_later_waiter() -> None:
    """Two hundred waiters are cancelled in one turn; the one behind them is next."""
    llm, [permit] = full(max_queue=201)
    storm = [asyncio.create_task(llm.acquire()) for _ in range(200)]
    last = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    for task in storm:
        task.cancel()
    permit.release()
    await asyncio.wait(storm)
    answer = await last
    assert answer
    answer.release()
    assert (0, 0, 0) == (llm.stats().in_flight, llm.stats().pending, llm.stats().underflow)


@pytest.mark.rows("BH-09")
async def test_a_hundred_aborts_at_once_settle_each_waiter_once() -> None:
    """All callers wait with one event: all are refused, and no slot is lost."""
    llm, [permit] = full(max_queue=100)
    signal = asyncio.Event()
    tasks = [asyncio.create_task(llm.acquire(signal=signal)) for _ in range(100)]
    await asyncio.sleep(0)
    signal.set()
    answers = await asyncio.gather(*tasks)
    assert {RejectReason.ABORTED} == {reason(answer) for answer in answers}
    permit.release()
    assert (100, 0, 1) == (llm.stats().aborted, llm.stats().pending, llm.stats().released)
    assert not signal._waiters


@pytest.mark.rows("BH-09")
@pytest.mark.parametrize("order", ["release abort", "abort release"])
async def test_abort_and_release_in_one_turn_settle_once(order: str) -> None:
    """The first of the two decides; the slot is either the waiter's or free, never both."""
    llm, [permit] = full()
    signal = asyncio.Event()
    task = asyncio.create_task(llm.acquire(signal=signal))
    await asyncio.sleep(0)
    for act in order.split():
        permit.release() if act == "release" else signal.set()
    answer = await task
    # Setting an event is noticed one turn later, so the release is first in both orders.
    assert answer
    assert 1 == llm.stats().in_flight
    answer.release()
    assert (0, 2, 2) == (llm.stats().in_flight, llm.stats().admitted, llm.stats().released)


@pytest.mark.rows("BH-09")
@pytest.mark.parametrize("offset", [-1e-3, 0.0, 1e-3])
async def test_timeout_and_release_at_one_moment_settle_once(offset: float) -> None:
    """Fifty races of a timer against a release: one outcome each, and no slot lost or doubled."""
    loop = asyncio.get_running_loop()
    for _ in range(50):
        llm, [permit] = full()
        loop.call_later(1 + offset, permit.release)
        answer = await llm.acquire(timeout=1)
        if offset:
            assert bool(answer) == (offset < 0)
        await asyncio.sleep(1)
        assert (1 if answer else 0) == llm.stats().in_flight
        if answer:
            answer.release()
        assert (0, 0) == (llm.stats().in_flight, llm.stats().pending)


@pytest.mark.rows("BH-09")
async def test_a_waiter_that_timed_out_is_never_granted_later() -> None:
    """A release after the timeout leaves the slot free for the next one who asks."""
    llm, [permit] = full()
    assert not await llm.acquire(timeout=1)
    permit.release()
    assert 0 == llm.stats().in_flight
    assert let_go(llm.try_acquire())


async def test_timers_and_listeners_are_cleaned_up_after_a_grant() -> None:
    """A waiter that is admitted leaves no timer that would fire and no entry on the event."""
    llm, [permit] = full()
    signal = asyncio.Event()
    task = asyncio.create_task(llm.acquire(timeout=60, signal=signal))
    await asyncio.sleep(0)
    permit.release()
    answer = await task
    assert answer
    assert not signal._waiters
    timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert all(timer.cancelled() for timer in timers)
    answer.release()


async def test_timers_and_listeners_are_cleaned_up_after_a_close() -> None:
    """The same when the wait ends in a shutdown."""
    llm, [permit] = full()
    signal = asyncio.Event()
    task = asyncio.create_task(llm.acquire(timeout=60, signal=signal))
    await asyncio.sleep(0)
    llm.close()
    assert RejectReason.SHUTDOWN == reason(await task)
    assert not signal._waiters
    timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert all(timer.cancelled() for timer in timers)
    permit.release()


async def test_a_cancelled_wait_counts_as_aborted() -> None:
    """Cancelling the task is the other way to abort; the message of the cancel arrives."""
    llm, [permit] = full()
    task = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert (1, 0) == (llm.stats().aborted, llm.stats().pending)
    permit.release()


async def test_a_task_cancelled_before_it_starts_never_enters() -> None:
    """Nothing was taken, so nothing is left."""
    llm, [permit] = full()
    task = asyncio.create_task(llm.acquire())
    task.cancel()
    await asyncio.wait([task])
    assert 0 == llm.stats().pending
    permit.release()


async def test_a_second_cancel_while_the_first_is_under_way_changes_nothing() -> None:
    """Two cancels in one turn end one wait."""
    llm, [permit] = full()
    task = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    task.cancel()
    task.cancel()
    await asyncio.wait([task])
    assert (0, 1) == (llm.stats().pending, llm.stats().aborted)
    permit.release()


async def test_wait_for_and_timeout_scopes_work_around_a_wait() -> None:
    """asyncio's own ways to bound a wait leave no trace in the queue."""
    llm, [permit] = full()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(llm.acquire(), 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await llm.acquire()
    assert 0 == llm.stats().pending
    permit.release()
    assert 0 == llm.stats().in_flight


@pytest.mark.real_loop
async def test_an_interrupt_in_one_woken_task_does_not_strand_the_others() -> None:
    """Waiters are woken in one go; SystemExit in the first must not cost the second its turn."""
    llm, permits = full(max_concurrent=2)
    loop = asyncio.get_running_loop()
    order: list[str] = []

    async def wait(name: str) -> None:
        answer = await llm.acquire()
        assert answer
        order.append(name)
        answer.release()

    second = asyncio.create_task(wait("first"))
    third = asyncio.create_task(wait("second"))
    await asyncio.sleep(0)
    first_waiter = next(iter(internals_of(llm).gate._waiting.values()))
    wakeup = first_waiter._wakeup  # type: ignore[attr-defined]

    def interrupted(waiter: object) -> None:
        wakeup(waiter)
        raise ZeroDivisionError

    first_waiter._wakeup = interrupted  # type: ignore[attr-defined]
    seen: list[object] = []
    loop.set_exception_handler(lambda _loop, context: seen.append(context["exception"]))
    for permit in permits:
        permit.release()
    await asyncio.wait([second, third])
    assert ["first", "second"] == order
    assert [ZeroDivisionError] == [type(error) for error in seen]


async def test_a_finished_bulkhead_can_be_collected() -> None:
    """Nothing global holds on to it."""
    llm, [permit] = full()
    permit.release()
    gone = weakref.ref(llm)
    del llm, permit
    gc.collect()
    assert gone() is None
