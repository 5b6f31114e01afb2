"""At most once: a task with one attempt is never begun twice, whatever ended its attempt."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.pool.fleet import Fleet, until
from tests.waiting import until_a_thread
from verify.servers.schemas import Schema

from millpond import Handle, Millpond, Pool, Retry, TaskFailed, Throttled
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.rows("TR-22")


async def begun(began: list[Any], count: int = 1) -> None:
    """Wait until so many attempts began."""

    async def enough() -> bool:
        return len(began) >= count

    await until(enough)


class Once:
    """A pool whose tasks have one attempt, and how often each of them began."""

    def __init__(self, mp: Millpond, **options: Any) -> None:
        self.mp = mp
        self.began: list[int] = []
        self.pool: Pool = mp.pool("once", retry=Retry.never(), **options)

        @self.pool.task
        async def wait(number: int) -> int:
            self.began.append(number)
            await asyncio.sleep(3600)
            return number

        @self.pool.task
        def block(number: int) -> int:
            self.began.append(number)
            self.release.wait(20)
            return number

        self.release = threading.Event()
        self.wait, self.block = wait, block


async def stopped(handle: Handle[Any]) -> bool:
    """Return whether a task ended as one whose worker stopped."""
    with pytest.raises(TaskFailed) as caught:
        await handle
    return ("stopped", 1) == (caught.value.reason, caught.value.attempts)


@pytest.mark.rows("CX-T113")
async def test_a_worker_that_stops_past_its_grace_ends_an_only_attempt(
    place: Path | Schema,
) -> None:
    """It fails with the reason `stopped`; no worker starts it again until it is redriven."""
    async with Fleet(place).millpond(work=False) as mp:
        once = Once(mp)
        async with mp.worker():
            handle = await once.wait.submit(1)
            await begun(once.began)
        assert await stopped(handle)
        assert "failed" == (await handle.refresh()).status
        async with mp.worker():
            await asyncio.sleep(60)
            assert [1] == once.began
            assert 1 == await once.pool.redrive([handle.id])
            await begun(once.began, 2)


@pytest.mark.rows("CX-T113")
async def test_a_task_with_more_attempts_is_given_back_uncharged(place: Path | Schema) -> None:
    """A stop costs such a task no attempt."""
    async with Fleet(place).millpond(work=False) as mp:
        once = Once(mp)
        async with mp.worker():
            handle = await once.wait.options(retry=Retry(attempts=2)).submit(1)
            await begun(once.began)
        await handle.refresh()
        assert ("queued", 0) == (handle.status, handle.attempt)


async def test_closing_ends_an_only_attempt(place: Path | Schema) -> None:
    """A Millpond that is closed stops its workers, whose only attempts are over."""
    fleet = Fleet(place)
    first, second = fleet.millpond(work=True), fleet.millpond(work=True)
    once, other = Once(first), Once(second)
    async with first:
        handle = await once.wait.submit(1)
        await begun(once.began)
    async with second:
        again = await second.handle(handle.id)
        assert await stopped(again)
        await asyncio.sleep(60)
        assert [] == other.began


async def test_a_thread_that_does_not_stop_is_an_only_attempt_that_failed(
    place: Path | Schema,
) -> None:
    """The stop does not wait for it, and it is not begun again, neither meanwhile nor after."""
    async with Fleet(place).millpond(work=False) as mp:
        once = Once(mp)
        try:
            async with mp.worker():
                handle = await once.block.submit(1)
                await until_a_thread(lambda: once.began)
            async with mp.worker():
                await asyncio.sleep(60)
                assert ("running", [1]) == ((await handle.refresh()).status, once.began)
                once.release.set()
                assert 1 == await handle
                await asyncio.sleep(60)
                assert [1] == once.began
        finally:
            once.release.set()


@pytest.mark.rows("CX-T113")
async def test_prefetched_tasks_that_never_began_go_back(place: Path | Schema) -> None:
    """The next worker starts them: the worker that stopped had only claimed them."""
    async with Fleet(place).millpond(work=False) as mp:
        once = Once(mp, max_concurrent=1, prefetch=5)
        async with mp.worker():
            handles = [await once.wait.submit(number) for number in range(4)]
            await begun(once.began)
            await asyncio.sleep(1)
        statuses = [(await handle.refresh()).status for handle in handles]
        assert ["failed", "queued", "queued", "queued"] == statuses
        assert [0] == once.began


async def test_a_batch_that_was_interrupted_is_not_begun_again(place: Path | Schema) -> None:
    """Every task of it had begun; those that still waited for a batch had not."""
    async with Fleet(place).millpond(work=False) as mp:
        pool = mp.pool("batches", max_concurrent=5, retry=Retry.never())
        began: list[list[int]] = []

        @pool.batch_task(size=2, linger=3600)
        async def press(numbers: list[int]) -> list[int]:
            began.append(numbers)
            await asyncio.sleep(3600)
            return numbers

        async with mp.worker():
            handles = [await press.submit(number) for number in range(3)]
            await begun(began)
            await asyncio.sleep(1)
        statuses = [(await handle.refresh()).status for handle in handles]
        assert ["failed", "failed", "queued"] == statuses
        assert [[0, 1]] == began


async def test_an_item_of_a_map_is_not_begun_again_by_another_strand(place: Path | Schema) -> None:
    """A map in a pool of one attempt raises where its worker stopped."""
    async with Fleet(place).millpond(work=False) as mp:
        pool = mp.pool("once", max_concurrent=1, retry=Retry.never())
        began: list[int] = []

        async def item(number: int) -> int:
            began.append(number)
            await asyncio.sleep(3600)
            return number

        async with mp.worker():
            mapping = asyncio.ensure_future(_collected(pool, item))
            await begun(began)
            for worker in list(internals_of(mp).runtime.workers):
                await worker.stop()
        with pytest.raises(TaskFailed, match="stopped"):
            await mapping
        assert [0] == began


async def _collected(pool: Pool, fn: Callable[[int], Coroutine[Any, Any, int]]) -> list[int]:
    return [result async for result in pool.map(fn, range(3))]


async def test_a_handler_may_still_ask_for_another_run_itself(place: Path | Schema) -> None:
    """Throttled says that the handler did nothing, so the task may run again."""
    async with Fleet(place).millpond(work=True) as mp:
        pool = mp.pool("once", retry=Retry.never())
        began: list[int] = []

        @pool.task
        async def call() -> str:
            began.append(1)
            if len(began) == 1:
                raise Throttled(5)
            return "done"

        assert "done" == await (await call.submit())
