"""Reading a pool: size, snapshot, tasks, unsettled tasks, and why a task waits."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.pool.moments import rounds

from millpond import (
    Context,
    GiveUp,
    Keep,
    Millpond,
    Outcome,
    Rate,
    Retry,
    bounded,
    fail_fast,
    fair_round_robin,
)
from millpond.core.lifecycle import Status
from millpond.core.spec import PoolSpec
from millpond.errors import ConfigError
from millpond.pool.internals import internals_of


async def test_size_counts_running_and_waiting_tasks() -> None:
    """Ended tasks do not count, scheduled ones do."""
    mp = Millpond()
    pool = mp.pool("size", max_concurrent=2)

    async def work() -> None:
        await asyncio.sleep(10)

    async with mp:
        assert 0 == await pool.size()
        for _ in range(5):
            await pool.submit(work)
        await pool.submit(work, delay=1000)
        assert 6 == await pool.size()
        await asyncio.sleep(11)
        assert 4 == await pool.size()
        await pool.purge()
        await asyncio.sleep(11)
        assert 0 == await pool.size()


async def test_a_snapshot_counts_by_status() -> None:
    """Running, queued and scheduled are current; counts of ended tasks are lifetime totals."""
    mp = Millpond()
    policy = bounded(4, on_full="drop_newest")
    pool = mp.pool("counts", backpressure=policy, retry=Retry.never())

    async def good() -> None: ...
    async def slow() -> None:
        await asyncio.sleep(1000)

    async def bad() -> None:
        raise ValueError

    async with mp:
        await mp.wait([await pool.submit(good), await pool.submit(bad), await pool.submit(good)])
        await pool.submit(slow)
        await rounds()
        await (await pool.submit(good)).cancel()
        for _ in range(3):
            await pool.submit(good)
        await pool.submit(good, delay=500)
        await pool.submit(good)
        snapshot = await pool.snapshot()
    counts = (snapshot.running, snapshot.queued, snapshot.scheduled, snapshot.parked)
    assert (1, 4, 1, 0) == counts
    ended = (snapshot.completed, snapshot.failed, snapshot.cancelled, snapshot.rejected)
    assert (2, 1, 1, 1) == ended
    assert 10 == snapshot.total
    assert 4 == snapshot.kept


async def test_lifetime_totals_outlive_the_records() -> None:
    """Retention removes rows but changes no total; `kept` says how many rows are left."""
    mp = Millpond(keep=Keep(completed=60.0, failed=60.0))
    pool = mp.pool("life", retry=Retry.never())

    @pool.task
    async def work(n: int) -> None:
        if n == 2:
            raise ValueError

    async with mp:
        await mp.wait(await pool.submit_many(work.each(range(3))))
        before = await pool.snapshot()
        assert (2, 1, 3) == (before.completed, before.failed, before.kept)
        await asyncio.sleep(600)
        after = await pool.snapshot()
        assert (2, 1, 0) == (after.completed, after.failed, after.kept)
        assert [] == await pool.tasks()


async def test_a_snapshot_has_the_configuration_as_given() -> None:
    """It has every declared setting, and beside them the settings in force."""
    mp = Millpond(lease=timedelta(seconds=45))
    given = {
        "max_concurrent": 5,
        "max_per_key": 2,
        "backpressure": bounded(10, on_full="drop_oldest", per_key=3),
    }
    order, rate = fair_round_robin("tenant", weights={"a": 2.0}), Rate(100, per=60.0)
    pool = mp.pool("config", queue=order, rate=rate, **given)  # type: ignore[arg-type]
    async with mp:
        await asyncio.sleep(5)
        await pool.resize(7)
        snapshot = await pool.snapshot()
    expected = PoolSpec(name="config", order=order, rates=(rate,), **given)  # type: ignore[arg-type]
    assert expected == snapshot.config
    assert (7, 2, "fair_round_robin", "drop_oldest") == (
        snapshot.max_concurrent,
        snapshot.max_per_key,
        snapshot.queue,
        snapshot.backpressure,
    )
    assert ("session::config", "config", "session", None) == (
        snapshot.id,
        snapshot.name,
        snapshot.scope,
        snapshot.scope_id,
    )
    assert (45.0, 0.0, None, False) == (
        snapshot.lease,
        snapshot.created_at,
        snapshot.lanes,
        snapshot.ordered,
    )


async def test_a_snapshot_has_the_state_of_the_loop() -> None:
    """idle, scheduled, running and saturated, as the pool goes through them."""
    mp = Millpond()
    pool = mp.pool("states", max_concurrent=2)

    async def work() -> None:
        await asyncio.sleep(10)

    async def state() -> str:
        await rounds()
        return (await pool.snapshot()).state

    async with mp:
        seen = [await state()]
        await pool.submit(work, delay=100)
        seen.append(await state())
        await pool.submit(work)
        seen.append(await state())
        await pool.submit(work)
        seen.append(await state())
    assert ["idle", "scheduled", "running", "saturated"] == seen


async def test_a_snapshot_has_ages_and_times() -> None:
    """The oldest queued age, and percentiles of waiting and running, in seconds."""
    mp = Millpond()
    pool = mp.pool("ages")

    async def work() -> None:
        await asyncio.sleep(10)

    async with mp:
        assert (await pool.snapshot()).oldest_queued_age is None
        for _ in range(3):
            await pool.submit(work)
        await asyncio.sleep(15)
        snapshot = await pool.snapshot()
        assert 15.0 == pytest.approx(snapshot.oldest_queued_age, abs=0.001)
        await pool.drain()
        snapshot = await pool.snapshot()
    assert 10.0 == pytest.approx(snapshot.run_times.p50, abs=0.01)
    assert 10.0 == pytest.approx(snapshot.waits.p50, abs=0.01)
    assert 20.0 == pytest.approx(snapshot.waits.p99, abs=0.5)


async def test_a_paused_pool_and_key_show() -> None:
    """paused, paused_units and closed show the operator's orders."""
    mp = Millpond()
    pool = mp.pool("orders")
    async with mp:
        await pool.pause(key="acme")
        assert (False, ("acme",)) == _pauses(await pool.snapshot())
        await pool.pause()
        assert (True, ("acme",)) == _pauses(await pool.snapshot())
        await pool.resume(key="acme")
        await pool.resume()
        assert (False, ()) == _pauses(await pool.snapshot())


def _pauses(snapshot: object) -> tuple[bool, tuple[str, ...]]:
    return snapshot.paused, snapshot.paused_units  # type: ignore[attr-defined]


async def test_tasks_are_paged_in_the_order_they_came() -> None:
    """limit= and after= walk through all of them; status= and key= choose."""
    mp = Millpond()
    pool = mp.pool("pages", max_concurrent=1)

    @pool.task
    async def work(n: int) -> None:
        await asyncio.sleep(10)

    async with mp:
        for n in range(7):
            await work.options(key="even" if n % 2 == 0 else "odd", priority=n).submit(n)
        await asyncio.sleep(15)
        seen: list[int] = []
        after = 0
        while page := await pool.tasks(limit=3, after=after):
            assert len(page) <= 3
            seen += [task.priority for task in page]
            after = page[-1].seq
        assert list(range(7)) == seen
        assert 1 == len(await pool.tasks(status="completed"))
        (running,) = await pool.tasks(status="running")
        assert ("work", "running", 1) == (running.function, running.status, running.attempt)
        assert running.started_at == pytest.approx(10.0, abs=0.01)
        assert running.worker is not None
        assert {"odd"} == {task.key for task in await pool.tasks(key="odd")}
        with pytest.raises(ConfigError, match="queued, running"):
            await pool.tasks(status="lost")


async def test_unsettled_lists_all_queued_and_running_tasks() -> None:
    """Queued, scheduled and running tasks of every pool, and callbacks on their way."""
    mp = Millpond()
    one, two = mp.pool("one"), mp.pool("two")
    go = asyncio.Event()

    @one.task
    async def notify(outcome: Outcome) -> None:
        await go.wait()

    @one.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with mp:
        assert [] == await mp.unsettled()
        done = await work.options(on_complete=notify.bind()).submit(1.0)
        await done
        await rounds()
        running = await two.submit(work.bind(100.0))
        await rounds()
        queued = await two.submit(work.bind(1.0))
        scheduled = await two.submit(work.bind(1.0), delay=50)
        listed = {task.id: (task.function, task.status) for task in await mp.unsettled()}
        assert {
            running.id: ("work", "running"),
            queued.id: ("work", "queued"),
            scheduled.id: ("work", "queued"),
        } == {id_: listed.pop(id_) for id_ in (running.id, queued.id, scheduled.id)}
        assert [("notify", "running")] == list(listed.values())
        go.set()
        await one.drain()
        await two.drain()
        assert [] == await mp.unsettled()


async def test_unsettled_does_not_miss_tasks_that_start_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that leaves the queue while unsettled() reads it is listed once."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=3)

    @pool.task
    async def job() -> None:
        await asyncio.sleep(1000)

    async with mp:
        first = await job.submit()
        await asyncio.sleep(1)
        await pool.pause()
        second = await job.submit()
        view = internals_of(mp).runtime.view
        tasks = view.tasks

        async def read(name: str, *, status: Status, after: int) -> Any:
            page = await tasks(name, status=status, after=after)
            await pool.resume()
            await asyncio.sleep(1)
            return page

        monkeypatch.setattr(view, "tasks", read)
        assert [first.id, second.id] == [task.id for task in await mp.unsettled()]
        monkeypatch.undo()
        await pool.cancel_all(mode="interrupt")
        await pool.drain()


async def test_unsettled_lists_all_however_many() -> None:
    """It walks through every page."""
    mp = Millpond()
    pool = mp.pool("many")

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        await pool.submit_many(work.bind() for _ in range(350))
        assert 350 == len(await mp.unsettled())


async def test_why_names_what_a_task_waits_for() -> None:
    """In plain words: pauses, keys at their limit, tasks ahead, rates, timers."""
    mp = Millpond()
    pool = mp.pool("why", max_concurrent=5, max_per_key=1)
    rated = mp.pool("rated", max_concurrent=5, rate=Rate(1, per=60.0))

    @mp.task
    async def work() -> None:
        await asyncio.sleep(10)

    async with mp:
        running = await pool.submit(work.bind(), key="acme")
        waiting = await pool.submit(work.bind(), key="acme")
        later = await pool.submit(work.bind(), delay=30)
        await rounds()
        assert "running on worker" in await mp.why(running.id)
        assert "key acme at 1/1" in await mp.why(waiting.id)
        assert "scheduled for 30 s from now" in await mp.why(later.id)
        await rated.submit(work.bind())
        await rounds()
        held = await rated.submit(work.bind())
        assert "rate refills in 60 s" in await mp.why(held.id)
        await pool.pause()
        assert "pool paused" in await mp.why(waiting.id)
        await waiting.cancel()
        assert "cancelled" in await mp.why(waiting.id)


async def test_blocked_submitters_are_counted() -> None:
    """The snapshot counts a submit that waits for room until it is admitted."""
    mp = Millpond()
    pool = mp.pool("blocked", backpressure=bounded(1))

    @pool.task
    async def work() -> None: ...

    async with mp:
        await pool.pause()
        await work.submit()
        parked = [asyncio.create_task(work.submit()) for _ in range(3)]
        await rounds()
        assert 3 == (await pool.snapshot()).blocked_submitters
        await pool.resume()
        await asyncio.gather(*parked)
        assert 0 == (await pool.snapshot()).blocked_submitters


async def test_a_task_shows_its_error_and_progress() -> None:
    """TaskInfo has the last progress report and the error of the last attempt."""
    mp = Millpond()
    pool = mp.pool("info", max_concurrent=2)

    @pool.task
    async def bad() -> None:
        raise GiveUp("no good")

    @pool.task
    async def slow(ctx: Context) -> None:
        await ctx.progress(0.5, "half")
        await asyncio.sleep(100)

    async with mp:
        await (await bad.submit()).wait()
        await slow.submit()
        await asyncio.sleep(1)
        (failed,) = await pool.tasks(status="failed")
        assert failed.error is not None
        assert "no good" == failed.error.message
        (running,) = await pool.tasks(status="running")
        assert (0.5, "half") == running.progress


async def test_fail_fast_shows_as_the_policy() -> None:
    """The snapshot names the policy; None is unbounded."""
    mp = Millpond()
    fast, free = mp.pool("fast", backpressure=fail_fast()), mp.pool("free")
    async with mp:
        assert "fail_fast" == (await fast.snapshot()).backpressure
        assert (await free.snapshot()).backpressure is None
