"""`lab(mp)`: a Millpond in a plain test, on virtual time."""

import asyncio
import contextlib
import gc
import importlib
import sys
import threading
import warnings
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from millpond import (
    Context,
    Millpond,
    Outcome,
    Pool,
    Retry,
    Status,
    SyncContext,
    TaskCancelled,
    TaskFailed,
    bounded,
)
from millpond.errors import AlreadyOpen, ConfigError, StoreError, UnknownTask
from millpond.pool.internals import internals_of
from millpond.testing import Lab, lab
from millpond.testing.fault_injection import Verb, When
from millpond.testing.lab import Hung, NotEnded


@pytest.fixture
def mp() -> Millpond:
    return Millpond()


@pytest.fixture
def pool(mp: Millpond) -> Pool:
    return mp.pool("work", max_concurrent=2)


# Running and time


def test_a_task_runs_when_the_lab_runs(mp: Millpond, pool: Pool) -> None:
    """Submitting starts no handler; running does, and says how many tasks ended."""
    ran: list[int] = []

    @pool.task
    async def note(n: int) -> int:
        ran.append(n)
        return 2 * n

    with lab(mp) as bench:
        handles = [bench.submit(note.bind(n)) for n in range(3)]
        assert [] == ran
        assert 3 == bench.run_until_idle()
        assert 0 == bench.run_until_idle()
        assert [0, 2, 4] == [bench.result(handle) for handle in handles]
        assert ([0, 1, 2], 0.0) == (ran, bench.now)


def test_time_stands_still_until_it_is_moved(mp: Millpond, pool: Pool) -> None:
    """A handler that sleeps sleeps in the lab's time, to the second."""

    async def slow() -> str:
        await asyncio.sleep(60)
        return "done"

    with lab(mp, start=1000.0) as bench:
        handle = bench.submit(slow)
        assert (0, 0, 1000.0) == (bench.run_until_idle(), bench.advance(59.999), bench.now - 59.999)
        assert 1 == bench.advance(timedelta(milliseconds=1))
        assert ("done", 1060.0) == (bench.result(handle), bench.now)


def test_a_clock_may_start_at_a_date(mp: Millpond, pool: Pool) -> None:
    """A task for a date of day runs on that day."""
    morning = datetime(2030, 1, 1, 6, tzinfo=UTC)
    with lab(mp, start=morning) as bench:
        handle = bench.submit(lambda: 1, run_at=morning + timedelta(hours=3))
        assert 0 == bench.advance(3 * 3600 - 1)
        assert 1 == bench.advance(1)
        assert 1 == bench.result(handle)


def test_retries_come_when_their_time_has_come(mp: Millpond, pool: Pool) -> None:
    """Backoff is tested by moving the clock, not by waiting."""
    attempts: list[float] = []

    @pool.task(retry=Retry(attempts=3, initial=10, factor=2, jitter=0))
    async def flaky() -> int:
        attempts.append(bench.now)
        if len(attempts) < 3:
            raise ConnectionError("away")
        return len(attempts)

    with lab(mp) as bench:
        handle = bench.submit(flaky)
        bench.run_until_idle()
        with pytest.raises(NotEnded, match=r"retry in 10.* s \(attempt 1 of 3 failed: Conn.*away"):
            bench.result(handle)
        assert 1 == bench.advance(60)
        assert (3, [0.0, 10.0, 30.0]) == (bench.result(handle), attempts)


def test_a_result_may_be_an_error(mp: Millpond, pool: Pool) -> None:
    """How a task ended comes out as it does from `await handle`."""

    def fail() -> None:
        raise LookupError("nothing there")

    with lab(mp) as bench:
        failed = bench.submit(fail, retry=Retry.never())
        waits = bench.submit(lambda: 1, delay=60)
        with pytest.raises(TaskFailed, match="nothing there") as caught:
            bench.result(failed)
        assert isinstance(caught.value.__cause__, LookupError)
        bench.sync(waits.cancel())
        with pytest.raises(TaskCancelled):
            bench.result(waits)


def test_sync_takes_the_time_that_something_takes(mp: Millpond, pool: Pool) -> None:
    """Any coroutine can be run to its end, and a handle awaited."""

    async def story() -> float:
        await asyncio.sleep(3600)
        return await (await pool.submit(lambda: bench.now))

    with lab(mp) as bench:
        assert 3600.0 == bench.sync(story()) == bench.now
        assert "late" == bench.sync(bench.submit(lambda: "late", delay=100))
        assert 3700.0 == bench.now


def test_what_time_cannot_bring_is_not_waited_for(mp: Millpond, pool: Pool) -> None:
    """A wait without end ends, with a word, and the lab goes on."""
    with lab(mp) as bench:
        with pytest.raises(NotEnded, match="no passing of time"):
            bench.sync(asyncio.Event().wait())
        assert 1 == bench.sync(bench.submit(lambda: 1))


def test_a_submit_that_has_to_wait_for_room_says_so(mp: Millpond) -> None:
    """A full pool that parks submitters would park the test; what runs now may make room."""
    full = mp.pool("full", backpressure=bounded(1, on_full="block_submitter"))
    with lab(mp) as bench:
        bench.submit(lambda: 1)
        assert 2 == bench.result(bench.submit(lambda: 2)), "the first one ran and left"
        bench.sync(full.pause())
        bench.submit(lambda: 3)
        with pytest.raises(NotEnded, match="wait"):
            bench.submit(lambda: 4)
        assert (1, 0) == (bench.snapshot().queued, bench.snapshot().blocked_submitters)


@pytest.mark.parametrize("executor", ["handlers", "to_thread"])
def test_the_clock_waits_for_threads(mp: Millpond, pool: Pool, executor: str) -> None:
    """Plain functions run in real threads: their results are there when the lab is idle."""
    gate = threading.Event()

    @pool.task
    def plain(ctx: SyncContext) -> str:
        ctx.progress(0.5, "half")
        opener = threading.Timer(0.05, gate.set)
        opener.start()
        gate.wait(5)
        return threading.current_thread().name

    async def to_thread() -> str:
        return await asyncio.to_thread(lambda: threading.current_thread().name)

    with lab(mp) as bench:
        handle = bench.submit(plain if executor == "handlers" else to_thread, timeout=10)
        assert 1 == bench.advance(3600)
        assert threading.current_thread().name != bench.result(handle)


def test_a_thread_that_never_comes_back_is_reported(mp: Millpond, pool: Pool) -> None:
    """After its patience the lab says what it waits for, instead of hanging."""
    gate = threading.Event()
    with pytest.raises(Hung, match="real time"), lab(mp, patience=0.02) as bench:
        bench.submit(lambda: gate.wait(5))
        try:
            bench.run_until_idle()
        finally:
            gate.set()


def test_a_handler_that_goes_round_and_round_is_reported(
    mp: Millpond, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a moment passing nothing becomes due: an endless loop is seen."""
    monkeypatch.setattr(sys.modules["millpond.testing.lab"], "MOST_TURNS", 1000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0)

    with lab(mp) as bench:
        handle = bench.submit(spin)
        with pytest.raises(Hung, match="round and round"):
            bench.run_until_idle()
        assert "running" in bench.why(handle), "the lab can still be asked"


def test_a_lab_goes_on_for_decades(mp: Millpond, pool: Pool) -> None:
    """Timers are due at their moment, however far the clock has come from 0."""

    async def tick() -> float:
        await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time()

    with lab(mp) as bench:
        for seconds in (1.6e7, 3e6, 1e8, 3e8, 3e8):
            bench.advance(seconds)
            handle = bench.submit(tick, delay=1 / 3)
            due = bench.now + 1 / 3 + 0.1
            assert bench.sync(handle) == pytest.approx(due, abs=1e-3)


# What it leaves, and where it may be used


def test_nothing_is_left_behind(mp: Millpond, pool: Pool) -> None:
    """The Millpond is closed and as it was; no loop, no task, no warning."""
    internals_of(mp).owner.seed = 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with lab(mp) as bench:
            bench.submit(lambda: asyncio.sleep(1000))
            bench.submit(lambda: 1, delay=1000)
            bench.run_until_idle()
            assert bench.audit()
            loop: Any = bench._loop
        gc.collect()
    assert loop.is_closed()
    assert set() == asyncio.all_tasks(loop)
    assert (False, None, 7) == (
        mp.is_open,
        internals_of(mp).owner.make_store,
        internals_of(mp).owner.seed,
    )
    with lab(mp) as bench:
        assert 0 == bench.snapshot().queued


def test_an_error_of_the_test_comes_out_and_the_lab_is_closed(mp: Millpond, pool: Pool) -> None:
    """A failing assertion is what is seen, not what the lab had to clean up."""
    with pytest.raises(AssertionError, match="mine"), lab(mp) as bench:
        bench.submit(lambda: asyncio.sleep(1000))
        bench.run_until_idle()
        raise AssertionError("mine")
    assert not mp.is_open


async def test_inside_a_running_loop_it_is_refused(mp: Millpond) -> None:
    """It would have to run one loop inside another; the message says what to do."""
    with pytest.raises(RuntimeError, match="plain function"), lab(mp):
        pass
    assert not mp.is_open


def test_an_open_millpond_is_refused(mp: Millpond) -> None:
    """Once at a time, in the lab as anywhere."""
    with lab(mp), pytest.raises(AlreadyOpen), lab(mp):
        pass


def test_what_is_asked_outside_the_block_is_refused(mp: Millpond, pool: Pool) -> None:
    """Before and after it there is no loop to run anything on."""
    bench = lab(mp)
    assert isinstance(bench, Lab)
    with pytest.raises(ConfigError, match="with lab"):
        bench.run_until_idle()


def test_a_pool_must_be_named_where_there_are_several(mp: Millpond, pool: Pool) -> None:
    """A function that was not registered belongs to no pool of its own."""
    other = mp.pool("other")
    with lab(mp) as bench:
        with pytest.raises(ConfigError, match="2 pools"):
            bench.submit(lambda: 1)
        assert "other" == bench.submit(lambda: 1, pool=other).pool
        assert "work" == bench.submit(lambda: 1, pool="work").pool


def test_a_resource_is_opened_and_closed_by_one_task() -> None:
    """Lifespans that belong to one task work in the lab, too."""
    tasks: list[object] = []

    @contextlib.asynccontextmanager
    async def resources() -> AsyncIterator[str]:
        async with asyncio.timeout(None):
            tasks.append(asyncio.current_task())
            yield "client"
            tasks.append(asyncio.current_task())

    mp = Millpond(resources=resources)
    pool = mp.pool("work")

    @pool.task
    async def client(ctx: Context) -> str:
        return str(ctx.resources)

    with lab(mp) as bench:
        assert "client" == bench.result(bench.submit(client))
    assert 2 == len(tasks)
    assert 1 == len(set(map(id, tasks)))


# Repeating


def story(seed: int | None) -> list[Any]:
    """Live through a little of everything; return all there is to compare."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2)

    @pool.task
    async def on_end(outcome: Outcome) -> None:
        pass

    @pool.task(retry=Retry(attempts=3))
    async def flaky(ctx: Context, n: int) -> int:
        await asyncio.sleep(n)
        if ctx.attempt < 2:
            raise ValueError
        await ctx.submit(on_end.bind() if n < 0 else flaky.bind(0)) if n == 2 else None
        return n

    with lab(mp, seed=seed, durable=True) as bench:
        handles = [bench.submit(flaky.bind(n), on_complete=on_end.bind()) for n in range(4)]
        fault = bench.fail_next("settle", when="after")
        bench.advance(30)
        bench.submit(lambda: 1, delay=10)
        bench.restart()
        bench.advance(100)
        return [[handle.id for handle in handles], fault.left, bench.audit(), bench.now]


def test_two_runs_are_equal_to_the_last_record() -> None:
    """Ids, fences, jitter, worker names and order come from the seed and from nothing else."""
    first, second = story(3), story(3)
    assert len(first[2]) > 20
    assert first == second
    workers = {record.worker for record in first[2] if record.worker}
    assert all(name.startswith("seeded-") for name in workers), "no host, no process id"
    assert story(4)[0] != first[0]


def test_the_seed_of_the_millpond_is_the_labs(mp: Millpond, pool: Pool) -> None:
    """`internals_of(mp).owner.seed` decides unless the lab has a seed."""

    def first_id(seed: int | None, own: int | None) -> int:
        internals_of(mp).owner.seed = own
        with lab(mp, seed=seed) as bench:
            return bench.submit(lambda: 1).id

    assert first_id(None, 5) == first_id(5, None) == first_id(5, 8)
    assert first_id(None, 5) != first_id(None, 6)


# Restarting


def test_memory_forgets_at_a_restart(mp: Millpond, pool: Pool) -> None:
    """A memory store is gone with its process, the audit too."""
    with lab(mp) as bench:
        handle = bench.submit(lambda: 1, delay=5)
        bench.restart()
        assert (0, []) == (bench.snapshot().queued, [r for r in bench.audit() if r.task])
        with pytest.raises(UnknownTask):
            bench.result(handle)
        assert 2 == bench.result(bench.submit(lambda: 2))


def test_a_durable_lab_keeps_calls_and_loses_closures(mp: Millpond, pool: Pool) -> None:
    """After a crash a call is run by the next process; a closure's code is gone."""

    @pool.task
    async def double(n: int) -> int:
        return 2 * n

    with lab(mp, durable=True) as bench:
        done, call = bench.submit(double.bind(1)), bench.submit(double.bind(2), delay=5)
        closure = bench.submit(lambda: 1, delay=5)
        assert 1 == bench.run_until_idle()
        bench.restart()
        assert 2 == bench.result(done), "a stored result stays"
        bench.advance(5)
        assert 4 == bench.result(call)
        with pytest.raises(TaskFailed, match="stale"):
            bench.result(closure)


@pytest.mark.parametrize(("noticed", "after"), [(True, 0.0), (False, 30.0)])
def test_what_ran_when_the_process_died_is_charged_and_run_again(
    mp: Millpond, pool: Pool, noticed: bool, after: float
) -> None:
    """A lost lease costs an attempt: at once if the death was noticed, else when it expires."""
    starts: list[tuple[int, float]] = []

    @pool.task
    async def long(ctx: Context) -> int:
        starts.append((ctx.attempt, bench.now))
        await asyncio.sleep(20)
        return ctx.attempt

    with lab(mp, durable=True) as bench:
        handle = bench.submit(long)
        bench.run_until_idle()
        bench.restart(noticed=noticed)
        bench.advance(100)
        assert 2 == bench.result(handle)
        assert [(1, 0.0), (2, after)] == starts


def test_a_task_that_kills_its_process_ends_failed(mp: Millpond, pool: Pool) -> None:
    """Crash after crash, the budget of attempts ends it."""

    @pool.task
    async def killer() -> None:
        await asyncio.sleep(1)

    with lab(mp, durable=True) as bench:
        handle = bench.submit(killer)
        for _ in range(3):
            bench.run_until_idle()
            bench.restart()
        with pytest.raises(TaskFailed, match="lease_lost"):
            bench.result(handle)


def test_a_handler_that_resists_does_not_outlive_a_restart(mp: Millpond, pool: Pool) -> None:
    """A handler that swallows the cancellation dies in a crash, too."""
    heard: list[str] = []

    @pool.task
    async def stubborn(ctx: Context) -> str:
        if ctx.attempt == 1:
            for _ in range(3):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1000)
            heard.append("the dead speak")
        return f"attempt {ctx.attempt}"

    with lab(mp, durable=True) as bench:
        handle = bench.submit(stubborn)
        bench.run_until_idle()
        bench.restart()
        assert (0.0, "attempt 2") == (bench.now, bench.result(handle))


# Trouble


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("verb", get_args(Verb))
@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_lost_or_hangs_when_a_verb_fails(
    mp: Millpond, pool: Pool, verb: Verb, when: When, durable: bool, count: int
) -> None:
    """Whatever fails, before or after it took effect: after an error the caller may retry."""
    ran: list[int] = []

    @pool.task
    async def work(ctx: Context, n: int) -> int:
        ran.append(n)
        await asyncio.sleep(1)
        if n < 10:
            await ctx.submit(work.bind(n + 10))
        return n

    def insist(n: int) -> Any:
        for _ in range(count + 1):
            with contextlib.suppress(StoreError):
                return bench.submit(work.bind(n), idempotency_key=str(n))
        raise AssertionError("it failed more often than requested")

    with lab(mp, durable=durable) as bench:
        first = bench.submit(work.bind(0))
        bench.run_until_idle()
        fault = bench.fail_next(verb, count=count, when=when)
        handles = [first, *(insist(n) for n in range(1, 5))]
        for order in (pool.pause, pool.resume):
            for _ in range(count + 1):
                with contextlib.suppress(StoreError):
                    bench.sync(order())
        bench.advance(120)
        assert list(range(5)) == [bench.result(handle) for handle in handles]
        assert (0 if durable or verb != "renew" else count) == fault.left
        left = bench.snapshot()
        assert (0, 0, 10, 0) == (left.queued, left.running, left.completed, left.failed)
        assert sorted(ran) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
@pytest.mark.parametrize("when", get_args(When))
def test_a_submitter_in_line_stays_there_while_the_store_is_away(
    mp: Millpond, when: When, durable: bool
) -> None:
    """Room that could not be given for a fault is given when the store is back, once."""
    full = mp.pool("full", backpressure=bounded(1, on_full="block_submitter"))

    @full.task
    async def same(n: int) -> int:
        return n

    async def story() -> int:
        waiting = asyncio.ensure_future(full.submit(same.bind(2)))
        await asyncio.sleep(0)
        bench.fail_next("submit", count=3, when=when)
        await full.resume()
        async with asyncio.timeout(60):
            return await (await waiting)

    with lab(mp, durable=durable) as bench:
        bench.sync(full.pause())
        bench.submit(same.bind(1))
        assert 2 == bench.sync(story())
        assert 2 == bench.snapshot().completed


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
def test_who_waits_hears_of_an_end_whose_answer_was_lost(
    mp: Millpond, pool: Pool, durable: bool
) -> None:
    """The answer to the cancel was lost: the next poll finds the end."""

    async def story() -> Status:
        waiting = asyncio.ensure_future(handle.wait())
        await asyncio.sleep(0)
        with pytest.raises(StoreError):
            await handle.cancel()
        async with asyncio.timeout(60):
            return (await waiting).status

    with lab(mp, durable=durable) as bench:
        handle = bench.submit(lambda: 1, delay=1000)
        bench.fail_next("control", when="after")
        assert Status.CANCELLED is bench.sync(story())


def test_a_fault_raises_what_it_is_given(mp: Millpond, pool: Pool) -> None:
    """An error of the user's choice, a given number of times."""
    with lab(mp) as bench:
        fault = bench.fail_next("submit", ConnectionResetError, 2)
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                bench.submit(lambda: 1)
        assert 0 == fault.left
        assert 1 == bench.result(bench.submit(lambda: 1))
        for wrong in ({"verb": "sumbit"}, {"count": 0}, {"when": "during"}):
            with pytest.raises(ConfigError):
                bench.fail_next(**{"verb": "submit", **wrong})  # type: ignore[arg-type]


def test_a_process_that_cannot_be_started_says_why(mp: Millpond, pool: Pool) -> None:
    """A fault while opening comes out of restart, and the lab can still be left."""
    with lab(mp, durable=True) as bench:
        bench.fail_next("control", ConnectionError("no route"))
        with pytest.raises(ConnectionError, match="no route"):
            bench.restart()
        assert not mp.is_open
    assert not mp.is_open


def test_leaving_is_not_kept_by_a_store_that_is_away(mp: Millpond, pool: Pool) -> None:
    """A worker that cannot deregister stops anyway: its lease expires."""

    async def leave() -> None:
        async with mp.worker():
            bench.fail_next("control", count=1)

    with lab(mp, durable=True) as bench:
        bench.sync(leave())
        assert 1 == len(internals_of(mp).runtime.workers)


def test_there_is_one_lab() -> None:
    """The function is what the package shows, also after its module was imported by name."""
    assert sys.modules["millpond.testing.lab"].lab is lab
    assert callable(importlib.import_module("millpond.testing").lab)
