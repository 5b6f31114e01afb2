"""Hooks: the bulkhead calls them after every change, and they cannot undo it."""

import asyncio

import pytest

from millpond import Bulkhead, ConfigError, HookEvent, Permit, RejectReason


def watched(max_concurrent: int = 1, max_queue: int = 0) -> tuple[Bulkhead, list[HookEvent]]:
    """A bulkhead and the list of all its events."""
    seen: list[HookEvent] = []
    llm = Bulkhead(
        "llm",
        max_concurrent,
        max_queue=max_queue,
        on_admit=seen.append,
        on_reject=seen.append,
        on_release=seen.append,
        on_close=seen.append,
    )
    return llm, seen


def taken(llm: Bulkhead) -> Permit:
    permit = llm.try_acquire()
    assert permit
    return permit


@pytest.mark.rows("BH-14", "BL-11")
async def test_hooks_are_called_after_each_change() -> None:
    """Events see the state after their change, and one id joins permit, admit and release."""
    llm, seen = watched()
    permit = taken(llm)
    assert not llm.try_acquire()
    permit.release()
    llm.close()
    found = [
        (event.kind, event.id, event.reason, event.capacity.in_flight, event.capacity.closed)
        for event in seen
    ]
    assert [
        ("admit", permit.id, None, 1, False),
        ("reject", None, RejectReason.CONCURRENCY_LIMIT, 1, False),
        ("release", permit.id, None, 0, False),
        ("close", None, None, 0, True),
    ] == found
    assert {"llm"} == {event.bulkhead for event in seen}


@pytest.mark.rows("BL-11")
async def test_ids_are_unique_and_stay_the_same() -> None:
    """Every admission has its own id, whichever door it came through."""
    llm, seen = watched(max_queue=5)
    async with llm:
        waiters = [asyncio.create_task(llm.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
    for waiter in waiters:
        answer = await waiter
        assert answer
        answer.release()
    admitted = [event.id for event in seen if event.kind == "admit"]
    released = [event.id for event in seen if event.kind == "release"]
    assert admitted == released == [1, 2, 3, 4]


@pytest.mark.rows("BH-14")
async def test_on_release_is_called_after_the_slot_was_passed_on() -> None:
    """The hook may see the slot taken again and the queue already shorter."""
    llm, seen = watched(max_queue=1)
    permit = taken(llm)
    waiter = asyncio.create_task(llm.acquire())
    await asyncio.sleep(0)
    permit.release()
    assert "release" == seen[-1].kind
    assert (1, 0) == (seen[-1].capacity.in_flight, seen[-1].capacity.pending)
    answer = await waiter
    assert answer
    answer.release()


@pytest.mark.rows("BH-14")
async def test_on_close_is_called_once_after_the_waiters_were_refused() -> None:
    """The event of the close has no pending callers."""
    llm, seen = watched(max_queue=2)
    permit = taken(llm)
    waiters = [asyncio.create_task(llm.acquire()) for _ in range(2)]
    await asyncio.sleep(0)
    llm.close()
    llm.close()
    assert ["close"] == [event.kind for event in seen if event.kind == "close"]
    assert (1, 0) == (seen[-1].capacity.in_flight, seen[-1].capacity.pending)
    await asyncio.gather(*waiters)
    assert 2 == len([event for event in seen if event.reason is RejectReason.SHUTDOWN])
    permit.release()


@pytest.mark.rows("BH-14")
async def test_an_error_of_a_hook_is_counted_and_changes_nothing() -> None:
    """Admission, refusal, release and close go on as if nothing had happened."""

    def fail(_event: HookEvent) -> None:
        raise LookupError

    llm = Bulkhead("llm", 1, on_admit=fail, on_reject=fail, on_release=fail, on_close=fail)
    async with llm:
        assert not llm.try_acquire()
    llm.close()
    stats = llm.stats()
    assert (4, 0, 1, 1) == (stats.hook_errors, stats.in_flight, stats.admitted, stats.rejected)


async def test_a_hook_may_use_the_bulkhead_it_watches() -> None:
    """Hooks run outside the lock: reading, refusing and admitting from one is no deadlock."""
    depth = 0

    def enter_again(_event: HookEvent) -> None:
        nonlocal depth
        depth += 1
        llm.stats()
        if depth < 3:
            inner = llm.try_acquire()
            assert inner
            inner.release()

    llm = Bulkhead("llm", 3, on_admit=enter_again)
    taken(llm).release()
    assert (0, 3) == (llm.stats().in_flight, llm.stats().admitted)


async def test_a_watched_block_may_be_left_by_another_task() -> None:
    """An exit stack handed to another task returns one permit, and the count ends at zero."""
    llm, seen = watched(max_concurrent=2)
    async with llm:
        await asyncio.create_task(llm.__aenter__())
        await asyncio.create_task(llm.__aexit__(None, None, None))
        assert 1 == llm.stats().in_flight
    assert 0 == llm.stats().in_flight
    assert ["admit", "admit", "release", "release"] == [event.kind for event in seen]


@pytest.mark.parametrize("option", ["on_admit", "on_reject", "on_release", "on_close"])
def test_a_hook_is_a_plain_function(option: str) -> None:
    """A coroutine function would never be awaited, so it is refused at birth."""

    async def coroutine(_event: HookEvent) -> None: ...

    for hook in (coroutine, "print"):
        with pytest.raises(ConfigError, match=option):
            Bulkhead("llm", 1, **{option: hook})  # type: ignore[arg-type]
