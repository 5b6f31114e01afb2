"""What it counts, what it is made of, and what it refuses to be made of."""

import asyncio
import copy
import dataclasses
import math
import pickle

import pytest

from millpond import Bulkhead, BulkheadRejected, ConfigError, RejectReason, adaptive


@pytest.mark.rows("BH-16")
async def test_every_refusal_is_counted_once_by_its_reason() -> None:
    """Timeouts, aborts, shutdowns and `try_acquire` are rejections like the others."""
    llm = Bulkhead("llm", 1, max_queue=1, max_weight=5)
    permit = llm.try_acquire()
    assert permit
    signal = asyncio.Event()
    signal.set()
    await llm.acquire(timeout=1)
    await llm.acquire(signal=signal)
    llm.try_acquire()
    llm.try_acquire(weight=6)
    waiter = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    await llm.acquire()
    llm.close()
    await waiter
    permit.release()
    stats = llm.stats()
    assert dict.fromkeys(RejectReason, 1) == stats.rejected_by_reason
    assert (6, 1, 1) == (stats.rejected, stats.aborted, stats.timed_out)


async def test_stats_are_a_pure_read_and_cannot_be_changed() -> None:
    """Two reads return equal values; the value is frozen."""
    llm = Bulkhead("llm", 2)
    async with llm:
        first = llm.stats()
        assert first == llm.stats()
    assert (1, 0) == (first.in_flight, llm.stats().in_flight)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.in_flight = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        first.rejected_by_reason[RejectReason.TIMEOUT] = 5  # type: ignore[index]


@pytest.mark.rows("BH-11")
async def test_a_second_release_is_counted_and_changes_nothing() -> None:
    """Even while another permit is inside, whose slot it must not give away."""
    llm = Bulkhead("llm", 2)
    first, second = llm.try_acquire(), llm.try_acquire()
    assert first
    assert second
    first.release()
    first.release()
    with first:
        pass
    stats = llm.stats()
    assert (1, 2, 0, 1) == (
        stats.in_flight,
        stats.double_release,
        stats.underflow,
        stats.released,
    )
    second.release()
    assert (0, 0) == (llm.stats().in_flight, llm.stats().underflow)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3", math.nan, None])
def test_max_concurrent_is_a_whole_number_of_at_least_one(value: int) -> None:
    """Anything else is refused at birth and blamed by name."""
    with pytest.raises(ConfigError, match=r"max_concurrent=.* must be") as caught:
        Bulkhead("llm", value)
    assert ("max_concurrent", "MILL-003") == (caught.value.option, caught.value.code)


@pytest.mark.parametrize("value", [-1, True, 1.5, "3", math.nan, None])
def test_max_queue_is_a_whole_number(value: int) -> None:
    """Zero is the default; less, or anything else, is refused."""
    with pytest.raises(ConfigError, match=r"max_queue="):
        Bulkhead("llm", 1, max_queue=value)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3", math.nan])
def test_max_weight_is_a_whole_number_of_at_least_one(value: int) -> None:
    """None means no such limit."""
    with pytest.raises(ConfigError, match=r"max_weight="):
        Bulkhead("llm", 1, max_weight=value)


@pytest.mark.parametrize(
    "name", ["", "../x", "a/../b", "x" * 200, "two\nlines", "it's", 'say "x"', "-x", " x", "ü", 3]
)
def test_a_name_is_short_and_plain(name: str) -> None:
    """Names end in logs, labels and paths, so neither length nor alphabet is free."""
    with pytest.raises(ConfigError, match=r"name="):
        Bulkhead(name, 1)


def test_an_unknown_option_is_refused() -> None:
    """A misspelt option is an error and not a default."""
    with pytest.raises(TypeError, match="max_que"):
        Bulkhead("llm", 1, max_que=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("least", "most", "initial", "blamed"),
    [
        (0, 5, None, "least"),
        (5, 4, None, "most"),
        (1, 5, 6, "initial"),
        (2, 5, 1, "initial"),
        (True, 5, None, "least"),
        (1, 2.5, None, "most"),
    ],
)
def test_the_bounds_of_an_adaptive_limit_are_checked(
    least: int, most: int, initial: int | None, blamed: str
) -> None:
    """They are whole numbers, in order, and the first limit lies between them."""
    with pytest.raises(ConfigError, match=f"{blamed}="):
        adaptive(least, most, initial=initial)


def test_a_bulkhead_cannot_be_pickled_or_copied() -> None:
    """It counts the callers of one process; a copy would count others."""
    llm = Bulkhead("llm", 1)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="Bulkhead"):
            attempt(llm)


async def test_the_error_survives_a_trip_between_processes() -> None:
    """Reason and capacity arrive with it."""
    llm = Bulkhead("llm", 1)
    async with llm:
        with pytest.raises(BulkheadRejected) as caught:
            await llm.run(asyncio.sleep, 0)
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own error
    assert str(caught.value) == str(copied)
    assert caught.value.reason == copied.reason
    assert caught.value.capacity == copied.capacity


async def test_it_shows_itself_in_one_line() -> None:
    """What a debugger prints is what one wants to know."""
    llm = Bulkhead("llm", 2, max_queue=5)
    permit = llm.try_acquire()
    assert permit
    assert "<Bulkhead 'llm': 1/2 in flight, 0/5 waiting>" == repr(llm)
    assert "<Permit 1 of 'llm', weight 1, held>" == repr(permit)
    permit.release()
    llm.close()
    assert "<Permit 1 of 'llm', weight 1, released>" == repr(permit)
    assert repr(llm).endswith("closed>")
