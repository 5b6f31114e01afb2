"""What is logged: a task that failed for good, with its traceback where nobody is told of it."""

import asyncio
import logging

import pytest

from millpond import Context, Millpond, Outcome, Pool, Retry, RetryLater, TaskFailed


class Shop:
    """A pool with a task that always fails."""

    def __init__(self, **options: object) -> None:
        self.mp = Millpond()
        self.pool: Pool = self.mp.pool("mail", retry=Retry.never(), **options)  # type: ignore[arg-type]

        @self.pool.task
        async def send(number: int) -> None:
            await asyncio.sleep(1)
            raise ConnectionError(f"no answer to {number}")

        @self.mp.task
        async def tell(outcome: Outcome) -> None:
            raise LookupError("no such channel")

        self.send, self.tell = send, tell


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if "failed after" in one.getMessage()]


async def test_a_failure_is_logged_with_all_that_tells_it_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It names task, function, pool and error; where nobody awaits it, with its traceback."""
    caplog.set_level(logging.INFO, logger="millpond")
    shop = Shop()
    async with shop.mp:
        handle = await shop.send.submit(7)
        await asyncio.sleep(2)
        assert "failed" == (await handle.refresh()).status
    (record,) = failures(caplog)
    assert logging.INFO == record.levelno
    assert (
        f"task {handle.id} (send) of pool mail failed after 1 attempt(s): "
        "ConnectionError: no answer to 7"
    ) == record.getMessage()
    assert ("mail", handle.id) == (vars(record)["pool"], vars(record)["task"])
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ConnectionError)


async def test_an_attempt_that_is_tried_again_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each in one line that tells what failed and when it goes on; coming back later is none."""
    caplog.set_level(logging.INFO, logger="millpond")
    mp = Millpond()
    pool = mp.pool("mail", retry=Retry.constant(2, attempts=3, jitter=0.0))

    wishes = [RetryLater(1, spend=False)]

    @pool.task
    async def send(ctx: Context) -> None:
        if wishes:
            raise wishes.pop()
        raise ConnectionError(f"no answer in {ctx.attempt}")

    async with mp:
        handle = await send.submit()
        await asyncio.sleep(60)
    lines = [one.getMessage() for one in caplog.records]
    told = [line for line in lines if line.startswith("attempt ")]
    rest = f"of task {handle.id} (send) of pool mail failed, the next is in 2 s: ConnectionError"
    assert [f"attempt {n} {rest}: no answer in {n}" for n in (1, 2)] == told
    assert 1 == len(failures(caplog))


async def test_a_failure_that_somebody_hears_of_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who awaits it, drains its run or has a hook for it has its traceback already."""
    caplog.set_level(logging.INFO, logger="millpond")
    shop = Shop()
    async with shop.mp:
        with pytest.raises(TaskFailed):
            await (await shop.send.submit(1))
        assert 1 == (await shop.pool.drain([shop.send.bind(2)])).failed
    hooked = Shop(on_dead_letter=lambda _: None)
    async with hooked.mp:
        await hooked.send.submit(3)
        await asyncio.sleep(2)
    assert [None, None, None] == [record.exc_info for record in failures(caplog)]


async def test_a_callback_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody awaits a callback; that of a task that was awaited is logged too."""
    shop = Shop()
    async with shop.mp:
        call = shop.send.bind(1).options(on_complete=shop.tell.bind())
        with pytest.raises(TaskFailed):
            await (await shop.pool.submit(call))
        await shop.pool.drain()
    record = failures(caplog)[-1]
    assert logging.WARNING == record.levelno
    assert "(tell) of pool mail failed" in record.getMessage()


async def test_closing_over_work_that_would_be_lost_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A script that forgets to drain is told; one that drains, or leaves with an error, is not."""
    shop = Shop()
    async with shop.mp:
        await shop.pool.submit_many(shop.send.each(range(3)))
    (record,) = caplog.records
    assert logging.WARNING == record.levelno
    assert "closed with 3 task(s) queued or running" in record.getMessage()
    assert "pool.drain()" in record.getMessage()
    caplog.clear()
    async with shop.mp:
        await shop.send.submit(1)
        await shop.pool.drain()
    with pytest.raises(KeyError):
        async with shop.mp:
            await shop.send.submit(1)
            raise KeyError
    assert [] == caplog.records
