"""Attempts: what a running attempt says of itself, which counts only with the current fence."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.core.task import Fence
from millpond.errors import ConfigError
from millpond.testing.conformance.lab import Lab
from millpond.testing.conformance.scenario import StoreSuite


class AttemptsConformance(StoreSuite):
    """Progress, and steps that are done once."""

    # When it all began

    async def test_a_lease_has_the_time_of_the_first_attempt(self, lab: Lab) -> None:
        """Through retries, give-backs and lost leases; a redrive resets it."""
        await lab.declare()
        await lab.join("w2")
        task = await lab.put()
        lab.later(5.0)
        began = lab.now
        first = await lab.one()
        assert first.first_started_at in (None, began)
        await lab.retry(first)
        lab.later(5.0)
        again = await lab.one(worker="w2")
        assert began == again.first_started_at
        await lab.control(orders.DeclareDead("w2"))
        lab.later(5.0)
        third = await lab.one()
        assert began == third.first_started_at
        await lab.release(third)
        lab.later(5.0)
        last = await lab.one()
        assert began == last.first_started_at
        await lab.fail(last)
        await lab.control(orders.Redrive((task,)))
        assert (await lab.one()).first_started_at in (None, lab.now)

    # Progress

    async def test_progress_is_read_with_the_task(self, lab: Lab) -> None:
        """The last word stands, and a task that said nothing has none."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        assert (await lab.task(task)).progress is None
        assert 1 == (await lab.control(orders.Progress(leased.fence, 0.25, "a quarter"))).count
        assert (0.25, "a quarter") == (await lab.task(task)).progress
        await lab.control(orders.Progress(leased.fence, 1.0, "all"))
        assert (1.0, "all") == (await lab.task(task)).progress

    async def test_progress_outlasts_a_retry_and_the_end(self, lab: Lab) -> None:
        """Kept until overwritten; only a redrive starts with a clean slate."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        await lab.control(orders.Progress(leased.fence, 0.5, "half"))
        await lab.retry(leased)
        assert (0.5, "half") == (await lab.task(task)).progress
        await lab.fail(await lab.one())
        assert (0.5, "half") == (await lab.task(task)).progress
        await lab.control(orders.Redrive((task,)))
        assert (await lab.task(task)).progress is None

    @pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf")])
    def test_progress_is_a_fraction(self, fraction: float) -> None:
        """From 0 to 1; no other value reaches a store."""
        with pytest.raises(ConfigError):
            orders.Progress(Fence(1, 1, 1), fraction)

    # Steps

    async def test_a_step_is_given_to_later_attempts(self, lab: Lab) -> None:
        """After a retry and after a give-back, every lease has the steps done before."""
        await lab.declare()
        await lab.put()
        leased = await lab.one()
        assert {} == leased.steps
        assert 1 == (await lab.control(orders.SaveStep(leased.fence, "charge", b"42"))).count
        await lab.retry(leased)
        again = await lab.one()
        assert {"charge": b"42"} == again.steps
        await lab.control(orders.SaveStep(again.fence, "send", b""))
        await lab.release(again)
        assert {"charge": b"42", "send": b""} == (await lab.one()).steps

    async def test_a_step_outlasts_a_lost_lease(self, lab: Lab) -> None:
        """A worker that died after the step has done the step."""
        await lab.declare()
        await lab.join("w2")
        await lab.put()
        await lab.control(orders.SaveStep((await lab.one(worker="w2")).fence, "charge", b"42"))
        await lab.control(orders.DeclareDead("w2"))
        assert {"charge": b"42"} == (await lab.one()).steps

    async def test_the_first_result_of_a_step_stands(self, lab: Lab) -> None:
        """A second one under the same name changes nothing, whatever it says."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        for value, count in ((b"first", 1), (b"second", 0), (b"first", 0)):
            order = orders.SaveStep(leased.fence, "charge", value)
            assert count == (await lab.control(order)).count
        assert {"charge": b"first"} == (await lab.task(task)).steps

    async def test_a_redriven_task_has_done_nothing_yet(self, lab: Lab) -> None:
        """An operator's redrive discards the steps done before."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        await lab.control(orders.SaveStep(leased.fence, "charge", b"42"))
        await lab.fail(leased)
        await lab.control(orders.Redrive((task,)))
        assert {} == (await lab.one()).steps

    async def test_steps_are_each_tasks_own(self, lab: Lab) -> None:
        """What one task remembers no other is given, nor what is leased changed by it."""
        await lab.declare()
        await lab.put()
        await lab.put()
        first, second = await lab.lease()
        await lab.control(orders.SaveStep(first.fence, "charge", b"42"))
        assert ({}, {}) == (first.steps, second.steps)
        assert not (await lab.task(second.fence.task)).steps

    async def test_steps_read_are_a_copy(self, lab: Lab) -> None:
        """Changing a returned value does not change the store."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        await lab.control(orders.SaveStep(leased.fence, "charge", b"42"))
        read = (await lab.task(task)).steps
        assert read is not None
        read.clear()
        await lab.retry(leased)
        again = await lab.one()
        again.steps.clear()
        assert {"charge": b"42"} == (await lab.task(task)).steps

    # Fences

    @pytest.mark.parametrize("how", ["forged", "settled", "lost", "claimed by another", "unknown"])
    async def test_without_the_current_fence_nothing_is_said(self, lab: Lab, how: str) -> None:
        """A zombie's word counts for nothing and leaves no record."""
        await lab.declare()
        await lab.join("w2")
        task = await lab.put()
        leased = await lab.one(worker="w2")
        fence = leased.fence
        match how:
            case "forged":
                fence = Fence(fence.task, fence.attempt, fence.token + 1)
            case "settled":
                await lab.complete(leased)
            case "lost":
                await lab.control(orders.DeclareDead("w2"))
            case "claimed by another":
                await lab.control(orders.DeclareDead("w2"))
                await lab.one()
            case _:
                fence = Fence(12345, 1, fence.token)
        before = await lab.records()
        assert 0 == (await lab.control(orders.Progress(fence, 0.5, "half"))).count
        assert 0 == (await lab.control(orders.SaveStep(fence, "charge", b"42"))).count
        answer = await lab.task(task)
        assert (None, True) == (answer.progress, not answer.steps)
        assert before == await lab.records()

    async def test_what_an_attempt_says_is_not_audited(self, lab: Lab) -> None:
        """Progress and steps are no arrows: the task runs on, and there is no record."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        before = await lab.records()
        await lab.control(orders.Progress(leased.fence, 0.5))
        await lab.control(orders.SaveStep(leased.fence, "charge", b"42"))
        assert before == await lab.records()
        assert Status.RUNNING == await lab.status(task)
