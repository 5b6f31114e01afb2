"""Full pools: what each policy does with the next task."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from tests.pool.moments import rounds

from millpond import (
    Bulkhead,
    ConfigError,
    Context,
    Handle,
    Millpond,
    NoCapacity,
    Pool,
    PoolFull,
    Rate,
    Reason,
    Rejection,
    RejectReason,
    Retry,
    RetryLater,
    SubmitRejection,
    TaskRejected,
    bounded,
    fail_fast,
    priority,
    ring_buffer,
)
from millpond.core.admit import reason_of
from millpond.core.audit import Record, RecordKind
from millpond.core.spec import Backpressure
from millpond.errors import BatchTooLarge, PoolClosed

T = TypeVar("T")


class Counter:
    """A bounded pool whose one slot is taken by a task that runs until `open`."""

    def __init__(self, policy: Backpressure | None, **settings: Any) -> None:
        self.mp = Millpond()
        self.pool = self.mp.pool("counter", backpressure=policy, **settings)
        self.open = asyncio.Event()
        self.started: list[str] = []

        @self.pool.task
        async def work(name: str) -> str:
            self.started.append(name)
            await self.open.wait()
            return name

        self.work = work

    async def submit(self, name: str, **options: Any) -> Handle[str]:
        return await self.pool.submit(self.work.bind(name), **options)

    async def fill(self, *names: str) -> list[Handle[str]]:
        """Let one task take the slot, and queue the others behind it."""
        handles = []
        for name in ("running", *names):
            handles.append(await self.submit(name))
            await rounds()
        return handles

    async def records(self, kind: RecordKind) -> list[Record]:
        return [record async for record in self.mp.audit(self.pool) if record.kind is kind]


def later(work: Awaitable[T]) -> asyncio.Task[T]:
    return asyncio.ensure_future(work)


# Tasks that a bound counts


@pytest.mark.rows("HN-06")
async def test_a_bound_counts_waiting_tasks_and_not_running_ones() -> None:
    """bounded(2) takes two tasks behind the one that runs, and refuses the third."""
    counter = Counter(bounded(2, on_full="fail_submitter"))
    async with counter.mp:
        await counter.fill("a", "b")
        assert 3 == await counter.pool.size()
        with pytest.raises(PoolFull):
            await counter.submit("c")


@pytest.mark.rows("HN-06", "HN-08")
async def test_a_running_task_is_never_dropped() -> None:
    """However many submits a full drop_oldest pool gets, its running tasks are kept."""
    counter = Counter(bounded(1, on_full="drop_oldest"))
    async with counter.mp:
        running, *_ = await counter.fill("a")
        for n in range(10):
            await counter.submit(f"more {n}")
        assert ["running"] == await counter.mp.status([running.id])
        counter.open.set()
        assert "running" == await running


async def test_a_scheduled_task_counts_and_can_be_evicted() -> None:
    """A task submitted for later takes a place of the bound from the moment it is taken."""
    counter = Counter(bounded(1, on_full="drop_oldest"))
    async with counter.mp:
        scheduled = await counter.submit("tomorrow", delay=timedelta(days=1))
        await counter.submit("now")
        assert "rejected" == (await scheduled.refresh()).status


async def test_a_task_that_comes_back_is_neither_counted_nor_evicted() -> None:
    """A retry waits beside a full bound and outlives every eviction."""
    mp = Millpond()
    pool = mp.pool("back", backpressure=bounded(1, on_full="drop_oldest"))

    @pool.task
    async def work(ctx: Context) -> int:
        if not ctx.is_retry:
            raise RetryLater(10.0)
        return ctx.attempt

    async with mp:
        retried = await work.submit()
        await asyncio.sleep(1)
        await pool.pause()
        dropped = await work.submit()
        kept = await work.submit()
        assert ["queued", "rejected", "queued"] == await mp.status(
            [retried.id, dropped.id, kept.id]
        )
        await pool.resume()
        assert 2 == await retried


async def test_a_redriven_task_is_neither_counted_nor_evicted() -> None:
    """Redrive works on a full pool, and its tasks stay when others are dropped."""
    mp = Millpond()
    pool = mp.pool("again", backpressure=bounded(1, on_full="drop_oldest"), retry=Retry.never())

    @pool.task
    async def work() -> None:
        raise ValueError

    async with mp:
        failed = await work.submit()
        await failed.wait()
        await pool.pause()
        await work.submit()
        await pool.redrive([failed.id])
        await work.submit()
        assert ["queued"] == await mp.status([failed.id])


async def test_a_follow_up_is_never_refused_and_not_counted() -> None:
    """ctx.submit stores into a full pool, and does not use up its bound."""
    mp = Millpond()
    source = mp.pool("source")
    target = mp.pool("target", backpressure=bounded(1, on_full="fail_submitter"))

    @target.task
    async def work() -> None: ...

    @source.task
    async def fan_out(ctx: Context) -> None:
        for _ in range(5):
            await ctx.submit(work.bind(), pool=target)

    async with mp:
        await target.pause()
        await (await fan_out.submit())
        assert 5 == await target.size()
        await work.submit()
        with pytest.raises(PoolFull):
            await work.submit()


async def test_without_backpressure_a_pool_takes_everything() -> None:
    """backpressure=None is unbounded."""
    counter = Counter(None)
    async with counter.mp:
        await counter.fill(*(str(n) for n in range(500)))
        assert 501 == await counter.pool.size()


# block_submitter


@pytest.mark.rows("HN-07")
async def test_block_submitter_parks_until_there_is_room() -> None:
    """A submit to a full pool returns once a waiting task has started, and not before."""
    counter = Counter(bounded(1))
    async with counter.mp:
        await counter.fill("a")
        parked = later(counter.submit("b"))
        await asyncio.sleep(60)
        assert not parked.done()
        assert 1 == (await counter.pool.snapshot()).blocked_submitters
        assert 2 == await counter.pool.size()
        counter.open.set()
        assert "b" == await (await parked)
        assert 0 == (await counter.pool.snapshot()).blocked_submitters


@pytest.mark.rows("HN-07")
async def test_parked_submitters_are_served_first_come_first_served() -> None:
    """Ten parked submitters get in, in the order in which they came."""
    counter = Counter(bounded(1))
    async with counter.mp:
        await counter.fill("0")
        order: list[int] = []

        async def submitter(n: int) -> None:
            await counter.submit(str(n))
            order.append(n)

        parked = []
        for n in range(1, 11):
            parked.append(later(submitter(n)))
            await rounds()
        counter.open.set()
        await asyncio.gather(*parked)
        await counter.pool.drain()
    assert list(range(1, 11)) == order
    assert ["running", *map(str, range(11))] == counter.started


@pytest.mark.rows("HN-07")
async def test_no_submit_overtakes_a_blocked_submitter() -> None:
    """A submit at the moment that room appears goes behind the parked submits."""
    mp = Millpond()
    pool = mp.pool("barge", backpressure=bounded(1))
    began: list[str] = []
    came: list[asyncio.Task[Handle[None]]] = []

    @pool.task
    async def work(name: str) -> None:
        began.append(name)
        # It runs, so its place in the queue is free: the earliest moment to snatch it.
        came.append(later(pool.submit(barge.bind(f"after {name}"))))
        await asyncio.sleep(1)

    @pool.task
    async def barge(name: str) -> None:
        began.append(name)
        await asyncio.sleep(1)

    async with mp:
        await work.submit("running")
        await rounds()
        came.clear()
        await work.submit("waiting")
        parked = later(work.submit("parked"))
        await rounds()
        await parked
        await asyncio.sleep(100)
    assert ["running", "waiting", "parked"] == [name for name in began if "after" not in name]
    assert began.index("parked") < began.index("after waiting")


@pytest.mark.rows("HN-07")
@pytest.mark.parametrize("wait", [5, 5.0, timedelta(seconds=5)])
async def test_wait_bounds_how_long_a_submitter_is_blocked(wait: Any) -> None:
    """After `wait` seconds without room the submit raises PoolFull, with nothing stored."""
    counter = Counter(bounded(1))
    loop = asyncio.get_running_loop()
    async with counter.mp:
        await counter.fill("a")
        began = loop.time()
        with pytest.raises(PoolFull) as caught:
            await counter.submit("b", wait=wait)
        assert 5.0 == pytest.approx(loop.time() - began, abs=0.001)
        assert (1, 1) == (caught.value.depth, caught.value.bound)
        assert 2 == await counter.pool.size()
        assert 0 == (await counter.pool.snapshot()).blocked_submitters


async def test_wait_of_nothing_does_not_park() -> None:
    """wait=0 acts like fail_submitter."""
    counter = Counter(bounded(1))
    async with counter.mp:
        await counter.fill("a")
        with pytest.raises(PoolFull):
            await asyncio.wait_for(counter.submit("b", wait=0), 1.0)


async def test_a_cancelled_submitter_leaves_the_line_and_stores_nothing() -> None:
    """Cancelling a parked submitter stores nothing, and does not delay the next in line."""
    counter = Counter(bounded(1))
    async with counter.mp:
        await counter.fill("a")
        gone, stays = later(counter.submit("gone")), later(counter.submit("stays"))
        await rounds()
        gone.cancel()
        await rounds()
        assert 1 == (await counter.pool.snapshot()).blocked_submitters
        counter.open.set()
        assert "stays" == await (await stays)
        await counter.pool.drain()
    assert ["running", "a", "stays"] == counter.started
    assert gone.cancelled()


async def test_a_closure_stored_as_its_submitter_is_cancelled_still_runs() -> None:
    """The store accepts it at the moment of the cancel."""
    mp = Millpond()
    pool = mp.pool("closures", backpressure=bounded(1))
    ran: list[str] = []

    async def first() -> None: ...

    async def last() -> None:
        ran.append("last")

    async with mp:
        await pool.pause()
        queued = await pool.submit(first)
        parked = later(pool.submit(last))
        await rounds()
        await queued.cancel()
        while (await pool.snapshot()).blocked_submitters:  # noqa: ASYNC110 - step by step
            await asyncio.sleep(0)
        parked.cancel()
        await rounds()
        assert parked.cancelled()
        await pool.resume()
        await asyncio.sleep(10)
        snapshot = await pool.snapshot()
        assert (0, 0, 1) == (snapshot.queued, snapshot.parked, snapshot.completed)
    assert ["last"] == ran


async def test_room_made_by_a_cancel_or_purge_goes_to_blocked_submitters() -> None:
    """Each way to remove a task from the queue admits a parked submitter."""
    counter = Counter(bounded(1))
    async with counter.mp:
        _, queued = await counter.fill("a")
        parked = later(counter.submit("b"))
        await rounds()
        await queued.cancel()
        await rounds()
        assert parked.done()
        parked = later(counter.submit("c"))
        await rounds()
        assert 1 == await counter.pool.purge()
        await rounds()
        assert parked.done()


async def test_two_parked_submitters_with_one_key_make_one_task() -> None:
    """Both get the handle of the one task, and only one of them is not a duplicate."""
    counter = Counter(bounded(1))
    async with counter.mp:
        await counter.fill("a")
        one = later(counter.submit("b", idempotency_key="k"))
        two = later(counter.submit("b", idempotency_key="k"))
        await rounds()
        assert 2 == (await counter.pool.snapshot()).blocked_submitters
        counter.open.set()
        first, second = await one, await two
        assert first.id == second.id
        assert [False, True] == [first.duplicate, second.duplicate]
        assert ["b", "b"] == [await first, await second]
    assert 1 == counter.started.count("b")


async def test_a_submitter_whose_key_becomes_known_leaves_the_line() -> None:
    """After the first is admitted, the second of its key needs no room and passes the others."""
    counter = Counter(bounded(1))
    async with counter.mp:
        await counter.pool.pause()
        queued = await counter.submit("a")
        one = later(counter.submit("b", idempotency_key="k"))
        await rounds()
        between = later(counter.submit("c"))
        await rounds()
        two = later(counter.submit("b", idempotency_key="k"))
        await rounds()
        await queued.cancel()
        await rounds()
        assert [True, False, True] == [one.done(), between.done(), two.done()]
        assert (await one).id == (await two).id
        between.cancel()


async def test_a_known_key_does_not_park() -> None:
    """A submit with a key that is known is answered at once, though others wait for room."""
    counter = Counter(bounded(1))
    async with counter.mp:
        await counter.fill()
        known = await counter.submit("a", idempotency_key="k")
        parked = later(counter.submit("b"))
        await rounds()
        again = await asyncio.wait_for(counter.submit("a", idempotency_key="k"), 1.0)
        assert (known.id, True) == (again.id, again.duplicate)
        assert not parked.done()
        parked.cancel()


async def test_a_full_key_holds_up_only_its_own_submitters() -> None:
    """With per_key=1 a second task of a key parks, and those of other keys get in past it."""
    counter = Counter(bounded(10, per_key=1))
    async with counter.mp:
        await counter.fill()
        await counter.submit("a1", key="a")
        parked = later(counter.submit("a2", key="a"))
        await rounds()
        await asyncio.wait_for(counter.submit("b1", key="b"), 1.0)
        await asyncio.wait_for(counter.submit("no key"), 1.0)
        await asyncio.wait_for(counter.submit("no key either"), 1.0)
        assert not parked.done()
        counter.open.set()
        assert "a2" == await (await parked)


async def test_a_batch_in_line_is_not_overtaken_by_a_smaller_one() -> None:
    """A batch of two that waits for two places is admitted before a single task behind it."""
    counter = Counter(bounded(2))
    async with counter.mp:
        await counter.fill("a", "b")
        batch = later(counter.pool.submit_many([counter.work.bind("c"), counter.work.bind("d")]))
        await rounds()
        single = later(counter.submit("e"))
        await rounds()
        await counter.pool.cancel((await counter.pool.tasks(status="queued"))[0].id)
        await rounds()
        assert (False, False) == (batch.done(), single.done())
        counter.open.set()
        await asyncio.gather(batch, single)
        await counter.pool.drain()
    assert ["running", "b", "c", "d", "e"] == counter.started


async def test_closing_a_pool_ends_the_wait_of_blocked_submitters() -> None:
    """Parked submits raise PoolClosed when the pool closes."""
    counter = Counter(bounded(1))
    async with counter.mp:
        await counter.fill("a")
        parked = later(counter.submit("b"))
        await rounds()
        await counter.pool.close()
        with pytest.raises(PoolClosed):
            await asyncio.wait_for(parked, 1.0)


async def test_a_batch_that_can_never_fit_does_not_wait_in_line() -> None:
    """Also while others wait for room, a batch above the bound is refused at once."""
    counter = Counter(bounded(2))
    async with counter.mp:
        await counter.fill("a", "b")
        parked = later(counter.submit("c"))
        await rounds()
        with pytest.raises(BatchTooLarge):
            await asyncio.wait_for(
                counter.pool.submit_many(counter.work.bind(n) for n in "def"), 1.0
            )
        parked.cancel()


async def test_a_submitter_that_gives_up_keeps_no_room() -> None:
    """A submitter whose wait is over is refused if the free place belongs to another."""
    counter = Counter(bounded(2))
    async with counter.mp:
        await counter.fill("a", "b")
        batch = later(counter.pool.submit_many([counter.work.bind("c"), counter.work.bind("d")]))
        await rounds()
        single = later(counter.submit("e", wait=5.0))
        await rounds()
        await counter.pool.cancel((await counter.pool.tasks(status="queued"))[0].id)
        with pytest.raises(PoolFull):
            await single
        assert 2 == await counter.pool.size()
        counter.open.set()
        await batch


# The drop policies


@pytest.mark.rows("HN-08", "HN-13")
async def test_drop_oldest_rejects_the_oldest_and_takes_the_new_one() -> None:
    """The oldest waiting task becomes rejected; the new one is queued."""
    counter = Counter(bounded(2, on_full="drop_oldest"))
    async with counter.mp:
        _, oldest, older = await counter.fill("a", "b")
        newest = await counter.submit("c")
        ids = [oldest.id, older.id, newest.id]
        assert ["rejected", "queued", "queued"] == await counter.mp.status(ids)
        with pytest.raises(TaskRejected) as caught:
            await oldest
        assert "drop_oldest_queue_full" == caught.value.reason
        assert "drop_oldest" == caught.value.policy
        assert Reason.DROP_OLDEST == oldest.rejection_reason
        assert "drop_oldest" == oldest.rejection_policy


@pytest.mark.rows("HN-08")
async def test_drop_oldest_goes_by_age_and_not_by_priority() -> None:
    """Under priority() too the oldest is dropped, be it the most urgent."""
    counter = Counter(bounded(2, on_full="drop_oldest"), queue=priority())
    async with counter.mp:
        await counter.fill()
        urgent = await counter.submit("urgent", priority=100)
        dull = await counter.submit("dull", priority=-100)
        await counter.submit("new", priority=0)
        assert ["rejected", "queued"] == await counter.mp.status([urgent.id, dull.id])


@pytest.mark.rows("HN-08")
async def test_drop_oldest_per_key_drops_the_oldest_of_that_key() -> None:
    """With per_key= a full key loses its own oldest task; other keys lose none."""
    counter = Counter(bounded(10, on_full="drop_oldest", per_key=1))
    async with counter.mp:
        await counter.fill()
        other = await counter.submit("b", key="b")
        mine = await counter.submit("a1", key="a")
        await counter.submit("a2", key="a")
        assert ["queued", "rejected"] == await counter.mp.status([other.id, mine.id])


@pytest.mark.rows("HN-13", "HN-08")
async def test_an_eviction_is_one_audit_record_that_names_the_replacement() -> None:
    """The record of a drop names the task, the reason and the task that replaced it."""
    counter = Counter(bounded(1, on_full="drop_oldest"))
    async with counter.mp:
        _, oldest = await counter.fill("a")
        newest = await counter.submit("b")
        (record,) = await counter.records(RecordKind.DROP)
    assert (oldest.id, newest.id) == (record.task, record.cause)
    assert ("queued", "rejected") == (record.before, record.after)
    assert "drop_oldest_queue_full" == record.reason


@pytest.mark.rows("HN-09", "HN-13")
async def test_drop_newest_gives_a_rejected_handle() -> None:
    """The new task is rejected without an exception: its handle says so at once."""
    counter = Counter(bounded(1, on_full="drop_newest"))
    async with counter.mp:
        _, queued = await counter.fill("a")
        handle = await counter.submit("b")
        assert "rejected" == handle.status
        assert "drop_newest_queue_full" == handle.rejection_reason
        assert "drop_newest" == handle.rejection_policy
        assert handle is await handle.wait()
        with pytest.raises(TaskRejected) as caught:
            await handle
        assert "drop_newest_queue_full" == caught.value.reason
        assert ["queued"] == await counter.mp.status([queued.id])
        (record,) = await counter.records(RecordKind.DROP)
        assert (handle.id, "drop_newest_queue_full") == (record.task, record.reason)
        assert 1 == (await counter.pool.snapshot()).rejected
    assert "b" not in counter.started


@pytest.mark.rows("HN-10", "HN-13")
async def test_ring_buffer_keeps_the_newest_under_its_own_name() -> None:
    """ring_buffer(2) keeps the newest two waiting tasks and says why the others went."""
    counter = Counter(ring_buffer(2))
    async with counter.mp:
        _, *handles = await counter.fill("a", "b", "c", "d")
        ids = [handle.id for handle in handles]
        assert ["rejected", "rejected", "queued", "queued"] == await counter.mp.status(ids)
        await handles[0].wait()
        assert "ring_buffer_drop_oldest" == handles[0].rejection_reason
        assert "ring_buffer" == handles[0].rejection_policy
        assert ["ring_buffer_drop_oldest"] * 2 == [
            record.reason for record in await counter.records(RecordKind.DROP)
        ]
        assert "ring_buffer" == (await counter.pool.snapshot()).backpressure


@pytest.mark.rows("HN-13")
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "ring_buffer"])
async def test_drop_policies_never_raise(policy: str) -> None:
    """A hundred submits to a pool of one place: not one raises, and each is accounted for."""
    chosen = ring_buffer(1) if policy == "ring_buffer" else bounded(1, on_full=policy)
    counter = Counter(chosen)
    async with counter.mp:
        await counter.fill()
        handles = [await counter.submit(str(n)) for n in range(100)]
        snapshot = await counter.pool.snapshot()
        assert (1, 99) == (snapshot.queued, snapshot.rejected)
        assert 99 == len(await counter.records(RecordKind.DROP))
        counter.open.set()
        ended = await counter.mp.wait(handles)
    assert {"completed", "rejected"} == {handle.status for handle in ended}


@pytest.mark.rows("HN-13")
async def test_the_bulk_of_a_batch_is_dropped_item_by_item() -> None:
    """Under a drop policy a batch larger than the bound is taken as far as it fits."""
    newest = Counter(bounded(2, on_full="drop_newest"))
    async with newest.mp:
        await newest.fill()
        handles = await newest.pool.submit_many(newest.work.bind(str(n)) for n in range(4))
        assert ["queued", "queued", "rejected", "rejected"] == [h.status for h in handles]
    oldest = Counter(bounded(2, on_full="drop_oldest"))
    async with oldest.mp:
        await oldest.fill()
        handles = await oldest.pool.submit_many(oldest.work.bind(str(n)) for n in range(4))
        assert ["rejected", "rejected", "queued", "queued"] == [h.status for h in handles]


# fail_submitter


@pytest.mark.rows("HN-11")
async def test_fail_submitter_raises_with_the_depth_and_bound() -> None:
    """PoolFull is MILL-001 and carries pool, lane, depth and bound."""
    counter = Counter(bounded(2, on_full="fail_submitter"))
    async with counter.mp:
        await counter.fill("a", "b")
        with pytest.raises(PoolFull, match="counter") as caught:
            await counter.submit("c")
        error = caught.value
        assert ("MILL-001", "counter", None, 2, 2) == (
            error.code,
            error.pool,
            error.lane,
            error.depth,
            error.bound,
        )
        assert [] == await counter.records(RecordKind.DROP)
        assert 3 == await counter.pool.size()


@pytest.mark.rows("HN-11")
async def test_fail_submitter_names_the_key_that_is_full() -> None:
    """With per_key= the error's lane is the key, and depth and bound are the key's."""
    counter = Counter(bounded(10, on_full="fail_submitter", per_key=1))
    async with counter.mp:
        await counter.fill()
        await counter.submit("a1", key="a")
        await counter.submit("b1", key="b")
        with pytest.raises(PoolFull) as caught:
            await counter.submit("a2", key="a")
        assert ("a", 1, 1) == (caught.value.lane, caught.value.depth, caught.value.bound)


@pytest.mark.parametrize("on_full", ["fail_submitter", "block_submitter"])
async def test_a_batch_is_stored_as_one_or_not_at_all(on_full: str) -> None:
    """A batch that does not fit now stores nothing, though some of it would fit."""
    counter = Counter(bounded(3, on_full=on_full))
    async with counter.mp:
        await counter.fill("a", "b")
        with pytest.raises(PoolFull):
            await counter.pool.submit_many(
                [counter.work.bind("c"), counter.work.bind("d")], wait=1.0
            )
        assert 3 == await counter.pool.size()
        await counter.submit("e")


@pytest.mark.parametrize("on_full", ["fail_submitter", "block_submitter"])
async def test_a_batch_that_can_never_fit_is_refused_at_once(on_full: str) -> None:
    """BatchTooLarge is raised without waiting, and has the size and the bound."""
    counter = Counter(bounded(3, on_full=on_full))
    async with counter.mp:
        with pytest.raises(BatchTooLarge) as caught:
            await asyncio.wait_for(
                counter.pool.submit_many(counter.work.bind(str(n)) for n in range(4)), 1.0
            )
        assert ("counter", 4, 3) == (caught.value.pool, caught.value.size, caught.value.bound)
        assert 0 == await counter.pool.size()


async def test_known_keys_take_no_room_in_a_batch() -> None:
    """A batch of four of which two are known fits into a bound of three beside one."""
    counter = Counter(bounded(3, on_full="fail_submitter"))
    async with counter.mp:
        await counter.fill()
        await counter.submit("0", idempotency_key="0")
        calls = [counter.work.bind(str(n)).options(idempotency_key=str(n)) for n in range(3)]
        handles = await counter.pool.submit_many([*calls, calls[2]])
        assert [True, False, False, True] == [handle.duplicate for handle in handles]
        assert handles[2].id == handles[3].id


# fail_fast


@pytest.mark.rows("HN-12")
async def test_fail_fast_takes_tasks_that_can_start_and_keeps_no_queue() -> None:
    """With two slots two tasks start; the third is refused with NoCapacity (MILL-002)."""
    counter = Counter(fail_fast(), max_concurrent=2)
    async with counter.mp:
        await counter.submit("a")
        await counter.submit("b")
        with pytest.raises(NoCapacity) as caught:
            await counter.submit("c")
        assert ("MILL-002", "counter") == (caught.value.code, caught.value.pool)
        await rounds()
        assert ["a", "b"] == counter.started
        assert 0 == (await counter.pool.snapshot()).queued
        counter.open.set()
        await counter.pool.drain()
        assert "d" == await (await counter.submit("d"))


@pytest.mark.rows("HN-12")
async def test_fail_fast_counts_ready_tasks_that_have_not_started() -> None:
    """Two submits in one moment cannot both have the one slot."""
    counter = Counter(fail_fast())
    async with counter.mp:
        first, second = await asyncio.gather(
            counter.submit("a"), counter.submit("b"), return_exceptions=True
        )
        assert isinstance(first, Handle)
        assert isinstance(second, NoCapacity)


@pytest.mark.rows("HN-12")
async def test_fail_fast_refuses_while_paused() -> None:
    """A paused pool can start nothing, so it takes nothing."""
    counter = Counter(fail_fast())
    async with counter.mp:
        await counter.pool.pause()
        with pytest.raises(NoCapacity):
            await counter.submit("a")
        await counter.pool.resume()
        await counter.submit("a")


@pytest.mark.rows("HN-12")
async def test_fail_fast_looks_at_the_limit_and_the_pause_of_the_key() -> None:
    """A key at max_per_key, or paused, is refused while others start."""
    counter = Counter(fail_fast(), max_concurrent=5, max_per_key=1)
    async with counter.mp:
        await counter.submit("a1", key="a")
        with pytest.raises(NoCapacity):
            await counter.submit("a2", key="a")
        await counter.submit("b1", key="b")
        await counter.pool.pause(key="c")
        with pytest.raises(NoCapacity):
            await counter.submit("c1", key="c")


@pytest.mark.rows("HN-12")
async def test_fail_fast_looks_at_the_rate() -> None:
    """Once the burst is used up a submit is refused until the bucket has a token again."""
    counter = Counter(fail_fast(), max_concurrent=10, rate=Rate(2, per=10.0))
    counter.open.set()
    async with counter.mp:
        await counter.submit("a")
        await counter.submit("b")
        with pytest.raises(NoCapacity):
            await counter.submit("c")
        await asyncio.sleep(5.1)
        await counter.submit("d")
        with pytest.raises(NoCapacity):
            await counter.submit("e")


@pytest.mark.rows("HN-12")
async def test_fail_fast_takes_a_batch_only_if_all_of_it_can_start() -> None:
    """Three tasks for two free slots: none is taken."""
    counter = Counter(fail_fast(), max_concurrent=2)
    async with counter.mp:
        with pytest.raises(NoCapacity):
            await counter.pool.submit_many(counter.work.bind(n) for n in "abc")
        assert 0 == await counter.pool.size()
        await counter.pool.submit_many(counter.work.bind(n) for n in "ab")


# try_submit


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (bounded(1), "queue_full"),
        (bounded(1, on_full="fail_submitter"), "queue_full"),
        (bounded(1, on_full="drop_newest"), "drop_newest_queue_full"),
        (fail_fast(), "no_capacity"),
    ],
    ids=["block", "fail", "drop_newest", "fail_fast"],
)
async def test_try_submit_returns_a_refusal(policy: Backpressure, reason: str) -> None:
    """try_submit never raises and never waits: a refusal is a falsy value with its reason."""
    counter = Counter(policy)
    async with counter.mp:
        first = await counter.pool.try_submit(counter.work.bind("running"))
        assert isinstance(first, Handle)
        await rounds()
        if policy.depth is not None:
            assert await counter.pool.try_submit(counter.work.bind("queued"))
        refused = await asyncio.wait_for(counter.pool.try_submit(counter.work.bind("more")), 1.0)
        assert isinstance(refused, SubmitRejection)
        assert not refused
        assert (reason, "counter") == (refused.reason, refused.pool)
        assert isinstance(refused.reason, Reason)
        assert str(policy.on_full) == refused.policy


async def test_try_submit_returns_a_closed_pool_and_a_conflict_as_refusals() -> None:
    """try_submit returns them where submit raises."""
    counter = Counter(None)
    async with counter.mp:
        await counter.submit("a", idempotency_key="k")
        conflict = await counter.pool.try_submit(counter.work.bind("b"), idempotency_key="k")
        assert isinstance(conflict, SubmitRejection)
        assert "idempotency_conflict" == conflict.reason
        await counter.pool.close()
        closed = await counter.pool.try_submit(counter.work.bind("b"))
        assert isinstance(closed, SubmitRejection)
        assert ("closed", None) == (closed.reason, closed.policy)


async def test_one_pattern_takes_the_refusals_of_pools_and_bulkheads() -> None:
    """Either is a Rejection: falsy, with a reason that is an enum."""
    counter = Counter(None)
    gate = Bulkhead("gate", 1, max_queue=0)
    async with counter.mp:
        await counter.pool.close()
        async with gate:
            refusals = [gate.try_acquire(), await counter.pool.try_submit(counter.work.bind("a"))]
    reasons = []
    for refusal in refusals:
        match refusal:
            case Rejection(reason=reason):
                reasons.append(reason)
            case _:
                pytest.fail("both were full")
    assert [RejectReason.CONCURRENCY_LIMIT, Reason.CLOSED] == reasons
    assert not any(refusals)


async def test_the_reason_of_a_handle_is_an_enum() -> None:
    """So do the errors it raises, and a text that only a later version knows stays a text."""
    counter = Counter(bounded(1, on_full="drop_newest"))
    async with counter.mp:
        await counter.pool.pause()
        await counter.submit("a")
        dropped = await counter.submit("b")
        assert dropped.reason is Reason.DROP_NEWEST
        assert dropped.rejection_reason is Reason.DROP_NEWEST
        with pytest.raises(TaskRejected) as caught:
            await dropped
        assert isinstance(caught.value.reason, Reason)
    assert "moonshine" == reason_of("moonshine")
    assert reason_of(None) is None


async def test_try_submit_gives_a_handle_where_there_is_room() -> None:
    """A handle of try_submit is a handle like any other."""
    counter = Counter(bounded(1))
    counter.open.set()
    async with counter.mp:
        match await counter.pool.try_submit(counter.work.bind("a")):
            case Handle() as handle:
                assert "a" == await handle
            case SubmitRejection():
                pytest.fail("there was room")


async def test_try_submit_does_not_overtake_blocked_submitters() -> None:
    """While another submit is parked, try_submit is refused although a place is free."""
    mp = Millpond()
    pool: Pool = mp.pool("line", backpressure=bounded(2))

    async def work() -> None:
        await asyncio.sleep(1)

    async with mp:
        await pool.pause()
        first = await pool.submit(work)
        await pool.submit(work)
        parked = later(pool.submit_many([_call(mp)] * 2))
        await rounds()
        await first.cancel()
        await rounds()
        # One place is free, and the batch that waits needs two.
        assert not await pool.try_submit(work)
        assert not parked.done()
        parked.cancel()


def _call(mp: Millpond) -> Any:
    if "noop" not in mp.tasks:

        @mp.task
        async def noop() -> None: ...

    return mp.tasks["noop"].bind()


@pytest.mark.parametrize(
    "policy", [bounded(1, "drop_newest"), bounded(1, "drop_oldest"), ring_buffer(1)], ids=str
)
@pytest.mark.parametrize("how", ["await", "wait", "as_completed", "refresh"])
async def test_awaiting_a_dropped_handle_raises_at_once(policy: Backpressure, how: str) -> None:
    """Whether it was refused or evicted, awaiting it raises TaskRejected and nothing hangs."""
    counter = Counter(policy)
    async with counter.mp:
        await counter.pool.pause()
        both = [await counter.submit("a"), await counter.submit("b")]
        if how == "wait":
            await asyncio.wait_for(both[policy.on_full == "drop_newest"].wait(), 1)
        elif how == "as_completed":
            async for ended in counter.mp.as_completed(both):
                assert "rejected" == ended.status
                break
        elif how == "refresh":
            await both[policy.on_full == "drop_newest"].refresh()
        with pytest.raises(TaskRejected):
            await asyncio.wait_for(both[policy.on_full == "drop_newest"], 1)


@pytest.mark.rows("TR-27")
async def test_pool_full_names_the_lane_or_the_key() -> None:
    """A bound per lane counts all keys of the lane, a bound per key one key; each says which."""
    mp = Millpond()
    bound = bounded(100, "fail_submitter", per_key=2, per_lane=3)
    pool = mp.pool("orders", lanes=1, backpressure=bound)

    @pool.task(key="tenant")
    async def order(tenant: str) -> None: ...

    async with mp:
        await pool.pause()
        await order.submit("acme")
        await order.submit("acme")
        with pytest.raises(PoolFull, match="key 'acme' of pool 'orders' is full: 2 of 2") as key:
            await order.submit("acme")
        assert "acme" == key.value.lane
        await order.submit("bolt")
        with pytest.raises(PoolFull, match="lane '0' of pool 'orders' is full: 3 of 3") as lane:
            await order.submit("cord")
        assert ("0", 3, 3) == (lane.value.lane, lane.value.depth, lane.value.bound)
        with pytest.raises(BatchTooLarge):
            await pool.submit_many(order.bind(f"t{n}") for n in range(4))


@pytest.mark.rows("TR-27")
async def test_a_submitter_waits_for_room_in_its_lane() -> None:
    """block_submitter parks until a task of that lane has started."""
    mp = Millpond()
    pool = mp.pool("orders", lanes=1, backpressure=bounded(100, per_lane=1))
    ran: list[int] = []

    @pool.task(key="tenant")
    async def order(tenant: str, number: int) -> None:
        await asyncio.sleep(10)
        ran.append(number)

    async with mp:
        for number in range(4):
            await order.submit(f"tenant{number}", number)
        assert [0, 1] == ran, "the fourth waited until the third had started"
        await pool.drain()
    assert [0, 1, 2, 3] == ran


@pytest.mark.rows("TR-27")
def test_a_bound_per_lane_needs_lanes() -> None:
    """The error for an ordered pool says to bound its keys, which are its lanes."""
    mp = Millpond()
    with pytest.raises(ConfigError, match=r"per_lane=2 needs a pool with lanes$"):
        mp.pool("plain", backpressure=bounded(9, per_lane=2))
    with pytest.raises(ConfigError, match="each key of an ordered pool is a lane, use per_key"):
        mp.pool("ordered", ordered=True, backpressure=bounded(9, per_lane=2))
    with pytest.raises(ConfigError, match="per_lane=0"):
        bounded(9, per_lane=0)
