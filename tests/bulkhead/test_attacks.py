"""What an attacker found: each once lost a slot, a wake-up or a caller; none does any more."""

import asyncio
import copy
import gc
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millpond import Bulkhead, HookEvent, Permit
from millpond.pool.internals import internals_of


@contextmanager
def a_loop(loop: asyncio.AbstractEventLoop | None = None) -> Iterator[asyncio.AbstractEventLoop]:
    """A hand-made loop, closed at the end whatever is left on it."""
    made = loop or asyncio.new_event_loop()
    made.set_exception_handler(lambda *_: None)
    try:
        yield made
    finally:
        made.close()


async def test_a_timeout_of_the_wrong_type_leaves_no_ghost() -> None:
    """It is refused before the caller is in the queue, so no slot is lost to a missing waiter."""
    llm = Bulkhead("llm", 1, max_queue=5)
    permit = await llm.acquire()
    assert isinstance(permit, Permit)
    with pytest.raises(TypeError):
        await llm.acquire(timeout="5")  # type: ignore[arg-type]
    assert 0 == llm.stats().pending
    permit.release()
    assert 0 == llm.stats().in_flight


def test_a_permit_collected_during_a_wake_up_loses_no_slot() -> None:
    """The collector may strike inside the wake-up and grant another: both are woken."""

    class Collecting(asyncio.SelectorEventLoop):
        armed = False

        def call_soon(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
            handle = super().call_soon(*args, **kwargs)
            if self.armed:
                self.armed = False
                gc.collect()
            return handle

    async def main() -> int:
        llm = Bulkhead("llm", 2, max_queue=5)
        permit, lost = await llm.acquire(), await llm.acquire()
        assert isinstance(permit, Permit)
        cycle: list[object] = [lost]
        cycle.append(cycle)
        del lost, cycle
        tasks = [asyncio.create_task(llm.acquire()) for _ in range(2)]
        await asyncio.sleep(0)
        loop.armed = True
        permit.release()
        done, _ = await asyncio.wait(tasks, timeout=1)
        for task in done:
            woken = task.result()
            assert isinstance(woken, Permit)
            woken.release()
        return len(done)

    loop = Collecting()
    gc.disable()
    try:
        with a_loop(loop), pytest.warns(ResourceWarning):
            assert 2 == loop.run_until_complete(main())
    finally:
        gc.enable()


@pytest.mark.real_loop
async def test_a_release_in_a_signal_handler_wakes_a_sleeping_loop() -> None:
    """A loop asleep in its selector is roused by a release that did not come from a task."""
    llm = Bulkhead("llm", 1, max_queue=5)
    permit = await llm.acquire()
    assert isinstance(permit, Permit)
    before = signal.signal(signal.SIGUSR1, lambda *_: permit.release())
    try:
        waiting = asyncio.create_task(llm.acquire())
        timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        woken = await asyncio.wait_for(waiting, timeout=5)
        assert isinstance(woken, Permit)
        woken.release()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_grant_to_a_closed_loop_is_passed_on() -> None:
    """A waiter whose loop closed before it woke keeps no slot from the waiters of another loop."""
    llm = Bulkhead("llm", 1, max_queue=9)

    async def hold_and_wait() -> Permit:
        permit = await llm.acquire()
        assert isinstance(permit, Permit)
        tasks.append(asyncio.create_task(llm.acquire()))
        await asyncio.sleep(0)
        return permit

    tasks: list[asyncio.Task[object]] = []
    with a_loop() as loop:
        loop.run_until_complete(hold_and_wait()).release()
        tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]

    async def come_later() -> None:
        permit = await llm.acquire(timeout=1)
        assert isinstance(permit, Permit)
        permit.release()

    with a_loop() as other:
        other.run_until_complete(come_later())
    assert 0 == llm.stats().in_flight


@pytest.mark.parametrize("watched", [False, True])
def test_a_task_abandoned_inside_gives_its_slot_back(watched: bool) -> None:
    """A block that ends because its coroutine is closed leaves, with hooks or without."""
    heard: list[HookEvent] = []
    llm = Bulkhead("llm", 1, on_release=heard.append if watched else None)

    async def work() -> None:
        async with llm:
            await asyncio.Event().wait()

    async def start() -> Any:
        coroutine = work()
        coroutine.send(None)
        return coroutine

    with a_loop() as loop:
        coroutine = loop.run_until_complete(start())
        assert 1 == llm.stats().in_flight
        coroutine.close()
    assert (0, watched) == (llm.stats().in_flight, bool(heard))


async def test_a_cancelled_waiter_leaves_memory_without_the_collector() -> None:
    """Neither the waiter nor its caller's locals are kept in a cycle."""
    llm = Bulkhead("llm", 1, max_queue=9)
    permit = await llm.acquire()
    assert isinstance(permit, Permit)
    seen: list[weakref.ref[Any]] = []

    class Local:
        """Something a caller holds while it waits."""

    async def wait() -> None:
        local = Local()
        seen.append(weakref.ref(local))
        await llm.acquire()

    gc.collect()
    gc.disable()
    try:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0)
        assert seen[0]() is None
    finally:
        gc.enable()
    permit.release()


async def test_one_permit_context_is_for_one_block() -> None:
    """Sharing it between tasks would admit more than the limit: it is refused."""
    llm = Bulkhead("llm", 2)
    stay = llm.permit()
    async with stay:
        with pytest.raises(RuntimeError, match="call it again"):
            await stay.__aenter__()
    assert 0 == llm.stats().in_flight


def test_a_permit_cannot_be_copied() -> None:
    """Two of one slot could be released twice."""
    permit = Bulkhead("llm", 1).try_acquire()
    assert isinstance(permit, Permit)
    with pytest.raises(TypeError, match="second time"):
        copy.copy(permit)
    permit.release()


def test_an_interrupt_right_after_taking_the_lock_gives_it_back() -> None:
    """KeyboardInterrupt can strike between taking the key and guarding it; it is not lost."""

    class Interrupted(deque[None]):
        armed = True

        def pop(self) -> None:  # type: ignore[override]
            super().pop()
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt

    llm = Bulkhead("llm", 1)
    internals_of(llm).keys = internals_of(llm).lock.keys = Interrupted([None])
    with pytest.raises(KeyboardInterrupt):
        llm.try_acquire()
    permit = llm.try_acquire()
    assert isinstance(permit, Permit)
    permit.release()
    assert 0 == llm.stats().in_flight


def test_a_hook_that_cancels_itself_changes_nothing() -> None:
    """CancelledError out of a hook is counted like any other error."""

    def cancel(_event: HookEvent) -> None:
        raise asyncio.CancelledError

    llm = Bulkhead("llm", 1, on_admit=cancel)
    permit = llm.try_acquire()
    assert isinstance(permit, Permit)
    permit.release()
    assert (1, 0) == (llm.stats().hook_errors, llm.stats().in_flight)
