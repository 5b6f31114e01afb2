"""Pages: what people and dashboards read of a store: tasks, lanes, runs and a pool's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.core.quantiles import Quantiles
from millpond.core.run import NewRun
from millpond.core.spec import PoolSpec, bounded, fifo, lifo
from millpond.core.task import Call
from millpond.errors import ConfigError, UnknownPool
from millpond.store.protocol import LaneView
from millpond.testing.conformance.lab import (
    CALLBACKS,
    POOL,
    Lab,
    completed,
    corrupt,
    failed,
    retried,
    stopped,
)
from millpond.testing.conformance.scenario import StoreSuite

if TYPE_CHECKING:
    from millpond.store.protocol import TaskPage


def ids(page: TaskPage) -> list[int]:
    """The ids of a page, in its order."""
    return [task.new.id for task in page.tasks]


class PagesConformance(StoreSuite):
    """Reading in pages and in figures."""

    # Where tasks are

    async def test_status_distinguishes_every_state(self, lab: Lab) -> None:
        """Queued, running, each end, removed by retention, and never heard of; in order."""
        await lab.declare(max_concurrent=5, backpressure=bounded(1, "drop_oldest"))
        gone = await lab.put()
        await lab.run_one()
        lab.later(1.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        tasks = []
        for settlement in (completed, failed, stopped, None):
            tasks.append(await lab.put())
            leased = await lab.one()
            if settlement is not None:
                await lab.applied(settlement(leased))
        tasks += [await lab.put(), await lab.put()]
        assert (
            "completed",
            "failed",
            "cancelled",
            "running",
            "rejected",
            "queued",
            "expired",
            "unknown",
        ) == await lab.view.status([*tasks, gone, 12345])
        assert () == await lab.view.status([])

    # Tasks

    async def test_tasks_are_read_in_pages(self, lab: Lab) -> None:
        """In the order of their places; the last page has nothing to go on from."""
        await lab.declare()
        tasks = [await lab.put() for _ in range(5)]
        first = await lab.view.tasks(POOL, limit=2)
        assert tasks[:2] == ids(first)
        assert first.next is not None
        second = await lab.view.tasks(POOL, after=first.next, limit=2)
        assert tasks[2:4] == ids(second)
        assert second.next is not None
        third = await lab.view.tasks(POOL, after=second.next, limit=2)
        assert (tasks[4:], None) == (ids(third), third.next)

    async def test_a_page_that_is_just_full_is_the_last(self, lab: Lab) -> None:
        """There is a next page only if something is on it."""
        await lab.declare()
        tasks = [await lab.put() for _ in range(2)]
        page = await lab.view.tasks(POOL, limit=2)
        assert (tasks, None) == (ids(page), page.next)
        assert ([], None) == (ids(await lab.view.tasks(POOL, after=99)), None)

    @pytest.mark.parametrize("status", list(Status))
    async def test_tasks_of_one_status_are_read_in_pages(self, lab: Lab, status: Status) -> None:
        """Every status can be asked for, in the order of places, whatever the order of work."""
        await lab.declare(max_concurrent=9, order=lifo(), backpressure=bounded(3, "drop_oldest"))
        expected: dict[Status, list[int]] = {status: [] for status in Status}
        for _ in range(3):
            for end in (completed, failed, stopped, None):
                task = await lab.put()
                leased = await lab.one()
                if end is not None:
                    await lab.applied(end(leased))
                expected[await lab.status(task)].append(task)
        expected[Status.REJECTED] = [await lab.put() for _ in range(3)]
        expected[Status.QUEUED] = [await lab.put() for _ in range(3)]
        first = await lab.view.tasks(POOL, status=status, limit=2)
        assert first.next is not None
        rest = await lab.view.tasks(POOL, status=status, after=first.next, limit=2)
        assert (expected[status], None) == (ids(first) + ids(rest), rest.next)
        assert {status} == {task.status for task in first.tasks + rest.tasks}

    @pytest.mark.parametrize("status", [None, Status.QUEUED, Status.RUNNING, Status.FAILED])
    @pytest.mark.parametrize("lanes", [None, 2])
    async def test_tasks_of_one_key_are_read_in_pages(
        self, lab: Lab, status: Status | None, lanes: int | None
    ) -> None:
        """A key narrows every page, also where several keys share a lane."""
        await lab.declare(lanes=lanes, max_concurrent=2)
        await lab.put_keys("abc" * 3)
        for leased in await lab.lease():
            await lab.fail(leased)
        await lab.lease()
        everything = (await lab.view.tasks(POOL)).tasks
        for key in "abc":
            page = await lab.view.tasks(POOL, status=status, key=key)
            assert [
                task.new.id
                for task in everything
                if task.new.key == key and status in (None, task.status)
            ] == ids(page)

    @pytest.mark.parametrize("status", [None, Status.QUEUED, Status.RUNNING, Status.COMPLETED])
    async def test_tasks_of_some_time_are_read_in_pages(
        self, lab: Lab, status: Status | None
    ) -> None:
        """From a moment on, and before another one: the first belongs to it, the last does not."""
        await lab.declare(max_concurrent=2)
        moments = []
        for _ in range(6):
            moments.append(lab.now)
            await lab.put()
            lab.later(1.0)
        for leased in await lab.lease():
            await lab.complete(leased)
        await lab.lease()
        everything = (await lab.view.tasks(POOL, status=status)).tasks
        for since, before in ((1, 5), (0, 3), (None, 4), (2, None)):
            first = None if since is None else moments[since]
            last = None if before is None else moments[before]
            page = await lab.view.tasks(POOL, status=status, since=first, before=last)
            assert [
                task.new.id
                for task in everything
                if (first is None or task.submitted_at >= first)
                and (last is None or task.submitted_at < last)
            ] == ids(page)
        page = await lab.view.tasks(POOL, since=moments[2], limit=2)
        assert page.next is not None
        rest = await lab.view.tasks(POOL, since=moments[2], after=page.next, limit=2)
        assert (4, None) == (len(page.tasks + rest.tasks), rest.next)

    async def test_a_redriven_task_is_at_its_new_place(self, lab: Lab) -> None:
        """It is read once, behind those that came before its redrive."""
        await lab.declare()
        first, second = await lab.put(), await lab.put()
        await lab.fail(await lab.one())
        await lab.control(orders.Redrive((first,)))
        assert [second, first] == ids(await lab.view.tasks(POOL))
        assert [second, first] == ids(await lab.view.tasks(POOL, status=Status.QUEUED))

    async def test_removed_tasks_are_on_no_page(self, lab: Lab) -> None:
        """What retention removed is passed over, and paging goes on over the gap."""
        await lab.declare()
        for _ in range(3):
            await lab.put()
            await lab.run_one()
        lab.later(1.0)
        left = await lab.put()
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        assert [left] == ids(await lab.view.tasks(POOL, limit=1))

    async def test_pools_and_their_callbacks_are_read_apart(self, lab: Lab) -> None:
        """A page is of one queue."""
        await lab.declare()
        await lab.declare("other")
        task = await lab.put(on_complete=Call("notify"))
        await lab.put(pool="other")
        await lab.run_one()
        assert [task] == ids(await lab.view.tasks(POOL))
        callback = (await lab.view.tasks(CALLBACKS)).tasks[0]
        assert f"task:{task}" == callback.new.submitted_by

    async def test_a_page_of_copies(self, lab: Lab) -> None:
        """Changing a returned value does not change the store."""
        await lab.declare()
        task = await lab.put()
        (await lab.view.tasks(POOL)).tasks[0].status = Status.FAILED
        assert Status.QUEUED == await lab.status(task)

    async def test_pages_of_what_is_not_there(self, lab: Lab) -> None:
        """An undeclared pool is an error, and so is a page of nothing."""
        await lab.declare()
        with pytest.raises(UnknownPool):
            await lab.view.tasks("nowhere")
        with pytest.raises(UnknownPool):
            await lab.view.lanes("nowhere")
        with pytest.raises(ConfigError):
            await lab.view.tasks(POOL, limit=0)

    # Lanes

    async def test_every_configured_lane_is_shown(self, lab: Lab) -> None:
        """In order, also those without work; with running, waiting and done counts."""
        await lab.declare(lanes=11, max_concurrent=2)
        await lab.put_many(12)
        first, second = await lab.lease()
        await lab.complete(first)
        lanes = await lab.view.lanes(POOL)
        assert [str(number) for number in range(11)] == [lane.lane for lane in lanes]
        shown = (
            LaneView(
                lane="0", state="idle", pending=1, processed=1, current_sequence=None, paused=False
            ),
            LaneView(
                lane="1", state="processing", pending=0, processed=0, current_sequence=1,
                paused=False,
            ),
            LaneView(
                lane="2", state="idle", pending=1, processed=0, current_sequence=None, paused=False
            ),
        )  # fmt: skip
        assert shown == lanes[:3]
        assert "1" == second.lane

    async def test_a_paused_lane_shows_as_paused(self, lab: Lab) -> None:
        """On its own or with its pool, also while its last start still runs."""
        await lab.declare(lanes=2)
        await lab.put()
        await lab.put()
        await lab.one()
        await lab.control(orders.Pause(POOL, "0"))
        lanes = await lab.view.lanes(POOL)
        assert [("paused", True, 1), ("idle", False, None)] == [
            (lane.state, lane.paused, lane.current_sequence) for lane in lanes
        ]
        await lab.control(orders.Resume(POOL, "0"))
        await lab.control(orders.Pause(POOL))
        lanes = await lab.view.lanes(POOL)
        assert [("paused", False)] * 2 == [(lane.state, lane.paused) for lane in lanes]

    async def test_a_lane_that_backs_off_is_idle(self, lab: Lab) -> None:
        """Its head waits, so it is pending and nothing is current."""
        await lab.declare(lanes=1)
        await lab.put()
        await lab.retry(await lab.one(), 5.0)
        lane = (await lab.view.lanes(POOL))[0]
        assert ("idle", 1, None, 0) == (
            lane.state,
            lane.pending,
            lane.current_sequence,
            lane.processed,
        )

    async def test_an_ordered_pool_shows_the_lanes_that_matter(self, lab: Lab) -> None:
        """Those with live tasks or a pause, by name; what has no key has no lane."""
        await lab.declare(ordered=True)
        await lab.put(key="done")
        await lab.run_one()
        await lab.put(key="b")
        await lab.put(key="a")
        await lab.put()
        await lab.control(orders.Pause(POOL, "held"))
        assert ["a", "b", "held"] == [lane.lane for lane in await lab.view.lanes(POOL)]

    async def test_a_pool_without_lanes_shows_none(self, lab: Lab) -> None:
        """Keys are no lanes unless they are strict."""
        await lab.declare()
        await lab.put(key="a")
        assert () == await lab.view.lanes(POOL)

    # Runs

    async def test_a_run_is_found_by_its_name(self, lab: Lab) -> None:
        """Within its pool, also when it is over; another name or pool is None."""
        await lab.declare()
        run = NewRun(id=lab.serial(), pool=POOL, name="nightly")
        await lab.submit(lab.new(run=run.id), run=run)
        found = await lab.view.run_named(POOL, "nightly")
        assert found is not None
        assert found == await lab.view.run(run.id)
        await lab.run_one()
        over = await lab.view.run_named(POOL, "nightly")
        assert over is not None
        assert over.finished
        assert (None, None) == (
            await lab.view.run_named(POOL, "other"),
            await lab.view.run_named("other", "nightly"),
        )

    async def test_what_is_left_of_a_run_can_be_named(self, lab: Lab) -> None:
        """Queued and running tasks and callbacks of any pool, no ended ones, up to a limit."""
        await lab.declare(max_concurrent=1)
        await lab.declare("other")
        run = NewRun(id=lab.serial(), pool=POOL)
        seed = [lab.new(run=run.id, on_complete=Call("notify")), lab.new(run=run.id)]
        await lab.submit(*seed, lab.new(run=run.id), run=run)
        follow_up = lab.new(run=run.id, pool="other")
        await lab.complete(await lab.one(), follow_up)
        running = await lab.one()
        left = await lab.view.run_tasks(run.id)
        assert ["other", POOL, POOL, CALLBACKS] == [task.new.pool for task in left]
        assert {running.fence.task, follow_up.id} < {task.new.id for task in left}
        assert left[:2] == await lab.view.run_tasks(run.id, limit=2)
        assert () == await lab.view.run_tasks(12345)

    # A pool's figures

    async def test_scheduled_tasks_are_counted_apart(self, lab: Lab) -> None:
        """Not due is scheduled: by delay or by backing off; at its moment it no longer is."""
        await lab.declare()
        await lab.put()
        await lab.retry(await lab.one(), 5.0)
        await lab.put(delay=3.0)
        await lab.put()
        pool = await lab.pool()
        assert (3, 2) == (pool.queued, pool.scheduled)
        lab.later(3.0)
        assert 1 == (await lab.pool()).scheduled
        lab.later(2.0)
        assert 0 == (await lab.pool()).scheduled

    async def test_asking_about_a_later_moment_changes_nothing(self, lab: Lab) -> None:
        """The count for a moment to come does not disturb the count for now."""
        await lab.declare(lanes=1)
        await lab.put(delay=3.0)
        later = await lab.view.pool(POOL, now=lab.now + 3.0)
        assert later is not None
        assert (0, 1) == (later.scheduled, (await lab.pool()).scheduled)
        assert [] == await lab.lease()

    @pytest.mark.parametrize("how", ["cancelled", "started", "expired"])
    async def test_what_leaves_the_queue_is_no_longer_scheduled(self, lab: Lab, how: str) -> None:
        """However it leaves."""
        await lab.declare()
        task = await lab.put(delay=3.0, expires_in=4.0)
        match how:
            case "cancelled":
                await lab.control(orders.Cancel((task,)))
            case "started":
                lab.later(3.0)
                await lab.one()
                lab.now -= 3.0
            case _:
                lab.later(4.0)
                await lab.recover()
                lab.now -= 4.0
        assert (0, 0) == ((await lab.pool()).queued, (await lab.pool()).scheduled)

    async def test_the_oldest_that_waits_is_known(self, lab: Lab) -> None:
        """When the first queued task was submitted; running and ended ones do not count."""
        await lab.declare(max_concurrent=1)
        assert (await lab.pool()).oldest_queued_at is None
        start = lab.now
        for _ in range(3):
            await lab.put()
            lab.later(1.0)
        assert start == (await lab.pool()).oldest_queued_at
        leased = await lab.one()
        assert start + 1.0 == (await lab.pool()).oldest_queued_at
        await lab.retry(leased, 60.0)
        assert start == (await lab.pool()).oldest_queued_at
        await lab.control(orders.Cancel((leased.fence.task,)))
        await lab.run_one()
        assert start + 2.0 == (await lab.pool()).oldest_queued_at
        await lab.run_one()
        assert (await lab.pool()).oldest_queued_at is None

    async def test_the_oldest_is_the_first_in_place(self, lab: Lab) -> None:
        """Whatever is served first; and a redriven task stands at the tail."""
        await lab.declare(order=lifo(), max_concurrent=1)
        start = lab.now
        first = await lab.put()
        lab.later(1.0)
        await lab.put()
        await lab.one()
        assert start == (await lab.pool()).oldest_queued_at
        await lab.control(orders.Cancel((first,)))
        lab.later(1.0)
        await lab.put()
        await lab.control(orders.Redrive((first,)))
        assert start + 2.0 == (await lab.pool()).oldest_queued_at

    async def test_rows_kept_are_counted(self, lab: Lab) -> None:
        """Ended tasks of every kind, until they are redriven or removed."""
        await lab.declare()
        for end in (completed, failed, stopped):
            await lab.put()
            await lab.applied(end(await lab.one()))
        assert 3 == (await lab.pool()).kept
        lab.later(1.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now, limit=1))
        pool = await lab.pool()
        assert (2, 1) == (pool.kept, pool.totals["completed"])

    async def test_a_task_that_was_redriven_is_not_counted_as_kept(self, lab: Lab) -> None:
        """It waits again; once it has ended again it counts once."""
        await lab.declare()
        await lab.put()
        ended = await lab.one()
        await lab.fail(ended)
        await lab.control(orders.Redrive((ended.fence.task,)))
        assert 0 == (await lab.pool()).kept
        await lab.fail(await lab.one())
        assert 1 == (await lab.pool()).kept

    async def test_of_those_that_ended_at_one_moment_the_first_in_line_is_removed_first(
        self, lab: Lab
    ) -> None:
        """Whichever ended first: which tasks a page of retention removes is the same everywhere."""
        await lab.declare(max_concurrent=3)
        await lab.put_many(3)
        held = [await lab.one() for _ in range(3)]
        for one in reversed(held):
            await lab.complete(one)
        lab.later(1.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now, limit=1))
        left = [one.fence.task for one in held[1:]]
        assert left == ids(await lab.view.tasks(POOL, limit=9))

    async def test_a_pool_knows_what_was_declared_and_when(self, lab: Lab) -> None:
        """Also when an operator's limit is in force and another declaration came."""
        await lab.declare(max_concurrent=3)
        created = lab.now
        await lab.control(orders.Resize(POOL, 7))
        lab.later(5.0)
        await lab.declare(max_concurrent=2)
        pool = await lab.pool()
        assert PoolSpec(name=POOL, max_concurrent=2, order=fifo()) == pool.declared
        assert (7, created) == (pool.spec.max_concurrent, pool.created_at)

    async def test_paused_keys_are_named(self, lab: Lab) -> None:
        """In order, until they are resumed; a paused pool is a separate field."""
        await lab.declare()
        for key in ("b", "a", "c"):
            await lab.control(orders.Pause(POOL, key))
        await lab.control(orders.Resume(POOL, "c"))
        await lab.control(orders.Resume(POOL, "never paused"))
        pool = await lab.pool()
        assert (("a", "b"), False) == (pool.paused_units, pool.paused)

    async def test_waits_and_run_times_are_measured(self, lab: Lab) -> None:
        """From due to start and from start to end, of attempts that ran to an end."""
        await lab.declare(max_concurrent=1)
        assert (Quantiles(), Quantiles()) == (
            (await lab.pool()).waits,
            (await lab.pool()).run_times,
        )
        for number in range(1, 5):
            await lab.put(delay=1.0)
            lab.later(1.0 + number)
            leased = await lab.one()
            lab.later(10.0 * number)
            await lab.applied([completed, failed, retried, stopped][number - 1](leased))
            if number == 3:
                await lab.control(orders.Cancel((leased.fence.task,)))
        pool = await lab.pool()
        assert Quantiles(p50=2.0, p90=4.0, p99=4.0, samples=4) == pool.waits
        assert Quantiles(p50=20.0, p90=40.0, p99=40.0, samples=4) == pool.run_times

    async def test_what_was_given_back_is_not_measured(self, lab: Lab) -> None:
        """An attempt that never really ran says nothing about how long they take."""
        await lab.declare()
        await lab.put()
        await lab.release(await lab.one())
        await lab.applied(corrupt(await lab.one()))
        assert 0 == (await lab.pool()).run_times.samples
