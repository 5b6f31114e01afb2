"""Control: cancels, redrives and forgetting."""

from __future__ import annotations

import msgspec
import pytest

from millpond.core import control as orders
from millpond.core.lifecycle import Status, Transition
from millpond.core.run import NewRun
from millpond.core.spec import bounded, lifo
from millpond.core.task import Dedupe
from millpond.errors import UnknownPool
from millpond.testing.conformance.lab import (
    POOL,
    WORKER,
    Lab,
    completed,
    failed,
    ids_of,
    names_of,
    stopped,
)
from millpond.testing.conformance.scenario import StoreSuite, mark


class ControlConformance(StoreSuite):
    """What operators ask for."""

    @pytest.mark.parametrize(
        "order",
        [orders.Pause("nowhere"), orders.Resize("nowhere", 1), orders.Purge("nowhere")],
        ids=lambda order: type(order).__name__,
    )
    async def test_an_order_for_an_undeclared_pool_is_an_error(
        self, lab: Lab, order: orders.Command
    ) -> None:
        """It raises and names the pool."""
        with pytest.raises(UnknownPool) as caught:
            await lab.control(order)
        assert "nowhere" == caught.value.pool

    # Cancel

    async def test_an_order_for_one_pool_spares_the_tasks_of_others(self, lab: Lab) -> None:
        """Who may cancel and redrive in a pool of his has no power over another's."""
        await lab.declare()
        task = await lab.put()
        assert 0 == (await lab.control(orders.Cancel((task,), of="another"))).count
        assert 1 == (await lab.control(orders.Cancel((task,), of=POOL))).count
        assert 0 == (await lab.control(orders.Redrive((task,), of="another"))).count
        assert 1 == (await lab.control(orders.Redrive((task,), of=POOL))).count

    @mark.rows("CX-T04", "CX-T75", "CX-T44")
    async def test_a_waiting_task_is_cancelled_at_once(self, lab: Lab) -> None:
        """It ends cancelled and never starts."""
        await lab.declare()
        task = await lab.put()
        assert 1 == (await lab.control(orders.Cancel((task,)))).count
        answer = await lab.task(task)
        assert (Status.CANCELLED, "cancelled") == (answer.status, answer.reason)
        assert [] == await lab.lease()

    @mark.rows("CX-T13", "CX-T76")
    async def test_a_running_task_gets_a_cancel_request_and_goes_on(self, lab: Lab) -> None:
        """A cancel leaves it running, with the request on it."""
        await lab.declare()
        task = await lab.put()
        await lab.one()
        assert 1 == (await lab.control(orders.Cancel((task,)))).count
        answer = await lab.task(task)
        assert (Status.RUNNING, True) == (answer.status, answer.cancel_requested)

    @mark.rows("TRAP-16", "CX-T05", "CX-T85")
    @pytest.mark.parametrize("running", [False, True])
    async def test_cancelling_twice_is_cancelling_once(self, lab: Lab, running: bool) -> None:
        """The second cancel touches nothing and leaves no record."""
        await lab.declare()
        task = await lab.put()
        if running:
            await lab.one()
        await lab.control(orders.Cancel((task,)))
        before = await lab.records()
        assert 0 == (await lab.control(orders.Cancel((task, task)))).count
        assert before == await lab.records()

    async def test_an_interrupt_stays_with_the_task(self, lab: Lab) -> None:
        """The answer and every renewal distinguish it from a plain cancel, while it runs."""
        await lab.declare()
        hit, found = await lab.put(), await lab.put()
        first, _ = await lab.lease(2)
        await lab.control(orders.Cancel((found,)))
        answer = await lab.control(orders.Cancel((hit,), interrupt=True))
        assert (1, (hit,), (hit,)) == (answer.count, answer.cancelled, answer.interrupted)
        assert [True, False] == [(await lab.task(t)).interrupt_requested for t in (hit, found)]
        for _ in range(2):
            renewed = await lab.renew(WORKER)
            assert ((hit, found), (hit,)) == (renewed.cancelled, renewed.interrupted)
        await lab.stop(first)
        renewed = await lab.renew(WORKER)
        assert ((found,), ()) == (renewed.cancelled, renewed.interrupted)
        ended = await lab.task(hit)
        assert (Status.CANCELLED, True) == (ended.status, ended.interrupt_requested)

    async def test_an_interrupt_may_follow_a_word_and_no_word_takes_it_back(self, lab: Lab) -> None:
        """It is news, once; what comes after it touches nothing and leaves no record."""
        await lab.declare()
        task = await lab.put()
        await lab.one()
        await lab.control(orders.Cancel((task,)))
        answer = await lab.control(orders.Cancel((task,), interrupt=True))
        assert (1, (task,), (task,)) == (answer.count, answer.cancelled, answer.interrupted)
        assert ["cancel requested", "interrupt requested"] == [
            record.detail for record in (await lab.records(task))[-2:]
        ]
        before = await lab.records()
        for interrupt in (False, True):
            answer = await lab.control(orders.Cancel((task,), interrupt=interrupt))
            assert (0, (), ()) == (answer.count, answer.cancelled, answer.interrupted)
        assert before == await lab.records()
        assert (task,) == (await lab.renew(WORKER)).interrupted

    async def test_a_waiting_task_has_nothing_to_interrupt(self, lab: Lab) -> None:
        """It ends cancelled, as by any other cancel."""
        await lab.declare()
        task = await lab.put()
        answer = await lab.control(orders.Cancel((task,), interrupt=True))
        assert (1, ()) == (answer.count, answer.interrupted)
        found = await lab.task(task)
        assert (Status.CANCELLED, False) == (found.status, found.interrupt_requested)

    @mark.rows("CX-T46", "CX-T92")
    async def test_cancelling_what_ended_changes_nothing(self, lab: Lab) -> None:
        """A completed task stays completed; an unknown id is passed over."""
        await lab.declare()
        task = await lab.put()
        await lab.run_one()
        assert 0 == (await lab.control(orders.Cancel((task, 12345)))).count
        assert Status.COMPLETED == await lab.status(task)

    @mark.rows("CX-T91", "DE-R07")
    async def test_a_cancelled_timer_starts_nothing(self, lab: Lab) -> None:
        """A scheduled task that was cancelled does not start when it would have been due."""
        await lab.declare()
        task = await lab.put(delay=5.0)
        await lab.control(orders.Cancel((task,)))
        lab.later(5.0)
        assert [] == await lab.lease()

    async def test_a_purge_cancels_what_waits(self, lab: Lab) -> None:
        """Waiting and scheduled tasks end as purged; the running one goes on."""
        await lab.declare(max_concurrent=1)
        running = await lab.put()
        await lab.one()
        waiting, scheduled = await lab.put(), await lab.put(delay=60.0)
        assert 2 == (await lab.control(orders.Purge(POOL))).count
        assert [Status.RUNNING, Status.CANCELLED, Status.CANCELLED] == await lab.statuses(
            running, waiting, scheduled
        )
        assert "purged" == (await lab.task(waiting)).reason

    async def test_a_purge_of_one_key_spares_the_others(self, lab: Lab) -> None:
        """Only what shares the key is cancelled."""
        await lab.declare()
        mine, other = await lab.put_keys("AB")
        keyless = await lab.put()
        assert 1 == (await lab.control(orders.Purge(POOL, "A"))).count
        assert [Status.CANCELLED, Status.QUEUED, Status.QUEUED] == await lab.statuses(
            mine, other, keyless
        )

    @mark.rows("CX-T07")
    async def test_cancel_all_reaches_waiting_and_running_tasks(self, lab: Lab) -> None:
        """Waiting tasks are cancelled, running ones get a request."""
        await lab.declare(max_concurrent=1)
        running, waiting = await lab.put(), await lab.put()
        await lab.one()
        assert 2 == (await lab.control(orders.CancelAll(POOL))).count
        assert Status.CANCELLED == await lab.status(waiting)
        assert (await lab.task(running)).cancel_requested

    async def test_cancel_all_may_interrupt(self, lab: Lab) -> None:
        """What runs is to be interrupted, on every page."""
        await lab.declare()
        running = [await lab.put() for _ in range(3)]
        await lab.lease(3)
        order = orders.CancelAll(POOL, limit=2, interrupt=True)
        first = await lab.control(order)
        rest = await lab.control(msgspec.structs.replace(order, page=first.more))
        assert running == [*first.interrupted, *rest.interrupted]
        assert tuple(running) == (await lab.renew(WORKER)).interrupted

    async def test_cancel_all_spares_what_came_after_its_moment(self, lab: Lab) -> None:
        """`before` is about when a task was submitted, not included."""
        await lab.declare()
        old = await lab.put()
        lab.later(5.0)
        new = await lab.put()
        assert 1 == (await lab.control(orders.CancelAll(POOL, before=lab.now))).count
        assert [Status.CANCELLED, Status.QUEUED] == await lab.statuses(old, new)

    async def test_cancel_all_of_one_key_spares_the_others(self, lab: Lab) -> None:
        """Only what shares the key is cancelled."""
        await lab.declare()
        mine, other = await lab.put_keys("AB")
        assert 1 == (await lab.control(orders.CancelAll(POOL, unit="A"))).count
        assert [Status.CANCELLED, Status.QUEUED] == await lab.statuses(mine, other)

    @mark.rows("CX-T08")
    @pytest.mark.parametrize("kind", [orders.Purge, orders.CancelAll])
    async def test_all_is_cancelled_in_pages(
        self, lab: Lab, kind: type[orders.Purge | orders.CancelAll]
    ) -> None:
        """Each page is one step; none is left out, and what came meanwhile is spared."""
        await lab.declare()
        first = [await lab.put(key=key) for key in "ABABABA"]
        order = kind(POOL, unit="A", limit=3)
        counts, later = [], []
        while True:
            answer = await lab.control(order)
            counts.append(answer.count)
            later.append(await lab.put(key="A"))
            if answer.more is None:
                break
            order = msgspec.structs.replace(order, page=answer.more)
        assert [2, 1, 1] == counts
        cancelled, queued = Status.CANCELLED, Status.QUEUED
        assert [cancelled, queued] * 3 + [cancelled] == await lab.statuses(*first)
        assert [queued] * 3 == await lab.statuses(*later)

    # Redrive

    @pytest.mark.parametrize("end", ["failed", "cancelled"])
    async def test_a_redriven_task_has_a_new_budget_of_attempts(self, lab: Lab, end: str) -> None:
        """It has a new budget of attempts, no error, and stands at the tail."""
        await lab.declare()
        task = await lab.put("again", attempts=2)
        leased = await lab.one()
        if end == "cancelled":
            await lab.control(orders.Cancel((task,), interrupt=True))
        await lab.applied(failed(leased) if end == "failed" else stopped(leased))
        await lab.put("first")
        assert 1 == (await lab.control(orders.Redrive((task,)))).count
        answer = await lab.task(task)
        assert (Status.QUEUED, 0, None, None) == (
            answer.status,
            answer.attempt,
            answer.error,
            answer.reason,
        )
        assert (False, False) == (answer.cancel_requested, answer.interrupt_requested)
        assert 3 == answer.sequence
        assert "first again" == names_of(await lab.lease())

    async def test_a_redriven_task_is_the_newest(self, lab: Lab) -> None:
        """Where the newest is first, the redriven one is."""
        await lab.declare(order=lifo(), max_concurrent=1)
        task = await lab.put("again")
        await lab.fail(await lab.one())
        await lab.put("other")
        await lab.control(orders.Redrive((task,)))
        assert "again other" == await lab.serve(2)

    async def test_a_redriven_task_may_start_at_once(self, lab: Lab) -> None:
        """The delay it was submitted with is not waited for."""
        await lab.declare()
        task = await lab.put(delay=60.0)
        await lab.control(orders.Cancel((task,)))
        await lab.control(orders.Redrive((task,)))
        assert [task] == ids_of(await lab.lease())

    async def test_a_redriven_task_can_be_purged(self, lab: Lab) -> None:
        """It waits as any other does."""
        await lab.declare()
        task = await lab.put(key="A")
        await lab.fail(await lab.one())
        await lab.control(orders.Redrive((task,)))
        assert 1 == (await lab.control(orders.Purge(POOL, "A"))).count
        assert Status.CANCELLED == await lab.status(task)

    async def test_only_failed_and_cancelled_tasks_are_redriven(self, lab: Lab) -> None:
        """Queued, running, completed, rejected and unknown ones are passed over."""
        await lab.declare(max_concurrent=1, backpressure=bounded(1, "drop_oldest"))
        done = await lab.put()
        await lab.run_one()
        running = await lab.put()
        await lab.one()
        rejected = await lab.put()
        queued = await lab.put()
        before = await lab.records()
        tasks = (done, running, rejected, queued, 12345)
        assert 0 == (await lab.control(orders.Redrive(tasks))).count
        assert before == await lab.records()

    async def test_a_closure_is_not_redriven(self, lab: Lab) -> None:
        """Its code may be gone; it is never silently run again."""
        await lab.declare()
        await lab.join("w2", owner="mine")
        closure = await lab.put(owner="mine")
        await lab.fail(await lab.one(worker="w2"))
        assert 0 == (await lab.control(orders.Redrive((closure,)))).count

    async def test_a_redrive_respects_who_has_the_key_now(self, lab: Lab) -> None:
        """A task whose idempotency key passed to another is not queued beside it."""
        await lab.declare()
        dead = await lab.put(idempotency_key="k", dedupe=Dedupe.INFLIGHT)
        await lab.fail(await lab.one())
        await lab.put(idempotency_key="k", dedupe=Dedupe.INFLIGHT)
        assert 0 == (await lab.control(orders.Redrive((dead,)))).count

    async def test_a_redriven_task_answers_for_its_key_again(self, lab: Lab) -> None:
        """While it is queued again, a submit of its key is a duplicate."""
        await lab.declare()
        dead = await lab.put(idempotency_key="k", dedupe=Dedupe.INFLIGHT)
        await lab.fail(await lab.one())
        await lab.control(orders.Redrive((dead,)))
        answer = (
            await lab.submit(lab.new(idempotency_key="k", dedupe=Dedupe.INFLIGHT))
        ).admissions[0]
        assert (dead, True) == (answer.task, answer.duplicate)

    async def test_a_redriven_task_has_its_time_again(self, lab: Lab) -> None:
        """One that expired is not too late at once, and is too late after as long as before."""
        await lab.declare()
        task = await lab.put(expires_in=5.0)
        lab.later(60.0)
        await lab.recover()
        assert Status.FAILED == await lab.status(task)
        await lab.control(orders.Redrive((task,)))
        lab.later(4.75)
        assert 0 == (await lab.recover()).moved
        lab.later(0.25)
        assert 1 == (await lab.recover()).moved
        await lab.control(orders.Redrive((task,)))
        assert [task] == ids_of(await lab.lease())

    # Retention

    async def test_pruning_forgets_what_ended_before(self, lab: Lab) -> None:
        """Successes and failures have moments of their own; what lives is never forgotten."""
        await lab.declare()
        done, dead = await lab.put(), await lab.put()
        first, second = await lab.lease()
        await lab.applied(completed(first), failed(second))
        lab.later(10.0)
        young = await lab.put()
        await lab.run_one()
        live = await lab.put()
        order = orders.Prune(POOL, completed_before=lab.now, failed_before=lab.now - 10.0)
        assert 1 == (await lab.control(order)).count
        assert await lab.view.task(done) is None
        assert [Status.FAILED, Status.COMPLETED, Status.QUEUED] == await lab.statuses(
            dead, young, live
        )

    async def test_pruning_keeps_the_totals(self, lab: Lab) -> None:
        """Lifetime counts outlive the tasks they counted."""
        await lab.declare()
        await lab.put()
        await lab.run_one()
        lab.later(1.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        assert {"completed": 1} == (await lab.pool()).totals

    async def test_what_was_forgotten_is_in_nobodys_way(self, lab: Lab) -> None:
        """Orders for a whole pool after pruning touch what is left."""
        await lab.declare()
        await lab.put(key="A")
        await lab.run_one()
        lab.later(1.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        await lab.put(key="A")
        assert 1 == (await lab.control(orders.CancelAll(POOL, unit="A"))).count
        assert 0 == (await lab.control(orders.Purge(POOL))).count

    async def test_pruning_works_in_pages(self, lab: Lab) -> None:
        """A limit bounds a call, and the oldest go first."""
        await lab.declare()
        tasks = []
        for _ in range(3):
            tasks.append(await lab.put())
            await lab.run_one()
            lab.later(1.0)
        assert 2 == (await lab.control(orders.Prune(POOL, lab.now, lab.now, limit=2))).count
        assert [None, None, tasks[2]] == [
            found.new.id if (found := await lab.view.task(task)) else None for task in tasks
        ]

    async def test_a_redriven_task_is_not_pruned(self, lab: Lab) -> None:
        """Queued again is not ended."""
        await lab.declare()
        task = await lab.put()
        await lab.fail(await lab.one())
        await lab.control(orders.Redrive((task,)))
        lab.later(10.0)
        assert 0 == (await lab.control(orders.Prune(POOL, lab.now, lab.now))).count
        assert [task] == ids_of(await lab.lease())

    async def test_a_worker_joins_once(self, lab: Lab) -> None:
        """Joining again under the same name changes nothing."""
        assert 1 == (await lab.join("w2")).count
        assert 0 == (await lab.join("w2")).count

    async def test_the_audit_of_a_redriven_task_has_all_its_events(self, lab: Lab) -> None:
        """Submit, lease, fail, redrive, lease, complete."""
        await lab.declare()
        task = await lab.put()
        await lab.fail(await lab.one())
        await lab.control(orders.Redrive((task,)))
        await lab.run_one()
        life = [
            Transition.SUBMIT,
            Transition.LEASE,
            Transition.FAIL,
            Transition.REDRIVE,
            Transition.LEASE,
            Transition.COMPLETE,
        ]
        assert life == await lab.events(task)

    # Forgetting keys and runs

    async def test_keys_outlive_their_tasks(self, lab: Lab) -> None:
        """Pruned without keys_before, a key is still answered with the id it stood for."""
        await lab.declare()
        done = await lab.put(idempotency_key="k")
        await lab.run_one()
        lab.later(10.0)
        assert 1 == (await lab.control(orders.Prune(POOL, lab.now, lab.now))).count
        answer = (await lab.submit(lab.new(idempotency_key="k"))).admissions[0]
        assert (done, True, Status.COMPLETED) == (answer.task, answer.duplicate, answer.status)

    @pytest.mark.parametrize("steps", [1, 2])
    async def test_old_keys_are_forgotten_where_asked_for(self, lab: Lab, steps: int) -> None:
        """With the prune that takes their tasks or a later one; younger keys stay."""
        await lab.declare()
        await lab.put(idempotency_key="old")
        await lab.run_one()
        lab.later(10.0)
        young = await lab.put(idempotency_key="young")
        await lab.run_one()
        keys_before = lab.now
        lab.later(10.0)
        if steps > 1:
            await lab.control(orders.Prune(POOL, lab.now, lab.now))
        await lab.control(orders.Prune(POOL, lab.now, lab.now, keys_before=keys_before))
        again = lab.new(idempotency_key="old")
        answer = await lab.submit(again, lab.new(idempotency_key="young"))
        assert [(again.id, False), (young, True)] == [
            (found.task, found.duplicate) for found in answer.admissions
        ]

    async def test_ended_runs_are_forgotten_with_the_keys(self, lab: Lab) -> None:
        """Only those over before keys_before; then their name is free for a new run."""
        await lab.declare()
        over = NewRun(id=lab.serial(), pool=POOL, name="nightly")
        await lab.submit(lab.new(run=over.id), run=over)
        await lab.run_one()
        lab.later(10.0)
        going = NewRun(id=lab.serial(), pool=POOL, name="weekly")
        await lab.submit(lab.new(run=going.id, delay=60.0), run=going)
        for keys_before in (None, lab.now - 10.0):
            await lab.control(orders.Prune(POOL, lab.now, lab.now, keys_before=keys_before))
            assert (await lab.run_of(over.id)).finished
        lab.later(10.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now, keys_before=lab.now))
        assert await lab.view.run(over.id) is None
        assert not (await lab.run_of(going.id)).finished
        again = NewRun(id=lab.serial(), pool=POOL, name="nightly")
        answer = await lab.submit(lab.new(run=again.id), run=again)
        assert answer.run is not None
        assert (again.id, False) == (answer.run.id, answer.run.resumed)
