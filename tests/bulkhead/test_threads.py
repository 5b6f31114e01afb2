"""Threads and loops at one door."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable

import pytest
from tests.waiting import until

from millpond import Bulkhead, BulkheadRejected, RejectReason
from millpond.bulkhead.lock import Lock
from millpond.pool.internals import internals_of


def in_threads(count: int, work: Callable[[], object]) -> None:
    """Run `work` in `count` threads to its end; what one of them raises is raised here."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not errors, errors


def test_blocking_works_without_any_loop() -> None:
    """Forty threads share three slots and never exceed them."""
    llm = Bulkhead("llm", 3, max_queue=40)
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with llm.blocking():
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.0005)  # long enough for others to come, and to be let in by mistake
            inside.pop()

    in_threads(40, work)
    assert max(most) <= 3
    assert (40, 40, 0, 0) == (
        llm.stats().admitted,
        llm.stats().released,
        llm.stats().in_flight,
        llm.stats().pending,
    )


def test_a_blocking_wait_times_out() -> None:
    """The error says so, and the place in the queue is free again."""
    llm = Bulkhead("llm", 1, max_queue=1)
    with llm.blocking():
        for timeout in (0.002, 0, -1):
            with (
                pytest.raises(BulkheadRejected) as caught,
                llm.blocking(timeout=timeout),
            ):
                pass
            assert RejectReason.TIMEOUT == caught.value.reason
    assert (0, 0) == (llm.stats().pending, llm.stats().in_flight)


def test_a_blocking_wait_ends_with_the_close() -> None:
    """Sleeping threads are woken with `shutdown`."""
    llm = Bulkhead("llm", 1, max_queue=4)
    reasons: list[str] = []

    def wait() -> None:
        try:
            with llm.blocking():
                pytest.fail("admitted to a closed bulkhead")
        except BulkheadRejected as error:
            reasons.append(error.reason)

    def close_when_all_wait() -> None:
        until(lambda: llm.stats().pending == 4)
        llm.close()

    with llm.blocking():
        closer = threading.Thread(target=close_when_all_wait)
        closer.start()
        in_threads(4, wait)
        closer.join(5)
    assert [RejectReason.SHUTDOWN] * 4 == reasons


def test_blocking_carries_weight_and_releases_on_error() -> None:
    """The permit is given to the block, as in `permit()`."""
    llm = Bulkhead("llm", 1, max_weight=10)
    with pytest.raises(LookupError), llm.blocking(weight=7) as permit:
        assert (7, 7) == (permit.weight, llm.stats().weight_in_flight)
        raise LookupError
    assert 0 == llm.stats().weight_in_flight


@pytest.mark.real_loop
async def test_blocking_on_the_thread_of_a_loop_is_refused() -> None:
    """It would stop the very tasks it waits for."""
    llm = Bulkhead("llm", 1)
    with pytest.raises(RuntimeError, match="async with"), llm.blocking():
        pass
    assert 0 == llm.stats().in_flight


@pytest.mark.real_loop
async def test_threads_and_tasks_wait_in_one_queue() -> None:
    """A task, a thread, a task: admitted in the order in which they came."""
    llm = Bulkhead("llm", 1, max_queue=5)
    order: list[str] = []
    holder = llm.try_acquire()
    assert holder

    async def task(name: str) -> None:
        async with llm:
            order.append(name)

    def thread() -> None:
        with llm.blocking():
            order.append("thread")

    first = asyncio.create_task(task("first"))
    await asyncio.sleep(0)
    second = asyncio.create_task(asyncio.to_thread(thread))
    await asyncio.to_thread(until, lambda: llm.stats().pending == 2)
    third = asyncio.create_task(task("third"))
    await asyncio.sleep(0)
    holder.release()
    await asyncio.gather(first, second, third)
    assert ["first", "thread", "third"] == order


@pytest.mark.real_loop
async def test_a_release_in_another_thread_wakes_the_waiting_task() -> None:
    """Through its own loop, at once: it does not sleep until its next timer."""
    llm = Bulkhead("llm", 1, max_queue=1)
    holder = llm.try_acquire()
    assert holder
    waiter = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    threading.Thread(target=holder.release).start()
    async with asyncio.timeout(5):
        answer = await waiter
    assert answer
    answer.release()


@pytest.mark.real_loop
async def test_a_drain_ends_by_a_release_in_another_thread() -> None:
    """Drains are woken through their loop too."""
    llm = Bulkhead("llm", 1)
    holder = llm.try_acquire()
    assert holder
    drain = asyncio.create_task(llm.drain())
    await asyncio.sleep(0)
    threading.Thread(target=holder.release).start()
    async with asyncio.timeout(5):
        assert not await drain


def test_several_loops_and_threads_share_the_limit() -> None:
    """Three loops and six threads, hundreds of stays: bounded all the time, zero at the end."""
    llm = Bulkhead("llm", 4, max_queue=1000)
    inside: list[int] = []
    most: list[int] = [0]

    def count() -> None:
        inside.append(1)
        most[0] = max(most[0], len(inside))

    async def stay(number: int) -> None:
        async with llm.permit(timeout=10):
            count()
            await asyncio.sleep(0.0001 * (number % 3))
            inside.pop()

    async def many() -> None:
        await asyncio.gather(*[stay(number) for number in range(60)])

    def threads() -> None:
        for _ in range(30):
            with llm.blocking(timeout=10):
                count()
                inside.pop()

    workers = [threading.Thread(target=threads) for _ in range(6)]
    workers += [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(15)
    stats = llm.stats()
    assert most[0] <= 4
    assert (360, 360, 0, 0, 0) == (
        stats.admitted,
        stats.released,
        stats.in_flight,
        stats.pending,
        stats.underflow,
    )


def test_try_acquire_from_many_threads_never_exceeds_the_limit() -> None:
    """The hot path under contention: no over-grant, no lost count."""
    llm = Bulkhead("llm", 2)
    inside: list[int] = []
    most: list[int] = [0]

    def work() -> None:
        for _ in range(2000):
            permit = llm.try_acquire()
            if permit:
                inside.append(1)
                most[0] = max(most[0], len(inside))
                inside.pop()
                permit.release()

    in_threads(8, work)
    stats = llm.stats()
    assert most[0] <= 2
    assert (16000, 0) == (stats.admitted + stats.rejected, stats.in_flight)
    assert stats.admitted == stats.released


def test_a_permit_released_by_many_threads_at_once_is_released_once() -> None:
    """One release counts, the others are double."""
    llm = Bulkhead("llm", 1)
    for _ in range(50):
        permit = llm.try_acquire()
        assert permit
        in_threads(4, permit.release)
    stats = llm.stats()
    assert (50, 150, 0) == (stats.released, stats.double_release, stats.in_flight)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_the_waiter_of_a_closed_loop_passes_its_slot_on() -> None:
    """A loop that was closed under its waiting tasks must not swallow slots."""
    llm = Bulkhead("llm", 1, max_queue=50)
    holder = llm.try_acquire()
    assert holder
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    tasks = [loop.create_task(llm.acquire()) for _ in range(40)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert 40 == llm.stats().pending
    admitted = threading.Event()

    def wait() -> None:
        with llm.blocking(timeout=5):
            admitted.set()

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: llm.stats().pending == 41)
    holder.release()
    thread.join(5)
    assert admitted.is_set()
    assert (0, 0) == (llm.stats().in_flight, llm.stats().pending)
    del tasks
    gc.collect()


def test_the_lock_lets_one_thread_in_at_a_time() -> None:
    """Eight threads add to one number, reading and writing it apart; none is lost."""
    lock, number = Lock(), [0]

    def work() -> None:
        for _ in range(500):
            with lock:
                seen = number[0]
                time.sleep(0)
                number[0] = seen + 1

    in_threads(8, work)
    assert 4000 == number[0]
    assert lock.is_free()


def test_a_lost_key_is_reported_instead_of_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """An acquire whose lock can never come back raises and says why; it does not hang."""
    monkeypatch.setattr("millpond.bulkhead.lock._PATIENCE", 1)
    llm = Bulkhead("llm", 1)
    internals_of(llm).keys.pop()
    with pytest.raises(RuntimeError, match="make a new bulkhead"):
        llm.try_acquire()
