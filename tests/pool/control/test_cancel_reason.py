"""A handler can see that its attempt must end, and why."""

import asyncio

import pytest
from tests.pool.stores import Watched
from tests.stores import fresh_store
from tests.waiting import until

from millpond import CancelReason, Context, Millpond, Retry, SyncContext, TaskFailed
from millpond.core.control import DeclareDead
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.rows("TR-23")


@pytest.mark.real_loop
async def test_a_thread_sees_that_its_time_is_over() -> None:
    """After its timeout `ctx.cancelled` is true and `ctx.cancel_reason` says which end it is."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())
    seen: list[CancelReason | None] = []

    @pool.task(timeout=0.05)
    def block(ctx: SyncContext) -> None:
        until(lambda: ctx.cancelled)
        seen.append(ctx.cancel_reason)

    async with mp:
        with pytest.raises(TaskFailed):
            await (await block.submit())
    assert [CancelReason.TIMEOUT] == seen


async def test_ctx_cancelled_is_false_until_the_attempt_must_end() -> None:
    """`if ctx.cancelled:` works in an `async def` handler as in a thread."""
    mp = Millpond()
    pool = mp.pool("work")
    seen: list[bool] = []
    began = asyncio.Event()

    @pool.task
    async def wait(ctx: Context) -> None:
        seen.append(bool(ctx.cancelled))
        began.set()
        await ctx.cancelled.wait()
        seen.append(bool(ctx.cancelled))

    async with mp:
        handle = await wait.submit()
        await began.wait()
        await handle.cancel()
        await handle.wait()
    assert [False, True] == seen


@pytest.mark.real_loop
async def test_a_thread_sees_that_its_worker_stops() -> None:
    """It has a moment to end by itself, and then its result counts."""
    mp = Millpond(work=False)
    pool = mp.pool("work")
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    @pool.task
    def block(ctx: SyncContext) -> str | None:
        loop.call_soon_threadsafe(began.set)
        until(lambda: ctx.cancelled)
        return ctx.cancel_reason

    async with mp:
        async with mp.worker():
            handle = await block.submit()
            await began.wait()
        assert "stop" == await handle


@pytest.mark.real_loop
@pytest.mark.parametrize("reason", [CancelReason.CANCEL, CancelReason.LEASE_LOST])
async def test_a_thread_sees_that_it_was_cancelled_or_lost_its_lease(reason: CancelReason) -> None:
    """A thread cannot be interrupted, but it can read ctx.cancelled."""
    store = fresh_store()
    mp = Millpond(lease=0.6)
    internals_of(mp).owner.make_store = lambda: Watched(store)
    pool = mp.pool("work", retry=Retry.never())
    began, over = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    seen: list[tuple[CancelReason | None, bool]] = []

    @pool.task
    def block(ctx: SyncContext) -> None:
        loop.call_soon_threadsafe(began.set)
        until(lambda: ctx.cancelled)
        seen.append((ctx.cancel_reason, ctx.lease_lost))
        loop.call_soon_threadsafe(over.set)

    async with mp:
        handle = await block.submit()
        await began.wait()
        if reason is CancelReason.CANCEL:
            await handle.cancel()
        else:
            for worker in await store.view.workers():
                await store.control(DeclareDead(worker))
        await asyncio.wait_for(over.wait(), 20)
        await handle.wait()
    assert [(reason, reason is CancelReason.LEASE_LOST)] == seen


@pytest.mark.parametrize("reason", [CancelReason.CANCEL, CancelReason.TIMEOUT, CancelReason.STOP])
async def test_a_coroutine_sees_why_it_must_end(reason: CancelReason) -> None:
    """The event and the reason are set before the coroutine is cancelled."""
    mp = Millpond(work=False)
    pool = mp.pool("work", retry=Retry.never())
    seen: list[tuple[bool, CancelReason | None]] = []

    @pool.task(timeout=60)
    async def wait(ctx: Context) -> None:
        assert ctx.cancel_reason is None
        try:
            await asyncio.sleep(3600)
        finally:
            seen.append((ctx.cancelled.is_set(), ctx.cancel_reason))

    async with mp:
        async with mp.worker():
            handle = await wait.submit()
            await asyncio.sleep(1)
            if reason is CancelReason.CANCEL:
                await handle.cancel(mode="interrupt")
            if reason is CancelReason.TIMEOUT:
                await asyncio.sleep(90)
        await handle.wait()
    assert [(True, reason)] == seen
