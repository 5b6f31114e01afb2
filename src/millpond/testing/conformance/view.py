"""View: reading, which changes nothing."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.core.rate import Rate
from millpond.core.spec import PoolSpec, bounded, fair_round_robin, fifo
from millpond.core.task import CALLBACKS, Call
from millpond.errors import StoreClosed
from millpond.testing.conformance.lab import A_LONG_LEASE, POOL, WORKER, Lab, completed, failed
from millpond.testing.conformance.scenario import StoreSuite


class ViewConformance(StoreSuite):
    """What can be read of a store."""

    async def test_the_unknown_is_none(self, lab: Lab) -> None:
        """A task, pool or run that is not there is None, not an error."""
        assert (None, None, None) == (
            await lab.view.task(12345),
            await lab.view.pool("nowhere"),
            await lab.view.run(12345),
        )

    async def test_an_id_that_no_task_can_have_is_unknown(self, lab: Lab) -> None:
        """However large, and without harm to the other ids of the same call."""
        await lab.declare()
        known = await lab.put()
        for odd in (1 << 63, 1 << 70, -1, -(1 << 70)):
            assert await lab.view.task(odd) is None
            assert ("queued", "unknown") == await lab.view.status([known, odd])
            assert {odd: "unknown"} == dict((await lab.view.results([odd])).missing)
            assert 0 == (await lab.control(orders.Redrive((odd,)))).count
            assert 1 == (await lab.control(orders.Cancel((odd, known)))).count
            await lab.control(orders.Redrive((known,)))

    async def test_a_page_behind_an_odd_place_has_tasks_of_its_pool_only(self, lab: Lab) -> None:
        """A place before all tasks finds all of them; one behind all of them finds none."""
        await lab.declare()
        await lab.declare("other")
        await lab.put()
        there = await lab.put(pool="other")
        for after, expected in ((-1, [there]), (-(1 << 70), [there]), (1 << 40, []), (1 << 70, [])):
            page = await lab.view.tasks("other", after=after)
            assert expected == [task.new.id for task in page.tasks]

    async def test_a_new_pool_counts_nothing(self, lab: Lab) -> None:
        """Every count is zero, nothing is paused or closed, the revision is the first."""
        await lab.declare()
        pool = await lab.pool()
        assert (0, 0, 0, 0, 0) == (
            pool.queued,
            pool.fresh,
            pool.running,
            pool.parked,
            pool.stale_settles,
        )
        assert ({}, False, False, 1) == (pool.totals, pool.paused, pool.closed, pool.revision)

    async def test_a_pool_reads_back_as_it_was_declared(self, lab: Lab) -> None:
        """The settings come back equal, every field of them."""
        spec = PoolSpec(
            name="rich",
            max_concurrent=7,
            order=fair_round_robin("tenant", {"acme": 2.5}),
            backpressure=bounded(9, "drop_oldest", per_key=3),
            max_per_key=2,
            rates=(Rate(5, per=2.5, burst=3), Rate(9, of="weight")),
            rate_per_key=Rate(1, per=0.5),
            max_callbacks=4,
        )
        await lab.control(orders.Declare(spec))
        assert spec == (await lab.pool("rich")).spec

    async def test_counts_follow_the_tasks(self, lab: Lab) -> None:
        """Queued, fresh, running and the lifetime totals agree with what happened."""
        await lab.declare(max_concurrent=2)
        await lab.put_many(5)
        first, second = await lab.lease()
        await lab.applied(completed(first), failed(second))
        await lab.one()
        pool = await lab.pool()
        assert (2, 2, 1) == (pool.queued, pool.fresh, pool.running)
        assert {"completed": 1, "failed": 1} == pool.totals

    async def test_a_read_task_is_a_copy(self, lab: Lab) -> None:
        """Changing a returned value does not change the store."""
        await lab.declare()
        task = await lab.put()
        read = await lab.task(task)
        read.status = Status.COMPLETED
        read.attempt = 99
        assert (Status.QUEUED, 0) == (await lab.status(task), (await lab.task(task)).attempt)

    async def test_a_task_read_before_does_not_move(self, lab: Lab) -> None:
        """A copy has the state of its time, not of later ones."""
        await lab.declare()
        task = await lab.put()
        read = await lab.task(task)
        await lab.run_one()
        assert Status.QUEUED == read.status

    async def test_results_of_many_tasks_come_in_one_answer(self, lab: Lab) -> None:
        """Ended ones with status, attempt and result; waiting and running ones are left out."""
        await lab.declare(max_concurrent=3)
        await lab.put_many(4)
        good, bad, running = await lab.lease()
        waiting = await lab.put()
        await lab.applied(completed(good), failed(bad))
        done, broken = await lab.task(good.fence.task), await lab.task(bad.fence.task)
        ids = (done.new.id, running.fence.task, 12345, broken.new.id, waiting)
        found = await lab.view.results(ids)
        assert {12345: "unknown"} == found.missing
        assert {
            task.new.id: (task.status, task.attempt, task.result, task.error, task.reason)
            for task in (done, broken)
        } == {
            task: (one.status, one.attempt, one.result, one.error, one.reason)
            for task, one in found.ended.items()
        }

    async def test_results_come_in_the_order_in_which_they_were_asked_for(self, lab: Lab) -> None:
        """So those who wait for several ends hear of them in the same order on every store."""
        await lab.declare(max_concurrent=3)
        await lab.put_many(3)
        held = await lab.lease()
        await lab.applied(*(completed(one) for one in held))
        ids = [one.fence.task for one in held]
        for wanted in (ids, ids[::-1], [ids[1], 12345, ids[2], ids[0]]):
            found = await lab.view.results(wanted)
            assert [task for task in wanted if task != 12345] == list(found.ended)

    async def test_workers_are_those_that_may_hold_leases(self, lab: Lab) -> None:
        """Joined and not gone."""
        await lab.join("w2")
        await lab.join("w3")
        await lab.control(orders.Deregister("w2"))
        assert frozenset({WORKER, "w3"}) == await lab.view.workers()

    async def test_ready_predicts_whether_a_lease_returns_a_task(self, lab: Lab) -> None:
        """Empty, scheduled, due, running: each has its own answer, and reading changes nothing."""
        await lab.declare(max_concurrent=1, order=fifo())

        async def ready() -> bool:
            return await lab.view.ready(POOL, WORKER, now=lab.now)

        assert not await ready()
        await lab.put(delay=5.0)
        assert not await ready()
        lab.later(5.0)
        assert await ready()
        assert await ready()
        await lab.put()
        await lab.one()
        assert not await ready()

    async def test_the_first_ready_worker_of_each_pool_is_found_at_once(self, lab: Lab) -> None:
        """In the given order; None where no task is due, or where no worker is given."""
        await lab.join("w2")
        await lab.declare(max_concurrent=1, order=fifo())
        await lab.put()
        queues = [(POOL, ["gone", "w2", WORKER]), (POOL, [WORKER, "w2"]), (POOL, [])]
        callbacks = (POOL + CALLBACKS, [WORKER, "w2"])
        found = await lab.view.first_ready([*queues, callbacks], now=lab.now)
        assert ("w2", WORKER, None, None) == found
        await lab.one()
        assert (None,) * 4 == await lab.view.first_ready([*queues, callbacks], now=lab.now)

    @pytest.mark.parametrize(
        ("situation", "expected"),
        [
            ("waiting", True),
            ("paused", False),
            ("key paused", False),
            ("held", False),
            ("key at its limit", False),
            ("rate used up", False),
            ("expired", False),
            ("closure of another", False),
            ("own closure", True),
            ("unknown function", False),
            ("known function", True),
            ("share kept for another", False),
        ],
    )
    async def test_ready_agrees_with_lease(self, lab: Lab, situation: str, expected: bool) -> None:
        """Whatever keeps a task from starting, both answers say so."""
        await self._bring_about(lab, situation)
        assert expected == await lab.view.ready(POOL, "w1", now=lab.now)
        assert expected == bool(await lab.lease(worker="w1"))

    async def _bring_about(self, lab: Lab, situation: str) -> None:
        """Let one task wait in a situation that worker w1 finds."""
        rates = (Rate(1, per=60.0),) if situation == "rate used up" else ()
        await lab.declare(max_concurrent=2, max_per_key=1, rates=rates)
        await lab.join("w1", owner="mine", functions=("work",), lease=A_LONG_LEASE)
        await lab.join("w2", owner="other", lease=A_LONG_LEASE)
        match situation:
            case "waiting" | "known function":
                await lab.put()
            case "paused":
                await lab.put()
                await lab.control(orders.Pause(POOL))
            case "key paused":
                await lab.put(key="A")
                await lab.control(orders.Pause(POOL, "A"))
            case "held":
                await lab.put()
                await lab.control(orders.Hold(POOL, 5.0))
            case "key at its limit":
                await lab.put_keys("AA")
                await lab.one()
            case "rate used up":
                await lab.put()
                await lab.one()
                await lab.put()
            case "expired":
                await lab.put(expires_in=5.0)
                lab.later(5.0)
            case "closure of another":
                await lab.put(owner="other")
            case "own closure":
                await lab.put(owner="mine")
            case "unknown function":
                await lab.put(call=Call("rare"))
            case _:
                await lab.put_many(5)
                held = await lab.lease(worker="w1")
                assert [] == await lab.lease(worker="w2")
                await lab.complete(held[0])

    async def test_pools_are_found_by_how_their_names_begin(self, lab: Lab) -> None:
        """In order of their names, without the queues of their callbacks."""
        for name in ("tenant:b:y", "tenant:a:z", "tenant:a:x", "plain"):
            await lab.declare(name=name)
        assert ("tenant:a:x", "tenant:a:z") == await lab.view.names("tenant:a:")
        assert ("plain", "tenant:a:x", "tenant:a:z", "tenant:b:y") == await lab.view.names()

    async def test_due_names_the_pools_where_something_waits(self, lab: Lab) -> None:
        """Not those that are empty, paused, held, at 0, or have only what is for later."""
        await lab.declare(max_concurrent=1, order=fifo())

        async def due() -> tuple[str, ...]:
            return await lab.view.due(now=lab.now)

        assert () == await due()
        await lab.put(delay=5.0)
        assert () == await due()
        lab.later(5.0)
        assert (POOL,) == await due()
        for stop, go in (
            (orders.Pause(POOL), orders.Resume(POOL)),
            (orders.Resize(POOL, 0), orders.Resize(POOL)),
        ):
            await lab.control(stop)
            assert () == await due()
            await lab.control(go)
            assert (POOL,) == await due()
        await lab.control(orders.Hold(POOL, 5.0))
        assert () == await due()
        lab.later(5.0)
        assert (POOL,) == await due()
        await lab.one()
        assert () == await due()

    async def test_nothing_is_ready_for_an_unknown_worker(self, lab: Lab) -> None:
        """A stranger would be fenced, so there is nothing for it."""
        await lab.declare()
        await lab.put()
        assert not await lab.view.ready(POOL, "stranger", now=lab.now)

    async def test_a_closed_store_refuses_every_verb(self, lab: Lab) -> None:
        """Closing is final and may be said twice."""
        await lab.declare()
        await lab.store.close()
        await lab.store.close()
        with pytest.raises(StoreClosed):
            await lab.submit(lab.new())
        with pytest.raises(StoreClosed):
            await lab.ask()
        with pytest.raises(StoreClosed):
            await lab.settle()
        with pytest.raises(StoreClosed):
            await lab.renew(WORKER)
        with pytest.raises(StoreClosed):
            await lab.recover()
        with pytest.raises(StoreClosed):
            await lab.control(orders.Pause(POOL))

    async def test_ready_sees_what_is_parked(self, lab: Lab) -> None:
        """Yes for a worker that knows the function, no for one that does not."""
        await lab.declare()
        await lab.join("w2", functions=("other",))
        await lab.put(call=Call("rare"))
        assert [] == await lab.lease(worker="w2")
        assert 1 == (await lab.pool()).parked
        assert await lab.view.ready(POOL, WORKER, now=lab.now)
        assert not await lab.view.ready(POOL, "w2", now=lab.now)
        assert 1 == len(await lab.lease())
        assert not await lab.view.ready(POOL, WORKER, now=lab.now)
