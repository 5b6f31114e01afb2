"""New limits while it runs."""

import asyncio

import pytest

from millpond import (
    Bulkhead,
    ConfigError,
    HookEvent,
    Permit,
    PermitRejection,
    RejectReason,
    StaleRevision,
    adaptive,
)


def taken(llm: Bulkhead) -> Permit:
    permit = llm.try_acquire()
    assert permit
    return permit


@pytest.mark.rows("BL-06", "BH-01")
async def test_a_lower_limit_is_reached_by_attrition() -> None:
    """Callers inside stay; no other enters until the number has fallen below the limit."""
    llm = Bulkhead("llm", 3)
    permits = [taken(llm) for _ in range(3)]
    llm.resize(max_concurrent=1)
    for left in (2, 1):
        permits.pop().release()
        assert left == llm.stats().in_flight
        assert not llm.try_acquire()
    permits.pop().release()
    taken(llm).release()


@pytest.mark.rows("BL-06")
async def test_a_shorter_queue_keeps_those_it_has_accepted() -> None:
    """Only newcomers feel it."""
    llm = Bulkhead("llm", 1, max_queue=3)
    permit = taken(llm)
    tasks = [asyncio.create_task(llm.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    llm.resize(max_queue=1)
    refused = await llm.acquire()
    assert isinstance(refused, PermitRejection)
    assert (RejectReason.QUEUE_LIMIT, 3) == (refused.reason, refused.capacity.pending)
    permit.release()
    for task in tasks:
        answer = await task
        assert answer
        answer.release()


@pytest.mark.rows("BL-06")
async def test_zero_is_a_switch_for_newcomers_and_keeps_the_queue() -> None:
    """New callers are refused at once; those who wait get in when it is raised again."""
    llm = Bulkhead("llm", 1, max_queue=5)
    permit = taken(llm)
    waiter = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    llm.resize(max_concurrent=0)
    permit.release()
    refused = await llm.acquire()
    assert isinstance(refused, PermitRejection)
    assert RejectReason.CONCURRENCY_LIMIT == refused.reason
    assert (0, 1) == (llm.stats().in_flight, llm.stats().pending)
    llm.resize(max_concurrent=1)
    answer = await waiter
    assert answer
    answer.release()


@pytest.mark.rows("BL-06")
async def test_a_waiter_too_heavy_for_a_lowered_weight_is_refused() -> None:
    """It could never get in, and everyone behind it would wait for ever."""
    llm = Bulkhead("llm", 5, max_queue=5, max_weight=100)
    permit = llm.try_acquire(weight=90)
    assert permit
    heavy = asyncio.create_task(llm.acquire(weight=80))
    await asyncio.sleep(0)
    light = asyncio.create_task(llm.acquire(weight=20))
    await asyncio.sleep(0)
    llm.resize(max_weight=50)
    refused = await heavy
    assert isinstance(refused, PermitRejection)
    assert RejectReason.WEIGHT_LIMIT == refused.reason
    permit.release()
    answer = await light
    assert answer
    answer.release()


@pytest.mark.rows("BL-06")
async def test_a_raised_weight_admits_at_once() -> None:
    """A higher weight limit also wakes waiters."""
    llm = Bulkhead("llm", 5, max_queue=5, max_weight=10)
    permit = llm.try_acquire(weight=10)
    waiter = asyncio.create_task(llm.acquire(weight=10))
    await asyncio.sleep(0)
    llm.resize(max_weight=20)
    for answer in (permit, await waiter):
        assert answer
        answer.release()


@pytest.mark.rows("BL-06")
def test_a_stale_revision_is_refused_and_changes_nothing() -> None:
    """Only a strictly higher revision is taken; without one it counts up."""
    llm = Bulkhead("llm", 1, revision=7)
    assert 8 == llm.resize(max_concurrent=2)
    assert 20 == llm.resize(max_concurrent=3, revision=20)
    before = llm.stats()
    for stale in (20, 19, 0):
        with pytest.raises(StaleRevision) as caught:
            llm.resize(max_concurrent=9, max_queue=9, revision=stale)
        assert ("llm", stale, 20) == (
            caught.value.name,
            caught.value.given,
            caught.value.current,
        )
    assert before == llm.stats()


@pytest.mark.rows("BL-06")
@pytest.mark.parametrize(
    "limits",
    [
        {"max_concurrent": -1},
        {"max_concurrent": 5, "max_queue": -1},
        {"max_concurrent": 5, "max_weight": 0},
        {"max_concurrent": 5, "revision": -1},
        {"max_concurrent": True},
        {"max_concurrent": 1.5},
    ],
)
def test_a_resize_is_checked_as_a_whole_before_anything_changes(limits: dict[str, int]) -> None:
    """One bad limit, and the good ones beside it are not taken either."""
    llm = Bulkhead("llm", 1, max_weight=10)
    before = llm.stats()
    with pytest.raises(ConfigError) as caught:
        llm.resize(**limits)
    assert caught.value.option in limits
    assert before == llm.stats()


@pytest.mark.rows("BL-06", "TRAP-20")
async def test_an_admission_keeps_its_revision_although_a_listener_resizes() -> None:
    """The waiter was granted under revision 0; the hook that made revision 1 came later."""
    llm = Bulkhead("llm", 1, max_queue=1, on_release=lambda _event: llm.resize(max_concurrent=2))
    permit = taken(llm)
    waiter = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    permit.release()
    answer = await waiter
    assert answer
    assert (0, 1) == (answer.revision, llm.stats().revision)
    answer.release()
    later = taken(llm)
    assert 2 == later.revision
    later.release()


@pytest.mark.rows("TRAP-20")
async def test_the_event_of_an_admission_names_its_revision_not_the_newest() -> None:
    """Every event of one admission has the same revision, whatever hooks did meanwhile."""
    seen: list[tuple[str, int]] = []

    def resize(event: HookEvent) -> None:
        seen.append((event.kind, event.revision))
        llm.resize(max_concurrent=2)

    llm = Bulkhead("llm", 1, on_admit=resize, on_release=resize)
    taken(llm).release()
    assert [("admit", 0), ("release", 0)] == seen
    assert 2 == llm.stats().revision


def test_an_adaptive_limit_cannot_be_set_by_hand() -> None:
    """Its other limits can."""
    llm = Bulkhead("llm", adaptive(1, 5))
    with pytest.raises(ConfigError, match="max_concurrent=3 is adaptive"):
        llm.resize(max_concurrent=3)
    assert 1 == llm.resize(max_queue=3)
