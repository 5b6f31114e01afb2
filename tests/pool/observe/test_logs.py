"""Logs: last failures as errors, others as warnings, once each."""

import asyncio
import logging
import subprocess
import sys
import traceback

import pytest

from millpond import (
    Context,
    Event,
    Failed,
    Millpond,
    Outcome,
    Pool,
    Retry,
    RetryLater,
    TaskFailed,
)


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
        async def notify(outcome: Outcome) -> None:
            raise LookupError("no such channel")

        self.send, self.notify = send, notify


def exception(record: logging.LogRecord) -> type[BaseException] | None:
    return None if record.exc_info is None else record.exc_info[0]


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if "failed after" in one.getMessage()]


@pytest.mark.rows("TR-20")
async def test_a_last_failure_is_logged_as_an_error_with_its_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It names task, function, pool, attempt and error, and carries the exception itself."""
    shop = Shop()
    async with shop.mp:
        handle = await shop.send.submit(7)
        await asyncio.sleep(2)
        assert "failed" == (await handle.refresh()).status
    (record,) = failures(caplog)
    assert logging.ERROR == record.levelno
    assert (
        f"task {handle.id} (send) of pool mail failed after 1 attempt(s): "
        "ConnectionError: no answer to 7"
    ) == record.getMessage()
    named = [vars(record)[name] for name in ("pool", "task", "function", "attempt", "error")]
    assert ["mail", handle.id, "send", 1, "ConnectionError: no answer to 7"] == named
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ConnectionError)


@pytest.mark.rows("TR-20")
async def test_an_attempt_that_is_retried_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line names the failure and the time of the retry; RetryLater logs nothing."""
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
    warnings = [line for line in lines if line.startswith("attempt ")]
    rest = f"of task {handle.id} (send) of pool mail failed, the next is in 2 s: ConnectionError"
    assert [f"attempt {n} {rest}: no answer in {n}" for n in (1, 2)] == warnings
    again = [one for one in caplog.records if one.getMessage().startswith("attempt ")]
    assert [(logging.WARNING, n) for n in (1, 2)] == [
        (one.levelno, vars(one)["attempt"]) for one in again
    ]
    assert 1 == len(failures(caplog))


@pytest.mark.rows("TR-20")
async def test_an_awaited_failure_is_logged_as_an_error_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Awaited, drained, or with a hook for it: one record with the exception, never two."""
    shop = Shop()
    async with shop.mp:
        with pytest.raises(TaskFailed):
            await (await shop.send.submit(1))
        assert 1 == (await shop.pool.drain([shop.send.bind(2)])).failed
    hooked = Shop(on_dead_letter=lambda _: None)
    async with hooked.mp:
        await hooked.send.submit(3)
        await asyncio.sleep(2)
    assert [ConnectionError] * 3 == [exception(record) for record in failures(caplog)]
    assert [logging.ERROR] * 3 == [record.levelno for record in caplog.records]


@pytest.mark.rows("TR-20")
async def test_a_callback_that_fails_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A callback has no caller that waits; it is logged also when its task was awaited."""
    shop = Shop()
    async with shop.mp:
        call = shop.send.bind(1).options(on_complete=shop.notify.bind())
        with pytest.raises(TaskFailed):
            await (await shop.pool.submit(call))
        await shop.pool.drain()
    record = failures(caplog)[-1]
    assert logging.ERROR == record.levelno
    assert "(notify) of pool mail failed" in record.getMessage()
    assert LookupError is exception(record)


@pytest.mark.rows("TR-20")
async def test_each_item_of_a_batch_fails_in_a_record_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whether the items failed alone or the whole call raised."""
    mp = Millpond()
    pool = mp.pool("mail", max_concurrent=3, retry=Retry.never())

    @pool.batch_task(size=3, linger=1.0)
    async def send(numbers: list[int]) -> list[int | Failed]:
        if 9 in numbers:
            raise LookupError("all of them")
        return [Failed(ValueError(f"item {n}")) if n else n for n in numbers]

    async with mp:
        await pool.drain([send.bind(n) for n in (0, 1, 2)])
        assert [ValueError, ValueError] == [exception(one) for one in failures(caplog)]
        caplog.clear()
        await pool.drain([send.bind(n) for n in (7, 8, 9)])
    assert [LookupError] * 3 == [exception(one) for one in failures(caplog)]
    assert 3 == len({vars(one)["task"] for one in failures(caplog)})


@pytest.mark.rows("TR-20")
@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_timeout_is_logged_like_any_other_failure(
    attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning while attempts are left, then an error, also when the handler does not stop."""
    mp = Millpond()
    pool = mp.pool("mail", retry=Retry.constant(1, attempts=attempts))

    @pool.task(timeout=2)
    async def send(*, deaf: bool) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(10 if deaf else 0)
            raise

    async with mp:
        await pool.drain([send.bind(deaf=False), send.bind(deaf=True)])
    assert [TimeoutError] * 2 == [exception(one) for one in failures(caplog)]
    again = [one for one in caplog.records if one.getMessage().startswith("attempt ")]
    assert 2 * (attempts - 1) == len(again)


@pytest.mark.rows("TR-20")
async def test_a_result_that_cannot_be_stored_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error arose after the handler returned, so the log has its stored text."""
    mp = Millpond()
    pool = mp.pool("mail")

    @pool.task
    async def send() -> int:
        return object()  # type: ignore[return-value]

    async with mp:
        await pool.drain([send.bind()])
    (record,) = failures(caplog)
    assert logging.ERROR == record.levelno
    assert "BadResult" in record.getMessage()


@pytest.mark.rows("TR-20")
async def test_an_event_that_cannot_be_delivered_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A trigger's dead letter is a task that failed for good."""
    shop = Shop()

    def make(_event: Event) -> None:
        raise LookupError("no such order")

    shop.mp.trigger("orders", on="orders", into=shop.pool, make=make, delivery_retry=Retry.never())
    async with shop.mp:
        await shop.mp.emit("orders", {"id": 1})
        await asyncio.sleep(10)
    assert [LookupError] == [exception(one) for one in failures(caplog)]


@pytest.mark.rows("TR-20")
@pytest.mark.real_loop
async def test_a_failure_in_a_child_process_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the worker, with the traceback of the child."""
    from tests.pool import process_tasks

    async with process_tasks.mp:
        handle = await process_tasks.fail.submit("error")
        await handle.wait()
    (record,) = failures(caplog)
    assert logging.ERROR == record.levelno
    assert record.exc_info is not None
    text = "".join(traceback.format_exception(record.exc_info[1]))
    assert "in another process" in text


@pytest.mark.rows("TR-20")
def test_a_plain_script_sees_its_failures() -> None:
    """Without any logging configuration both levels go to stderr, the last with its traceback."""
    script = """if True:
        import asyncio
        from millpond import Millpond, Retry

        mp = Millpond()
        pool = mp.pool("mail", retry=Retry.constant(0.01, attempts=2))

        @pool.task
        async def send(number: int) -> None:
            raise ConnectionError(f"no answer to {number}")

        async def main() -> None:
            async with mp:
                await pool.drain([send.bind(7)])

        asyncio.run(main())
    """
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    first, second, *trace = ran.stderr.splitlines()
    assert first.startswith("attempt 1 of task ")
    assert "(send) of pool mail failed after 2 attempt(s): ConnectionError: no answer" in second
    assert "Traceback (most recent call last):" == trace[0]
    assert "ConnectionError: no answer to 7" == trace[-1]


async def test_closing_over_work_that_would_be_lost_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A script that forgets to drain gets it; one that drains, or ends with an error, does not."""
    shop = Shop()
    async with shop.mp:
        await shop.pool.submit_many(shop.send.each(range(3)))
    (record,) = [one for one in caplog.records if one.name == "millpond"]
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
    assert [] == [one for one in caplog.records if "closed with" in one.getMessage()]
