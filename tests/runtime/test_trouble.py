"""Trouble: stores that fail at odd moments, handlers that ignore a cancel, many lost leases."""

import asyncio
import logging
from typing import Any

import pytest
from tests.pool.fleet import Fleet
from tests.pool.moments import clock, result_of, rounds, timers
from tests.pool.stores import Opened, Watched, memory, opened  # noqa: F401 - a fixture

from millpond import Context, Keep, Millpond, Retry, TaskFailed, bounded, ring_buffer
from millpond.core.control import DeclareDead, Deregister, Register
from millpond.errors import UnknownTask
from millpond.pool.internals import internals_of
from millpond.runtime.submit import OFFER_AGAIN, Submitter

# Losses and moments


async def test_more_lost_leases_than_one_pass_takes_are_recovered_at_once() -> None:
    """Recovery runs until nothing is left: thousands of tasks are queued again at the same time."""
    fleet = Fleet()
    starts: list[tuple[str, float]] = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("work", max_concurrent=5000, retry=Retry.constant(0.0))

        @pool.task
        async def job(number: int) -> None:
            starts.append((name, clock()))
            if name == "dead":
                await asyncio.sleep(1000)

        return mp

    dead, alive = process("dead"), process("alive")
    await dead.__aenter__()
    await dead.get_pool("work").submit_many(dead.tasks["job"].each(range(2300)))
    await rounds()
    assert 2300 == len(starts)
    await fleet.crash(dead, found_dead=False)
    async with alive:
        await alive.get_pool("work").drain()
    again = [at for name, at in starts if name == "alive"]
    assert 2300 == len(again)
    assert max(again) - min(again) < 0.1


async def test_a_wake_for_one_pool_keeps_the_timers_of_the_others(opened: Opened) -> None:  # noqa: F811
    """Each delayed task starts when it is due."""
    mp = Millpond()
    starts: dict[str, float] = {}
    async with mp:
        for number in range(1, 6):
            pool = mp.pool(f"pool-{number}")

            async def job(name: str = pool.name) -> None:
                starts[name] = clock()

            await pool.submit(job, delay=10 * number)
        await asyncio.sleep(100)
    assert {f"pool-{n}": pytest.approx(10.0 * n, abs=0.01) for n in range(1, 6)} == starts


async def test_a_closed_millpond_leaves_no_timer(opened: Opened) -> None:  # noqa: F811
    """Closing cancels the timers of reports, watchdogs, guards and delayed tasks."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.constant(100.0))

    @pool.task(timeout=50)
    async def job(number: int) -> None:
        if number:
            raise OSError

    async with mp:
        await (await job.submit(0))
        await job.submit(1)
        await job.options(delay=500).submit(0)
        await asyncio.sleep(1)
        assert timers() > 0
    assert 0 == timers()


# Submitting


async def test_a_parked_submit_is_tried_again_after_a_store_error(
    opened: Opened,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store fails while it admits a parked submit: the submit waits on and is admitted soon."""
    mp = Millpond()
    pool = mp.pool("work", backpressure=bounded(1))

    @pool.task
    async def job() -> str:
        return "ran"

    async with mp:
        await pool.pause()
        first = await job.submit()
        parked = asyncio.create_task(job.submit())
        await rounds()
        store = opened.last.inner
        submit, fails = store.submit, 2

        async def failing(*args: Any, **kwargs: Any) -> Any:
            nonlocal fails
            fails -= 1
            if fails >= 0:
                raise ConnectionError("away")
            return await submit(*args, **kwargs)

        monkeypatch.setattr(store, "submit", failing)
        await first.cancel()
        await rounds()
        assert not parked.done()
        assert any("go on waiting" in record.message for record in caplog.records)
        before = clock()
        second = await parked
        assert 2 * OFFER_AGAIN == pytest.approx(clock() - before, abs=0.01)
        await pool.resume()
        assert "ran" == await second


async def test_all_submits_of_a_failed_batch_raise() -> None:
    """One verb carries several submits; its error reaches each, and the next submit works."""
    store = Watched(memory(), pauses=2)
    mp = Millpond()
    internals_of(mp).owner.make_store = lambda: store
    pool = mp.pool("work")

    @pool.task
    async def job() -> str:
        return "ran"

    async with mp:
        await rounds()
        submits = [asyncio.create_task(job.submit()) for _ in range(4)]
        await asyncio.sleep(0)
        submit, calls = store.submit, 0

        async def second_fails(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ConnectionError("away")
            return await submit(*args, **kwargs)

        store.submit = second_fails  # type: ignore[method-assign]
        answers = await asyncio.gather(*submits, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, ConnectionError)]
        assert 3 == len(failed)
        assert "ran" == await (await job.submit())


@pytest.mark.memory("two Millponds over one open file take the news of it from each other")
async def test_a_submit_that_waited_for_the_pool_then_waits_for_its_full_key() -> None:
    """Another process takes the room with a task of the same key, so the key is full."""
    fleet = Fleet()
    one, two = fleet.millpond(work=False), fleet.millpond(work=False)
    mine, theirs = (
        mp.pool("work", backpressure=bounded(2, per_key=1), max_concurrent=1) for mp in (one, two)
    )
    job = mine.task(key="key", name="job")(_nothing)
    again = theirs.task(key="key", name="job")(_nothing)
    async with one, two:
        full = [await job.submit(key) for key in "ab"]
        waits = asyncio.create_task(job.submit("c"))
        behind = asyncio.create_task(job.submit("d"))
        await rounds()
        for handle in full:
            await two.cancel(handle.id)
        barged = await again.submit("c")
        await asyncio.sleep(5)
        assert (False, True) == (waits.done(), behind.done())
        await two.cancel(barged.id)
        await asyncio.sleep(2)
        assert "c" == (await waits).key
        assert 0 == (await mine.snapshot()).blocked_submitters


async def test_a_submit_that_starts_to_wait_for_its_key_admits_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One offer of room serves both: the store may not announce it again."""
    fleet = Fleet()
    one, two = fleet.millpond(work=False), fleet.millpond(work=False)
    mine, theirs = (
        mp.pool("work", backpressure=bounded(2, per_key=1), max_concurrent=1) for mp in (one, two)
    )
    job = mine.task(key="key", name="job")(_nothing)
    again = theirs.task(key="key", name="job")(_nothing)
    async with one, two:
        full = [await job.submit(key) for key in "ab"]
        waits = asyncio.create_task(job.submit("c"))
        behind = asyncio.create_task(job.submit("d"))
        await rounds()
        monkeypatch.setattr(Submitter, "room_anywhere", lambda _: None)
        for handle in full:
            await two.cancel(handle.id)
        barged = await again.submit("c")
        internals_of(one).runtime.submitter.room("work")
        await rounds()
        assert (False, True) == (waits.done(), behind.done())
        monkeypatch.undo()
        await two.cancel(barged.id)
        await waits


async def _nothing(key: str) -> None: ...


async def test_a_bound_declared_later_drops_the_oldest_queued_tasks() -> None:
    """It drops tasks from before the bound in their order, but no task that was ever claimed."""
    fleet = Fleet()
    old, new = fleet.millpond(), fleet.millpond(work=False)
    before = old.pool("work", retry=Retry.constant(1000))
    after = new.pool("work", backpressure=ring_buffer(3), retry=Retry.constant(1000))
    job = before.task(name="job")(_failing)
    later = after.task(name="job")(_failing)
    async with old:
        claimed = await job.submit("claimed")
        await rounds()
        await before.pause()
        handles = [claimed, *[await job.submit(key) for key in "abc"]]
        async with new:
            await later.submit("d")
            await later.submit("e")
            assert ["queued", "rejected", "rejected", "queued"] == await new.status(
                [handle.id for handle in handles]
            )


async def _failing(key: str) -> None:
    raise OSError(key)


# Waiting


async def test_a_cancelled_wait_does_not_end_the_other_waits(opened: Opened) -> None:  # noqa: F811
    """Each wait that remains gets the result."""
    mp = Millpond()
    pool = mp.pool("work")

    async def work() -> str:
        await asyncio.sleep(10)
        return "ran"

    async with mp:
        handle = await pool.submit(work)
        waiting = [asyncio.create_task(result_of(handle)) for _ in range(4)]
        await rounds()
        waiting[1].cancel()
        waiting[3].cancel()
        await rounds()
        assert (2, {handle.id}) == (
            len(internals_of(mp).runtime.waiting._tasks[handle.id]),
            set(internals_of(mp).runtime.waiting._tasks),
        )
        assert ["ran", "ran"] == [await waiting[0], await waiting[2]]
        assert not internals_of(mp).runtime.waiting.any_waiting


async def test_the_cache_of_recent_results_is_bounded(
    opened: Opened,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Past the bound the store answers: every handle still has the result of its task."""
    monkeypatch.setattr("millpond.runtime.waiting.results.RECENT_KEPT", 5)
    monkeypatch.setattr("millpond.runtime.waiting.results.CAUSES_KEPT", 3)
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=20, retry=Retry.never())

    @pool.task
    async def job(number: int) -> int:
        if number % 2:
            raise OSError(number)
        return number

    async with mp:
        handles = [await job.submit(n) for n in range(20)]
        await asyncio.sleep(1)
        waiting = internals_of(mp).runtime.waiting
        assert 5 >= len(waiting._recent)
        assert {handle.id for handle in handles[15::2]} == set(waiting._causes)
        for number, handle in enumerate(handles):
            if number % 2:
                with pytest.raises(TaskFailed, match=str(number)) as caught:
                    await handle
                assert (number >= 15) == isinstance(caught.value.__cause__, OSError)
            else:
                assert number == await handle


async def test_progress_arrives_in_another_process() -> None:
    """The client sees each report, and the end of the task."""
    fleet = Fleet()
    here, there = fleet.millpond(work=False), fleet.millpond()
    mine, theirs = here.pool("work"), there.pool("work")

    async def job(ctx: Context) -> None:
        for quarter in range(1, 4):
            await ctx.progress(quarter / 4)
            await asyncio.sleep(10)

    task = mine.task(name="job")(job)
    theirs.task(name="job")(job)
    async with here, there:
        handle = await task.submit()
        seen = [(report, round(clock())) async for report in handle.progress()]
    assert [0.25, 0.5, 0.75] == [fraction for (fraction, _), _ in seen]
    assert 35 >= clock()


# Handlers that ignore a cancel, workers that cannot deregister


async def test_a_worker_stops_without_a_handler_that_ignores_its_cancel(opened: Opened) -> None:  # noqa: F811
    """The worker keeps the task until the handler ends, and then reports its result."""
    mp = Millpond()
    pool = mp.pool("work")
    go = asyncio.Event()

    @pool.task
    async def deaf() -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async with mp:
        handle = await deaf.submit()
        await rounds()
        (worker,) = internals_of(mp).runtime.workers
        before = clock()
        await internals_of(mp).runtime.local_workers.stop(worker)
        assert 2 > clock() - before
        await handle.refresh()
        assert "running" == handle.status
        go.set()
        await rounds()
        assert "completed" == (await handle.refresh()).status
        assert 0 == internals_of(mp).runtime.counts.stale_settles


async def test_each_stuck_handler_keeps_its_own_slot(opened: Opened) -> None:  # noqa: F811
    """Two handlers ignore their timeout: the end of one frees one slot."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2, retry=Retry.never())
    go = [asyncio.Event(), asyncio.Event()]
    ran: list[int] = []

    @pool.task(timeout=1)
    async def deaf(number: int) -> None:
        while not go[number].is_set():
            try:
                await go[number].wait()
            except asyncio.CancelledError:
                continue

    @pool.task
    async def job(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(10)

    async with mp:
        stuck = [await deaf.submit(n) for n in range(2)]
        await asyncio.sleep(3)
        assert ["running"] * 2 == [(await handle.refresh()).status for handle in stuck]
        assert 2 == internals_of(mp).runtime.counts.stuck
        await pool.submit_many(job.each(range(4)))
        await asyncio.sleep(60)
        assert [] == ran
        go[0].set()
        await asyncio.sleep(5)
        assert [0] == ran
        await asyncio.sleep(10)
        assert [0, 1] == ran
        go[1].set()
        await asyncio.sleep(1)
        assert [0, 1, 2] == ran
        await pool.drain()


async def test_ctx_lease_lost_is_set_when_the_lease_is_lost() -> None:
    """Also when the handler read the event before."""
    store = Watched(memory())
    mp = Millpond(lease=30.0)
    internals_of(mp).owner.make_store = lambda: store
    pool = mp.pool("work")
    heard: list[bool] = []

    @pool.task
    async def job(ctx: Context) -> None:
        lost = ctx.lease_lost
        heard.append(lost.is_set())
        try:
            await asyncio.sleep(1000)
        finally:
            heard.append(lost.is_set())

    async with mp:
        await job.submit()
        await rounds()
        store.freeze()
        await asyncio.sleep(29)
        assert [False, True] == heard
        store.thaw()


async def test_a_worker_that_cannot_deregister_logs_that_and_stops(
    opened: Opened,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store is away when the worker deregisters; closing still ends."""
    mp = Millpond()
    mp.pool("work")
    async with mp:
        await rounds()
        store = opened.last
        control = store.control

        async def away(order: Any, **kwargs: Any) -> Any:
            if isinstance(order, Deregister):
                raise ConnectionError("away")
            return await control(order, **kwargs)

        monkeypatch.setattr(store, "control", away)
    assert any("could not deregister worker" in record.message for record in caplog.records)


async def test_a_failing_poll_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An hour of failing polls is one warning; then polling finds new tasks again."""
    store = memory()
    here, there = Millpond(work=False), Millpond()
    for mp in (here, there):
        internals_of(mp).owner.make_store = lambda: Watched(store)
    mine, theirs = here.pool("work"), there.pool("work")
    task = mine.task(name="job")(_nothing)
    theirs.task(name="job")(_nothing)
    async with here, there:
        await rounds()
        due, away = store.view.due, True

        async def failing(*args: Any, **kwargs: Any) -> Any:
            if away:
                raise ConnectionError("away")
            return await due(*args, **kwargs)

        monkeypatch.setattr(store.view, "due", failing)
        with caplog.at_level(logging.WARNING, "millpond.poll"):
            await asyncio.sleep(3600)
            warnings = [r for r in caplog.records if "polling the store failed" in r.message]
            assert 1 == len(warnings)
        away = False
        handle = await task.submit("x")
        await asyncio.sleep(2)
        assert "completed" == (await handle.refresh()).status


async def test_a_fenced_worker_is_back_soon_after_a_store_that_failed() -> None:
    """It tries to register again after short, growing pauses, and works on."""
    inner = memory()
    store = Watched(inner)
    mp = Millpond()
    internals_of(mp).owner.make_store = lambda: store
    pool = mp.pool("work")

    @pool.task
    async def job() -> float:
        return clock()

    async with mp:
        await rounds()
        (worker,) = internals_of(mp).runtime.workers
        await inner.control(DeclareDead(worker.name))
        control, fails = store.control, 4

        async def failing(command: Any, **kwargs: Any) -> Any:
            nonlocal fails
            if isinstance(command, Register) and fails:
                fails -= 1
                raise ConnectionError("away")
            return await control(command, **kwargs)

        store.control = failing  # type: ignore[method-assign]
        before = clock()
        assert 3 > await (await job.submit()) - before
        assert 0 == fails


async def test_a_submit_whose_answer_was_lost_for_long_stores_one_task(
    opened: Opened,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task ran and was removed meanwhile: it is not run again, and its handle says so."""
    mp = Millpond(keep=Keep(completed=0.5))
    pool = mp.pool("work", backpressure=bounded(1))
    runs = []

    @pool.task
    async def job(number: int) -> int:
        runs.append(number)
        return number

    async with mp:
        await pool.pause()
        await job.submit(1)
        parked = asyncio.create_task(job.submit(2))
        await rounds()
        store = opened.last.inner
        submit, lost = store.submit, list[Any]()

        async def deaf(*args: Any, **kwargs: Any) -> Any:
            answer = await submit(*args, **kwargs)
            if answer.batches[0].refusal is None and not lost:
                lost.append(answer)
                monkeypatch.setattr(store, "submit", away)
                raise ConnectionError("the answer is lost")
            return answer

        async def away(*args: Any, **kwargs: Any) -> Any:
            raise ConnectionError("away")

        monkeypatch.setattr(store, "submit", deaf)
        await pool.resume()
        await asyncio.sleep(100)
        assert [1, 2] == runs
        assert ["expired"] == await mp.status([lost_id(lost)])
        monkeypatch.setattr(store, "submit", submit)
        handle = await parked
        assert lost_id(lost) == handle.id
        with pytest.raises(UnknownTask):
            await handle
        assert [1, 2] == runs


def lost_id(answers: list[Any]) -> int:
    """Return the task of the lost answer."""
    return int(answers[0].batches[0].admissions[0].task)
