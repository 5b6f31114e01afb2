"""Handlers: whatever they do, the task ends with an outcome, and the next task runs."""

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.pool.moments import result_of
from tests.pool.stores import any_pace, rounds  # noqa: F401 - a fixture

from millpond import (
    Context,
    GiveUp,
    Millpond,
    Pool,
    Retry,
    RetryLater,
    TaskFailed,
)
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.usefixtures("any_pace")


class Own(BaseException):
    """An exception that is not an Exception."""


class Silent(Exception):
    """One whose message cannot be read."""

    def __str__(self) -> str:
        raise ValueError("no comment")


class Nosy(Exception):
    """One whose attributes cannot be read."""

    @property
    def info(self) -> str:
        raise ValueError("no info")


class HalfMade(RetryLater):
    """One that forgot to call its base."""

    def __init__(self) -> None:
        Exception.__init__(self)


def raises(error: BaseException) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def handler() -> None:
        await asyncio.sleep(0)
        raise error

    return handler


async def returns_unserialisable() -> object:
    return object()


async def returns_a_generator() -> Any:
    return (n for n in range(3))


async def returns_a_surrogate() -> str:
    return "\ud800"


async def returns_a_loop() -> Any:
    endless: list[Any] = []
    endless.append(endless)
    return endless


class Unreadable:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise ValueError("no fields")


async def returns_a_trap() -> Any:
    return Unreadable()


DEEDS: dict[str, tuple[Callable[[], Coroutine[Any, Any, Any]], str]] = {
    "SystemExit": (raises(SystemExit(3)), "SystemExit"),
    "GeneratorExit": (raises(GeneratorExit()), "GeneratorExit"),
    "BaseException": (raises(Own("own")), "Own"),
    "CancelledError": (raises(asyncio.CancelledError()), "CancelledError"),
    "StopAsyncIteration": (raises(StopAsyncIteration()), "StopAsyncIteration"),
    "StopIteration": (raises(StopIteration()), "RuntimeError"),
    "group": (raises(BaseExceptionGroup("both", [Own(), OSError()])), "BaseExceptionGroup"),
    "silent": (raises(Silent()), "Silent"),
    "nosy": (raises(Nosy()), "Nosy"),
    "half made": (raises(HalfMade()), "AttributeError"),
    "recursion": (raises(RecursionError()), "RecursionError"),
    "memory": (raises(MemoryError()), "MemoryError"),
    "surrogate message": (raises(OSError("\ud800")), "OSError"),
    "object": (returns_unserialisable, "BadResult"),
    "generator": (returns_a_generator, "BadResult"),
    "lone surrogate": (returns_a_surrogate, "BadResult"),
    "endless list": (returns_a_loop, "BadResult"),
    "trap": (returns_a_trap, "BadResult"),
}


@pytest.mark.parametrize("deed", DEEDS)
async def test_no_handler_can_break_the_pool(deed: str) -> None:
    """It fails with its own error, and the slot serves the next task."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())
    handler, kind = DEEDS[deed]
    bad = pool.task(name="bad")(handler)

    @pool.task
    async def good() -> str:
        return "fine"

    async with mp:
        with pytest.raises(TaskFailed) as caught:
            await (await bad.submit())
        assert kind in caught.value.error_type
        assert "fine" == await asyncio.wait_for(result_of(await good.submit()), 5)
        snapshot = await pool.snapshot()
        assert (1, 1, 0, 0) == (
            snapshot.completed,
            snapshot.failed,
            snapshot.running,
            snapshot.queued,
        )


@pytest.mark.rows("CX-19")
async def test_an_unstorable_result_is_final() -> None:
    """bad_result is not retried: another run would return the same."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=5))
    runs = 0

    @pool.task
    async def job() -> object:
        nonlocal runs
        runs += 1
        return object()

    @pool.task
    async def large() -> str:
        return "x" * (2 << 20)

    async with mp:
        for task in (job, large):
            with pytest.raises(TaskFailed) as caught:
                await (await task.submit())
            assert ("bad_result", 1) == (caught.value.reason, caught.value.attempts)
    assert 1 == runs


async def test_a_handler_that_returns_a_coroutine_has_a_bad_result() -> None:
    """This finds a forgotten await."""
    mp = Millpond()
    pool = mp.pool("work")

    made = rounds(1)

    @pool.task
    async def forgot() -> Any:
        return made

    async with mp:
        with pytest.raises(TaskFailed) as caught:
            await (await forgot.submit())
        assert "bad_result" == caught.value.reason
    made.close()


async def test_a_hanging_handler_is_stopped_at_its_timeout() -> None:
    """The attempt is charged and retried; the slot is free again."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=2, initial=1.0, jitter=0.0))
    starts: list[float] = []
    loop = asyncio.get_running_loop()

    @pool.task(timeout=10)
    async def hang() -> None:
        starts.append(loop.time())
        await loop.create_future()

    async with mp:
        with pytest.raises(TaskFailed) as caught:
            await (await hang.submit())
        assert ("TimeoutError", 2) == (caught.value.error_type, caught.value.attempts)
        assert [0.0, 11.0] == [pytest.approx(at - starts[0], abs=0.01) for at in starts]


async def test_a_handler_that_swallows_its_timeout_runs_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second later it is reported as stuck; it keeps its slot until it ends as timed out."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2, retry=Retry.never())
    go = asyncio.Event()

    @pool.task
    async def stubborn() -> None:
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    @pool.task
    async def quick() -> str:
        return "quick"

    @pool.task
    async def slow() -> str:
        await asyncio.sleep(100)
        return "slow"

    async with mp:
        handle = await pool.submit(stubborn.bind(), timeout=5)
        with caplog.at_level(logging.WARNING, "millpond.worker"):
            await asyncio.sleep(8)
        assert "running" == (await handle.refresh()).status
        assert 1 == internals_of(mp).runtime.counts.stuck
        record = next(r for r in caplog.records if "does not stop" in r.message)
        assert ("work", handle.id) == (record.__dict__["pool"], record.__dict__["task"])
        # One local slot of two is still taken by it.
        held = await slow.submit()
        await rounds()
        waiting = await quick.submit()
        await asyncio.sleep(50)
        assert ("running", "queued") == (
            (await held.refresh()).status,
            (await waiting.refresh()).status,
        )
        go.set()
        await rounds()
        assert "quick" == await asyncio.wait_for(result_of(waiting), 1)
        with pytest.raises(TaskFailed) as caught:
            await handle
        assert "TimeoutError" == caught.value.error_type
        assert 1 == internals_of(mp).runtime.counts.stuck
        assert "slow" == await held


async def test_an_error_raised_after_the_timeout_is_a_timeout() -> None:
    """The handler's own error on the way out does not replace the timeout."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())

    @pool.task(timeout=5)
    async def job() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise ValueError("tidying up went wrong")

    async with mp:
        with pytest.raises(TaskFailed, match="longer than 5 s") as caught:
            await (await job.submit())
        assert "TimeoutError" == caught.value.error_type
        assert 0 == internals_of(mp).runtime.counts.stuck


async def test_a_result_returned_after_the_timeout_is_a_timeout() -> None:
    """A handler that cleans up after its timeout and returns has still timed out."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())

    @pool.task(timeout=5)
    async def tidy() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
        return "late"

    async with mp:
        with pytest.raises(TaskFailed, match="longer than 5 s"):
            await (await tidy.submit())
        assert (1, 0, 0) == (
            (s := await pool.snapshot()).failed,
            s.completed,
            internals_of(mp).runtime.counts.stale_settles,
        )


async def test_timeouts_and_task_groups_work_inside_handlers() -> None:
    """asyncio.timeout and TaskGroup inside a handler see a real current task."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job() -> str:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(100)
        except TimeoutError:
            pass
        async with asyncio.TaskGroup() as group:
            one = group.create_task(asyncio.sleep(1, "a"))
            two = group.create_task(asyncio.sleep(2, "b"))
        task = asyncio.current_task()
        assert task is not None
        assert 0 == task.cancelling()
        return one.result() + two.result()

    async with mp:
        for _ in range(3):
            assert "ab" == await (await job.submit())


async def test_context_variables_of_one_task_are_not_seen_by_the_next() -> None:
    """Each attempt has a context of its own, also in a slot that is used again."""
    mp = Millpond()
    pool = mp.pool("work")
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="clean")

    @pool.task
    async def job(name: str) -> str:
        seen = mark.get()
        mark.set(name)
        await asyncio.sleep(0.1)
        assert name == mark.get()
        return seen

    async with mp:
        assert ["clean", "clean"] == [await (await job.submit(name)) for name in "ab"]
        mark.set("submitter")

        async def closure() -> str:
            return mark.get()

        assert "submitter" == await (await pool.submit(closure))


# Wishes and retries


@pytest.mark.rows("CX-13", "CX-T17", "CX-T96", "CX-T97", "CX-T100", "CX-T102")
async def test_give_up_fails_at_once_in_every_kind_of_handler() -> None:
    """GiveUp, a subclass, from deeper code, from another error: one run, and the cause is kept."""

    class Hopeless(GiveUp):
        pass

    async def deeper() -> None:
        raise GiveUp("from below")

    async def own() -> None:
        raise GiveUp("own")

    async def subclass() -> None:
        raise Hopeless("sub")

    async def from_another() -> None:
        try:
            open("/nowhere/at/all")  # noqa: ASYNC230, PTH123, SIM115 - it raises
        except OSError as error:
            raise GiveUp("no use") from error

    async def nested() -> None:
        await deeper()

    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=9))
    tasks = [pool.task(fn) for fn in (own, subclass, nested)]
    last = pool.task(from_another)
    async with mp:
        for task, message in zip(tasks, ("own", "sub", "from below"), strict=True):
            with pytest.raises(TaskFailed) as caught:
                await (await task.submit())
            assert (1, message) == (caught.value.attempts, caught.value.error_message)
        with pytest.raises(TaskFailed) as caught:
            await (await last.submit())
        assert (1, "FileNotFoundError") == (caught.value.attempts, caught.value.error_type)


@pytest.mark.rows("CX-T16", "CX-T18", "CX-T42", "CX-T99", "CX-T37", "CX-T74", "CX-T72", "TRAP-3")
async def test_an_ordinary_error_is_tried_again_when_it_is_due() -> None:
    """Attempts count charged runs; each backoff is neither cut short nor overslept."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=4, initial=1.0, factor=3.0, jitter=0.0))
    starts: list[float] = []
    loop = asyncio.get_running_loop()

    @pool.task
    async def job(ctx: Context) -> None:
        starts.append(loop.time())
        assert (len(starts), 4, len(starts) > 1) == (ctx.attempt, ctx.max_attempts, ctx.is_retry)
        raise OSError("down")

    async with mp:
        with pytest.raises(TaskFailed) as caught:
            await (await job.submit())
        assert 4 == caught.value.attempts
        assert isinstance(caught.value.__cause__, OSError)
        assert [0, 1, 4, 13] == [pytest.approx(at - starts[0], abs=0.001) for at in starts]


@pytest.mark.rows("CX-14")
async def test_backoff_holds_no_slot() -> None:
    """Others run while a failed task waits for its next attempt."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=1, retry=Retry.constant(100.0))

    @pool.task
    async def job(fail: bool) -> str:
        if fail:
            raise OSError
        return "ran"

    async with mp:
        failing = await job.submit(True)
        await rounds()
        assert "ran" == await asyncio.wait_for(result_of(await job.submit(False)), 1)
        assert "queued" == (await failing.refresh()).status


@pytest.mark.rows("CX-T120")
async def test_one_attempt_means_at_most_once() -> None:
    """Retry.never() runs a task once."""
    mp = Millpond()
    pool = mp.pool("work")
    runs = 0

    @pool.task(retry=Retry.never())
    async def job() -> None:
        nonlocal runs
        runs += 1
        raise OSError

    async with mp:
        assert 1 == (await (await job.submit()).wait()).attempt
        await asyncio.sleep(1000)
    assert 1 == runs


async def test_retry_later_names_its_own_delay() -> None:
    """spend=False costs nothing; with spend it is an attempt like any other."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=2, initial=1.0, jitter=0.0))
    seen: list[tuple[float, int]] = []
    loop = asyncio.get_running_loop()

    @pool.task
    async def job(ctx: Context) -> str:
        seen.append((loop.time(), ctx.attempt))
        if len(seen) < 4:
            raise RetryLater(30, spend=False)
        if len(seen) == 4:
            raise RetryLater(7)
        return "ok"

    async with mp:
        assert "ok" == await (await job.submit())
    assert [(0, 1), (30, 1), (60, 1), (90, 1), (97, 2)] == [
        (round(at - seen[0][0]), attempt) for at, attempt in seen
    ]


@pytest.mark.parametrize(
    ("policy", "runs", "kind"),
    [
        (lambda attempt, _: 1.0 if attempt < 3 else None, 3, "OSError"),
        (lambda *_: 1 / 0, 1, "ZeroDivisionError"),
        (lambda *_: "soon", 1, "ConfigError"),
        (lambda *_: float("nan"), 1, "ConfigError"),
        (lambda *_: -1.0, 1, "ConfigError"),
    ],
)
async def test_a_retry_policy_may_be_a_function(policy: Any, runs: int, kind: str) -> None:
    """It returns seconds or None; if it fails, the task fails with that error."""
    mp = Millpond()
    pool = mp.pool("work")
    ran = 0

    @pool.task(retry=policy)
    async def job() -> None:
        nonlocal ran
        ran += 1
        raise OSError("down")

    @pool.task
    async def next_one() -> str:
        return "fine"

    async with mp:
        with pytest.raises(TaskFailed) as caught:
            await (await job.submit())
        assert (runs, True) == (ran, kind in caught.value.error_type)
        assert "fine" == await (await next_one.submit())


async def test_only_named_errors_are_tried_again() -> None:
    """on= and never= mean the types and their subclasses."""
    mp = Millpond()
    pool = mp.pool("work")
    runs: dict[str, int] = {}

    @pool.task(retry=Retry(attempts=3, initial=0.1, on=OSError, never=FileNotFoundError))
    async def job(kind: str) -> None:
        runs[kind] = runs.get(kind, 0) + 1
        raise {"os": ConnectionError, "file": FileNotFoundError, "value": ValueError}[kind](kind)

    async with mp:
        for kind in ("os", "file", "value"):
            await (await job.submit(kind)).wait()
    assert {"os": 3, "file": 1, "value": 1} == runs


async def test_a_policy_given_with_the_call_wins() -> None:
    """Over that of the function, which wins over that of the pool."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry(attempts=2, initial=0.1))

    async def fail() -> None:
        raise OSError

    plain = pool.task(name="plain")(fail)
    own = pool.task(name="own", retry=Retry(attempts=3, initial=0.1))(fail)
    async with mp:
        given = await pool.submit(own.bind(), retry=Retry(attempts=4, initial=0.1))
        handles = [await plain.submit(), await own.submit(), given]
        assert [2, 3, 4] == [handle.attempt for handle in await mp.wait(handles)]


async def test_give_up_after_is_kept() -> None:
    """No attempt begins after give_up_after, even with attempts left."""
    mp = Millpond()
    pool = mp.pool("work")
    starts: list[float] = []
    loop = asyncio.get_running_loop()

    @pool.task(retry=Retry(attempts=100, initial=10, factor=1.0, jitter=0.0, give_up_after=35))
    async def job() -> None:
        starts.append(loop.time())
        raise OSError

    async with mp:
        handle = await job.submit()
        await handle.wait()
    assert ([0, 10, 20, 30], "failed") == (
        [round(at - starts[0]) for at in starts],
        handle.status,
    )


# Results


class Colour(Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    y: int


@dataclass
class Everything:
    when: datetime
    cost: Decimal
    ident: UUID
    colour: Colour
    points: list[Point]
    by_name: dict[str, tuple[int, ...]]
    raw: bytes
    tags: frozenset[str] = field(default_factory=frozenset)
    note: str | None = None


@pytest.mark.rows("TRAP-18")
async def test_arguments_and_results_keep_their_types() -> None:
    """Values keep value and type, also when read back later."""
    mp = Millpond()
    pool = mp.pool("work")
    given = Everything(
        when=datetime(2026, 11, 15, 12, tzinfo=UTC),
        cost=Decimal("19.90"),
        ident=UUID(int=7),
        colour=Colour.RED,
        points=[Point(1, 2)],
        by_name={"a": (1, 2, 3)},
        raw=b"\x00\xff",
        tags=frozenset({"x"}),
    )

    @pool.task
    async def echo(thing: Everything, many: list[Everything]) -> Everything:
        assert type(thing) is Everything
        assert type(thing.points[0]) is Point
        assert [thing] == many
        return thing

    async with mp:
        handle = await echo.submit(given, [given])
        result = await handle
        assert (given, Everything) == (result, type(result))
        later = await mp.handle(handle.id, of=echo)
        assert given == await later
        assert given == later.result


async def test_a_result_is_a_copy() -> None:
    """Changing the returned object does not change the stored result."""
    mp = Millpond()
    pool = mp.pool("work")
    kept: list[int] = [1]

    @pool.task
    async def job(given: list[int]) -> list[int]:
        given.append(2)
        return kept

    async with mp:
        mine = [1]
        handle = await job.submit(mine)
        result = await handle
        result.append(99)
        assert ([1], [1], [1]) == (mine, kept, await (await mp.handle(handle.id, of=job)))


async def test_a_closure_gives_whatever_it_returns() -> None:
    """A closure's value never leaves the process and needs no type."""
    mp = Millpond()
    pool = mp.pool("work")
    thing = object()

    async def closure() -> object:
        return thing

    async def nothing() -> object:
        return None

    async with mp:
        assert thing is await (await pool.submit(closure))
        assert None is await (await pool.submit(nothing))


async def test_a_registered_function_given_as_work_is_a_call() -> None:
    """Passing the task itself means its bind(), never a closure."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job() -> int:
        return 1

    async with mp:
        handle = await pool.submit(job)
        assert 1 == await handle
        (info,) = await pool.tasks()
        assert "job" == info.function


async def test_a_coroutine_is_not_work() -> None:
    """A coroutine cannot be retried: the message says what to submit, and nothing is stored."""
    mp = Millpond()
    pool = mp.pool("work")
    coroutine = rounds(1)
    async with mp:
        with pytest.raises(TypeError, match=r"not a coroutine: give it fn\.bind"):
            await pool.submit(coroutine)  # type: ignore[call-overload]
    assert inspect.CORO_CLOSED == inspect.getcoroutinestate(coroutine)


@contextlib.asynccontextmanager
async def _crowd(mp: Millpond, count: int) -> AsyncIterator[list[Pool]]:
    pools = [mp.pool(f"pool-{n}", max_concurrent=3) for n in range(count)]
    async with mp:
        yield pools


async def test_many_more_slots_than_are_kept_come_and_go() -> None:
    """A crowd larger than the slots that are kept runs, ends, and runs again."""
    mp = Millpond()
    pool = mp.pool("wide", max_concurrent=1000)

    @pool.task
    async def job(number: int) -> int:
        await asyncio.sleep(1 + number % 3)
        return number

    async with mp:
        for _ in range(2):
            handles = await pool.submit_many(job.each(range(700)))
            assert list(range(700)) == [await handle for handle in handles]


async def test_one_worker_serves_many_pools_fairly_enough() -> None:
    """Each pool has its own limit, and none waits for another's long tasks."""
    mp = Millpond()

    @mp.task
    async def job() -> None:
        await asyncio.sleep(10)

    async with _crowd(mp, 20) as pools:
        handles = [await pool.submit(job) for pool in pools for _ in range(3)]
        began = asyncio.get_running_loop().time()
        await mp.wait(handles)
        assert 10 == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.1)
