"""Closing: it completes, also when it is cancelled, called twice, or tasks still wait."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.pool.stores import Watched, memory, rounds

import millpond
from millpond import Millpond, Retry, bounded
from millpond.errors import ConfigError, NotOpen, TaskFailed
from millpond.pool.internals import internals_of
from millpond.runtime.fleet.closure_worker import IN_FLIGHT
from millpond.runtime.runtime import Runtime

T = TypeVar("T")

PACKAGE = str(Path(millpond.__file__).parent)
"""Where our code is; the repository may have the same name."""


async def soon(awaitable: Awaitable[T]) -> T:
    """Await with a timeout of a minute."""
    async with asyncio.timeout(60):
        return await awaitable


async def outcome(work: asyncio.Task[Any]) -> Any:
    """Return the result or the exception of an asyncio task."""
    return (await soon(asyncio.gather(work, return_exceptions=True)))[0]


async def stubborn() -> None:
    """Go on for three seconds after each cancellation."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3)
            return


async def for_long() -> None:
    """Run until it is cancelled."""
    await asyncio.sleep(1_000)


def must_be_closed(mp: Millpond, runtime: Runtime) -> None:
    """Assert that the opening left no worker, no open store and no asyncio task."""
    assert not mp.is_open
    assert [] == runtime.workers
    assert {} == runtime.env.background
    assert runtime.store._closed  # type: ignore[attr-defined]
    ours = [task for task in asyncio.all_tasks() if PACKAGE in repr(task)]
    assert [] == ours


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 0.9])
async def test_a_cancelled_close_still_closes(after: float, times: int) -> None:
    """At any point, any number of times: it closes everything, and then raises CancelledError."""
    mp = Millpond()
    pool = mp.pool("p", max_concurrent=2)

    async def another_worker() -> None:
        async with mp.worker():
            await asyncio.sleep(1_000)

    async def main() -> None:
        async with mp:
            await pool.submit(stubborn)
            beside = asyncio.create_task(another_worker())
            await asyncio.sleep(0.5)
            await pool.submit(stubborn)
            await asyncio.sleep(0.5)
        beside.cancel()

    closing = asyncio.create_task(main())
    await asyncio.sleep(0.9)
    runtime = internals_of(mp).runtime
    await asyncio.sleep(0.1 + after)
    for _ in range(times):
        closing.cancel()
        await asyncio.sleep(0.1)
    assert isinstance(await outcome(closing), asyncio.CancelledError)
    await asyncio.sleep(10)
    must_be_closed(mp, runtime)
    async with mp:
        pass


async def test_a_worker_that_is_cancelled_while_it_stops_gives_back_its_tasks() -> None:
    """The cancel ends its grace; another worker gets its tasks."""
    mp = Millpond(work=False)
    pool = mp.pool("p")
    begun = asyncio.Queue[None]()

    @mp.task
    async def work() -> None:
        begun.put_nowait(None)
        await for_long()

    async def main() -> None:
        async with mp.worker(grace=500):
            await begun.get()

    async with mp:
        leaving = asyncio.create_task(main())
        handle = await pool.submit(work.bind())
        await asyncio.sleep(10)
        assert "running" == (await handle.refresh()).status
        leaving.cancel()
        assert isinstance(await outcome(leaving), asyncio.CancelledError)
        assert [] == internals_of(mp).runtime.workers
        assert ("queued", 0) == ((await handle.refresh()).status, handle.attempt)
        async with mp.worker():
            await soon(begun.get())


async def test_an_opening_that_is_cancelled_leaves_nothing_open() -> None:
    """Also when the resources of its worker take long to open and to close."""
    undone = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        try:
            await asyncio.sleep(5)
            yield
        finally:
            undone.append(True)

    mp = Millpond(resources=resources)
    mp.pool("p")
    opening = asyncio.create_task(mp.__aenter__())
    await asyncio.sleep(1)
    runtime = internals_of(mp).runtime
    opening.cancel()
    assert isinstance(await outcome(opening), asyncio.CancelledError)
    assert [True] == undone
    must_be_closed(mp, runtime)


async def test_a_worker_that_cannot_start_is_not_counted() -> None:
    """The Millpond does not list it and does not wait for it."""
    mp = Millpond(work=False)
    mp.pool("p")
    store: list[Watched] = []

    def make() -> Watched:
        store.append(Watched(memory()))
        return store[-1]

    internals_of(mp).owner.make_store = make
    async with mp:
        store[-1].failures.append(OSError("away"))
        with pytest.raises(OSError, match="away"):
            async with mp.worker():
                pass
        assert [] == internals_of(mp).runtime.workers


async def test_a_bad_grace_is_refused_before_the_worker_starts() -> None:
    """If it were refused at the end, the worker would never stop."""
    mp = Millpond(work=False)
    async with mp:
        with pytest.raises(ConfigError, match="grace"):
            async with mp.worker(grace=-1):
                pass
        assert [] == internals_of(mp).runtime.workers


async def test_a_handler_may_close_its_own_millpond() -> None:
    """Closing interrupts it like any other handler, once everything is closed."""
    mp = Millpond()
    pool = mp.pool("p")
    heard: list[BaseException] = []

    async def close() -> None:
        try:
            await mp.__aexit__(None, None, None)
        except asyncio.CancelledError as error:
            heard.append(error)
            raise

    await mp.__aenter__()
    runtime = internals_of(mp).runtime
    await pool.submit(close)
    await asyncio.sleep(20)
    assert 1 == len(heard)
    must_be_closed(mp, runtime)


async def test_a_hook_may_close_its_own_millpond() -> None:
    """Closing does not wait for the hook that called it."""
    closed: list[bool] = []

    async def close(_: object) -> None:
        await mp.__aexit__(None, None, None)
        closed.append(True)

    mp = Millpond()
    pool = mp.pool("p", on_empty=close)

    async def quick() -> None:
        await asyncio.sleep(1)

    await mp.__aenter__()
    runtime = internals_of(mp).runtime
    await pool.submit(quick)
    await asyncio.sleep(20)
    assert [True] == closed
    must_be_closed(mp, runtime)


async def test_a_second_close_waits_for_the_first() -> None:
    """The second close returns when the first has, and closes no later opening."""
    mp = Millpond()
    pool = mp.pool("p")
    await mp.__aenter__()
    first = internals_of(mp).runtime
    await pool.submit(stubborn)
    await asyncio.sleep(0)
    await asyncio.gather(*(mp.__aexit__(None, None, None) for _ in range(3)))
    assert first.store._closed  # type: ignore[attr-defined]
    async with mp:
        await asyncio.sleep(10)
        assert mp.is_open
    must_be_closed(mp, first)


async def test_waits_that_begin_while_it_closes_raise_not_open() -> None:
    """A slow hook delays the close; a wait that begins meanwhile does not hang."""

    async def slow(_: object) -> None:
        try:
            await for_long()
        finally:
            await asyncio.sleep(5)

    mp = Millpond()
    pool = mp.pool("p", on_empty=slow)

    @mp.task
    async def quick() -> None:
        pass

    work = mp.task(for_long)
    answers: list[Any] = []

    async def wait_for(handle: Any) -> None:
        answers.append(handle)
        await handle

    async with mp:
        await (await pool.submit(quick.bind()))
        handle = await pool.submit(work.bind())
        before = asyncio.create_task(wait_for(handle))
        later = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(
            2, lambda: later.set_result(asyncio.create_task(wait_for(handle)))
        )
        await asyncio.sleep(1)
    assert isinstance(await outcome(before), NotOpen)
    assert isinstance(await outcome(await later), NotOpen)


@pytest.mark.parametrize("kind", ["call", "strand"])
async def test_closing_ends_a_map_with_not_open(kind: str) -> None:
    """The tasks it waits for went back to the queue; they did not fail."""
    mp = Millpond(work=False)
    pool = mp.pool("p", max_concurrent=2)

    async def work(_number: int) -> None:
        await for_long()

    call = mp.task(work)

    async def apply() -> Any:
        return await pool.map(call if kind == "call" else work, [1, 2, 3])

    async with mp:
        mapping = asyncio.create_task(apply())
        await asyncio.sleep(1)
    ended = await outcome(mapping)
    # Closures end with their process, and the chunks of a plain function are closures.
    assert isinstance(ended, NotOpen if kind == "call" else TaskFailed)


async def test_closing_ends_runs_streams_and_drains_with_not_open() -> None:
    """None of them raises CancelledError."""
    mp = Millpond()
    pool = mp.pool("p")
    work = mp.task(for_long)

    async def stream() -> None:
        async with pool.stream([work.bind()]) as outcomes:
            async for _ in outcomes:
                pass

    async def run() -> None:
        async with pool.run() as opened:
            await opened.submit(work.bind())

    async with mp:
        waiting = [
            asyncio.create_task(one)
            for one in (stream(), run(), pool.drain(), pool.drain([work.bind()]))
        ]
        await asyncio.sleep(1)
    assert [NotOpen] * 4 == [type(await outcome(one)) for one in waiting]


async def test_no_submitter_blocks_in_a_pool_that_closes() -> None:
    """While a stubborn handler delays the close, a submit raises NotOpen."""
    mp = Millpond(work=False)
    pool = mp.pool("p", backpressure=bounded(1))
    work = mp.task(stubborn)

    async def another_worker() -> None:
        async with mp.worker():
            await asyncio.sleep(1_000)

    async def late() -> None:
        await asyncio.sleep(1.5)
        await pool.submit(work.bind())

    async with mp:
        beside = asyncio.create_task(another_worker())
        await asyncio.sleep(0)
        await pool.submit(work.bind())
        await pool.submit(work.bind())
        parked = asyncio.create_task(pool.submit(work.bind()))
        submitting = asyncio.create_task(late())
        await asyncio.sleep(1)
    assert [NotOpen] * 2 == [type(await outcome(one)) for one in (parked, submitting)]
    beside.cancel()


async def test_closing_ends_a_submit_that_waits_for_the_store() -> None:
    """It came while a verb was under way; it ends whether or not that verb is answered."""
    mp = Millpond(work=False)
    pool = mp.pool("p")
    stores: list[Watched] = []

    def make() -> Watched:
        stores.append(Watched(memory()))
        return stores[-1]

    internals_of(mp).owner.make_store = make
    work = mp.task(for_long)
    async with mp:
        await pool.submit(work.bind())
        stores[-1].freeze()
        first = asyncio.create_task(pool.submit(work.bind()))
        await asyncio.sleep(0)
        second = asyncio.create_task(pool.submit(work.bind()))
        await asyncio.sleep(1)
        asyncio.get_running_loop().call_soon(first.cancel)
        await rounds(1)
    assert isinstance(await outcome(second), NotOpen)


async def test_a_submit_cancelled_before_it_was_sent_is_not_sent() -> None:
    """It waited behind a verb under way; the store never sees it."""
    mp = Millpond(work=False)
    pool = mp.pool("p")
    stores: list[Watched] = []

    def make() -> Watched:
        stores.append(Watched(memory()))
        return stores[-1]

    internals_of(mp).owner.make_store = make
    async with mp, mp.worker():
        await pool.pause()
        stores[-1].freeze()
        first = asyncio.create_task(pool.submit(for_long))
        await asyncio.sleep(0)
        second = asyncio.create_task(pool.submit(for_long))
        third = asyncio.create_task(pool.submit(for_long))
        await asyncio.sleep(1)
        second.cancel()
        await asyncio.sleep(0)
        stores[-1].thaw()
        await soon(asyncio.gather(first, third))
        assert 2 == await pool.size()
        await asyncio.sleep(sum(IN_FLIGHT) + 1)  # until then it might have been on its way
        assert 2 == len(internals_of(mp).runtime.closures)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.real_loop
def test_a_millpond_left_open_does_not_keep_the_loop_running(count: int) -> None:
    """asyncio.run cancels the tasks that are left; each slot then ends."""

    async def main() -> list[asyncio.Task[Any]]:
        mp = Millpond()
        pool = mp.pool("p", max_concurrent=count)
        await mp.__aenter__()
        begun = asyncio.Semaphore(0)

        async def closure() -> None:
            begun.release()
            await for_long()

        for _ in range(count):
            await pool.submit(closure, retry=Retry.never())
        for _ in range(count):
            await begun.acquire()
        return [
            slot.task for worker in internals_of(mp).runtime.workers for slot in worker.slots.all
        ]

    with asyncio.Runner() as runner:
        slots = runner.run(main())
        assert count <= len(slots)

        async def cancel() -> None:
            remaining = asyncio.all_tasks() - {asyncio.current_task()}
            for task in remaining:
                task.cancel()
            await asyncio.wait(remaining, timeout=5)
            assert [] == [task for task in remaining if not task.done()]

        runner.run(cancel())


async def test_a_temporary_worker_survives_the_cancel_of_its_first_user() -> None:
    """It serves its other users, and stops with the last of them."""
    made = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[asyncio.Task[Any] | None]:
        await asyncio.sleep(1)
        made.append(asyncio.current_task())
        yield None
        made.append(asyncio.current_task())

    mp = Millpond(work=False, resources=resources)
    pool = mp.pool("p")

    @mp.task
    async def quick() -> None:
        pass

    async with mp:
        first = asyncio.create_task(pool.drain([quick.bind()]))
        await asyncio.sleep(0.2)
        second = asyncio.create_task(pool.drain([quick.bind()]))
        await asyncio.sleep(0.2)
        first.cancel()
        assert 1 == (await soon(second)).completed
        assert [] == internals_of(mp).runtime.workers
        # One task opens and closes it, as task groups require.
        assert [made[0]] * 2 == made


async def _nowhere() -> None:
    raise OSError("no such host")


async def test_the_error_that_prevents_a_temporary_worker_is_raised() -> None:
    """Each call that needs the worker raises it."""

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        await asyncio.sleep(1)
        await _nowhere()
        yield

    mp = Millpond(work=False, resources=resources)
    pool = mp.pool("p")
    async with mp:
        both = [asyncio.create_task(pool.drain()) for _ in range(2)]
        assert [OSError] * 2 == [type(await outcome(one)) for one in both]
        assert ({}, []) == (
            internals_of(mp).runtime.temporary_workers,
            internals_of(mp).runtime.workers,
        )


async def test_workers_on_a_stack_of_the_users_own_close_in_any_order() -> None:
    """Two workers and the Millpond itself close in the order they were opened."""
    mp = Millpond(work=False)
    pool = mp.pool("p", max_concurrent=2)
    first, second = AsyncExitStack(), AsyncExitStack()
    await mp.__aenter__()
    runtime = internals_of(mp).runtime
    await first.enter_async_context(mp.worker())
    await second.enter_async_context(mp.worker(pools=[pool], concurrency=1))
    await pool.submit(for_long)
    await mp.__aexit__(None, None, None)
    await first.aclose()
    await second.aclose()
    must_be_closed(mp, runtime)
