"""A handler that goes on after its attempt was to end keeps its task and its slot until it ends."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pool.fleet import Fleet, until
from tests.waiting import until_a_thread
from verify.servers.schemas import Schema

from millpond import Millpond, Retry, SyncContext, TaskFailed
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.rows("TR-23")


class Blocking:
    """A pool of one slot whose first attempt blocks a thread until it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.began = 0
        self.inside = 0
        self.most = 0

    def serve(self, mp: Millpond, attempts: int = 2) -> Any:
        """Register the function with a Millpond."""
        pool = mp.pool("one", max_concurrent=1, retry=Retry.constant(0.0, attempts=attempts))

        @pool.task(name="block", timeout=2)
        def block(ctx: SyncContext) -> int:
            self.began += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.began == 1:
                self.release.wait(60)
            self.inside -= 1
            return ctx.attempt

        return block

    async def blocks(self) -> None:
        """Wait until the first attempt has begun."""
        await until_a_thread(lambda: self.began)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    """Give a pool's function, and let its thread go at the end."""
    given = Blocking()
    yield given
    given.release.set()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | Schema | None]:
    """Give where a store is to be, for a `Fleet`; None is memory."""
    if request.param != "postgres":
        yield tmp_path / "work.db" if request.param == "sqlite" else None
        return
    schemas = request.getfixturevalue("postgres_schemas")
    schema = schemas.take()
    yield schema
    schemas.give_back(schema)


async def test_the_next_attempt_never_runs_beside_a_thread_that_timed_out(
    place: Path | Schema | None, blocking: Blocking
) -> None:
    """Not here and not on another worker: the task is running, and counts, until it ends."""
    fleet = Fleet(place)
    one, two = fleet.millpond(work=True), fleet.millpond(work=True)
    # The loop's time flies while a thread takes its own: later attempts may time out as well.
    block = blocking.serve(one, attempts=500)
    blocking.serve(two, attempts=500)
    async with one, two:
        first = await block.submit()
        await blocking.blocks()
        second = await block.submit()
        await asyncio.sleep(300)
        assert ("running", 1) == ((await first.refresh()).status, blocking.began)
        assert "queued" == (await second.refresh()).status
        why = await two.why(first.id)
        assert "it timed out at " in why
        assert "and its handler still runs" in why
        blocking.release.set()
        assert 2 <= await first
        assert 1 <= await second
        assert 1 == blocking.most


async def test_a_waiter_is_answered_when_the_thread_has_ended(
    place: Path | Schema | None, blocking: Blocking
) -> None:
    """Whatever it returns then, its attempt has timed out."""
    mp = Fleet(place).millpond(work=True)
    block = blocking.serve(mp, attempts=1)
    async with mp:
        handle = await block.submit()
        await blocking.blocks()
        with pytest.raises(TimeoutError):
            await handle.wait(timeout=300)
        blocking.release.set()
        with pytest.raises(TaskFailed) as caught:
            await handle
        assert ("TimeoutError", 1) == (caught.value.error_type, blocking.began)


async def test_a_stopped_worker_keeps_the_task_of_a_thread_that_still_runs(
    place: Path | Schema | None, blocking: Blocking, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, leaves when the thread has ended, and another worker goes on only then."""
    fleet = Fleet(place)
    one, two = fleet.millpond(work=False), fleet.millpond(work=False)
    block = blocking.serve(one)
    blocking.serve(two)
    async with one, two:
        with caplog.at_level(logging.WARNING, "millpond.worker"):
            async with one.worker():
                handle = await block.options(timeout=3600).submit()
                await blocking.blocks()
        assert any(
            f"task {handle.id} of pool one has not" in record.message for record in caplog.records
        )
        async with two.worker():
            await asyncio.sleep(300)
            assert ("running", 1) == ((await handle.refresh()).status, blocking.began)
            blocking.release.set()
            assert 1 == await handle
            assert 1 == blocking.began

            async def left() -> bool:
                return not internals_of(one).runtime.local_workers.lingering

            await until(left)


async def test_closing_says_which_task_it_leaves_to_others(
    place: Path | Schema | None, blocking: Blocking, caplog: pytest.LogCaptureFixture
) -> None:
    """A Millpond that closes cannot hold a task; its log names the thread that it leaves behind."""
    fleet = Fleet(place)
    one, two = fleet.millpond(work=True), fleet.millpond(work=False)
    block = blocking.serve(one)
    blocking.serve(two)
    async with two:
        with caplog.at_level(logging.WARNING, "millpond.worker"):
            async with one:
                handle = await block.options(timeout=3600).submit()
                await blocking.blocks()
        assert any(
            f"leaves while the handler of task {handle.id} of pool one" in record.message
            for record in caplog.records
        )
        async with two.worker():
            assert "completed" == (await (await two.handle(handle.id)).wait()).status
