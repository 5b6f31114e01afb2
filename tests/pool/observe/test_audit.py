"""The audit, observers and hooks: each reports an event after it happened."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millpond import (
    Context,
    DeadLetter,
    Empty,
    Handle,
    Millpond,
    Observed,
    Outcome,
    Retry,
    RetryLater,
    bounded,
    fifo,
)
from millpond.core.audit import Record
from millpond.pool.internals import internals_of
from millpond.testing.clock import run_virtual


async def story(mp: Millpond, handle: Handle[Any]) -> list[tuple[str, str | None, str | None]]:
    return [
        (record.kind, record.before, record.after)
        async for record in mp.audit(handle.pool)
        if record.task == handle.id
    ]


async def test_the_audit_has_the_life_of_a_task_in_order() -> None:
    """Submit, dequeue, retry, dequeue, settle: each arrow once, with its time."""
    mp = Millpond()
    pool = mp.pool("life")

    @pool.task
    async def work(ctx: Context) -> None:
        await asyncio.sleep(1)
        if not ctx.is_retry:
            raise RetryLater(10.0)

    async with mp:
        handle = await work.submit()
        await handle
        assert [
            ("submit", None, "queued"),
            ("dequeue", "queued", "running"),
            ("retry", "running", "queued"),
            ("dequeue", "queued", "running"),
            ("settle", "running", "completed"),
        ] == await story(mp, handle)
        times = [record.at async for record in mp.audit(pool) if record.task == handle.id]
    assert [0.0, 0.0, 1.0, 11.0, 12.0] == pytest.approx(times, abs=0.001)


async def test_the_audit_has_cancels_drops_and_orders() -> None:
    """A cancel, an eviction and each order of an operator has its record."""
    mp = Millpond()
    pool = mp.pool("orders", backpressure=bounded(1, on_full="drop_oldest"))

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        dropped = await work.submit()
        cancelled = await work.submit()
        await cancelled.cancel()
        await pool.resize(3)
        await pool.resume()
        assert ("drop", "queued", "rejected") == (await story(mp, dropped))[-1]
        assert ("cancel", "queued", "cancelled") == (await story(mp, cancelled))[-1]
        records = [record async for record in mp.audit(pool) if record.kind == "control"]
    details = [str(record.detail) for record in records]
    for order in ("declare", "pause", "resize", "resume"):
        assert any(order in detail for detail in details), (order, details)


async def test_the_audit_of_one_pool_leaves_out_the_others() -> None:
    """mp.audit(pool) takes a pool or its name; without one it yields all records."""
    mp = Millpond()
    one, two = mp.pool("one"), mp.pool("two")

    @mp.task
    async def work() -> None: ...

    async with mp:
        await one.submit(work.bind())
        await two.submit(work.bind())
        await one.drain()
        await two.drain()
        of_one = [record async for record in mp.audit(one)]
        by_name = [record async for record in mp.audit("one")]
        everything = [record async for record in mp.audit()]
    assert {"one"} == {record.pool for record in of_one}
    assert of_one == by_name
    assert {"one", "two"} <= {record.pool for record in everything}


@pytest.mark.rows("HN-26")
async def test_the_record_of_a_start_has_the_wait_of_its_task() -> None:
    """Due and start are on the dequeue record: their difference is the time in the queue."""
    mp = Millpond()
    pool = mp.pool("waited")

    @pool.task
    async def work() -> None:
        await asyncio.sleep(30)

    async with mp:
        await work.submit()
        second = await work.submit()
        await second
        (start,) = [
            record
            async for record in mp.audit(pool)
            if record.task == second.id and record.kind == "dequeue"
        ]
    assert 30.0 == pytest.approx(start.at - start.due, abs=0.001)
    assert start.worker is not None


def test_equal_histories_have_equal_audits() -> None:
    """Under the test clock and one seed, two runs of one story differ in nothing."""

    async def history() -> list[Record]:
        mp = Millpond()
        internals_of(mp).owner.seed = 7
        pool = mp.pool("again", max_concurrent=2, queue=fifo())

        @pool.task
        async def work(ctx: Context, n: int) -> None:
            await asyncio.sleep(n)
            if n == 2 and not ctx.is_retry:
                raise ValueError

        async with mp:
            await pool.submit_many(work.each(range(5)))
            await pool.drain()
            return [_comparable(record) async for record in mp.audit()]

    first, second = run_virtual(history()), run_virtual(history())
    assert 18 == len(first)
    assert first == second


def _comparable(record: Record) -> Record:
    """Remove the values that differ per process: its name, and the tokens of its store."""
    worker = None if record.worker is None else record.worker.rpartition("/")[2]
    return msgspec.structs.replace(record, worker=worker, token=0)


# Observers


async def test_observers_are_called_for_every_end() -> None:
    """Completed, failed, cancelled, rejected, retries and blocked submitters, after the fact."""
    mp = Millpond()
    pool = mp.pool("seen", backpressure=bounded(1), retry=Retry.constant(1.0, attempts=2))
    seen: list[Observed] = []
    stop = mp.observe(seen.append)

    @pool.task
    async def work(n: int) -> None:
        if n == 2:
            raise ValueError("two")

    async with mp:
        await (await work.submit(1))
        await (await work.submit(2)).wait()
        await pool.pause()
        queued = await work.submit(3)
        parked = asyncio.create_task(work.submit(4))
        await asyncio.sleep(1)
        await queued.cancel()
        await parked
        await asyncio.sleep(1)
        stop()
        await pool.resume()
        await pool.drain()
    assert ["completed", "retry", "failed", "blocked", "cancelled"] == [one.kind for one in seen]
    assert {"seen"} == {one.pool for one in seen}
    failed = seen[2]
    assert failed.error is not None
    assert ("work", 2, "two") == (failed.function, failed.attempt, failed.error.message)
    assert 1.0 == pytest.approx(seen[1].delay, abs=0.101)
    stop()


async def test_an_observer_that_raises_is_counted_and_breaks_nothing() -> None:
    """The task completes, the next observer is called, and mp.counts has the number."""
    mp = Millpond()
    pool = mp.pool("seen")
    seen: list[str] = []

    def broken(_happened: Observed) -> None:
        raise ZeroDivisionError

    mp.observe(broken)
    mp.observe(lambda happened: seen.append(happened.kind))

    @pool.task
    async def work() -> str:
        return "fine"

    async with mp:
        assert ["fine", "fine"] == [await (await work.submit()) for _ in range(2)]
        assert 2 == mp.counts.observer_errors
    assert ["completed", "completed"] == seen
    assert 2 == mp.counts.observer_errors


# Hooks


async def test_on_dead_letter_is_called_once_with_payload_error_and_history() -> None:
    """It gets payload, error and history of a task that failed for good, not of a retry."""
    mp = Millpond()
    letters: list[DeadLetter] = []
    pool = mp.pool("dead", retry=Retry.constant(1.0, attempts=3), on_dead_letter=letters.append)

    @pool.task
    async def work(n: int) -> None:
        raise ValueError(f"bad {n}")

    async with mp:
        handle = await work.options(key="acme", labels={"a": "b"}).submit(5)
        await handle.wait()
        await asyncio.sleep(10)
    (letter,) = letters
    assert (handle.id, "dead", "work", 3, "acme", {"a": "b"}) == (
        letter.task_id,
        letter.pool,
        letter.function,
        letter.attempts,
        letter.key,
        letter.labels,
    )
    assert letter.error is not None
    assert ("ValueError", "bad 5") == (letter.error.type, letter.error.message)
    assert b"5" in letter.payload
    assert 0.0 == letter.submitted_at
    assert 2.0 == pytest.approx(letter.failed_at, abs=0.3)


async def test_on_dead_letter_is_called_for_tasks_that_no_handler_ended() -> None:
    """An expired task is a dead letter too; a cancelled one is not."""
    mp = Millpond()
    letters: list[DeadLetter] = []
    pool = mp.pool("dead", on_dead_letter=letters.append)

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        late = await work.options(expires_in=5.0).submit()
        await (await work.submit()).cancel()
        await asyncio.sleep(10)
    assert [(late.id, "expired")] == [(letter.task_id, letter.reason) for letter in letters]


async def test_on_empty_is_called_each_time_a_pool_runs_dry() -> None:
    """Once for each time, with how many were ever processed."""
    mp = Millpond()
    events: list[Empty] = []
    pool = mp.pool("dry", on_empty=events.append)

    @pool.task
    async def work() -> None:
        await asyncio.sleep(1)

    async with mp:
        await pool.submit_many(work.bind() for _ in range(3))
        await pool.drain()
        await (await work.submit())
        await asyncio.sleep(5)
    assert [("dry", None, 3), ("dry", None, 4)] == [(e.pool, e.lane, e.processed) for e in events]


def _raises(_event: object) -> None:
    raise ZeroDivisionError


async def _raises_later(_event: object) -> None:
    await asyncio.sleep(1)
    raise ZeroDivisionError


@pytest.mark.parametrize("hook", [_raises, _raises_later], ids=["def", "async def"])
async def test_a_failing_hook_is_counted_and_breaks_nothing(
    hook: Callable[[object], object],
) -> None:
    """on_dead_letter and on_empty may raise, at once or later: the pool goes on and counts."""
    mp = Millpond()
    pool = mp.pool("hooks", retry=Retry.never(), on_dead_letter=hook, on_empty=hook)

    @pool.task
    async def work(n: int) -> int:
        if n == 0:
            raise ValueError
        return n

    async with mp:
        assert "failed" == (await (await work.submit(0)).wait()).status
        await asyncio.sleep(5)
        assert 2 == mp.counts.hook_errors
        assert 1 == await (await work.submit(1))
        await asyncio.sleep(5)
        assert 3 == mp.counts.hook_errors


async def test_each_opening_starts_the_counts_at_zero() -> None:
    """They count since the opening, and can be read after the close."""
    mp = Millpond()
    pool = mp.pool("reopened", on_empty=_raises)

    @pool.task
    async def work() -> None: ...

    assert 0 == mp.counts.hook_errors
    async with mp:
        await (await work.submit())
        await asyncio.sleep(1)
    assert 1 == mp.counts.hook_errors
    assert "<counts hook_errors=1>" == repr(mp.counts)
    async with mp:
        assert 0 == mp.counts.hook_errors


async def test_on_complete_gets_every_kind_of_outcome() -> None:
    """A callback is called for completed, failed, cancelled and dropped tasks."""
    mp = Millpond()
    policy = bounded(1, on_full="drop_oldest")
    pool = mp.pool("callbacks", backpressure=policy, retry=Retry.never())
    notified: list[tuple[str, str, object]] = []

    @pool.task
    async def notify(outcome: Outcome, channel: str) -> None:
        notified.append((channel, outcome.status, outcome.result))

    @pool.task
    async def work(n: int) -> int:
        if n == 0:
            raise ValueError
        return n

    async with mp:
        call = work.options(on_complete=notify.bind(channel="#ops"))
        await (await call.submit(7)).wait()
        await (await call.submit(0)).wait()
        await pool.pause()
        await call.submit(1)
        cancelled = await call.submit(2)
        await cancelled.cancel()
        await pool.drain()
    assert [
        ("#ops", "completed", 7),
        ("#ops", "failed", None),
        ("#ops", "rejected", None),
        ("#ops", "cancelled", None),
    ] == notified
