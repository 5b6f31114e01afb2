"""Plain functions in threads: their context, their timeouts, and threads that never end."""

import asyncio
import contextvars
import logging
import threading
import time

import pytest
from tests.waiting import eventually, until

from millpond import Millpond, Retry, SyncContext, TaskFailed
from millpond.pool.internals import internals_of

pytestmark = [pytest.mark.real_loop, pytest.mark.timeout(30)]


async def test_a_plain_function_runs_in_a_thread() -> None:
    """Not on the loop's thread, with a SyncContext, and without blocking the loop."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2)
    barrier = threading.Barrier(2, timeout=10)

    @pool.task(key="name")
    def job(ctx: SyncContext, name: str) -> tuple[bool, str, int, str | None]:
        barrier.wait()
        return threading.current_thread() is threading.main_thread(), name, ctx.attempt, ctx.key

    async with mp:
        handles = [await job.submit(name) for name in "ab"]
        assert [(False, "a", 1, "a"), (False, "b", 1, "b")] == [await h for h in handles]


async def test_a_sync_context_does_the_same_as_an_async_one() -> None:
    """progress, once, submit and cancelled work from a thread."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2, retry=Retry.constant(0.0, attempts=2, jitter=0.0))
    steps: list[str] = []
    children: list[str] = []

    @pool.task
    async def child(name: str) -> None:
        children.append(name)

    def step() -> str:
        steps.append("ran")
        return "stored"

    @pool.task
    def parent(ctx: SyncContext) -> str:
        value = ctx.once("step", step)
        assert "stored" == ctx.once("step", lambda: "never")
        ctx.progress(0.5, "half")
        ctx.submit(child.bind(f"attempt {ctx.attempt}"))
        ctx.submit_many(child.each([f"many {ctx.attempt}"]))
        if not ctx.is_retry:
            raise OSError
        assert not ctx.cancelled
        assert not ctx.lease_lost
        return value

    async with mp:
        handle = await parent.submit()
        assert "stored" == await handle
        await pool.drain()
        info = next(i for i in await pool.tasks() if i.id == handle.id)
        assert (0.5, "half") == info.progress
    assert (["ran"], ["attempt 2", "many 2"]) == (steps, sorted(children))


async def test_a_thread_sees_a_cancel() -> None:
    """ctx.cancelled becomes true; an interrupt does no more than that to a thread."""
    mp = Millpond()
    pool = mp.pool("work")
    started = threading.Event()

    @pool.task
    def job(ctx: SyncContext) -> str:
        started.set()
        until(lambda: ctx.cancelled)
        return "heard"

    async with mp:
        for mode in ("cooperative", "interrupt"):
            started.clear()
            handle = await job.submit()
            await asyncio.to_thread(started.wait, 10)
            await handle.cancel(mode)
            assert "heard" == await handle


@pytest.mark.rows("TR-24")
async def test_a_thread_that_runs_out_of_time_keeps_its_slot_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is reported as stuck; until it ends, its task runs and its slot is taken."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=1, retry=Retry.never())
    go = threading.Event()

    @pool.task
    def stuck() -> None:
        go.wait(20)

    @pool.task
    def quick() -> str:
        return "quick"

    async with mp:
        handle = await pool.submit(stuck, timeout=0.05)
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: "does not stop" in caplog.text)
        assert "running" == (await handle.refresh()).status
        assert 1 == internals_of(mp).runtime.counts.stuck
        waiting = await quick.submit()
        with pytest.raises(TimeoutError):
            await waiting.wait(timeout=0.2)
        assert "queued" == (await waiting.refresh()).status
        why = await mp.why(waiting.id)
        assert why.startswith(
            "pool at 1/1; the only slot of this process is held by "
            f"task {handle.id} (stuck), which is stuck: its time was over "
        )
        assert why.endswith(" ago, its handler goes on")
        go.set()
        with pytest.raises(TaskFailed) as caught:
            await handle
        assert "TimeoutError" == caught.value.error_type
        assert "quick" == await waiting
        assert 1 == (await pool.snapshot()).failed
        assert 0 == internals_of(mp).runtime.counts.stale_settles


async def test_closing_does_not_wait_for_a_stuck_thread() -> None:
    """A thread that never ends keeps neither the Millpond nor the process alive."""
    mp = Millpond()
    pool = mp.pool("work")
    go, started = threading.Event(), threading.Event()

    @pool.task
    def stuck() -> None:
        started.set()
        go.wait(30)

    began = time.monotonic()
    async with mp:
        await stuck.submit()
        await asyncio.to_thread(started.wait, 10)
    assert time.monotonic() - began < 5
    go.set()
    assert all(t.daemon for t in threading.enumerate() if t.name == "millpond handler")


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(1),
        KeyboardInterrupt(),
        StopIteration(),
        asyncio.CancelledError(),
        GeneratorExit(),
        OSError("plain"),
    ],
)
async def test_any_exception_of_a_thread_is_the_tasks_error(error: BaseException) -> None:
    """No exception ends the loop or the slot, also after an interrupt."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())
    started, go = threading.Event(), threading.Event()

    @pool.task
    def bad(wait: bool) -> None:
        started.set()
        if wait:
            go.wait(10)
        raise error

    @pool.task
    def good() -> str:
        return "fine"

    async with mp:
        with pytest.raises(TaskFailed):
            await (await bad.submit(False))
        started.clear()
        handle = await bad.submit(True)
        await asyncio.to_thread(started.wait, 10)
        await handle.cancel("interrupt")
        go.set()
        assert "cancelled" == (await handle.wait(timeout=10)).status
        assert "fine" == await (await good.submit())


async def test_threads_see_the_context_of_their_task() -> None:
    """Context variables of the submitter reach a closure; one task's do not reach the next."""
    mp = Millpond()
    pool = mp.pool("work")
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="clean")

    @pool.task
    def job(name: str) -> str:
        seen = mark.get()
        mark.set(name)
        return seen

    async with mp:
        assert ["clean", "clean"] == [await (await job.submit(name)) for name in "ab"]
        mark.set("submitter")
        assert "submitter" == await (await pool.submit(mark.get))


async def test_a_plain_function_that_gives_an_awaitable_is_awaited() -> None:
    """A lambda around a coroutine is as good as the coroutine function."""
    mp = Millpond()
    pool = mp.pool("work")

    async def later() -> str:
        await asyncio.sleep(0)
        return "awaited"

    async with mp:
        assert "awaited" == await (await pool.submit(lambda: later()))  # noqa: PLW0108


async def test_many_threads_at_once() -> None:
    """Exactly max_concurrent run at once."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=20)
    lock, together = threading.Lock(), threading.Barrier(20)
    running = most = 0

    @pool.task
    def job(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(20)
        with lock:
            running -= 1
        return number

    async with mp:
        handles = await pool.submit_many(job.each(range(200)))
        assert list(range(200)) == [await handle for handle in handles]
    assert most == 20
