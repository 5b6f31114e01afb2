"""Middleware around handlers: on the loop, in threads and processes, batches and callbacks."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.pool import middleware_tasks

from millpond import (
    ConfigError,
    Context,
    GiveUp,
    Middleware,
    Millpond,
    Outcome,
    Retry,
    RetryLater,
    SyncContext,
    TaskCancelled,
    TaskFailed,
)


class Noting(Middleware):
    """Notes the calls of its hooks."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self.name = name
        self.notes = notes

    def before(self, ctx: Context | SyncContext) -> None:
        self.notes.append((self.name, "before", ctx.function, ctx.attempt))

    def after(self, ctx: Context | SyncContext, result: Any) -> None:
        self.notes.append((self.name, "after", ctx.function, result))

    def failed(self, ctx: Context | SyncContext, error: BaseException) -> None:
        self.notes.append((self.name, "failed", ctx.function, type(error).__name__))


@pytest.mark.real_loop
@pytest.mark.parametrize("threaded", [False, True])
async def test_hooks_are_called_around_a_handler(threaded: bool) -> None:
    """The first added is the outermost; a removed one is not called."""
    mp = Millpond()
    pool = mp.pool("mail", max_concurrent=1)
    notes: list[Any] = []
    mp.add_middleware(Noting("outer", notes))
    remove = mp.sync.add_middleware(Noting("inner", notes))

    async def on_loop(number: int) -> int:
        notes.append("handler")
        return number

    def in_thread(number: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        notes.append("handler")
        return number

    task = pool.task(name="send")(in_thread if threaded else on_loop)
    async with mp:
        assert 7 == await (await pool.submit(task.bind(7)))
        assert [
            ("outer", "before", "send", 1),
            ("inner", "before", "send", 1),
            "handler",
            ("inner", "after", "send", 7),
            ("outer", "after", "send", 7),
        ] == notes
        remove()
        notes.clear()
        await (await pool.submit(task.bind(8)))
        assert ["outer", "outer"] == [note[0] for note in notes if note != "handler"]


async def test_failures_and_signals_pass_through() -> None:
    """Retries, GiveUp and policies work as without a middleware."""
    mp = Millpond()
    pool = mp.pool("mail", retry=Retry(attempts=3, initial=1.0))
    notes: list[Any] = []
    mp.add_middleware(Noting("it", notes))
    errors = iter([ValueError("no"), RetryLater(1.0), GiveUp("never")])

    @pool.task
    async def send(ctx: Context) -> None:
        raise next(errors)

    async with mp:
        with pytest.raises(TaskFailed, match="never"):
            await (await send.submit())
    assert ["ValueError", "RetryLater", "GiveUp"] == [
        note[3] for note in notes if note[1] == "failed"
    ]


async def test_around_may_replace_results_and_errors() -> None:
    """It decides what the attempt returns."""

    class Fallback(Middleware):
        async def around_async(self, ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:
            try:
                return f"<{await call()}>"
            except KeyError:
                return "nothing"

    mp = Millpond()
    pool = mp.pool("mail")
    mp.add_middleware(Fallback())

    @pool.task
    async def find(name: str) -> str:
        return {"ada": "Ada"}[name]

    async with mp:
        assert "<Ada>" == await (await find.submit("ada"))
        assert "nothing" == await (await find.submit("bob"))


async def test_a_middleware_that_raises_fails_the_attempt() -> None:
    """The handler is not called."""

    class Strict(Middleware):
        def before(self, ctx: Context | SyncContext) -> None:
            if "tenant" not in ctx.labels:
                raise GiveUp("a tenant is required")

    mp = Millpond()
    pool = mp.pool("mail")
    mp.add_middleware(Strict())
    called: list[int] = []

    @pool.task
    async def send() -> None:
        called.append(1)

    async with mp:
        with pytest.raises(TaskFailed, match="a tenant is required"):
            await (await send.submit())
        await (await send.options(labels={"tenant": "acme"}).submit())
    assert [1] == called


@pytest.mark.real_loop
@pytest.mark.parametrize("threaded", [False, True])
async def test_an_error_in_failed_does_not_hide_that_of_the_handler(
    threaded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; a task that gives up is not retried."""

    class Broken(Middleware):
        def failed(self, ctx: Context | SyncContext, error: BaseException) -> None:
            raise ValueError("a bug in the hook")

    mp = Millpond()
    pool = mp.pool("mail", retry=Retry(attempts=3, initial=0.0))
    notes: list[Any] = []
    mp.add_middleware(Noting("outer", notes))
    mp.add_middleware(Broken())

    async def on_loop() -> None:
        raise GiveUp("never")

    def in_thread() -> None:
        raise GiveUp("never")

    task = pool.task(name="send")(in_thread if threaded else on_loop)
    async with mp:
        handle = await pool.submit(task.bind())
        with pytest.raises(TaskFailed, match="never"):
            await handle
        assert 1 == handle.attempt
    assert ("outer", "failed", "send", "GiveUp") in notes
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "middleware.failed"]
    assert "Broken.failed raised; the error of the handler counts" == record.message
    assert "a bug in the hook" in str(record.exc_info and record.exc_info[1])


async def test_failed_may_turn_an_error_into_another_decision() -> None:
    """GiveUp from `failed` ends the task, but nothing replaces a cancellation."""

    class Permanent(Middleware):
        def failed(self, ctx: Context | SyncContext, error: BaseException) -> None:
            raise GiveUp("no use") from error

    mp = Millpond()
    pool = mp.pool("mail", max_concurrent=2, retry=Retry(attempts=3, initial=0.0))
    mp.add_middleware(Permanent())

    @pool.task
    async def send() -> None:
        raise KeyError("address")

    started = asyncio.Event()

    @pool.task
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    async with mp:
        with pytest.raises(TaskFailed, match=r"after 1 attempt.*KeyError"):
            await (await send.submit())
        waiting = await wait.submit()
        await started.wait()
        await waiting.cancel(mode="interrupt")
        with pytest.raises(TaskCancelled):
            await waiting


async def test_batches_and_callbacks_have_it_too() -> None:
    """Once around the call of a batch."""
    mp = Millpond()
    pool = mp.pool("mail", max_concurrent=2)
    notes: list[Any] = []
    mp.add_middleware(Noting("it", notes))

    @pool.batch_task(size=2, linger=1)
    async def send(numbers: list[int]) -> list[int]:
        return [number * 2 for number in numbers]

    @mp.task
    async def after(outcome: Outcome) -> None: ...

    async with mp:
        one, two = await pool.submit_many(send.each([1, 2]), on_complete=after.bind())
        assert (2, 4) == (await one, await two)
        await pool.drain()
    assert [("send", [2, 4]), ("after", None), ("after", None)] == [
        note[2:] for note in notes if note[1] == "after"
    ]


async def test_a_cancelled_handler_is_seen() -> None:
    """`failed` gets the CancelledError; the task is cancelled."""
    mp = Millpond()
    pool = mp.pool("mail")
    notes: list[Any] = []
    mp.add_middleware(Noting("it", notes))

    @pool.task(timeout=5)
    async def wait() -> None:
        await asyncio.Event().wait()

    async with mp:
        handle = await wait.submit()
        await asyncio.sleep(1)
        await handle.cancel(mode="interrupt")
        await handle.wait()
    assert ("it", "failed", "wait", "CancelledError") == notes[-1]


@pytest.mark.real_loop
async def test_a_process_runs_the_middleware_of_its_module() -> None:
    """In the process, around plain and async handlers."""
    async with middleware_tasks.mp:
        for task, result in ((middleware_tasks.number, 42), (middleware_tasks.later, 8)):
            name, pid, found = await asyncio.wait_for(await task.submit(), 30)
            assert (f"{task.name} in processes", result) == (name, found)
            assert os.getpid() != pid


def test_only_a_middleware_can_be_added() -> None:
    """A function is no middleware."""
    with pytest.raises(ConfigError, match="must be a Middleware"):
        Millpond().add_middleware(print)  # type: ignore[arg-type]
