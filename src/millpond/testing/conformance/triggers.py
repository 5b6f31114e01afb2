"""Triggers: what a store must know of them, and the pools of the system that events are in."""

from __future__ import annotations

from millpond.core import control as orders
from millpond.core.admit import Reason
from millpond.core.event import EVENTS, TRIGGERS, TriggerSpec
from millpond.core.spec import PoolSpec, fifo
from millpond.core.task import Dedupe
from millpond.testing.conformance.lab import POOL, Lab
from millpond.testing.conformance.scenario import StoreSuite, mark

ROUTER = TRIGGERS + "router"
ON = TriggerSpec(on=("hook", "other"), into=POOL, task="handle", key_from="payload.source")


async def declare(lab: Lab, name: str = ROUTER, trigger: TriggerSpec | None = ON) -> int:
    """Declare a pool of the system; return its revision."""
    spec = PoolSpec(name=name, max_concurrent=4, order=fifo(), trigger=trigger)
    return (await lab.control(orders.Declare(spec))).revision


class TriggersConformance(StoreSuite):
    """A trigger is declared with its pool, and found by the dispatcher."""

    @mark.rows("HN-22")
    async def test_a_trigger_is_returned_as_declared(self, lab: Lab) -> None:
        """By the name of its pool, which begins as those of all triggers do."""
        await lab.declare()
        await declare(lab, EVENTS, None)
        await declare(lab)
        await declare(lab, TRIGGERS + "second", TriggerSpec(on=("hook",), into="elsewhere"))
        assert (ROUTER, TRIGGERS + "second") == await lab.view.names(TRIGGERS)
        assert ON == (await lab.pool(ROUTER)).declared.trigger
        assert (await lab.pool(EVENTS)).declared.trigger is None

    async def test_a_trigger_that_changes_is_a_new_revision(self, lab: Lab) -> None:
        """Under a backlog, too: what it is for has nothing to do with what waits."""
        assert [1, 1] == [await declare(lab), await declare(lab)]
        await lab.put(pool=ROUTER)
        assert 2 == await declare(lab, trigger=TriggerSpec(on=(), into=POOL))
        view = await lab.pool(ROUTER)
        assert view.declared.trigger is not None
        assert ((), 1) == (view.declared.trigger.on, view.queued)

    @mark.rows("HN-22")
    async def test_an_event_makes_one_task_however_often_its_steps_are_done(self, lab: Lab) -> None:
        """Emit, dispatch and delivery, each done twice: every key finds the task made before."""
        await lab.declare()
        await declare(lab, EVENTS, None)
        await declare(lab)
        event = await lab.put(pool=EVENTS, idempotency_key="hook#1")
        found = []
        for _ in range(2):
            again = await lab.submit(lab.new(pool=EVENTS, idempotency_key="hook#1"))
            assert (event, True) == (again.admissions[0].task, again.admissions[0].duplicate)
            for pool, key in ((ROUTER, "hook#1"), (POOL, "router#hook#1")):
                answer = await lab.submit(lab.new(pool=pool, idempotency_key=key))
                found.append(answer.admissions[0].task)
        assert found[:2] == found[2:]

    async def test_the_key_of_a_delivery_outlives_its_records(self, lab: Lab) -> None:
        """Events and receipts are forgotten before the keys: a replay finds the same task."""
        await lab.declare()
        await declare(lab)
        task = await lab.put(idempotency_key="router#hook#1")
        await lab.complete(await lab.one(pool=POOL))
        lab.later(10.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now, keys_before=lab.now - 100.0))
        assert await lab.view.task(task) is None
        holder = await lab.view.holder(POOL, "router#hook#1", run=None, dedupe=Dedupe.FOREVER)
        assert task == holder
        again = await lab.submit(lab.new(idempotency_key="router#hook#1"))
        assert (task, True) == (again.admissions[0].task, again.admissions[0].duplicate)

    async def test_dead_letters_of_a_trigger_are_redriven(self, lab: Lab) -> None:
        """As those of any pool; a pause of it is a pause of its own pool."""
        await declare(lab)
        task = await lab.put(pool=ROUTER, idempotency_key="hook#1")
        await lab.fail(await lab.one(pool=ROUTER))
        await lab.control(orders.Pause(ROUTER))
        assert 1 == (await lab.control(orders.Redrive((task,), ROUTER))).count
        assert [] == await lab.lease(pool=ROUTER)
        await lab.control(orders.Resume(ROUTER))
        assert task == (await lab.one(pool=ROUTER)).fence.task

    async def test_an_undeclared_pool_refuses(self, lab: Lab) -> None:
        """So a delivery learns that its pool is missing."""
        assert Reason.UNKNOWN_POOL == (await lab.refusal(lab.new(pool="nowhere"))).reason
