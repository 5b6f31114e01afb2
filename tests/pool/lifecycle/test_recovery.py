"""Recovery: lost leases, late settles, poison, frozen and fenced workers, unknown functions."""

import asyncio
import logging

import msgspec
import pytest
from tests.pool.fleet import Fleet
from tests.pool.moments import result_of
from tests.pool.stores import Opened, Watched, any_pace, memory, opened, rounds  # noqa: F401

from millpond import (
    Context,
    GiveUp,
    Keep,
    Millpond,
    Observed,
    Outcome,
    Pool,
    Retry,
    TaskFailed,
)
from millpond.core.control import DeclareDead, Progress
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.protocol import Batch, Store


class Process:
    """One of several processes on a store; a test can freeze it and release its handlers."""

    def __init__(self, store: Store, name: str, *, lease: float = 30.0) -> None:
        self.name = name
        self.store = Watched(store)
        self.mp = Millpond(lease=lease)
        internals_of(self.mp).owner.make_store = lambda: self.store
        self.pool: Pool = self.mp.pool("work", max_concurrent=2, retry=Retry.constant(0.0))
        self.ran: list[tuple[int, int]] = []
        self.observed: list[Observed] = []
        self.mp.observe(self.observed.append)
        self.go = asyncio.Event()
        self.interrupted = 0

        @self.pool.task
        async def job(ctx: Context, number: int) -> str:
            self.ran.append((number, ctx.attempt))
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.interrupted += 1
                raise
            return self.name

        self.job = job

    def kinds(self) -> list[str]:
        return [str(happened.kind) for happened in self.observed]


@pytest.mark.rows("TRAP-1", "CX-16", "CX-T22", "CX-T82", "CX-T110", "DP-10")
async def test_a_late_settle_is_refused_counted_and_reported() -> None:
    """A frozen worker loses its lease; another runs the task; the late result changes nothing."""
    store = memory()
    slow, quick = Process(store, "slow"), Process(store, "quick")
    async with slow.mp:
        handle = await slow.job.submit(1)
        await rounds()
        assert [(1, 1)] == slow.ran
        slow.store.freeze()
        slow.go.set()
        async with quick.mp:
            await asyncio.sleep(60)
            assert [(1, 2)] == quick.ran
            slow.store.thaw()
            await asyncio.sleep(1)
            assert 1 == internals_of(slow.mp).runtime.counts.stale_settles
            assert "stale" in slow.kinds()
            assert 1 == (await quick.pool.snapshot()).stale_settles
            assert "running" == (await handle.refresh()).status
            quick.go.set()
            assert "quick" == await asyncio.wait_for(result_of(handle), 30)
            assert 2 == handle.attempt


@pytest.mark.rows("CX-16")
async def test_late_progress_and_late_steps_change_nothing() -> None:
    """Every write of an attempt that lost its lease is refused, not only the settle."""
    store = memory()
    one = Process(store, "one")

    async with one.mp:
        handle = await one.job.submit(1)
        await rounds()
        job = internals_of(one.mp).runtime.job_of(handle.id)
        assert job is not None
        (worker,) = internals_of(one.mp).runtime.workers
        await store.control(DeclareDead(worker.name))
        answer = await store.control(Progress(job.leased.fence, 0.5, "late"))
        assert 0 == answer.count
        info = next(i for i in await one.pool.tasks() if i.id == handle.id)
        assert None is info.progress
        one.go.set()


@pytest.mark.rows("CX-T66")
async def test_a_fenced_worker_interrupts_its_handlers_and_registers_again() -> None:
    """It learns that its leases are lost, interrupts its handlers, registers again and works on."""
    store = memory()
    one = Process(store, "one")
    async with one.mp:
        handle = await one.job.submit(1)
        await rounds()
        (worker,) = internals_of(one.mp).runtime.workers
        before = worker.name
        await store.control(DeclareDead(worker.name))
        await asyncio.sleep(11)
        assert 1 == one.interrupted
        assert before != worker.name
        assert 1 == internals_of(one.mp).runtime.counts.leases_lost
        assert [(1, 1), (1, 2)] == one.ran
        one.go.set()
        assert "one" == await asyncio.wait_for(result_of(handle), 30)
        assert "one" == await (await one.job.submit(2))


async def test_a_handler_that_ignores_a_lost_lease_does_not_change_the_next_attempt() -> None:
    """The same worker runs the task again; the end of the old handler does not settle it."""
    store = memory()
    mp = Millpond()
    internals_of(mp).owner.make_store = lambda: Watched(store)
    pool = mp.pool("work", max_concurrent=5, retry=Retry.constant(0.0))
    gates = [asyncio.Event(), asyncio.Event()]
    runs = 0

    @pool.task
    async def stubborn(ctx: Context) -> str:
        nonlocal runs
        mine = runs
        runs += 1
        while not gates[mine].is_set():
            try:
                await gates[mine].wait()
            except asyncio.CancelledError:
                assert ctx.lease_lost.is_set()
        return f"run {mine}"

    async with mp:
        handle = await stubborn.submit()
        await rounds()
        (worker,) = internals_of(mp).runtime.workers
        await store.control(DeclareDead(worker.name))
        await asyncio.sleep(20)
        assert 2 == runs
        gates[0].set()
        await rounds()
        assert (1, 1) == (internals_of(mp).runtime.counts.stale_settles, len(worker.jobs))
        gates[1].set()
        assert "run 1" == await asyncio.wait_for(result_of(handle), 5)


async def test_a_worker_that_cannot_renew_stops_before_another_can_start() -> None:
    """Its handlers are interrupted before the lease can expire: no two run at one time."""
    store = memory()
    slow, quick = Process(store, "slow", lease=12.0), Process(store, "quick", lease=12.0)
    loop = asyncio.get_running_loop()
    async with slow.mp:
        await slow.job.submit(1)
        await rounds()
        slow.store.freeze()
        frozen_at = loop.time()
        async with quick.mp:
            while not slow.interrupted:
                await asyncio.sleep(0.1)
                assert loop.time() < frozen_at + 12
            assert [] == quick.ran
            await asyncio.sleep(20)
            assert [(1, 2)] == quick.ran
            slow.store.thaw()
            quick.go.set()
            await asyncio.sleep(20)
            assert 1 == (await quick.pool.snapshot()).completed


@pytest.mark.rows("CX-20", "DP-09")
async def test_a_renewed_lease_is_not_recovered() -> None:
    """A handler that runs for ten leases keeps its task; it renews once per third of one."""
    store = memory()
    one, two = Process(store, "one"), Process(store, "two")
    async with one.mp, two.mp:
        handle = await one.job.submit(1)
        await asyncio.sleep(300)
        assert (1, 0) == (len(one.ran) + len(two.ran), one.interrupted + two.interrupted)
        assert 32 >= one.store.verbs["renew"]
        one.go.set()
        two.go.set()
        await asyncio.wait_for(result_of(handle), 30)
        assert 1 == handle.attempt


async def test_a_long_task_in_a_private_store_keeps_its_lease(opened: Opened) -> None:  # noqa: F811
    """No other process uses the store, so no lease expires and none is renewed."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def long() -> str:
        await asyncio.sleep(100_000)
        return "done"

    async def closure() -> str:
        await asyncio.sleep(100_000)
        return "closure"

    async with mp:
        for handle, expected in (
            (await long.submit(), "done"),
            (await pool.submit(closure), "closure"),
        ):
            assert (expected, 1) == (await handle, handle.attempt)
        assert 0 == opened.last.verbs["renew"]


@pytest.mark.rows("TRAP-2", "DE-R18")
async def test_a_task_that_kills_its_worker_again_and_again_ends_failed() -> None:
    """A lost lease charges an attempt: the task runs at most `attempts` times."""
    store = memory()
    one = Process(store, "one")
    async with one.mp:
        handle = await one.job.submit(1)
        for _ in range(5):
            await asyncio.sleep(11)
            (worker,) = internals_of(one.mp).runtime.workers
            await store.control(DeclareDead(worker.name))
        await asyncio.sleep(11)
        assert [(1, 1), (1, 2), (1, 3)] == one.ran
        with pytest.raises(TaskFailed) as caught:
            await asyncio.wait_for(result_of(handle), 30)
        assert ("lease_lost", 3) == (caught.value.reason, caught.value.attempts)


@pytest.mark.rows("CX-T68")
async def test_a_task_cancelled_while_its_worker_died_ends_cancelled() -> None:
    """No worker runs it again."""
    store = memory()
    one, two = Process(store, "one"), Process(store, "two")
    async with one.mp:
        handle = await one.job.submit(1)
        await rounds()
        await handle.cancel()
        one.store.freeze()
        async with two.mp:
            await asyncio.sleep(60)
            assert ("cancelled", []) == ((await handle.refresh()).status, two.ran)
            one.store.thaw()
            await asyncio.sleep(1)


async def test_a_cancel_from_another_process_arrives_by_the_next_renewal() -> None:
    """ctx.cancelled is set at the latest when the worker renews."""
    store = memory()
    one, two = Process(store, "one"), Process(store, "two")
    internals_of(two.mp).owner.work = False
    heard = asyncio.Event()

    @one.pool.task
    async def listens(ctx: Context) -> str:
        await ctx.cancelled.wait()
        heard.set()
        return "heard"

    async with one.mp, two.mp:
        handle = await listens.submit()
        await rounds()
        there = await two.mp.handle(handle.id)
        assert await there.cancel()
        await asyncio.wait_for(heard.wait(), 10.1)
        assert "heard" == await handle


@pytest.mark.rows("CX-T113", "CX-T114", "CX-T109")
async def test_a_stopping_worker_gives_back_unfinished_tasks() -> None:
    """Uncharged and at once: another worker takes them, and the stopping one claims no others."""
    store = memory()
    one, two = Process(store, "one"), Process(store, "two")
    two.go.set()
    async with two.mp:
        await rounds()
        async with one.mp:
            handles = [await one.job.submit(n) for n in range(2)]
            await rounds()
            assert 2 == len(one.ran)
            waiting = await one.job.submit(3)
        assert 2 == one.interrupted
        assert 2 == len(one.ran)
        there = [await two.mp.handle(h.id) for h in (*handles, waiting)]
        assert ["two"] * 3 == [await asyncio.wait_for(result_of(h), 30) for h in there]
        assert [1, 1, 1] == [h.attempt for h in there]


async def test_grace_lets_handlers_finish() -> None:
    """Within the grace they end by themselves; after it the worker interrupts them."""
    mp = Millpond(work=False)
    pool = mp.pool("work", max_concurrent=2)
    ended: list[float] = []

    @pool.task
    async def job(seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append(seconds)

    async with mp:
        async with mp.worker(grace=10):
            quick, slow = await job.submit(5), await job.submit(50)
            await rounds()
        assert ([5], "completed", "queued") == (
            ended,
            (await quick.refresh()).status,
            (await slow.refresh()).status,
        )
        assert 0 == slow.attempt


async def test_a_closure_of_a_dead_process_fails_as_stale() -> None:
    """No other process runs it, and its handle shows the failure."""
    store = memory()
    one, two = Process(store, "one"), Process(store, "two")

    async def closure() -> str:
        await asyncio.sleep(1000)
        return "never"

    async with two.mp, one.mp:
        running = await one.pool.submit(closure)
        await rounds()
        one.store.freeze()
        waiting_id = running.id
        await asyncio.sleep(60)
        found = await two.mp.handle(waiting_id)
        assert ("failed", "stale") == (found.status, found.reason)
        one.store.thaw()


# Unknown functions


@pytest.mark.rows("TRAP-17")
async def test_an_unknown_function_is_parked_and_fails_after_a_day(
    opened: Opened,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is reported by name, costs no attempt, blocks no other task, and fails after a day."""
    mp = Millpond(keep=Keep(failed=3 * 86_400))
    pool = mp.pool("work", max_concurrent=1)

    @pool.task
    async def known() -> str:
        return "fine"

    async with mp:
        gone = NewTask(id=42, pool="work", call=Call("renamed_away", b"{}"))
        internals_of(mp).runtime.answers.apply(await opened.last.submit((Batch(tasks=(gone,)),)))
        await rounds()
        assert "fine" == await (await known.submit())
        snapshot = await pool.snapshot()
        assert (1, 1, 0) == (snapshot.parked, snapshot.queued, snapshot.running)
        assert 1 == internals_of(mp).runtime.counts.unknown_functions
        assert any("renamed_away" in record.message for record in caplog.records)
        assert "renamed_away" in await mp.why(42)
        handle = await mp.handle(42)
        await asyncio.sleep(86_000)
        assert ("queued", 0) == ((await handle.refresh()).status, handle.attempt)
        await asyncio.sleep(800)
        assert ("failed", "unknown_function") == ((await handle.refresh()).status, handle.reason)


@pytest.mark.rows("TRAP-17")
async def test_a_worker_that_knows_the_function_unparks_it() -> None:
    """It registers, and the task runs, with all its attempts."""
    store = memory()
    old, new = Millpond(), Millpond()
    for mp in (old, new):
        internals_of(mp).owner.make_store = lambda: Watched(store)
    old.pool("work")
    pool = new.pool("work")

    @pool.task
    async def fresh(name: str) -> str:
        return name

    async with old:
        payload = internals_of(fresh.bind("here")).encode()
        task = NewTask(id=43, pool="work", call=payload)
        await store.submit((Batch(tasks=(task,)),))
        await asyncio.sleep(100)
        assert 1 == (await old.get_pool("work").snapshot()).parked
        async with new:
            handle = await new.handle(43, of=fresh)
            assert "here" == await asyncio.wait_for(result_of(handle), 10)
            assert 1 == handle.attempt


@pytest.mark.rows("TRAP-17")
async def test_an_unknown_function_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each worker that serves the pool logs it once, however many tasks call it, per opening."""
    fleet = Fleet()
    submitter, other = fleet.millpond(work=False), fleet.millpond(work=True)
    pool = submitter.pool("work")
    other.pool("work")

    @pool.task
    async def renamed_away(number: int) -> None: ...

    @other.task
    async def known() -> None: ...

    def logged() -> list[str]:
        return [one.message for one in caplog.records if "renamed_away" in one.message]

    async with submitter:
        await pool.submit_many(renamed_away.each(range(3)))
        for times in (1, 2):
            async with other:
                await asyncio.sleep(5)
                assert times == len(logged())
                assert 1 == other.counts.unknown_functions
    assert "its tasks in pool work wait" in logged()[0]


async def test_an_alias_keeps_stored_tasks_running_after_a_rename(opened: Opened) -> None:  # noqa: F811
    """aliases=[old name] answers for tasks stored under it."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task(aliases=["old_name"])
    async def new_name(number: int) -> int:
        return number + 1

    async with mp:
        call = Call("old_name", internals_of(new_name.bind(1)).encode().payload)
        internals_of(mp).runtime.answers.apply(
            await opened.last.submit((Batch(tasks=(NewTask(id=9, pool="work", call=call),)),))
        )
        assert 2 == await (await mp.handle(9, of=new_name))


# Records that cannot be read


@pytest.mark.rows("TR-11")
@pytest.mark.parametrize("payload", [b"", b"{", b"[1,2]", b"\xff\xfe", b'{"number": 7'])
async def test_a_corrupt_payload_is_set_aside_counted_and_reported(
    payload: bytes,
    opened: Opened,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It fails as corrupt without a charged run, keeps the error, and the pool goes on."""
    mp = Millpond()
    pool = mp.pool("work")
    outcomes: list[Outcome] = []

    @mp.task
    async def note(outcome: Outcome) -> None:
        outcomes.append(outcome)

    @pool.task
    async def job(number: int) -> int:
        return number

    async with mp:
        broken = NewTask(
            id=5,
            pool="work",
            call=Call("job", payload),
            on_complete=internals_of(note.bind()).encode_callback(),
        )
        with caplog.at_level(logging.ERROR):
            internals_of(mp).runtime.answers.apply(
                await opened.last.submit((Batch(tasks=(broken,)),))
            )
            handle = await (await mp.handle(5)).wait()
        assert ("failed", "corrupt", 0) == (handle.status, handle.reason, handle.attempt)
        assert handle.error is not None
        assert "Unreadable" in handle.error.type
        assert handle.error.message
        assert 1 == internals_of(mp).runtime.counts.corrupt
        assert any(record.__dict__.get("task") == 5 for record in caplog.records)
        assert 3 == await (await job.submit(3))
        await pool.drain()
        assert ["corrupt"] == [outcome.reason for outcome in outcomes]


async def test_options_that_cannot_be_read_do_not_stop_the_task(opened: Opened) -> None:  # noqa: F811
    """A corrupt retry policy counts as none; the result of the handler still counts."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job() -> None:
        raise GiveUp("no")

    @pool.task
    async def flaky(ctx: Context) -> str:
        if not ctx.is_retry:
            raise OSError
        return "ok"

    async with mp:
        tasks = tuple(
            NewTask(
                id=n,
                pool="work",
                call=Call(name, internals_of(job.bind()).encode().payload),
                options=b"\xc1",
            )
            for n, name in ((1, "job"), (2, "flaky"))
        )
        internals_of(mp).runtime.answers.apply(await opened.last.submit((Batch(tasks=tasks),)))
        one, two = [await (await mp.handle(n)).wait(timeout=60) for n in (1, 2)]
        assert ["failed", "completed"] == [one.status, two.status]


async def test_a_callback_with_a_corrupt_outcome_fails_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not retried, although callbacks have twenty-five attempts."""
    mp = Millpond()
    pool = mp.pool("work")

    @mp.task
    async def note(outcome: Outcome) -> None: ...

    @pool.task
    async def job() -> None: ...

    async with mp:
        monkeypatch.setattr(msgspec.msgpack, "encode", lambda _: b"\xc1")
        handle = await job.options(on_complete=note.bind()).submit()
        await handle.wait()
        await rounds()
        (callback,) = (await internals_of(mp).runtime.view.tasks("work~callbacks")).tasks
        assert ("failed", "corrupt", 1) == (
            callback.status,
            callback.reason,
            internals_of(mp).runtime.counts.corrupt,
        )


@pytest.mark.rows("CX-02", "CX-T88", "CX-T78")
async def test_turns_of_the_loop_do_not_change_a_running_task(any_pace: Opened) -> None:  # noqa: F811
    """No other worker gets it, and its record does not change."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=5)
    runs = 0
    go = asyncio.Event()

    @pool.task
    async def job() -> None:
        nonlocal runs
        runs += 1
        await go.wait()

    @pool.task
    async def quick() -> None: ...

    async with mp:
        handle = await job.submit()
        await rounds()
        (before,) = await pool.tasks(status="running")
        for _ in range(20):
            await (await quick.submit())
            for worker in internals_of(mp).runtime.workers:
                worker.look_everywhere()
        (after,) = await pool.tasks(status="running")
        assert (before, 1) == (after, runs)
        go.set()
        await handle


async def test_a_worker_opened_after_a_gap_renews_its_leases() -> None:
    """A process may have no worker for long; the next worker still renews."""
    store = memory()
    mp = Millpond(work=False, lease=6.0)
    internals_of(mp).owner.make_store = lambda: Watched(store)
    pool = mp.pool("work")

    @pool.task
    async def job(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    async with mp:
        async with mp.worker():
            assert "done" == await (await job.submit(1))
        await asyncio.sleep(100)
        async with mp.worker():
            handle = await job.submit(60)
            assert "done" == await handle
            assert 1 == handle.attempt
        assert 0 == mp.counts.leases_lost
