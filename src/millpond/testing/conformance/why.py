"""Why: what a store knows about a task that does not run, and the sentence for it."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.rate import Rate
from millpond.core.spec import Order, fair_round_robin, fifo, lifo, priority
from millpond.core.task import Call
from millpond.core.why import Facts, explain
from millpond.testing.conformance.lab import A_LONG_LEASE, POOL, WORKER, Lab
from millpond.testing.conformance.scenario import StoreSuite


async def facts(lab: Lab, task: int) -> Facts:
    """What the store knows of a task that must be there."""
    found = await lab.view.why(task, now=lab.now)
    assert found is not None
    return found


async def why(lab: Lab, task: int) -> str:
    """Return the sentence that people read."""
    return explain(await facts(lab, task), lab.now)


class WhyConformance(StoreSuite):
    """Every reason a task has not to run."""

    async def test_a_task_that_could_start_says_so(self, lab: Lab) -> None:
        """Nothing holds it: no worker has leased it yet."""
        await lab.declare()
        assert "ready: starts when a worker asks next" == await why(lab, await lab.put())

    async def test_a_running_task_says_where_and_for_how_long(self, lab: Lab) -> None:
        """And whether a cancel was requested."""
        await lab.declare()
        task = await lab.put()
        await lab.one()
        lab.later(3.0)
        assert "running on worker worker for 3 s" == await why(lab, task)
        await lab.control(orders.Cancel((task,)))
        assert "running on worker worker for 3 s; cancel requested" == await why(lab, task)
        await lab.control(orders.Cancel((task,), interrupt=True))
        assert "running on worker worker for 3 s; interrupted" == await why(lab, task)

    async def test_a_task_that_ended_says_how(self, lab: Lab) -> None:
        """Its status, and the reason where its handler had no say."""
        await lab.declare()
        done, dead, purged = [await lab.put() for _ in range(3)]
        await lab.complete(await lab.one())
        await lab.fail(await lab.one())
        await lab.control(orders.Purge(POOL))
        assert ["completed", "failed", "cancelled: purged"] == [
            await why(lab, task) for task in (done, dead, purged)
        ]

    async def test_an_unknown_task_has_no_reasons(self, lab: Lab) -> None:
        """There is nothing to explain."""
        assert await lab.view.why(12345, now=lab.now) is None

    async def test_pauses_and_holds_are_reasons(self, lab: Lab) -> None:
        """Of the pool and of the key, each on its own."""
        await lab.declare()
        task = await lab.put(key="acme")
        await lab.control(orders.Pause(POOL))
        assert "pool paused" == await why(lab, task)
        await lab.control(orders.Pause(POOL, "acme"))
        await lab.control(orders.Resume(POOL))
        assert "key acme paused" == await why(lab, task)
        await lab.control(orders.Resume(POOL, "acme"))
        await lab.control(orders.Hold(POOL, 5.0))
        await lab.control(orders.Hold(POOL, 300.0, "acme"))
        ends = "(resume ends that)"
        both = f"pool held back for 5 s {ends}; key acme held back for 5 min {ends}"
        assert both == await why(lab, task)
        lab.later(5.0)
        assert f"key acme held back for 5 min {ends}" == await why(lab, task)
        lab.later(295.0)
        assert "ready: starts when a worker asks next" == await why(lab, task)

    async def test_a_limit_is_a_reason(self, lab: Lab) -> None:
        """The key's, the pool's, and both; with what is ahead and when the rate refills."""
        await lab.declare(max_concurrent=2, max_per_key=2, rates=(Rate(2, per=6.0),))
        await lab.put_many(2, key="acme")
        await lab.lease()
        task = await lab.put(key="acme")
        other = await lab.put(key="bolt")
        assert "key acme at 2/2; pool at 2/2; rate refills in 3 s" == await why(lab, task)
        assert "pool at 2/2; 1 ahead; rate refills in 3 s" == await why(lab, other)

    async def test_the_rate_of_a_key_is_a_reason(self, lab: Lab) -> None:
        """Its own, where the pool has none."""
        await lab.declare(rate_per_key=Rate(1, per=4.0))
        await lab.put(key="acme")
        await lab.run_one()
        task = await lab.put(key="acme")
        assert "rate refills in 4 s" == await why(lab, task)

    async def test_a_later_start_is_a_reason(self, lab: Lab) -> None:
        """Scheduled or backing off, with what went wrong."""
        await lab.declare()
        task = await lab.put(delay=12.0, attempts=3)
        assert "scheduled for 12 s from now" == await why(lab, task)
        lab.later(12.0)
        await lab.retry(await lab.one(), 4.0)
        assert "retry in 4 s (attempt 1 of 3 failed: again)" == await why(lab, task)

    async def test_a_parked_task_names_its_function(self, lab: Lab) -> None:
        """No registered worker knows it."""
        await lab.control(orders.Deregister(WORKER))
        await lab.declare()
        await lab.join("w2", functions=("other",))
        task = await lab.put(call=Call("resize"))
        assert "no live worker" == await why(lab, task)
        await lab.lease(worker="w2")
        assert "parked: no worker knows function 'resize'" == await why(lab, task)

    async def test_a_missing_worker_is_a_reason(self, lab: Lab) -> None:
        """Of all, or of the one process that can run a closure."""
        await lab.declare()
        await lab.join("w2", owner="mine", lease=A_LONG_LEASE)
        closure = await lab.put(owner="mine")
        answer = await facts(lab, closure)
        assert (1, "mine") == (answer.workers, answer.closure_of)
        task = await lab.put()
        assert 2 == (await facts(lab, task)).workers
        await lab.control(orders.Deregister(WORKER))
        await lab.control(orders.Deregister("w2"))
        assert "no live worker" == await why(lab, task)

    async def test_a_lane_names_what_is_before(self, lab: Lab) -> None:
        """What runs, or waits, at its head; and a pause of the lane."""
        await lab.declare(lanes=1)
        await lab.put_many(3)
        task = await lab.put()
        assert "behind sequence 1 of its lane; 3 ahead" == await why(lab, task)
        await lab.run_one()
        await lab.one()
        assert "behind sequence 2 of its lane; pool at 1/1; 1 ahead" == await why(lab, task)
        await lab.control(orders.Pause(POOL, "0"))
        assert (await why(lab, task)).startswith("lane 0 paused; ")

    @pytest.mark.parametrize(
        ("order", "ahead"),
        [
            (fifo(), [0, 1, 2, 3]),
            (lifo(), [3, 2, 1, 0]),
            (priority(), [1, 2, 0, 3]),
            (fair_round_robin(), [0, 0, 1, 1]),
        ],
        ids=lambda case: str(case.kind) if isinstance(case, Order) else "",
    )
    async def test_what_is_ahead_follows_the_order(
        self, lab: Lab, order: Order, ahead: list[int]
    ) -> None:
        """Of the whole pool, or of its share where keys take turns."""
        await lab.declare(order=order)
        tasks = [
            await lab.put(priority=one, share=share, key=share)
            for one, share in ((1, "a"), (0, "b"), (2, "a"), (0, "b"))
        ]
        assert ahead == [(await facts(lab, task)).ahead for task in tasks]

    async def test_only_what_may_start_is_ahead(self, lab: Lab) -> None:
        """Not what is scheduled, parked, running or over."""
        await lab.declare()
        await lab.join("w2", functions=("other",))
        await lab.put(call=Call("rare"))
        await lab.lease(worker="w2")
        await lab.put(delay=5.0)
        await lab.control(orders.Pause(POOL))
        await lab.put()
        task = await lab.put()
        assert "pool paused; 1 ahead" == await why(lab, task)
        assert 1 == (await facts(lab, task)).ahead
