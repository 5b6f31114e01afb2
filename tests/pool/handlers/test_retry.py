"""Retries: how often, how late, and which slots and places they hold meanwhile."""

import asyncio
import inspect
from datetime import timedelta
from itertools import pairwise

import msgspec
import pytest
from tests.pool.fleet import Cable, Fleet
from tests.pool.moments import clock

from millpond import (
    Context,
    GiveUp,
    Millpond,
    Observed,
    Retry,
    RetryLater,
    TaskCancelled,
    TaskFailed,
    fifo,
)
from millpond.errors import ConfigError, StoreError
from millpond.pool.internals import internals_of
from millpond.runtime.error_info import ErrorInfo, read

ONCE = Retry.never()


async def starts_of(retry: Retry, *, fail: int = 100) -> list[float]:
    """Return the moments at which a task that fails `fail` times was started."""
    mp = Millpond()
    pool = mp.pool("items")
    starts: list[float] = []

    @pool.task(retry=retry)
    async def item() -> None:
        starts.append(clock())
        if len(starts) <= fail:
            raise OSError("down")

    async with mp:
        await (await item.submit()).wait()
        await asyncio.sleep(500)
    return starts


def waits(starts: list[float]) -> list[float]:
    """Return the seconds between starts."""
    return [round(second - first, 3) for first, second in pairwise(starts)]


# How often


@pytest.mark.rows("DP-T12", "DE-11", "DE-T10", "DE-R08", "DE-09", "DP-12", "DP-13")
@pytest.mark.parametrize("attempts", [1, 2, 3, 7])
async def test_a_failing_task_runs_exactly_attempts_times_and_is_then_failed(
    attempts: int,
) -> None:
    """attempts counts every run, the first too; the handler sees its number, from one."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry(attempts=attempts))
    seen: list[tuple[int, int, bool]] = []

    @pool.task
    async def item(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.max_attempts, ctx.is_retry))
        raise OSError(f"attempt {ctx.attempt}")

    async with mp:
        handle = await item.submit()
        with pytest.raises(TaskFailed, match=f"attempt {attempts}") as caught:
            await handle
        await asyncio.sleep(500)
        snapshot = await pool.snapshot()

    assert [(n, attempts, n > 1) for n in range(1, attempts + 1)] == seen
    assert (attempts, "OSError") == (caught.value.attempts, caught.value.error_type)
    assert isinstance(caught.value.__cause__, OSError)
    assert ("failed", attempts) == (handle.status, handle.attempt)
    assert (1, 0, 0) == (snapshot.failed, snapshot.queued, snapshot.completed)


@pytest.mark.rows("DE-R09")
async def test_never_fails_at_the_first_error() -> None:
    """Retry.never() is attempts=1: at most once."""
    assert 1 == len(await starts_of(Retry.never()))
    assert 1 == Retry.never().attempts


async def test_the_policy_nearest_to_the_call_wins() -> None:
    """Options of the call over those of the function over those of the pool over the default."""
    mp = Millpond()
    plain, pool = mp.pool("plain"), mp.pool("items", retry=Retry(attempts=4))
    runs: dict[str, int] = {}

    async def work(name: str) -> None:
        runs[name] = runs.get(name, 0) + 1
        raise OSError("down")

    by_pool = pool.task(name="by_pool")(work)
    by_function = pool.task(name="by_function", retry=Retry(attempts=5))(work)
    async with mp:
        await plain.submit(by_pool.bind("default"))
        await by_pool.submit("pool")
        await by_function.submit("function")
        await by_function.options(retry=Retry(attempts=2)).submit("call")
        await pool.submit(by_pool.bind("submit"), retry=ONCE)
        await pool.drain()
        await plain.drain()

    assert {"default": 3, "pool": 4, "function": 5, "call": 2, "submit": 1} == runs


async def test_a_redriven_task_has_a_new_budget() -> None:
    """After a redrive attempts count from one again."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry.constant(0, attempts=2))
    seen = []

    @pool.task
    async def item(ctx: Context) -> None:
        seen.append(ctx.attempt)
        raise OSError("down")

    async with mp:
        handle = await item.submit()
        await handle.wait()
        assert 1 == await pool.redrive([handle])
        await pool.drain()
        assert 0 == await pool.redrive([handle.id + 1])

    assert [1, 2, 1, 2] == seen


# How late


@pytest.mark.rows("DE-10", "DE-T11", "DE-R13")
@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (Retry(attempts=6, initial=2, factor=3, max_delay=30, jitter=0), [2, 6, 18, 30, 30]),
        (Retry(attempts=4, jitter=0), [1, 2, 4]),
        (Retry(attempts=4, initial=0, jitter=0), [0, 0, 0]),
        (Retry(attempts=3, initial=5, factor=1, jitter=0), [5, 5]),
        (Retry.constant(7, attempts=4, jitter=0), [7, 7, 7]),
        (Retry.constant(0, attempts=3), [0, 0]),
        (Retry.linear(4, attempts=5, max_delay=10, jitter=0), [4, 8, 10, 10]),
        (
            Retry(
                attempts=3,
                initial=timedelta(minutes=1),
                max_delay=timedelta(seconds=90),
                jitter=0,
            ),
            [60, 90],
        ),
    ],
)
async def test_the_wait_before_a_retry_follows_the_formula(
    retry: Retry, expected: list[float]
) -> None:
    """min(initial * factor^(attempt-1), max_delay), or constant, or linear: to the moment."""
    assert expected == waits(await starts_of(retry))


@pytest.mark.rows("DE-R14", "DE-10")
async def test_jitter_stays_within_its_share_and_spreads() -> None:
    """Two hundred waits of ten seconds with jitter=0.2 lie between 8 and 12, and differ."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=200)
    found: list[float] = []

    @pool.task(retry=Retry.constant(10, attempts=2, jitter=0.2))
    async def item(ctx: Context, n: int) -> None:
        if ctx.is_retry:
            found.append(clock())
        raise OSError("down")

    async with mp:
        await pool.drain(item.each(range(200)))

    assert 8 <= min(found) < 9
    assert 11 < max(found) <= 12
    assert 100 < len(set(found))


async def test_a_seeded_millpond_repeats_its_jitter() -> None:
    """With a seed, two runs of one program wait the same."""

    async def story() -> list[float]:
        mp = Millpond()
        internals_of(mp).owner.seed = 7
        pool = mp.pool("items", retry=Retry(attempts=5))
        starts: list[float] = []

        @pool.task
        async def item() -> None:
            starts.append(clock() - began)
            raise OSError("down")

        began = clock()
        async with mp:
            await (await item.submit()).wait()
        return [round(start, 4) for start in starts]

    assert await story() == await story()


@pytest.mark.rows("DE-R13")
async def test_a_function_may_be_the_policy() -> None:
    """It gets the attempt and the error; it returns seconds, or None to give up."""
    mp = Millpond()
    pool = mp.pool("items")
    calls: list[tuple[int, str]] = []
    starts: list[float] = []

    def policy(attempt: int, error: BaseException) -> float | None:
        calls.append((attempt, type(error).__name__))
        return None if attempt == 6 else attempt * 10.0

    @pool.task(retry=policy)
    async def item(ctx: Context) -> None:
        starts.append(clock())
        raise OSError(f"number {ctx.attempt}")

    async with mp:
        with pytest.raises(TaskFailed, match="number 6") as caught:
            await (await item.submit())

    assert [(n, "OSError") for n in range(1, 7)] == calls
    assert [10, 20, 30, 40, 50] == waits(starts)
    assert 6 == caught.value.attempts


async def test_a_policy_that_raises_gives_up_loudly() -> None:
    """The task fails with the error of the policy; the error of the handler is its cause."""
    mp = Millpond()
    pool = mp.pool("items")

    def broken(attempt: int, error: BaseException) -> float | None:
        raise ZeroDivisionError("in the policy")

    @pool.task(retry=broken)
    async def item() -> None:
        raise OSError("down")

    async with mp:
        with pytest.raises(TaskFailed, match="in the policy") as caught:
            await (await item.submit())

    assert "down" in caught.value.traceback_text


async def test_a_policy_function_cannot_be_stored_with_a_call() -> None:
    """As an option of a call it is refused by name: a function is not data."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item() -> None: ...

    async with mp:
        with pytest.raises(ConfigError, match="retry"):
            await pool.submit(item.bind(), retry=lambda _attempt, _error: 1.0)


@pytest.mark.rows("DE-R11")
async def test_give_up_after_is_measured_from_the_first_start() -> None:
    """The time in the queue before the first start does not count."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    starts: list[float] = []
    retry = Retry(attempts=100, initial=10, factor=1, jitter=0, give_up_after=35)

    @pool.task(retry=retry)
    async def item() -> None:
        starts.append(clock())
        raise OSError("down")

    async with mp:
        handle = await item.options(delay=1000).submit()
        with pytest.raises(TaskFailed):
            await handle
        assert [1000, 1010, 1020, 1030] == [round(start) for start in starts]
        starts.clear()
        await pool.redrive([handle])
        await pool.drain()
        assert 4 == len(starts)


@pytest.mark.rows("DE-R15", "DE-R05")
@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("initial", {"initial": -1}),
        ("initial", {"initial": float("nan")}),
        ("initial", {"initial": "1s"}),
        ("max_delay", {"max_delay": timedelta(seconds=-1)}),
        ("max_delay", {"max_delay": float("inf")}),
        ("factor", {"factor": 0.5}),
        ("jitter", {"jitter": 1.5}),
        ("jitter", {"jitter": -0.1}),
        ("attempts", {"attempts": 0}),
        ("attempts", {"attempts": 2.5}),
        ("give_up_after", {"give_up_after": 0}),
        ("on", {"on": 5}),
    ],
)
def test_an_impossible_policy_is_refused_by_name(option: str, given: dict[str, object]) -> None:
    """A Retry that could not be is a ConfigError where it is made."""
    with pytest.raises(ConfigError, match=rf"retry\.{option}="):
        Retry(**given)  # type: ignore[arg-type]


@pytest.mark.rows("DE-R15", "DE-R05")
@pytest.mark.parametrize("option", ["delay", "timeout", "expires_in"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5s", timedelta(seconds=-1)])
async def test_an_impossible_duration_is_refused_by_name(option: str, value: object) -> None:
    """Seconds or a timedelta, finite and not negative; anything else names its option."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item() -> None: ...

    async with mp:
        with pytest.raises(ConfigError) as caught:
            await pool.submit(item.bind(), **{option: value})  # type: ignore[call-overload]
        assert option == caught.value.option
        assert 0 == (await pool.snapshot()).total


@pytest.mark.rows("DE-R05")
async def test_every_duration_may_be_a_timedelta() -> None:
    """delay, timeout and backoff take a timedelta as they take seconds."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry.constant(timedelta(seconds=30), attempts=2, jitter=0))
    starts = []

    @pool.task(timeout=timedelta(seconds=10))
    async def item() -> None:
        starts.append(round(clock()))
        await asyncio.sleep(100)

    async with mp:
        await item.options(delay=timedelta(minutes=1)).submit()
        await pool.drain()

    assert [60, 100] == starts


# Which errors


async def test_on_names_the_only_errors_that_are_tried_again() -> None:
    """Subclasses count too; any other error is final."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry.constant(0, attempts=3))
    runs: list[str] = []

    @pool.task(retry=Retry(attempts=3, initial=0, on=OSError))
    async def item(name: str) -> None:
        runs.append(name)
        raise {"os": OSError, "sub": FileNotFoundError, "other": ValueError}[name]("bad")

    async with mp:
        await pool.drain(item.each(["os", "sub", "other"]))

    assert {"os": 3, "sub": 3, "other": 1} == {name: runs.count(name) for name in set(runs)}


async def test_a_policy_that_names_an_error_of_ours_by_an_old_path_still_means_it() -> None:
    """A task that an earlier version stored carries names with a module that has moved."""
    mp = Millpond()
    pool = mp.pool("items")
    runs: list[str] = []

    @pool.task
    async def item(name: str) -> None:
        runs.append(name)
        raise ConfigError("option", name, "is wrong")

    policies = {
        "old": Retry(attempts=3, initial=0, on="millpond.core.errors.ConfigError"),
        "public": Retry(attempts=3, initial=0, on=ConfigError),
        "never": Retry(attempts=3, initial=0, never="millpond.core.errors.ConfigError"),
    }
    async with mp:
        for name, policy in policies.items():
            await (await item.options(retry=policy).submit(name)).wait()

    assert {"old": 3, "public": 3, "never": 1} == {name: runs.count(name) for name in policies}


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (GiveUp("no"), "millpond.GiveUp"),
        (ConfigError("option", 1, "is wrong"), "millpond.errors.ConfigError"),
        (OSError("down"), "OSError"),
    ],
)
async def test_an_error_of_ours_is_stored_under_its_public_name(
    error: Exception, stored: str
) -> None:
    """The module that defines a class may change."""
    mp = Millpond()
    pool = mp.pool("items", retry=ONCE)

    @pool.task
    async def item() -> None:
        raise error

    async with mp:
        handle = await item.submit()
        with pytest.raises(TaskFailed) as caught:
            await handle
        record = await internals_of(mp).runtime.view.task(handle.id)
        assert record is not None
        info = read(record.error)
    assert (stored, stored) == (caught.value.error_type, "" if info is None else info.type)


def test_an_error_that_was_stored_under_an_old_path_is_read_under_its_public_name() -> None:
    """An operator sees one name for one type."""
    stored = msgspec.msgpack.encode(ErrorInfo("millpond.core.wish.GiveUp", "no"))
    assert ErrorInfo("millpond.GiveUp", "no") == read(stored)


async def test_never_names_errors_that_are_not_tried_again_whatever_on_says() -> None:
    """never= wins over on=; several types and names are possible."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=10)
    runs: list[str] = []
    retry = Retry(
        attempts=3,
        initial=0,
        on=[OSError, "ValueError"],
        never=(FileNotFoundError, "UnicodeError"),
    )

    @pool.task(retry=retry)
    async def item(name: str) -> None:
        runs.append(name)
        raise {
            "os": OSError("bad"),
            "missing": FileNotFoundError("bad"),
            "value": ValueError("bad"),
            "unicode": UnicodeError("bad"),
            "key": KeyError("bad"),
        }[name]

    async with mp:
        await pool.drain(item.each(["os", "missing", "value", "unicode", "key"]))

    expected = {"os": 3, "missing": 1, "value": 3, "unicode": 1, "key": 1}
    assert expected == {name: runs.count(name) for name in set(runs)}


async def test_give_up_fails_at_once_with_its_cause() -> None:
    """GiveUp spends no further attempts; the task's error is the cause of GiveUp."""
    mp = Millpond()
    pool = mp.pool("items")
    runs = []

    @pool.task
    async def item(wrapped: bool) -> None:
        runs.append(wrapped)
        if wrapped:
            raise GiveUp("hopeless") from ValueError("no such account")
        raise GiveUp("hopeless")

    async with mp:
        with pytest.raises(TaskFailed, match="hopeless") as plain:
            await (await item.submit(wrapped=False))
        with pytest.raises(TaskFailed, match="no such account") as wrapped:
            await (await item.submit(wrapped=True))

    assert [False, True] == runs
    assert 1 == plain.value.attempts
    assert "ValueError" == wrapped.value.error_type


async def test_retry_later_names_its_own_delay() -> None:
    """The next attempt comes after exactly those seconds, charged, until they are used up."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry(attempts=3))
    starts: list[float] = []

    @pool.task
    async def item() -> None:
        starts.append(clock())
        raise RetryLater(timedelta(minutes=5))

    async with mp:
        with pytest.raises(TaskFailed, match="RetryLater"):
            await (await item.submit())

    assert [300, 300] == waits(starts)


async def test_retry_later_without_spending_charges_nothing() -> None:
    """spend=False may go on for ever: attempt stays 1, and a real failure still has all tries."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry.constant(1, attempts=2, jitter=0))
    seen: list[int] = []

    @pool.task
    async def item(ctx: Context) -> str:
        seen.append(ctx.attempt)
        if len(seen) <= 10:
            raise RetryLater(60, spend=False)
        if len(seen) == 11:
            raise OSError("a real one")
        return "done"

    async with mp:
        start = clock()
        handle = await item.submit()
        assert "done" == await handle
        assert clock() - start == pytest.approx(601, abs=1e-2)

    assert [1] * 11 + [2] == seen
    assert 2 == handle.attempt


# Slots and places


async def test_backoff_holds_no_slot() -> None:
    """While one task waits for its next attempt, the only slot serves the others."""
    mp = Millpond()
    pool = mp.pool(
        "items", max_concurrent=1, queue=fifo(), retry=Retry.constant(100, jitter=0, attempts=2)
    )
    log = []

    @pool.task
    async def item(name: str) -> None:
        log.append((name, round(clock())))
        await asyncio.sleep(1)
        if name == "bad":
            raise OSError("down")

    async with mp:
        await pool.submit_many(item.each(["bad", "a", "b"]))
        await asyncio.sleep(2.5)
        snapshot = await pool.snapshot()
        assert (1, 1, 1) == (snapshot.running, snapshot.queued, snapshot.scheduled)
        await pool.drain()

    assert [("bad", 0), ("a", 1), ("b", 2), ("bad", 101)] == log


async def test_a_retried_task_rejoins_at_its_original_place() -> None:
    """When it is due again, it goes before tasks submitted after it."""
    mp = Millpond()
    pool = mp.pool(
        "items", max_concurrent=1, queue=fifo(), retry=Retry.constant(0.5, jitter=0, attempts=2)
    )
    log: list[str] = []

    @pool.task
    async def item(name: str) -> None:
        log.append(name)
        await asyncio.sleep(1)
        if name == "first" and log.count("first") == 1:
            raise OSError("down")

    async with mp:
        await pool.submit_many(item.each(["first", "second", "third", "fourth"]))
        await pool.drain()

    assert ["first", "second", "first", "third", "fourth"] == log


@pytest.mark.rows("TRAP-3", "DE-R06")
async def test_a_retry_wakes_an_idle_pool_exactly_when_it_is_due() -> None:
    """Not at the next scan: with nothing else going on, to the microsecond."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry.constant(12.345678, jitter=0, attempts=2))
    starts: list[float] = []

    @pool.task
    async def item() -> None:
        starts.append(clock())
        raise OSError("down")

    async with mp:
        await (await item.submit()).wait()

    assert starts[1] - starts[0] == pytest.approx(12.345678, abs=1e-5)


@pytest.mark.rows("TRAP-3")
async def test_a_retry_without_delay_starts_at_once() -> None:
    """Retry.constant(0) on a saturated pool of one loses no time at all."""
    starts = await starts_of(Retry.constant(0, attempts=50))
    assert 50 == len(starts)
    assert 1 == len(set(starts))


@pytest.mark.rows("DE-R06")
async def test_a_nearer_due_time_replaces_the_one_that_is_waited_for() -> None:
    """Tasks for later run in the order of their times, whenever they were submitted."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)
    log = []

    @pool.task
    async def item(name: str) -> None:
        log.append((name, round(clock())))

    async with mp:
        await item.options(delay=100).submit("far")
        await asyncio.sleep(1)
        await item.options(delay=10).submit("near")
        await asyncio.sleep(1)
        await item.options(delay=1).submit("nearest")
        await pool.drain()

    assert [("nearest", 3), ("near", 11), ("far", 100)] == log


@pytest.mark.rows("DE-R07")
async def test_the_timer_of_a_cancelled_task_starts_nothing() -> None:
    """Cancelled while scheduled or backing off, a task never runs again."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=2, retry=Retry.constant(50, jitter=0))
    log = []

    @pool.task
    async def item(name: str) -> None:
        log.append(name)
        raise OSError("down")

    async with mp:
        later = await item.options(delay=100).submit("later")
        flaky = await item.submit("flaky")
        await asyncio.sleep(10)
        assert await later.cancel()
        assert await flaky.cancel()
        for handle in (later, flaky):
            with pytest.raises(TaskCancelled):
                await handle
        await asyncio.sleep(1000)

    assert ["flaky"] == log


@pytest.mark.rows("TRAP-7", "DE-16", "DE-T14", "DE-T15", "DE-T16", "DE-07")
async def test_a_pause_keeps_backoff_timers_and_takes_completions() -> None:
    """Paused: running tasks end and are stored, timers go on; due tasks start at the resume."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=3, retry=Retry.constant(100, jitter=0, attempts=2))
    log: list[tuple[str, float]] = []

    @pool.task
    async def item(name: str) -> str:
        log.append((name, round(clock())))
        await asyncio.sleep(10)
        if name == "flaky" and len([one for one, _ in log if one == "flaky"]) == 1:
            raise OSError("down")
        return name

    async with mp:
        flaky, slow = await pool.submit_many(item.each(["flaky", "slow"]))
        await asyncio.sleep(5)
        await pool.pause()
        assert "slow" == await slow
        late = await item.submit("during")
        await asyncio.sleep(50)
        assert 2 == len(log)
        assert ("queued", "queued") == (
            (await flaky.refresh()).status,
            (await late.refresh()).status,
        )
        await pool.resume()
        assert "during" == await late
        assert "flaky" == await flaky
        await pool.pause()
        held = await item.submit("held")
        await asyncio.sleep(500)
        await pool.resume()
        await held

    assert [("flaky", 0), ("slow", 0), ("during", 60), ("flaky", 110), ("held", 620)] == log


@pytest.mark.rows("TRAP-7")
async def test_a_backoff_that_ends_during_a_pause_starts_when_the_pool_is_resumed() -> None:
    """The timer ran out while paused: no further wait after the resume."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry.constant(20, jitter=0, attempts=2))
    log: list[float] = []

    @pool.task
    async def item() -> None:
        log.append(round(clock()))
        if len(log) == 1:
            raise OSError("down")

    async with mp:
        await item.submit()
        await asyncio.sleep(5)
        await pool.pause()
        await asyncio.sleep(95)
        assert [0] == log
        await pool.resume()
        await pool.drain()

    assert [0, 100] == log


# Time and cancellation


@pytest.mark.rows("DE-R10")
async def test_a_timeout_bounds_each_attempt_by_itself() -> None:
    """Three attempts of ten seconds each, with backoff between, and the handler is stopped."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry.constant(5, attempts=3, jitter=0))
    starts: list[float] = []
    stopped: list[float] = []

    @pool.task(timeout=10)
    async def item(ctx: Context) -> None:
        starts.append(clock())
        assert ctx.deadline is not None
        assert ctx.deadline - ctx.started_at == pytest.approx(10)
        try:
            await asyncio.sleep(1000)
        finally:
            stopped.append(clock())

    async with mp:
        with pytest.raises(TaskFailed, match="longer than 10 s") as caught:
            await (await item.submit())

    assert [15, 15] == waits(starts)
    assert [10, 25, 40] == [round(moment) for moment in stopped]
    assert "TimeoutError" == caught.value.error_type


async def test_a_handlers_own_timeout_is_an_error_like_any_other() -> None:
    """asyncio.timeout inside a handler raises there, and is retried as TimeoutError."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry(attempts=2, initial=1, jitter=0, on=TimeoutError))
    runs = []

    @pool.task
    async def item() -> str:
        runs.append(clock())
        if len(runs) == 1:
            async with asyncio.timeout(3):
                await asyncio.sleep(100)
        return "done"

    async with mp:
        assert "done" == await (await item.submit())

    assert [0, 4] == [round(moment) for moment in runs]


@pytest.mark.parametrize("how", ["raise", "task", "child"])
async def test_a_handler_that_cancels_itself_has_failed_and_is_tried_again(how: str) -> None:
    """Without a cancel, a CancelledError from a handler is a failure of the attempt."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, retry=Retry.constant(0, attempts=3))
    runs = []

    @pool.task
    async def item() -> str:
        runs.append(how)
        if len(runs) >= 3:
            return "done"
        match how:
            case "raise":
                raise asyncio.CancelledError
            case "task":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)
            case _:
                child = asyncio.create_task(asyncio.sleep(100))
                child.cancel()
                await child
        return "too early"

    async with mp:
        assert "done" == await (await item.submit())
        assert "done" == await (await item.submit())

    assert 4 == len(runs)


@pytest.mark.parametrize("awaits", [True, False])
async def test_a_handler_that_cancels_its_own_task_does_not_affect_other_tasks(
    *, awaits: bool
) -> None:
    """mode="interrupt" on oneself stops at the next wait; without one, the handler completes."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1)

    @pool.task
    async def rash(ctx: Context) -> str:
        await pool.cancel(ctx.task_id, mode="interrupt")
        if awaits:
            await asyncio.sleep(0)
        return "returned"

    @pool.task
    async def calm() -> str:
        await asyncio.sleep(1)
        return "calm"

    async with mp:
        for _ in range(3):
            handle = await rash.submit()
            await handle.wait()
            assert ("cancelled" if awaits else "completed") == handle.status
            assert "calm" == await (await calm.submit())
        assert 0 == await pool.size()


async def test_a_task_that_is_cancelled_while_it_runs_is_not_tried_again() -> None:
    """Whatever its handler raises after the cancel, there is no further attempt."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry(attempts=10))
    runs = []

    @pool.task
    async def item(ctx: Context) -> None:
        runs.append(ctx.attempt)
        await ctx.cancelled.wait()
        raise OSError("gave in")

    async with mp:
        handle = await item.submit()
        await asyncio.sleep(1)
        assert await handle.cancel()
        assert not await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle
        await asyncio.sleep(1000)

    assert [1] == runs


@pytest.mark.rows("DE-R12")
async def test_a_task_that_expires_in_backoff_is_not_started_again() -> None:
    """expires_in bounds when an attempt may start: the retry comes too late and never runs."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry.constant(100, attempts=5, jitter=0))
    runs = []

    @pool.task
    async def item() -> None:
        runs.append(clock())
        raise OSError("down")

    async with mp:
        handle = await item.options(expires_in=50).submit()
        with pytest.raises(TaskFailed, match="expired"):
            await handle
        assert clock() == pytest.approx(50, abs=1)
        await asyncio.sleep(1000)

    assert 1 == len(runs)


async def test_observers_are_called_for_each_retry() -> None:
    """An observer gets every failed attempt: its number, its error and the time of the next."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry(attempts=3, initial=5, factor=2, jitter=0))
    seen: list[Observed] = []
    mp.observe(seen.append)

    @pool.task
    async def item() -> None:
        raise OSError("down")

    async with mp:
        handle = await item.submit()
        await handle.wait()

    assert [("retry", 1, 5.0), ("retry", 2, 10.0), ("failed", 3, None)] == [
        (one.kind, one.attempt, one.delay) for one in seen
    ]
    assert all(one.error is not None and one.error.message == "down" for one in seen)
    assert {handle.id} == {one.task_id for one in seen}


# When things go wrong around it


@pytest.mark.rows("DE-10", "DE-T18", "DE-19")
@pytest.mark.parametrize("found_dead", [True, False])
async def test_a_backoff_survives_the_crash_of_its_process(*, found_dead: bool) -> None:
    """The due time is stored: another process starts the retry when it is due, no attempt lost."""
    fleet = Fleet()
    log: list[tuple[str, int, float]] = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("items", retry=Retry.constant(300, attempts=3, jitter=0))

        @pool.task
        async def item(ctx: Context) -> None:
            log.append((name, ctx.attempt, round(clock())))
            if len(log) < 3:
                raise OSError("down")

        return mp

    first, second = process("first"), process("second")
    await first.__aenter__()
    await first.get_pool("items").submit(first.tasks["item"].bind())
    await asyncio.sleep(100)
    await fleet.crash(first, found_dead=found_dead)
    async with second:
        await second.get_pool("items").drain()

    assert [("first", 1, 0), ("second", 2, 300), ("second", 3, 600)] == log


@pytest.mark.rows("DE-T27")
async def test_a_handler_slower_than_the_lease_keeps_it_by_renewal() -> None:
    """Ten times as long as its lease, beside a second process: it runs once."""
    fleet = Fleet()
    runs = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("items", max_concurrent=2)

        @pool.task
        async def item(ctx: Context) -> None:
            runs.append((name, ctx.attempt))
            await asyncio.sleep(300)

        return mp

    async with process("first") as first, process("second") as second:
        handle = await first.get_pool("items").submit(first.tasks["item"].bind())
        await handle
        assert 0 == (await second.get_pool("items").snapshot()).stale_settles

    assert [("first", 1)] == runs


class Flaky(Cable):
    """A cable over which some verbs fail for a while."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.store)
        self.broken: set[str] = set()
        self.failures = 0

    def __getattr__(self, verb: str) -> object:
        send = super().__getattr__(verb)
        if not inspect.iscoroutinefunction(send):
            return send

        async def maybe(*args: object, **kwargs: object) -> object:
            if verb in self.broken:
                self.failures += 1
                raise StoreError("the disk is full")
            return await send(*args, **kwargs)

        return maybe


@pytest.mark.rows("DE-T25")
@pytest.mark.parametrize("verb", ["settle", "lease"])
async def test_a_store_that_refuses_writes_for_a_while_delays_work_and_loses_none(
    verb: str,
) -> None:
    """Settles and leases that fail are tried again, with pauses, until they come through."""
    fleet = Fleet()
    mp = fleet.millpond()
    cable = Flaky(fleet)
    internals_of(mp).owner.make_store = lambda: cable  # type: ignore[assignment]
    pool = mp.pool("items", max_concurrent=4)
    runs: list[int] = []

    @pool.task
    async def item(n: int) -> int:
        runs.append(n)
        await asyncio.sleep(1)
        return n

    async with mp:
        handles = await pool.submit_many(item.each(range(20)))
        await asyncio.sleep(2.5)
        cable.broken.add(verb)
        cable.broken.add("settle")
        await asyncio.sleep(60)
        assert 5 < cable.failures < 200
        cable.broken.clear()
        assert list(range(20)) == [await handle for handle in handles]

    assert list(range(20)) == sorted(runs)


@pytest.mark.rows("DE-R23")
async def test_a_handler_sees_that_an_earlier_run_ended_early() -> None:
    """After a crash is_retry and attempt say so, although no handler failed."""
    fleet = Fleet()
    seen: list[tuple[int, bool]] = []

    def process() -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("items")

        @pool.task
        async def item(ctx: Context) -> None:
            seen.append((ctx.attempt, ctx.is_retry))
            await asyncio.sleep(10)

        return mp

    first, second = process(), process()
    await first.__aenter__()
    await first.get_pool("items").submit(first.tasks["item"].bind())
    await asyncio.sleep(5)
    await fleet.crash(first)
    async with second:
        await second.get_pool("items").drain()
        (record,) = await second.get_pool("items").tasks()
        history = [record async for record in second.audit("items")]

    assert [(1, False), (2, True)] == seen
    assert ("completed", 2) == (record.status, record.attempt)
    assert "lease_expired" in [entry.kind for entry in history]


async def test_a_graceful_stop_gives_work_back_uncharged() -> None:
    """A worker that stops interrupts its handlers; the next worker runs them as attempt one."""
    mp = Millpond(work=False)
    pool = mp.pool("items", max_concurrent=2)
    seen = []

    @pool.task
    async def item(ctx: Context) -> str:
        seen.append(ctx.attempt)
        await asyncio.sleep(100)
        return "done"

    async with mp:
        handle = await item.submit()
        async with mp.worker():
            await asyncio.sleep(10)
        assert "queued" == (await handle.refresh()).status
        async with mp.worker():
            assert "done" == await handle

    assert [1, 1] == seen
    assert 1 == handle.attempt
