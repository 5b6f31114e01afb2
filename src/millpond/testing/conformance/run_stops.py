"""Runs that stop: failures, budgets and cancels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.core import control as orders
from millpond.core.admit import Reason
from millpond.core.lease import Leased
from millpond.core.lifecycle import Status, Transition
from millpond.core.run import NewRun, OnError
from millpond.core.settle import Settlement
from millpond.core.task import Call
from millpond.testing.conformance.lab import CALLBACKS, POOL, Lab, failed, released, retried
from millpond.testing.conformance.runs import OpensRuns
from millpond.testing.conformance.scenario import mark


class RunStopsConformance(OpensRuns):
    """What stops a run, and what happens in it afterwards."""

    # Errors and budgets

    @mark.rows("DP-11")
    async def test_a_failure_is_skipped_by_default(self, lab: Lab) -> None:
        """The rest of the run goes on."""
        await lab.declare(max_concurrent=1)
        run = await self._open(lab, 2)
        await lab.fail(await lab.one())
        assert 1 == len(await lab.lease())
        assert (await lab.run_of(run)).failed_task is None

    async def test_a_failure_cancels_what_is_queued_where_asked_for(self, lab: Lab) -> None:
        """The queued tasks of the run are cancelled in the same step, the running one ends."""
        await lab.declare(max_concurrent=2)
        stranger = await lab.put(delay=60.0)
        run = await self._open(lab, 4, on_error=OnError.FAIL)
        first, second = await lab.lease()
        await lab.fail(first)
        answer = await lab.run_of(run)
        assert (first.fence.task, 1, False) == (answer.failed_task, answer.live, answer.finished)
        assert {"failed": 1, "cancelled": 2} == answer.ended
        assert Status.QUEUED == await lab.status(stranger)
        cancelled = [each for each in await lab.records() if each.event is Transition.CANCEL]
        assert [("run_failed", first.fence.task)] * 2 == [
            (each.reason, each.cause) for each in cancelled
        ]
        assert (run,) == (await lab.complete(second)).finished_runs

    async def test_a_run_that_may_not_fail_goes_on_after_a_success(self, lab: Lab) -> None:
        """Only a failure cancels the rest."""
        await lab.declare(max_concurrent=1)
        run = await self._open(lab, 3, on_error=OnError.FAIL)
        await lab.run_one()
        waiting = await lab.one()
        await lab.control(orders.Cancel((waiting.fence.task,)))
        await lab.retry(waiting)
        answer = await lab.run_of(run)
        assert (None, 1) == (answer.failed_task, answer.live)
        assert 1 == len(await lab.lease())

    async def test_the_first_failure_is_the_one_named(self, lab: Lab) -> None:
        """Later failures of the run do not replace it."""
        await lab.declare()
        run = await self._open(lab, 2, on_error=OnError.FAIL)
        first, second = await lab.lease()
        await lab.applied(failed(first), failed(second))
        assert first.fence.task == (await lab.run_of(run)).failed_task

    async def test_a_run_takes_no_more_than_its_budget(self, lab: Lab) -> None:
        """A submit beyond max_tasks is refused whole; one within it is taken."""
        await lab.declare()
        run = await self._open(lab, 2, max_tasks=3, holder="mine")
        assert Reason.OVER_BUDGET == (await lab.refusal(lab.new(run=run), lab.new(run=run))).reason
        await lab.put(run=run)
        assert 3 == (await lab.run_of(run)).total

    async def test_a_seed_beyond_its_budget_opens_no_run(self, lab: Lab) -> None:
        """The budget holds for the seed too."""
        await lab.declare()
        run = NewRun(id=lab.serial(), pool=POOL, max_tasks=1)
        refusal = await lab.refusal(lab.new(run=run.id), lab.new(run=run.id), run=run)
        assert Reason.OVER_BUDGET == refusal.reason
        assert await lab.view.run(run.id) is None

    async def test_a_purge_can_end_a_run(self, lab: Lab) -> None:
        """Whatever verb ends the last task reports that the run is over."""
        await lab.declare()
        run = await self._open(lab, 2)
        assert (run,) == (await lab.control(orders.Purge(POOL))).finished_runs

    async def test_a_redrive_opens_a_finished_run_again(self, lab: Lab) -> None:
        """A run with a queued task is not over."""
        await lab.declare()
        run = await self._open(lab)
        leased = await lab.one()
        await lab.fail(leased)
        await lab.control(orders.Redrive((leased.fence.task,)))
        answer = await lab.run_of(run)
        assert (False, 1, 1) == (answer.finished, answer.live, answer.total)
        assert (run,) == (await lab.complete(await lab.one())).finished_runs

    # A run that stops

    async def test_a_stopped_run_starts_nothing_more(self, lab: Lab) -> None:
        """After one failure its queued tasks are cancelled, and the run says why it stopped."""
        await lab.declare(max_concurrent=1)
        run = await self._open(lab, 3, on_error=OnError.FAIL)
        assert (await lab.run_of(run)).stopped is None
        leased = await lab.one()
        assert (run,) == (await lab.fail(leased)).finished_runs
        answer = await lab.run_of(run)
        assert (Reason.RUN_FAILED, leased.fence.task) == (answer.stopped, answer.failed_task)
        assert {"failed": 1, "cancelled": 2} == answer.ended
        assert [] == await lab.lease()

    async def test_an_expired_task_stops_its_run(self, lab: Lab) -> None:
        """A task that failed without having run is a failure of the run like any other."""
        await lab.declare()
        run = NewRun(id=lab.serial(), pool=POOL, on_error=OnError.FAIL)
        late, other = lab.new(run=run.id, expires_in=5.0), lab.new(run=run.id, delay=60.0)
        await lab.submit(late, other, run=run)
        lab.later(5.0)
        assert (run.id,) == (await lab.recover()).finished_runs
        assert [Status.FAILED, Status.CANCELLED] == await lab.statuses(late.id, other.id)
        assert Reason.RUN_FAILED == (await lab.task(other.id)).reason

    async def test_follow_ups_for_a_stopped_run_end_cancelled(self, lab: Lab) -> None:
        """What still ran may complete; what it submits is stored and not started."""
        await lab.declare(max_concurrent=2)
        await lab.declare("other")
        run = await self._open(lab, 2, on_error=OnError.FAIL)
        first, second = await lab.lease()
        await lab.fail(first)
        here, there = lab.new(run=run), lab.new(run=run, pool="other")
        answer = await lab.complete(second, here, there)
        assert (run,) == answer.finished_runs
        assert [(Status.CANCELLED, Reason.RUN_FAILED)] * 2 == [
            (found.status, found.reason) for found in answer.follow_ups[0]
        ]
        assert [Status.COMPLETED, Status.CANCELLED, Status.CANCELLED] == await lab.statuses(
            second.fence.task, here.id, there.id
        )
        assert ([], []) == (await lab.lease(), await lab.lease(pool="other"))

    @pytest.mark.parametrize(
        "end", [retried, released, "buried", "left"], ids=["retried", "released", "buried", "left"]
    )
    async def test_nothing_comes_back_to_a_stopped_run(
        self, lab: Lab, end: Callable[[Leased], Settlement] | str
    ) -> None:
        """A retry, a release and a lost lease of it end cancelled, and with them the run."""
        await lab.declare(max_concurrent=2)
        await lab.join("w2")
        run = await self._open(lab, 2, on_error=OnError.FAIL)
        first, second = await lab.one(), await lab.one(worker="w2")
        await lab.fail(first)
        if callable(end):
            finished = (await lab.applied(end(second))).finished_runs
        else:
            order = orders.DeclareDead("w2") if end == "buried" else orders.Deregister("w2")
            finished = (await lab.control(order)).finished_runs
        assert (run,) == finished
        answer = await lab.task(second.fence.task)
        assert (Status.CANCELLED, Reason.RUN_FAILED) == (answer.status, answer.reason)
        assert [] == await lab.lease()

    async def test_a_stopped_run_takes_nothing_from_outside(self, lab: Lab) -> None:
        """Although it is still held open, a submit to it is refused."""
        await lab.declare()
        run = await self._open(lab, on_error=OnError.FAIL, holder="mine")
        await lab.fail(await lab.one())
        assert Reason.RUN_NOT_OPEN == (await lab.refusal(lab.new(run=run))).reason
        found = await lab.run_of(run)
        assert (False, Reason.RUN_FAILED) == (found.finished, found.stopped)

    async def test_the_callbacks_of_a_stopped_run_are_run(self, lab: Lab) -> None:
        """Those that wait, come, or are tried again are not cancelled, and the run waits."""
        await lab.declare(max_concurrent=1)
        run = NewRun(id=lab.serial(), pool=POOL, on_error=OnError.FAIL)
        seed = [lab.new(run=run.id, on_complete=Call("notify")) for _ in range(3)]
        await lab.submit(*seed, run=run)
        await lab.run_one()
        assert () == (await lab.fail(await lab.one())).finished_runs
        assert (False, 3) == (
            (found := await lab.run_of(run.id)).finished,
            found.live,
        )
        assert () == (await lab.retry(await lab.one(pool=CALLBACKS))).finished_runs
        for last in (False, False, True):
            answer = await lab.complete(await lab.one(pool=CALLBACKS))
            assert ((run.id,) if last else ()) == answer.finished_runs

    async def test_a_failed_callback_does_not_stop_a_run(self, lab: Lab) -> None:
        """It is none of the run's tasks."""
        await lab.declare(max_concurrent=1)
        run = NewRun(id=lab.serial(), pool=POOL, on_error=OnError.FAIL)
        answer = lab.new(run=run.id, on_complete=Call("notify"))
        await lab.submit(answer, lab.new(run=run.id), run=run)
        await lab.run_one()
        await lab.fail(await lab.one(pool=CALLBACKS))
        seen = await lab.run_of(run.id)
        assert (None, None, 1) == (seen.stopped, seen.failed_task, seen.live)
        assert (run.id,) == (await lab.complete(await lab.one())).finished_runs

    # A run that is cancelled

    async def test_a_cancelled_run_comes_to_its_end(self, lab: Lab) -> None:
        """Waiting tasks are cancelled, running ones get a request; the run has the reason."""
        await lab.declare(max_concurrent=1)
        run = await self._open(lab, 3)
        leased = await lab.one()
        outside = await lab.put()
        answer = await lab.control(orders.CancelRun(run))
        assert (3, 2) == (answer.count, len(answer.ended))
        assert (await lab.task(leased.fence.task)).cancel_requested
        seen = await lab.run_of(run)
        assert (False, Reason.CANCELLED, 1) == (seen.finished, seen.stopped, seen.live)
        assert Status.QUEUED == await lab.status(outside)
        assert (run,) == (await lab.stop(leased)).finished_runs
        assert {"cancelled": 3} == (await lab.run_of(run)).ended

    async def test_nothing_follows_in_a_cancelled_run(self, lab: Lab) -> None:
        """A handler that still returned is completed, and what it submitted ends cancelled."""
        await lab.declare()
        run = await self._open(lab)
        leased = await lab.one()
        await lab.control(orders.CancelRun(run))
        follow_up = lab.new(run=run)
        answer = await lab.complete(leased, follow_up)
        assert (run,) == answer.finished_runs
        found = await lab.task(follow_up.id)
        assert (Status.CANCELLED, "cancelled") == (found.status, found.reason)
        assert {"completed": 1, "cancelled": 1} == (await lab.run_of(run)).ended

    async def test_cancelling_a_run_twice_is_cancelling_it_once(self, lab: Lab) -> None:
        """The second cancel touches nothing and leaves no record; nor does one of what is over."""
        await lab.declare()
        run = await self._open(lab, 2)
        leased = await lab.one()
        await lab.control(orders.CancelRun(run))
        before = await lab.records()
        assert 0 == (await lab.control(orders.CancelRun(run))).count
        assert before == await lab.records()
        await lab.stop(leased)
        before = await lab.records()
        assert 0 == (await lab.control(orders.CancelRun(run))).count
        assert 0 == (await lab.control(orders.CancelRun(12345))).count
        assert before == await lab.records()

    async def test_a_held_run_can_be_cancelled(self, lab: Lab) -> None:
        """It takes nothing more, and is over when its holder lets go."""
        await lab.declare()
        run = await self._open(lab, 0, holder="me")
        assert 0 == (await lab.control(orders.CancelRun(run))).count
        refusal = await lab.refusal(lab.new(run=run))
        assert Reason.RUN_NOT_OPEN == refusal.reason
        assert (run,) == (await lab.control(orders.Seal(run, "me"))).finished_runs

    async def test_the_callbacks_of_a_cancelled_run_are_run(self, lab: Lab) -> None:
        """They report the ends of its tasks, so the run waits for them and does not cancel them."""
        await lab.declare()
        run = NewRun(id=lab.serial(), pool=POOL)
        await lab.submit(lab.new(run=run.id, on_complete=Call("notify")), run=run)
        await lab.run_one()
        callback = await lab.one(pool=CALLBACKS)
        assert 0 == (await lab.control(orders.CancelRun(run.id))).count
        assert (run.id,) == (await lab.complete(callback)).finished_runs

    # Budgets

    async def test_follow_ups_within_the_budget_are_run(self, lab: Lab) -> None:
        """The last task that max_tasks allows starts as any other."""
        await lab.declare()
        run = await self._open(lab, max_tasks=2)
        await lab.complete(await lab.one(), lab.new(run=run))
        assert (None, 2) == ((await lab.run_of(run)).stopped, (await lab.run_of(run)).total)
        assert (run,) == (await lab.complete(await lab.one())).finished_runs

    async def test_a_follow_up_beyond_the_budget_stops_the_run(self, lab: Lab) -> None:
        """All that waits of it is cancelled, and the run, its tasks and the answer say why."""
        await lab.declare(max_concurrent=1)
        run = await self._open(lab, 2, max_tasks=2)
        over = lab.new(run=run)
        answer = await lab.complete(await lab.one(), over)
        assert (run,) == answer.finished_runs
        assert (Status.CANCELLED, Reason.OVER_BUDGET) == (
            answer.follow_ups[0][0].status,
            answer.follow_ups[0][0].reason,
        )
        found = await lab.run_of(run)
        assert (Reason.OVER_BUDGET, None) == (found.stopped, found.failed_task)
        assert {"completed": 1, "cancelled": 2} == found.ended
        assert Reason.OVER_BUDGET == (await lab.task(over.id)).reason
        assert [] == await lab.lease()
