"""Settle: how attempts end, each only with its current fence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.core import control as orders
from millpond.core.admit import Reason
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settled, Settlement
from millpond.core.task import Call
from millpond.errors import UnknownPool
from millpond.testing.conformance.lab import (
    POOL,
    WORKER,
    Lab,
    completed,
    corrupt,
    failed,
    names_of,
    released,
    retried,
    stopped,
    with_fence,
)
from millpond.testing.conformance.scenario import StoreSuite, mark

ENDS = pytest.mark.parametrize(
    "end", [completed, retried, failed, stopped, released, corrupt], ids=lambda end: end.__name__
)
End = Callable[[Leased], Settlement]


class SettleConformance(StoreSuite):
    """The result of a settle."""

    @mark.rows("CX-T15", "CX-T73")
    async def test_completed_is_final_and_keeps_the_result(self, lab: Lab) -> None:
        """The slot is free, the result can be read, and the task never runs again."""
        await lab.declare(max_concurrent=1)
        task = await lab.put()
        leased = await lab.one()
        lab.later(2.0)
        await lab.complete(leased, result=b"\x00out\xff")
        answer = await lab.task(task)
        assert (Status.COMPLETED, b"\x00out\xff") == (answer.status, answer.result)
        assert (lab.now, None, None) == (answer.finished_at, answer.worker, answer.reason)
        assert 0 == (await lab.pool()).running
        assert [] == await lab.lease()

    @mark.rows("CX-T37")
    async def test_failed_is_final_and_keeps_the_error(self, lab: Lab) -> None:
        """A failure ends the task, whatever attempts were left."""
        await lab.declare()
        task = await lab.put(attempts=9)
        await lab.fail(await lab.one())
        answer = await lab.task(task)
        assert (Status.FAILED, b"broken", None) == (answer.status, answer.error, answer.reason)
        assert [] == await lab.lease()

    @mark.rows("CX-T74", "CX-T93")
    async def test_a_retry_waits_out_its_delay(self, lab: Lab) -> None:
        """The task is queued again, due after the delay and not an instant before."""
        await lab.declare()
        task = await lab.put()
        await lab.retry(await lab.one(), 8.0)
        found = await lab.task(task)
        assert (Status.QUEUED, lab.now + 8.0, b"again") == (found.status, found.due, found.error)
        lab.later(7.75)
        answer = await lab.ask()
        assert ((), lab.now + 0.25) == (answer.leased, answer.next_at)
        lab.later(0.25)
        assert 2 == (await lab.one()).fence.attempt

    @mark.rows("DE-T10", "DP-T12")
    async def test_a_failing_task_runs_as_often_as_it_has_attempts(self, lab: Lab) -> None:
        """The retry after the last attempt is a failure, whichever side asked for it."""
        await lab.declare()
        task = await lab.put(attempts=3)
        for attempt in (1, 2, 3):
            leased = await lab.one()
            assert attempt == leased.fence.attempt
            await lab.retry(leased)
        assert Status.FAILED == await lab.status(task)
        assert Transition.FAIL == (await lab.events(task))[-1]

    async def test_a_retry_that_spends_nothing_costs_no_attempt(self, lab: Lab) -> None:
        """A handler that asks to be called later may do so without end."""
        await lab.declare()
        await lab.put(attempts=1)
        for _ in range(3):
            leased = await lab.one()
            assert 1 == leased.fence.attempt
            await lab.retry(leased, spend=False)

    @mark.rows("CX-T109")
    async def test_a_released_task_is_not_charged(self, lab: Lab) -> None:
        """Given back is recorded as a run and costs no attempt."""
        await lab.declare()
        task = await lab.put(attempts=2)
        await lab.release(await lab.one())
        answer = await lab.task(task)
        assert (Status.QUEUED, 0, 1) == (answer.status, answer.attempt, answer.runs)
        assert 1 == len(await lab.lease())

    @mark.rows("TR-22")
    async def test_the_only_attempt_that_began_is_not_given_back(self, lab: Lab) -> None:
        """At most once: giving back such an attempt ends its task as failed: stopped."""
        await lab.declare()
        task = await lab.put(attempts=1)
        await lab.release(await lab.one())
        answer = await lab.task(task)
        assert (Status.FAILED, "stopped", 1) == (answer.status, answer.reason, answer.attempt)
        assert not await lab.lease()
        await lab.control(orders.Redrive((task,)))
        assert 1 == (await lab.one()).fence.attempt

    @mark.rows("TR-22")
    async def test_the_only_attempt_goes_back_if_its_handler_never_began(self, lab: Lab) -> None:
        """Nothing was done yet, so nothing would be done twice."""
        await lab.declare()
        task = await lab.put(attempts=1)
        await lab.release(await lab.one(), begun=False)
        assert Status.QUEUED == await lab.status(task)
        assert 1 == (await lab.one()).fence.attempt

    @mark.rows("TR-22")
    async def test_a_cancelled_only_attempt_that_is_given_back_is_cancelled(self, lab: Lab) -> None:
        """Cancelled is the end that was asked for."""
        await lab.declare()
        task = await lab.put(attempts=1)
        leased = await lab.one()
        await lab.control(orders.Cancel((task,)))
        await lab.release(leased)
        assert Status.CANCELLED == await lab.status(task)

    async def test_a_task_released_as_unknown_is_parked(self, lab: Lab) -> None:
        """A worker that cannot run it puts it aside for one that can."""
        await lab.declare()
        task = await lab.put()
        await lab.release(await lab.one(), parked=True)
        answer = await lab.task(task)
        assert (Status.QUEUED, True, 0) == (answer.status, answer.parked, answer.attempt)
        assert 1 == (await lab.pool()).parked

    async def test_a_stopped_handler_ends_cancelled(self, lab: Lab) -> None:
        """A handler that ended because of a cancel is cancelled."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        await lab.control(orders.Cancel((task,)))
        await lab.stop(leased)
        answer = await lab.task(task)
        assert (Status.CANCELLED, "cancelled") == (answer.status, answer.reason)

    async def test_a_corrupt_record_is_set_aside(self, lab: Lab) -> None:
        """What cannot be read is failed as corrupt, and the next one runs."""
        await lab.declare(max_concurrent=1)
        task = await lab.put()
        await lab.put("next")
        await lab.applied(corrupt(await lab.one()))
        answer = await lab.task(task)
        assert (Status.FAILED, "corrupt") == (answer.status, answer.reason)
        assert "next" == names_of(await lab.lease())

    @mark.rows("CX-T21")
    async def test_settlements_are_judged_one_by_one(self, lab: Lab) -> None:
        """A stale one in the middle leaves those around it alone."""
        await lab.declare()
        tasks = [await lab.put() for _ in range(3)]
        first, second, third = await lab.lease()
        stale = with_fence(completed(second), attempt=7)
        assert [Settled.APPLIED, Settled.STALE, Settled.APPLIED] == await lab.settle(
            completed(first), stale, failed(third)
        )
        assert [Status.COMPLETED, Status.RUNNING, Status.FAILED] == await lab.statuses(*tasks)

    # Cancel

    @mark.rows("CX-T43", "CX-T77")
    @pytest.mark.parametrize("end", [retried, released], ids=["retried", "released"])
    async def test_a_cancelled_task_does_not_come_back(self, lab: Lab, end: End) -> None:
        """A cancel beats a retry and a release."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        await lab.control(orders.Cancel((task,)))
        await lab.applied(end(leased))
        answer = await lab.task(task)
        assert (Status.CANCELLED, "cancelled") == (answer.status, answer.reason)
        assert [] == await lab.lease()

    @mark.rows("CX-T81")
    async def test_a_cancelled_task_that_returned_is_completed(self, lab: Lab) -> None:
        """What is done is done."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        await lab.control(orders.Cancel((task,)))
        await lab.complete(leased, result=b"done")
        assert Status.COMPLETED == await lab.status(task)

    # Follow-ups

    @mark.rows("DP-05")
    async def test_follow_ups_are_stored_with_the_completion(self, lab: Lab) -> None:
        """They are queued in their pools in the order they were submitted."""
        await lab.declare()
        await lab.declare("other")
        await lab.put()
        leased = await lab.one()
        first, second, elsewhere = lab.new("1"), lab.new("2"), lab.new("3", pool="other")
        await lab.complete(leased, first, second, elsewhere)
        assert "1 2" == names_of(await lab.lease())
        assert "3" == names_of(await lab.lease(pool="other"))

    @pytest.mark.parametrize(
        "event", [Transition.FAIL, Transition.RETRY, Transition.CANCEL, Transition.RELEASE]
    )
    async def test_an_attempt_that_did_not_complete_leaves_none(
        self, lab: Lab, event: Transition
    ) -> None:
        """Follow-ups are part of a completion, and of nothing else."""
        await lab.declare()
        await lab.put()
        fence = (await lab.one()).fence
        follow_up = lab.new()
        await lab.applied(Settlement(fence=fence, event=event, delay=60.0, follow_ups=(follow_up,)))
        assert await lab.view.task(follow_up.id) is None

    async def test_follow_ups_are_stored_in_a_closed_pool(self, lab: Lab) -> None:
        """Closed is closed to the outside; work that is under way may finish."""
        await lab.declare()
        await lab.put()
        leased = await lab.one()
        await lab.control(orders.Close(POOL))
        await lab.complete(leased, lab.new("more"))
        assert "more" == names_of(await lab.lease())

    async def test_an_unknown_pool_of_a_follow_up_changes_nothing(self, lab: Lab) -> None:
        """The whole settle raises: a verb happens wholly or not at all."""
        await lab.declare()
        tasks = [await lab.put(), await lab.put()]
        first, second = await lab.lease()
        before = await lab.records()
        with pytest.raises(UnknownPool):
            await lab.settle(completed(first), completed(second, lab.new(pool="nowhere")))
        assert [Status.RUNNING] * 2 == await lab.statuses(*tasks)
        assert before == await lab.records()
        await lab.applied(completed(first), completed(second))

    # Settle and lease in one step

    def _ask(self, want: int = 1, *, pool: str = POOL, worker: str = WORKER) -> LeaseRequest:
        return LeaseRequest(pool=pool, worker=worker, want=want)

    @mark.rows("CX-10")
    async def test_a_settle_may_lease_the_next(self, lab: Lab) -> None:
        """The slot that came free is filled in the same step."""
        await lab.declare(max_concurrent=1)
        for name in "abc":
            await lab.put(name)
        answer = await lab.settle_all([completed(await lab.one())], then=self._ask(9))
        assert answer.lease is not None
        assert "b" == names_of(answer.lease.leased)
        assert (1, 1) == ((await lab.pool()).running, (await lab.pool()).queued)

    @mark.rows("CX-10")
    async def test_a_cancel_and_a_recovery_need_no_worker(self, lab: Lab) -> None:
        """Each counts at once, though no worker leases or settles."""
        await lab.declare(max_concurrent=1)
        await lab.join("w2", lease=5.0)
        lost, waiting = await lab.put(), await lab.put()
        await lab.one(worker="w2")
        await lab.control(orders.Cancel((waiting,)))
        assert [Status.RUNNING, Status.CANCELLED] == await lab.statuses(lost, waiting)
        lab.later(5.0)
        await lab.recover()
        assert Status.QUEUED == await lab.status(lost)
        assert (0, 1) == ((await lab.pool()).running, (await lab.pool()).queued)

    async def test_a_settle_may_lease_its_own_follow_up(self, lab: Lab) -> None:
        """What a completion submits can be started in the same step."""
        await lab.declare(max_concurrent=1)
        await lab.put()
        settlement = completed(await lab.one(), lab.new("more"))
        answer = await lab.settle_all([settlement], then=self._ask())
        assert answer.lease is not None
        assert "more" == names_of(answer.lease.leased)

    async def test_without_an_ask_nothing_is_leased(self, lab: Lab) -> None:
        """A settle that asks for nothing answers with no lease at all."""
        await lab.declare()
        await lab.put()
        leased = await lab.one()
        await lab.put()
        assert (await lab.settle_all([completed(leased)])).lease is None
        assert 0 == (await lab.pool()).running

    async def test_a_fenced_worker_settles_nothing_and_leases_nothing(self, lab: Lab) -> None:
        """The settle of a worker declared dead is stale, and it must register again."""
        await lab.declare()
        await lab.join("w2")
        await lab.put()
        leased = await lab.one(worker="w2")
        await lab.control(orders.DeclareDead("w2"))
        answer = await lab.settle_all([completed(leased)], then=self._ask(worker="w2"))
        assert answer.lease is not None
        assert ((Settled.STALE,), True) == (answer.settled, answer.lease.fenced)

    async def test_an_unknown_pool_to_lease_from_changes_nothing(self, lab: Lab) -> None:
        """The settlements beside the bad ask are not applied either."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        with pytest.raises(UnknownPool):
            await lab.settle_all([completed(leased)], then=self._ask(pool="nowhere"))
        assert Status.RUNNING == await lab.status(task)
        await lab.complete(leased)

    @mark.rows("CX-T118")
    async def test_an_empty_settle_changes_nothing(self, lab: Lab) -> None:
        """Settling nothing is answered with nothing."""
        await lab.declare()
        before = await lab.records()
        assert [] == await lab.settle()
        assert before == await lab.records()

    # What a settle answers and decides

    @pytest.mark.parametrize("spend", [True, False], ids=["charged", "free"])
    @pytest.mark.parametrize("attempts", [1, 3])
    @pytest.mark.parametrize("event", [Transition.FAIL, Transition.RETRY], ids=str)
    async def test_a_cancelled_task_whose_handler_raised_ends_cancelled(
        self, lab: Lab, event: Transition, attempts: int, spend: bool
    ) -> None:
        """A cancel beats an error, the last one too, and the totals say so."""
        await lab.declare()
        task = await lab.put(attempts=attempts)
        leased = await lab.one()
        await lab.control(orders.Cancel((task,)))
        await lab.applied(Settlement(fence=leased.fence, event=event, spend=spend, error=b"no"))
        answer = await lab.task(task)
        assert (Status.CANCELLED, "cancelled") == (answer.status, answer.reason)
        assert {"cancelled": 1} == (await lab.pool()).totals
        assert [] == await lab.lease()

    async def test_the_answer_has_the_status_of_each_follow_up(self, lab: Lab) -> None:
        """Stored, a duplicate of the task that has the key, or in conflict with it."""
        await lab.declare()
        known = await lab.put(idempotency_key="k", delay=60.0)
        await lab.put()
        leased = await lab.one()
        fresh, again = lab.new(), lab.new(idempotency_key="k")
        other = lab.new(idempotency_key="k", fingerprint=9)
        answer = await lab.complete(leased, fresh, again, other)
        assert [
            (fresh.id, Status.QUEUED, False, None),
            (known, Status.QUEUED, True, None),
            (known, Status.QUEUED, True, Reason.CONFLICT),
        ] == [(one.task, one.status, one.duplicate, one.reason) for one in answer.follow_ups[0]]
        assert 2 == (await lab.pool()).queued

    async def test_follow_ups_are_reported_per_settlement(self, lab: Lab) -> None:
        """A settlement without any, and one that is stale, have an empty place of their own."""
        await lab.declare()
        await lab.put_many(3)
        first, second, third = await lab.lease()
        stale = with_fence(completed(second), token=0)
        one, two = lab.new(), lab.new()
        answer = await lab.settle_all([failed(first), stale, completed(third, one, two)])
        assert [[], [], [one.id, two.id]] == [
            [admission.task for admission in found] for found in answer.follow_ups
        ]

    async def test_two_follow_ups_of_one_key_are_one_task(self, lab: Lab) -> None:
        """The second of a settlement finds the first."""
        await lab.declare()
        await lab.put()
        one, two = lab.new(idempotency_key="k"), lab.new(idempotency_key="k")
        answer = await lab.complete(await lab.one(), one, two)
        assert [(one.id, False), (one.id, True)] == [
            (found.task, found.duplicate) for found in answer.follow_ups[0]
        ]
        assert 1 == (await lab.pool()).queued

    async def test_a_follow_up_too_heavy_to_start_is_cancelled(self, lab: Lab) -> None:
        """No submitter is left to refuse: it ends with the reason and blocks nothing."""
        await lab.declare(rates=(Rate(4, per=1.0, of="weight"),))
        await lab.put()
        heavy, light = lab.new("heavy", weight=5), lab.new("light")
        answer = await lab.complete(await lab.one(), heavy, light)
        assert [(Status.CANCELLED, Reason.WEIGHT_LIMIT), (Status.QUEUED, None)] == [
            (found.status, found.reason) for found in answer.follow_ups[0]
        ]
        found = await lab.task(heavy.id)
        assert (Status.CANCELLED, Reason.WEIGHT_LIMIT, 0) == (
            found.status,
            found.reason,
            found.runs,
        )
        assert "light" == names_of(await lab.lease())

    async def test_a_worker_is_not_given_again_what_it_did_not_know(self, lab: Lab) -> None:
        """It claimed to know everything; the task waits for another worker, and none spins."""
        await lab.declare()
        await lab.put("a", call=Call("rare"))
        await lab.release(await lab.one(), parked=True)
        await lab.put("b", call=Call("rare"))
        await lab.put("c", call=Call("common"))
        assert "c" == names_of(await lab.lease())
        answer = await lab.ask()
        assert ((), None) == (answer.leased, answer.next_at)
        await lab.join("w2")
        assert "a b" == names_of(await lab.lease(worker="w2"))
