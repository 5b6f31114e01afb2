"""States: every transition as a user sees it, crashes at every point, and bulk recovery."""

import asyncio
from itertools import pairwise

import pytest
from tests.pool.moments import result_of
from tests.pool.stores import Watched, any_pace, memory, rounds  # noqa: F401 - a fixture

from millpond import (
    Context,
    Millpond,
    Pool,
    Retry,
    WouldDeadlock,
    bounded,
    ring_buffer,
)
from millpond.core.lifecycle import LIFECYCLE, Status, Transition
from millpond.pool.internals import internals_of
from millpond.store.protocol import Store


class Worker:
    """One process over a shared store, with a pool of short tasks."""

    def __init__(self, store: Store, *, lease: float = 30.0) -> None:
        self.store = Watched(store)
        self.mp = Millpond(lease=lease)
        internals_of(self.mp).owner.make_store = lambda: self.store
        self.pool: Pool = self.mp.pool("work", max_concurrent=4, retry=Retry.constant(0.0))
        self.ran: list[int] = []
        self.seconds = 0.0

        @self.pool.task
        async def job(number: int) -> int:
            self.ran.append(number)
            await asyncio.sleep(self.seconds)
            return number

        self.job = job


@pytest.mark.rows("CX-01", "CX-T01", "CX-T36", "CX-T80", "CX-T10", "CX-T15", "CX-T73", "CX-02")
@pytest.mark.usefixtures("any_pace")
async def test_a_task_makes_only_the_transitions_of_the_lifecycle_table() -> None:
    """The audit records of tasks with every end are transitions of the table, in order."""
    mp = Millpond(work=False)
    pool = mp.pool("work", max_concurrent=2, backpressure=ring_buffer(4), retry=Retry.constant(0.1))

    @pool.task
    async def job(ctx: Context, fate: str) -> str:
        if fate == "fail" or (fate == "retry" and not ctx.is_retry):
            raise OSError
        if fate == "wait":
            await asyncio.sleep(1000)
        return fate

    async with mp:
        evicted = await job.submit("evicted")
        assert "queued" == evicted.status
        handles = {fate: await job.submit(fate) for fate in ("ok", "fail", "retry", "wait")}
        async with mp.worker():
            assert "ok" == await handles["ok"]
            assert "retry" == await handles["retry"]
            await handles["fail"].wait()
            await rounds()
            assert 1 == (await pool.snapshot()).running
        assert "queued" == (await handles["wait"].refresh()).status
        await handles["wait"].cancel()
        await pool.redrive([handles["wait"]])
        async with mp.worker():
            await rounds()
            await handles["wait"].cancel("interrupt")
            await (await handles["wait"].refresh()).wait()
        assert {
            "ok": "completed",
            "fail": "failed",
            "retry": "completed",
            "wait": "cancelled",
        } == {fate: str(handle.status) for fate, handle in handles.items()}
        assert "rejected" == (await evicted.refresh()).status
        snapshot = await pool.snapshot()
        # It was cancelled twice: totals count every end.
        assert (2, 1, 2, 1, 0, 0) == (
            snapshot.completed,
            snapshot.failed,
            snapshot.cancelled,
            snapshot.rejected,
            snapshot.running,
            snapshot.queued,
        )
        records = [record async for record in mp.audit(pool) if record.event is not None]
    moves = [(record.before, record.event, record.after) for record in records]
    assert {(before, event, after) for (before, event), after in LIFECYCLE.items()} >= set(moves)
    for task in {record.task for record in records}:
        life = [record for record in records if record.task == task]
        assert life[0].before is None
        assert all(one.after is two.before for one, two in pairwise(life))
    assert {
        Transition.SUBMIT,
        Transition.LEASE,
        Transition.COMPLETE,
        Transition.RETRY,
        Transition.FAIL,
        Transition.RELEASE,
        Transition.EVICT,
        Transition.CANCEL,
        Transition.REDRIVE,
    } == {record.event for record in records}
    running = [record for record in records if Status.RUNNING in (record.before, record.after)]
    assert {Transition.LEASE} == {r.event for r in running if r.after is Status.RUNNING}
    # A record that leaves running names the worker that claimed or settled the task.
    assert all(record.worker is not None for record in running)
    arrows = {(before, after) for (before, _), after in LIFECYCLE.items()}
    assert not any(before in (Status.COMPLETED, Status.REJECTED) for before, _ in arrows)


@pytest.mark.rows("CX-T14")
async def test_a_task_is_running_until_its_outcome_is_stored() -> None:
    """The handler has returned, but its settle has not reached the store: status is running."""
    one = Worker(memory())
    one.seconds = 1.0
    async with one.mp:
        handle = await one.job.submit(1)
        await asyncio.sleep(0.5)
        one.store.freeze()
        await asyncio.sleep(5)
        assert "running" == (await handle.refresh()).status
        assert 1 == (await one.pool.snapshot()).running
        one.store.thaw()
        assert 1 == await handle
        assert ("completed", 0) == (handle.status, (await one.pool.snapshot()).running)


@pytest.mark.rows("CX-T94", "TRAP-6")
@pytest.mark.parametrize("verbs", range(2, 16))
async def test_after_a_crash_at_any_point_the_pool_goes_on(verbs: int) -> None:
    """A process dies after any number of verbs, and another one finishes its work."""
    store = memory()
    first, second = Worker(store), Worker(store)
    first.seconds = 0.5
    async with first.mp:
        handles = [await first.job.submit(n) for n in range(6)]
        for _ in range(100):
            if first.store.total >= verbs:
                break
            await asyncio.sleep(0.05)
        first.store.freeze()
        async with second.mp:
            there = [await second.mp.handle(handle.id) for handle in handles]
            ended = [await handle.wait(timeout=200) for handle in there]
            assert ["completed"] * 6 == [str(handle.status) for handle in ended]
            assert {1, 2} >= {handle.attempt for handle in ended}
            snapshot = await second.pool.snapshot()
            assert (6, 0, 0) == (snapshot.completed, snapshot.running, snapshot.queued)
            first.store.thaw()
            await asyncio.sleep(1)
            assert 6 == (await second.pool.snapshot()).completed


@pytest.mark.rows("CX-T69", "CX-T63", "CX-T65")
async def test_one_pass_recovers_many_lost_leases_and_no_others() -> None:
    """The tasks of a dead process run elsewhere; settled tasks and those of others do not."""
    store = memory()
    dead, alive = Worker(store), Worker(store)
    dead.seconds = alive.seconds = 100.0
    async with dead.mp:
        await dead.pool.resize(200)
        quick = await dead.mp.pool("other").submit(rounds)
        await quick
        handles = await dead.pool.submit_many(dead.job.each(range(100)))
        await rounds()
        assert 100 == len(dead.ran)
        dead.store.freeze()
        async with alive.mp:
            mine = await alive.job.submit(1000)
            await rounds()
            assert [1000] == alive.ran
            before = alive.store.verbs["recover"]
            await asyncio.sleep(40)
            assert 101 == len(alive.ran)
            assert 40 >= alive.store.verbs["recover"] - before
            assert 1 == (await mine.refresh()).attempt
            there = [await alive.mp.handle(handle.id) for handle in handles]
            ended = [await handle.wait(timeout=300) for handle in there]
            assert {2} == {handle.attempt for handle in ended}
            assert 1 == (await mine.wait(timeout=300)).attempt
            assert ["completed"] == await alive.mp.status([quick.id])
            lost = [r async for r in alive.mp.audit() if r.kind == "lease_expired"]
            assert {handle.id for handle in handles} == {record.task for record in lost}
            assert (100, 1) == (len(lost), len({record.at for record in lost}))
            dead.store.thaw()


@pytest.mark.rows("CX-T108", "CX-T88")
async def test_a_claim_skips_tasks_that_are_claimed_due_later_or_gone() -> None:
    """Two workers on one store share the work; each task runs once, and not before it is due."""
    store = memory()
    one, two = Worker(store), Worker(store)
    one.seconds = two.seconds = 1.0
    async with one.mp, two.mp:
        await one.pool.pause()
        handles = await one.pool.submit_many(one.job.each(range(20)))
        later = await one.job.options(delay=50).submit(99)
        for handle in handles[::4]:
            await handle.cancel()
        await one.pool.resume()
        await asyncio.sleep(45)
        expected = [n for n in range(20) if n % 4]
        assert expected == sorted(one.ran + two.ran)
        await later.wait(timeout=30)
        assert 1 == (one.ran + two.ran).count(99)


@pytest.mark.rows("CX-T08")
@pytest.mark.usefixtures("any_pace")
async def test_cancel_all_of_thousands_does_not_stop_half_way() -> None:
    """Everything that waits is cancelled, with one answer that counts it."""
    mp = Millpond()
    pool = mp.pool("work")

    @pool.task
    async def job() -> None: ...

    async with mp:
        await pool.pause()
        await pool.submit_many(job.bind() for _ in range(5_000))
        assert 5_000 == await pool.cancel_all()
        assert (0, 5_000) == (await pool.size(), (await pool.snapshot()).cancelled)


@pytest.mark.rows("CX-T32")
@pytest.mark.usefixtures("any_pace")
async def test_waking_the_loop_changes_no_setting() -> None:
    """However often it is woken, limits, pause and revision stay as they are."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=3)

    @pool.task
    async def job() -> None: ...

    async with mp:
        await pool.resize(7)
        before = await pool.snapshot()
        for _ in range(50):
            await job.submit()
            for worker in internals_of(mp).runtime.workers:
                worker.look_everywhere()
        await pool.drain()
        after = await pool.snapshot()
        assert (before.revision, before.max_concurrent, before.config, before.paused) == (
            after.revision,
            after.max_concurrent,
            after.config,
            after.paused,
        )


@pytest.mark.rows("TRAP-9")
@pytest.mark.usefixtures("any_pace")
async def test_two_blocked_submitters_with_one_key_make_one_task() -> None:
    """Both wait for room; the first to get it stores the task, the other is its duplicate."""
    mp = Millpond()
    pool = mp.pool("work", backpressure=bounded(1))

    @pool.task
    async def job(name: str) -> str:
        return name

    async with mp:
        await pool.pause()
        await job.submit("full")
        both = [
            asyncio.create_task(job.options(idempotency_key="k").submit("same")) for _ in range(2)
        ]
        await rounds()
        assert 2 == (await pool.snapshot()).blocked_submitters
        await pool.resume()
        one, two = await asyncio.gather(*both)
        assert (one.id, {False, True}) == (two.id, {one.duplicate, two.duplicate})
        await pool.drain()
        assert 2 == (await pool.snapshot()).completed


@pytest.mark.rows("TRAP-14")
@pytest.mark.usefixtures("any_pace")
async def test_a_task_that_waits_for_its_own_full_pool_raises_would_deadlock() -> None:
    """Submitting to the pool one runs in, and waiting, raises where it could never end."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=1)

    @pool.task
    async def child() -> str:
        return "child"

    @pool.task
    async def parent() -> str:
        handle = await pool.submit(child)
        try:
            await handle
        except WouldDeadlock:
            return "refused"
        return "it ended"

    async with mp:
        assert "refused" == await asyncio.wait_for(result_of(await parent.submit()), 60)
        await pool.drain()
        assert 2 == (await pool.snapshot()).completed


@pytest.mark.rows("TRAP-12")
async def test_keyless_tasks_of_fresh_clients_spread_over_the_lanes() -> None:
    """Each task comes from a new process, and still the lanes are used evenly."""
    store = memory()
    lanes: list[str | None] = []
    for _ in range(12):
        mp = Millpond(work=False)
        internals_of(mp).owner.make_store = lambda: Watched(store)
        pool = mp.pool("lanes", lanes=4)

        @pool.task
        async def job() -> None: ...

        async with mp:
            lanes.append((await job.submit()).lane)
    assert [3, 3, 3, 3] == [lanes.count(str(lane)) for lane in range(4)]
