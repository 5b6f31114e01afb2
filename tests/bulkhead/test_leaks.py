"""Permits that were not released: the bulkhead counts them, warns, and frees their slots."""

import asyncio
import gc
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from millpond import Bulkhead, HookEvent
from millpond.pool.internals import internals_of


@contextmanager
def resource_warnings(count: int) -> Iterator[None]:
    """Expect that many ResourceWarnings: they come from the collector, so `raises` is no use."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [ResourceWarning] * count == [warning.category for warning in seen]


def test_a_permit_collected_unreleased_gives_its_slot_back() -> None:
    """It is counted as leaked, and the warning names the bulkhead."""
    llm = Bulkhead("llm", 1)
    with resource_warnings(1):
        assert llm.try_acquire()
    stats = llm.stats()
    assert (0, 1, 1, 0) == (stats.in_flight, stats.leaked, stats.released, stats.underflow)


def test_a_permit_in_a_cycle_comes_back_too() -> None:
    """Where only the garbage collector can find it."""
    llm = Bulkhead("llm", 1)
    with resource_warnings(1):
        knot: list[object] = [llm.try_acquire()]
        knot.append(knot)
        del knot
        gc.collect()
        assert 0 == llm.stats().in_flight


async def test_the_slot_of_a_lost_permit_goes_to_a_waiter() -> None:
    """In order, at once, on the waiter's loop."""
    llm = Bulkhead("llm", 1, max_queue=1)
    with resource_warnings(1):
        lost = llm.try_acquire()
        waiter = asyncio.create_task(llm.acquire())
        await asyncio.sleep(0)
        del lost
        answer = await waiter
    assert answer
    answer.release()
    assert (1, 0) == (llm.stats().leaked, llm.stats().in_flight)


async def test_a_drain_sees_the_end_of_a_lost_permit() -> None:
    """Idle is idle, however it came about."""
    llm = Bulkhead("llm", 1)
    with resource_warnings(1):
        lost = llm.try_acquire()
        drain = asyncio.create_task(llm.drain())
        await asyncio.sleep(0)
        del lost
        assert not await drain


def test_a_permit_lost_inside_a_section_is_taken_back_after_it() -> None:
    """The collector may strike while this thread has the lock: it must not wait for itself."""
    llm = Bulkhead("llm", 1)
    with resource_warnings(1):
        lost = llm.try_acquire()
        assert lost
        with internals_of(llm):
            del lost
            gc.collect()
            assert 1 == internals_of(llm).gate.in_flight
        assert 0 == internals_of(llm).gate.in_flight
    assert (1, False) == (llm.stats().leaked, internals_of(llm).alert)


def test_a_permit_may_be_lost_on_any_thread() -> None:
    """The count is right whichever thread the collector ran on."""
    llm = Bulkhead("llm", 8)
    with resource_warnings(8):
        permits = [llm.try_acquire() for _ in range(8)]
        threads = [threading.Thread(target=permits.pop) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
    assert (8, 0) == (llm.stats().leaked, llm.stats().in_flight)


def test_on_release_is_called_for_a_lost_permit() -> None:
    """A hook that counts admissions and releases ends at zero."""
    seen: list[HookEvent] = []
    llm = Bulkhead("llm", 1, on_admit=seen.append, on_release=seen.append)
    with resource_warnings(1):
        assert llm.try_acquire()
    assert [("admit", 1), ("release", 1)] == [(event.kind, event.id) for event in seen]


def test_a_released_permit_is_collected_in_silence() -> None:
    """No warning, no count."""
    llm = Bulkhead("llm", 1)
    with resource_warnings(0):
        with llm.blocking():
            pass
        permit = llm.try_acquire()
        assert permit
        permit.release()
        del permit
    assert 0 == llm.stats().leaked


def test_a_finalizer_may_release_in_the_middle_of_a_section() -> None:
    """Some object's `__del__` runs while this thread has the lock: the release is put off."""
    llm = Bulkhead("llm", 1)
    permit = llm.try_acquire()
    assert permit
    with internals_of(llm):
        permit.release()
        permit.release()
        assert 1 == internals_of(llm).gate.in_flight
    stats = llm.stats()
    assert (0, 1, 1) == (stats.in_flight, stats.released, stats.double_release)
    assert not internals_of(llm).alert


def test_a_signal_handler_may_close_in_the_middle_of_a_section() -> None:
    """It returns after some milliseconds, and the bulkhead is closed when the section ends."""
    seen: list[HookEvent] = []
    llm = Bulkhead("llm", 1, on_close=seen.append)
    with internals_of(llm):
        llm.close()
        assert not internals_of(llm).gate.closed
    assert llm.stats().closed
    assert ["close"] == [event.kind for event in seen]


def test_a_signal_handler_of_the_system_may_close_and_release() -> None:
    """A real signal at any moment of a busy loop: no deadlock, and it is closed."""
    llm = Bulkhead("llm", 2)
    held = llm.try_acquire()
    assert held

    def handler(_number: int, _frame: object) -> None:
        held.release()
        llm.close()

    before = signal.signal(signal.SIGALRM, handler)
    give_up_at = time.monotonic() + 30.0
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        while not llm.stats().closed:
            assert time.monotonic() < give_up_at, llm.stats()
            if permit := llm.try_acquire():
                permit.release()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert 0 == llm.stats().in_flight
