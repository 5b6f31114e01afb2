"""Wakes: whatever makes something startable says so, and says when."""

from __future__ import annotations

import math

from millpond.core import control as orders
from millpond.core.spec import ring_buffer
from millpond.core.task import Call
from millpond.testing.conformance.lab import POOL, Lab
from millpond.testing.conformance.scenario import StoreSuite, mark


class WakesConformance(StoreSuite):
    """The hints that spare workers the asking."""

    async def test_a_submit_wakes_its_pool(self, lab: Lab) -> None:
        """Work that can start now wakes for now."""
        await lab.declare()
        await lab.put()
        assert {POOL: lab.now} == lab.wakes

    async def test_a_scheduled_submit_wakes_for_its_moment(self, lab: Lab) -> None:
        """Work for later wakes for later."""
        await lab.declare()
        await lab.put(delay=5.0)
        assert {POOL: lab.now + 5.0} == lab.wakes

    async def test_the_nearest_of_several_due_times_is_reported(self, lab: Lab) -> None:
        """One wake per pool and verb, for the first thing there is to do."""
        await lab.declare()
        await lab.submit(lab.new(delay=9.0), lab.new(delay=2.0), lab.new(delay=5.0))
        assert {POOL: lab.now + 2.0} == lab.wakes

    @mark.rows("CX-T29")
    async def test_a_submit_does_not_wake_a_saturated_pool(self, lab: Lab) -> None:
        """With every slot taken there is nothing to start."""
        await lab.declare(max_concurrent=1)
        await lab.put()
        await lab.one()
        await lab.put()
        assert {} == lab.wakes

    async def test_a_submit_does_not_wake_a_paused_pool(self, lab: Lab) -> None:
        """Nothing starts before the resume, which wakes."""
        await lab.declare()
        await lab.control(orders.Pause(POOL))
        await lab.put()
        assert {} == lab.wakes
        await lab.control(orders.Resume(POOL))
        assert {POOL: lab.now} == lab.wakes

    async def test_a_pause_wakes_no_worker(self, lab: Lab) -> None:
        """There is less to start than before."""
        await lab.declare()
        await lab.put()
        for order in (orders.Pause(POOL, "A"), orders.Pause(POOL)):
            await lab.control(order)
            assert {} == lab.wakes

    @mark.rows("CX-T24")
    async def test_a_settle_wakes_a_saturated_pool(self, lab: Lab) -> None:
        """The slot that came free can be used now."""
        await lab.declare(max_concurrent=1)
        await lab.put()
        leased = await lab.one()
        await lab.put()
        await lab.complete(leased)
        assert lab.now == lab.wakes.get(POOL)

    @mark.rows("TRAP-3", "CX-T28")
    async def test_a_retry_is_woken_for_when_it_is_due(self, lab: Lab) -> None:
        """The wake of the settle or the answer of the next lease names the due time."""
        await lab.declare(max_concurrent=1)
        await lab.put()
        await lab.retry(await lab.one(), 5.0)
        assert lab.wakes.get(POOL, math.inf) <= lab.now + 5.0
        assert lab.now + 5.0 == (await lab.ask()).next_at

    async def test_a_release_wakes(self, lab: Lab) -> None:
        """Another worker can start a task that was given back."""
        await lab.declare()
        await lab.put()
        await lab.release(await lab.one())
        assert lab.now == lab.wakes.get(POOL)

    async def test_a_follow_up_wakes_its_own_pool(self, lab: Lab) -> None:
        """Work stored elsewhere wakes elsewhere."""
        await lab.declare()
        await lab.declare("other")
        await lab.put()
        await lab.complete(await lab.one(), lab.new(pool="other"))
        assert lab.now == lab.wakes.get("other")

    async def test_a_raised_limit_wakes(self, lab: Lab) -> None:
        """Slots that were not there before can be used now."""
        await lab.declare(max_concurrent=1)
        await lab.put()
        await lab.one()
        await lab.put()
        await lab.control(orders.Resize(POOL, 2))
        assert {POOL: lab.now} == lab.wakes

    async def test_a_new_declaration_wakes(self, lab: Lab) -> None:
        """Any new setting may let something start."""
        await lab.declare(max_concurrent=1)
        await lab.declare(max_concurrent=2)
        assert {POOL: lab.now} == lab.wakes

    async def test_a_resumed_key_wakes(self, lab: Lab) -> None:
        """Tasks of one key can start again."""
        await lab.declare()
        await lab.control(orders.Pause(POOL, "A"))
        await lab.put_keys("A")
        await lab.control(orders.Resume(POOL, "A"))
        assert {POOL: lab.now} == lab.wakes

    async def test_a_hold_wakes_for_its_end(self, lab: Lab) -> None:
        """A waiting worker gets the time of its next poll."""
        await lab.declare()
        await lab.control(orders.Hold(POOL, 5.0))
        assert {POOL: lab.now + 5.0} == lab.wakes

    async def test_a_redrive_wakes(self, lab: Lab) -> None:
        """A task queued again can start now."""
        await lab.declare()
        task = await lab.put()
        await lab.control(orders.Cancel((task,)))
        await lab.control(orders.Redrive((task,)))
        assert {POOL: lab.now} == lab.wakes

    async def test_recovery_wakes(self, lab: Lab) -> None:
        """A lost lease frees a slot and gives back a task."""
        await lab.declare(max_concurrent=1)
        await lab.join("w2", lease=5.0)
        await lab.put()
        await lab.one(worker="w2")
        lab.later(5.0)
        await lab.recover()
        assert lab.now == lab.wakes.get(POOL)

    async def test_burying_and_leaving_wake(self, lab: Lab) -> None:
        """A worker that goes gives back what it held."""
        await lab.declare()
        for order in (orders.DeclareDead("w2"), orders.Deregister("w2")):
            await lab.join("w2")
            await lab.put()
            await lab.one(worker="w2")
            await lab.control(order)
            assert lab.now == lab.wakes.get(POOL)
            await lab.run_one()

    async def test_a_join_wakes_where_tasks_are_parked(self, lab: Lab) -> None:
        """The new worker may know the function."""
        await lab.declare()
        await lab.join("w2", functions=("other",))
        await lab.put(call=Call("rare"))
        await lab.lease(worker="w2")
        await lab.join("w3", functions=("rare",))
        assert {POOL: lab.now} == lab.wakes
        assert 1 == len(await lab.lease(worker="w3"))

    async def test_a_join_wakes_no_worker_without_parked_tasks(self, lab: Lab) -> None:
        """A newcomer asks for itself."""
        await lab.declare()
        await lab.put()
        await lab.join("w2")
        assert {} == lab.wakes

    async def test_a_refused_batch_wakes_no_worker(self, lab: Lab) -> None:
        """Nothing came, so nothing can start."""
        await lab.declare()
        await lab.control(orders.Close(POOL))
        await lab.submit(lab.new())
        assert {} == lab.wakes

    async def test_an_eviction_does_not_wake_a_paused_pool(self, lab: Lab) -> None:
        """One came, one went, and nothing may start."""
        await lab.declare(backpressure=ring_buffer(1))
        await lab.control(orders.Pause(POOL))
        await lab.put()
        await lab.put()
        assert {} == lab.wakes

    async def test_what_one_worker_does_not_know_wakes_the_others(self, lab: Lab) -> None:
        """Given back to be parked, it may be started at once by who knows it."""
        await lab.declare()
        await lab.join("w2")
        await lab.put(call=Call("rare"))
        await lab.release(await lab.one(worker="w2"), parked=True)
        assert {POOL: lab.now} == lab.wakes
        assert 1 == len(await lab.lease())
