"""Weights: a second limit, on what callers weigh together."""

import asyncio

import pytest

from millpond import Bulkhead, ConfigError, Permit, PermitRejection, RejectReason


def taken(llm: Bulkhead, weight: int = 1) -> Permit:
    permit = llm.try_acquire(weight=weight)
    assert permit
    return permit


@pytest.mark.rows("BL-01")
async def test_a_weight_that_can_never_fit_is_refused_at_once() -> None:
    """Above `max_weight` there is nothing to wait for."""
    llm = Bulkhead("llm", 10, max_queue=10, max_weight=100)
    for answer in (llm.try_acquire(weight=101), await llm.acquire(weight=101, timeout=60)):
        assert isinstance(answer, PermitRejection)
        assert RejectReason.WEIGHT_LIMIT == answer.reason
    assert (0, 0) == (llm.stats().weight_in_flight, llm.stats().pending)


@pytest.mark.rows("BL-01")
async def test_a_weight_that_does_not_fit_waits_and_is_not_overtaken() -> None:
    """A light caller behind a heavy one waits too, although it would fit."""
    llm = Bulkhead("llm", 10, max_queue=10, max_weight=100)
    holder = taken(llm, 60)
    heavy = asyncio.create_task(llm.acquire(weight=50))
    await asyncio.sleep(0)
    light = asyncio.create_task(llm.acquire(weight=1))
    await asyncio.sleep(0)
    assert not llm.try_acquire(weight=1)
    assert (60, 2) == (llm.stats().weight_in_flight, llm.stats().pending)
    holder.release()
    for answer in await asyncio.gather(heavy, light):
        assert answer
        answer.release()
    assert 0 == llm.stats().weight_in_flight


@pytest.mark.rows("BL-01")
@pytest.mark.parametrize("way", ["timeout", "abort", "cancel"])
async def test_no_weight_leaks_when_a_wait_ends_in_nothing(way: str) -> None:
    """And the light ones whom a heavy head had kept waiting get in at once."""
    llm = Bulkhead("llm", 10, max_queue=10, max_weight=100)
    signal = asyncio.Event()
    with taken(llm, 60):
        heavy = asyncio.create_task(
            llm.acquire(weight=50, timeout=1 if way == "timeout" else None, signal=signal)
        )
        await asyncio.sleep(0)
        light = asyncio.create_task(llm.acquire(weight=40))
        await asyncio.sleep(0)
        if way == "abort":
            signal.set()
        if way == "cancel":
            heavy.cancel()
        answer = await light
        assert answer
        assert (100, 0) == (llm.stats().weight_in_flight, llm.stats().pending)
        answer.release()
        await asyncio.wait([heavy])
    assert 0 == llm.stats().weight_in_flight


@pytest.mark.rows("BL-02")
async def test_settling_for_less_refunds_the_difference_at_once() -> None:
    """Who waits for weight gets in as soon as it is known to be there."""
    llm = Bulkhead("llm", 10, max_queue=10, max_weight=100)
    async with llm.permit(weight=90) as permit:
        waiter = asyncio.create_task(llm.acquire(weight=50))
        await asyncio.sleep(0)
        permit.settle(30)
        answer = await waiter
        assert answer
        assert 80 == llm.stats().weight_in_flight
        answer.release()
    assert 0 == llm.stats().weight_in_flight


@pytest.mark.rows("BL-02")
async def test_settling_above_the_weight_blocks_admissions_until_it_fits() -> None:
    """An overrun is held and blocks new work; it revokes nothing."""
    llm = Bulkhead("llm", 10, max_queue=10, max_weight=100)
    overrun, other = taken(llm, 50), taken(llm, 40)
    overrun.settle(120)
    assert 160 == llm.stats().weight_in_flight
    waiter = asyncio.create_task(llm.acquire(weight=1))
    await asyncio.sleep(0)
    other.release()
    assert (120, 1) == (llm.stats().weight_in_flight, llm.stats().pending)
    overrun.settle(99)
    answer = await waiter
    assert answer
    answer.release()
    overrun.release()
    assert (0, 0) == (llm.stats().weight_in_flight, llm.stats().in_flight)


@pytest.mark.rows("BL-02")
async def test_settling_after_the_release_changes_nothing() -> None:
    """The weight is back already."""
    llm = Bulkhead("llm", 10, max_weight=100)
    permit = taken(llm, 50)
    permit.release()
    permit.settle(10)
    assert 0 == llm.stats().weight_in_flight


async def test_settling_for_nothing_still_holds_the_slot() -> None:
    """Weight 0 is a fair result; the slot is another matter."""
    llm = Bulkhead("llm", 1, max_weight=100)
    with taken(llm, 50) as permit:
        permit.settle(0)
        assert (1, 0) == (llm.stats().in_flight, llm.stats().weight_in_flight)
    assert (0, 0) == (llm.stats().in_flight, llm.stats().weight_in_flight)


@pytest.mark.parametrize("weight", [0, -1, 1.5, "3"])
async def test_a_weight_is_a_whole_number_of_at_least_one(weight: int) -> None:
    """Anything else is blamed by name, and takes nothing."""
    llm = Bulkhead("llm", 1)
    with pytest.raises(ConfigError, match=r"weight="):
        llm.try_acquire(weight=weight)
    with pytest.raises(ConfigError, match=r"weight="):
        await llm.acquire(weight=weight)
    with pytest.raises(ConfigError, match=r"weight="):
        llm.would_admit(weight=weight)
    assert 0 == llm.stats().in_flight


@pytest.mark.rows("BL-05")
async def test_would_admit_gives_the_answer_and_takes_nothing() -> None:
    """The same outcome as `try_acquire`, which it neither reserves nor counts."""
    llm = Bulkhead("llm", 2, max_weight=10)
    assert llm.would_admit(weight=10) is True
    with taken(llm, 8):
        refused = llm.would_admit(weight=5)
        assert isinstance(refused, PermitRejection)
        assert RejectReason.WEIGHT_LIMIT == refused.reason
        assert llm.would_admit(weight=2) is True
        with taken(llm):
            refused = llm.would_admit()
            assert isinstance(refused, PermitRejection)
            assert RejectReason.CONCURRENCY_LIMIT == refused.reason
    assert (2, 0) == (llm.stats().admitted, llm.stats().rejected)


@pytest.mark.rows("BL-05")
async def test_would_admit_checks_its_argument_before_the_shutdown() -> None:
    """A nonsensical question is an error, open or closed."""
    llm = Bulkhead("llm", 2)
    llm.close()
    with pytest.raises(ConfigError):
        llm.would_admit(weight=0)
