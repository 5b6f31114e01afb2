"""A handler ends its own task as cancelled: `raise Cancelled("reason")`."""

import asyncio
from typing import Any

import pytest
from tests.pool import process_tasks

from millpond import Cancelled, Failed, Millpond, Outcome, Retry, Status, TaskCancelled


@pytest.mark.parametrize("attempts", [1, 5])
async def test_a_handler_ends_its_task_as_cancelled(attempts: int) -> None:
    """No retry and no dead letter; a caller that waits gets the reason."""
    mp = Millpond()
    buried: list[Any] = []
    pool = mp.pool("mail", retry=Retry(attempts=attempts), on_dead_letter=buried.append)
    runs: list[int] = []

    @pool.task
    async def greet() -> None:
        runs.append(1)
        raise Cancelled("ada has left")

    async with mp:
        handle = await greet.submit()
        with pytest.raises(TaskCancelled, match="cancelled by its handler: ada has left") as raised:
            await handle
        assert ("cancelled", 1) == (raised.value.reason, raised.value.attempts)
        assert handle.error is not None
        assert ("millpond.Cancelled", "ada has left") == (handle.error.type, handle.error.message)
        assert Status.CANCELLED is (await handle.refresh()).status
        snapshot = await pool.snapshot()
        assert (1, 0) == (snapshot.cancelled, snapshot.failed)
    assert ([1], []) == (runs, buried)


@pytest.mark.real_loop
async def test_a_thread_may_cancel_its_task() -> None:
    """A subclass too, without a message."""
    mp = Millpond()
    pool = mp.pool("mail")

    class NotWanted(Cancelled):
        pass

    @pool.task
    def greet() -> None:
        raise NotWanted

    async with mp:
        handle = await greet.submit()
        with pytest.raises(TaskCancelled, match="was cancelled"):
            await handle


@pytest.mark.real_loop
async def test_a_process_may_cancel_its_task() -> None:
    """The reason comes back with it."""
    async with process_tasks.mp:
        handle = await process_tasks.not_wanted.submit("ada has left")
        with pytest.raises(TaskCancelled, match="by its handler: ada has left"):
            await asyncio.wait_for(handle, 30)


async def test_one_item_of_a_batch_may_be_cancelled() -> None:
    """The others complete."""
    mp = Millpond()
    pool = mp.pool("mail")

    @pool.batch_task(size=3, linger=1)
    async def greet(users: list[str]) -> list[str | Failed]:
        return [Failed(Cancelled("left")) if user == "bob" else user.upper() for user in users]

    async with mp:
        ada, bob, cleo = await pool.submit_many(greet.each(["ada", "bob", "cleo"]))
        assert ("ADA", "CLEO") == (await ada, await cleo)
        with pytest.raises(TaskCancelled, match="by its handler: left"):
            await bob


async def test_a_callback_gets_the_reason() -> None:
    """Its outcome is that of a cancelled task."""
    mp = Millpond()
    pool = mp.pool("mail")
    seen: list[Outcome] = []

    @pool.task
    async def greet() -> None:
        raise Cancelled("left")

    @mp.task
    async def after(outcome: Outcome) -> None:
        seen.append(outcome)

    async with mp:
        await (await greet.options(on_complete=after.bind()).submit()).wait()
        await pool.drain()
    (outcome,) = seen
    assert ("cancelled", "cancelled") == (outcome.status, outcome.reason)
    assert outcome.error is not None
    assert "left" == outcome.error.message


async def test_a_redrive_brings_it_back() -> None:
    """As any cancelled task."""
    mp = Millpond()
    pool = mp.pool("mail")
    wanted = [False]

    @pool.task
    async def greet() -> str:
        if not wanted[0]:
            raise Cancelled("left")
        return "hello"

    async with mp:
        handle = await greet.submit()
        await handle.wait()
        wanted[0] = True
        assert 1 == await pool.redrive([handle.id])
        await handle.refresh()
        assert "hello" == await handle


@pytest.mark.real_loop
async def test_an_item_of_a_map_may_be_cancelled() -> None:
    """Its error comes where its result would have been."""
    mp = Millpond()
    pool = mp.pool("mail", max_concurrent=2)

    def greet(user: str) -> str:
        if user == "bob":
            raise Cancelled("left")
        return user

    async with mp:
        with pytest.raises(TaskCancelled, match="left"):
            await pool.map(greet, ["ada", "bob"])
