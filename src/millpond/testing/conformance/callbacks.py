"""Callbacks: the end of a task and the call it asks for are one step."""

from __future__ import annotations

import msgspec
import pytest

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.core.settle import Ending, Settled
from millpond.core.spec import bounded
from millpond.core.task import Call
from millpond.errors import ConfigError
from millpond.testing.conformance.lab import CALLBACKS, POOL, Lab, completed, failed, stopped
from millpond.testing.conformance.scenario import StoreSuite, mark

NOTIFY = Call("notify", b"ops")


class CallbacksConformance(StoreSuite):
    """on_complete: stored with the end of its task, in its pool's own queue."""

    async def _callback_ending(self, lab: Lab) -> Ending:
        """Lease the only callback; return its ending."""
        leased = await lab.one(pool=CALLBACKS)
        assert NOTIFY == leased.call
        return msgspec.msgpack.decode(leased.options, type=Ending)

    @pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
    async def test_the_end_of_a_task_stores_its_callback(self, lab: Lab, end: str) -> None:
        """However an attempt ends its task, the callback is there in the same step."""
        await lab.declare()
        task = await lab.put(on_complete=NOTIFY)
        leased = await lab.one()
        ways = {"completed": completed, "failed": failed, "cancelled": stopped}
        await lab.applied(ways[end](leased))
        assert lab.now == lab.wakes.get(CALLBACKS)
        ending = await self._callback_ending(lab)
        assert (task, end, 1) == (ending.task, ending.status, ending.attempt)

    async def test_the_callback_is_given_the_outcome(self, lab: Lab) -> None:
        """It gets the result as the handler returned it."""
        await lab.declare()
        await lab.put(on_complete=NOTIFY)
        await lab.complete(await lab.one(), result=b"\x00out")
        assert b"\x00out" == (await self._callback_ending(lab)).result

    async def test_a_waiting_task_that_is_cancelled_calls_back(self, lab: Lab) -> None:
        """A cancel before the start is an end like any other."""
        await lab.declare()
        task = await lab.put(on_complete=NOTIFY)
        await lab.control(orders.Cancel((task,)))
        ending = await self._callback_ending(lab)
        assert (task, "cancelled", 0) == (ending.task, ending.status, ending.attempt)

    async def test_an_evicted_task_calls_back(self, lab: Lab) -> None:
        """A task rejected after it was accepted has ended, with a reason."""
        await lab.declare(backpressure=bounded(1, "drop_oldest"))
        task = await lab.put(on_complete=NOTIFY)
        await lab.put()
        ending = await self._callback_ending(lab)
        assert (task, "rejected", "drop_oldest_queue_full") == (
            ending.task,
            ending.status,
            ending.reason,
        )

    async def test_a_task_refused_at_the_door_does_not_call_back(self, lab: Lab) -> None:
        """A task that was never accepted has no end."""
        await lab.declare(backpressure=bounded(1, "drop_newest"))
        await lab.put()
        await lab.submit(lab.new(on_complete=NOTIFY))
        assert 0 == (await lab.pool(CALLBACKS)).queued

    async def test_an_expired_task_calls_back(self, lab: Lab) -> None:
        """What time alone ends calls back too."""
        await lab.declare()
        await lab.put(on_complete=NOTIFY, expires_in=5.0)
        lab.later(5.0)
        await lab.recover()
        assert ("failed", "expired") == (
            (ending := await self._callback_ending(lab)).status,
            ending.reason,
        )

    async def test_an_exhausted_task_calls_back(self, lab: Lab) -> None:
        """A task that lost its last attempt with its worker is reported as failed."""
        await lab.declare()
        await lab.join("w2")
        await lab.put(on_complete=NOTIFY, attempts=1)
        await lab.one(worker="w2")
        await lab.control(orders.DeclareDead("w2"))
        assert "lease_lost" == (await self._callback_ending(lab)).reason

    async def test_a_retry_is_no_end(self, lab: Lab) -> None:
        """Only the terminal outcome calls back."""
        await lab.declare()
        await lab.put(on_complete=NOTIFY)
        await lab.retry(await lab.one())
        assert 0 == (await lab.pool(CALLBACKS)).queued

    async def test_a_stale_settle_submits_no_callback(self, lab: Lab) -> None:
        """A late settle of a completed task stores no second callback."""
        await lab.declare()
        await lab.put(on_complete=NOTIFY)
        leased = await lab.one()
        await lab.complete(leased)
        assert [Settled.STALE] == await lab.settle(completed(leased))
        assert 1 == (await lab.pool(CALLBACKS)).queued

    async def test_each_end_of_a_redriven_task_calls_back(self, lab: Lab) -> None:
        """A second end is a second outcome."""
        await lab.declare()
        task = await lab.put(on_complete=NOTIFY)
        await lab.fail(await lab.one())
        await lab.control(orders.Redrive((task,)))
        await lab.run_one()
        assert 2 == (await lab.pool(CALLBACKS)).queued

    async def test_callbacks_run_outside_pause_limit_and_bound(self, lab: Lab) -> None:
        """A paused, full and saturated pool still calls back."""
        await lab.declare(max_concurrent=1, backpressure=bounded(1, "fail_submitter"))
        await lab.put(on_complete=NOTIFY)
        await lab.complete(await lab.one())
        await lab.put()
        await lab.one()
        await lab.put()
        await lab.control(orders.Pause(POOL))
        assert 1 == len(await lab.lease(pool=CALLBACKS))

    async def test_callbacks_have_a_limit_of_their_own(self, lab: Lab) -> None:
        """At most `max_callbacks` of a pool run at once."""
        await lab.declare(max_callbacks=2)
        await lab.put_many(3, on_complete=NOTIFY)
        await lab.applied(*map(completed, await lab.lease()))
        assert 2 == len(await lab.lease(pool=CALLBACKS))
        spec = (await lab.pool(CALLBACKS)).spec
        assert (CALLBACKS, 2) == (spec.name, spec.max_concurrent)

    @mark.rows("CX-17")
    async def test_a_failing_callback_leaves_its_task_alone(self, lab: Lab) -> None:
        """A callback is retried as a task of its own; its ending stays the same."""
        await lab.declare()
        task = await lab.put(on_complete=NOTIFY)
        await lab.complete(await lab.one())
        await lab.retry(await lab.one(pool=CALLBACKS))
        assert Status.COMPLETED == await lab.status(task)
        assert 2 == (await lab.one(pool=CALLBACKS)).fence.attempt

    async def test_the_limit_of_callbacks_can_be_redeclared(self, lab: Lab) -> None:
        """A new max_callbacks is in force with the next lease, for what waits already."""
        await lab.declare(max_callbacks=1)
        await lab.put_many(4, on_complete=NOTIFY)
        await lab.applied(*map(completed, await lab.lease()))
        assert 1 == len(await lab.lease(pool=CALLBACKS))
        await lab.declare(max_callbacks=3)
        assert 3 == (await lab.pool(CALLBACKS)).spec.max_concurrent
        assert 2 == len(await lab.lease(pool=CALLBACKS))

    async def test_the_queue_of_callbacks_cannot_be_declared(self, lab: Lab) -> None:
        """It comes with its pool; a declaration by that name is refused by name."""
        for pool in (None, POOL):
            if pool is not None:
                await lab.declare(pool)
            with pytest.raises(ConfigError) as caught:
                await lab.declare(CALLBACKS, max_concurrent=99)
            assert ("name", CALLBACKS) == (caught.value.option, caught.value.value)
        assert 16 == (await lab.pool(CALLBACKS)).spec.max_concurrent

    async def test_pruning_a_pool_forgets_its_callbacks(self, lab: Lab) -> None:
        """Ended callbacks are pruned with their tasks, failed ones at their own time."""
        await lab.declare()
        await lab.put_many(2, on_complete=NOTIFY)
        await lab.applied(*map(completed, await lab.lease()))
        good, bad = await lab.lease(pool=CALLBACKS)
        await lab.applied(completed(good), failed(bad))
        lab.later(10.0)
        assert 3 == (await lab.control(orders.Prune(POOL, lab.now, 0.0))).count
        assert await lab.view.task(good.fence.task) is None
        assert Status.FAILED == await lab.status(bad.fence.task)
        assert 1 == (await lab.control(orders.Prune(POOL, lab.now, lab.now))).count
        assert await lab.view.task(bad.fence.task) is None
