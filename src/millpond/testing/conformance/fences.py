"""Fences: an attempt that is over, or was never this one, changes nothing."""

from __future__ import annotations

from typing import get_args, get_type_hints

import msgspec

from millpond.core import control as orders
from millpond.core.lifecycle import Status, Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settled, Settlement
from millpond.core.task import Fence
from millpond.testing.conformance.lab import POOL, Lab, completed, failed, retried, with_fence
from millpond.testing.conformance.scenario import StoreSuite, mark
from millpond.testing.conformance.settle import ENDS, End


def fenced_orders() -> set[type]:
    """Return the orders that carry a fence: what an attempt writes besides its end."""
    every = {each for group in get_args(orders.Command) for each in get_args(group) or (group,)}
    return {each for each in every if Fence in get_type_hints(each).values()}


class FencesConformance(StoreSuite):
    """Only the current fence of an attempt lets it write."""

    async def _refused(self, lab: Lab, *late: Settlement) -> None:
        """Check that settlements are stale, change nothing and are counted."""
        before, counted = await lab.records(), (await lab.pool()).stale_settles
        ids = [each.fence.task for each in late]
        tasks = [await lab.task(task) for task in ids]
        assert [Settled.STALE] * len(late) == await lab.settle(*late)
        assert before == await lab.records()
        assert tasks == [await lab.task(task) for task in ids]
        assert counted + len(late) == (await lab.pool()).stale_settles

    @mark.rows("CX-16", "CX-T22", "CX-T82")
    @ENDS
    async def test_another_attempts_fence_changes_nothing(self, lab: Lab, end: End) -> None:
        """A settle with the number of an earlier attempt is refused and counted."""
        await lab.declare()
        await lab.put()
        old = await lab.one()
        await lab.retry(old)
        await lab.one()
        await self._refused(lab, end(old))

    @mark.rows("CX-16")
    async def test_no_write_of_a_lost_attempt_changes_anything(self, lab: Lab) -> None:
        """Progress, steps, holds, weights and follow-ups are refused as the settle itself is."""
        await lab.declare(rates=(Rate(50, per=1.0, of="weight"),))
        await lab.join("w2", lease=5.0)
        task = await lab.put(attempts=5, key="k", weight=2)
        old = await lab.one(worker="w2")
        lab.later(5.0)
        await lab.recover()
        current = await lab.one()
        late: list[orders.AttemptCommand] = [
            orders.Progress(old.fence, 0.5, "late"),
            orders.SaveStep(old.fence, "step", b"late"),
        ]
        # An order that carries a fence and is not tried here would be one that nothing guards.
        assert {type(each) for each in late} == fenced_orders()
        before = await lab.task(task), await lab.pool()
        assert [0, 0] == [(await lab.control(each)).count for each in late]
        assert before == (await lab.task(task), await lab.pool())
        follow_up = lab.new()
        held = Settlement(fence=old.fence, event=Transition.RETRY, hold="pool", hold_for=60.0)
        spent = Settlement(fence=old.fence, event=Transition.COMPLETE, weight=50)
        await self._refused(lab, held, spent, completed(old, follow_up))
        assert await lab.view.task(follow_up.id) is None
        assert 0.0 == (await lab.pool()).held_until
        await lab.put(weight=40)
        assert 1 == len(await lab.lease())
        now = current.fence
        before = await lab.task(task), await lab.pool()
        for changed in ({"token": now.token ^ 1}, {"attempt": now.attempt + 1}, {"task": task + 1}):
            wrong = msgspec.structs.replace(now, **changed)
            forged = [msgspec.structs.replace(each, fence=wrong) for each in late]
            assert [0, 0] == [(await lab.control(each)).count for each in forged]
        assert before == (await lab.task(task), await lab.pool())
        for each in late:
            in_time = msgspec.structs.replace(each, fence=now)
            assert 1 == (await lab.control(in_time)).count
        await lab.complete(current)

    @mark.rows("CX-16")
    @ENDS
    async def test_a_wrong_token_changes_nothing(self, lab: Lab, end: End) -> None:
        """Knowing the id and the attempt is not enough."""
        await lab.declare()
        await lab.put()
        settlement = end(await lab.one())
        await self._refused(lab, with_fence(settlement, token=settlement.fence.token ^ 1))

    @mark.rows("CX-16")
    @ENDS
    async def test_a_released_fence_is_used_up(self, lab: Lab, end: End) -> None:
        """A task given back and waiting takes no settle of its last run."""
        await lab.declare()
        await lab.put()
        old = await lab.one()
        await lab.release(old)
        await self._refused(lab, end(old))

    @mark.rows("CX-T23")
    @ENDS
    async def test_a_task_that_ended_takes_no_settle(self, lab: Lab, end: End) -> None:
        """Of two settles of one attempt the first counts."""
        await lab.declare()
        await lab.put()
        leased = await lab.one()
        await lab.complete(leased, result=b"first")
        await self._refused(lab, end(leased))

    async def test_the_second_settle_within_a_batch_is_stale(self, lab: Lab) -> None:
        """A fence is used up by the first settlement that carries it."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        answers = await lab.settle(completed(leased), failed(leased))
        assert [Settled.APPLIED, Settled.STALE] == answers
        assert Status.COMPLETED == await lab.status(task)
        assert 1 == (await lab.pool()).stale_settles

    async def test_a_retry_within_a_batch_does_not_renew_the_fence(self, lab: Lab) -> None:
        """A retry and a completion of one attempt in one batch: only the retry counts."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        assert [Settled.APPLIED, Settled.STALE] == await lab.settle(
            retried(leased), completed(leased)
        )
        assert Status.QUEUED == await lab.status(task)

    async def test_a_fence_from_before_a_redrive_is_stale(self, lab: Lab) -> None:
        """The new budget starts at attempt one again; the old fence of attempt one is not it."""
        await lab.declare()
        task = await lab.put()
        old = await lab.one()
        await lab.fail(old)
        await lab.control(orders.Redrive((task,)))
        await self._refused(lab, completed(old))
        new = await lab.one()
        assert old.fence.attempt == new.fence.attempt
        await self._refused(lab, completed(old))

    @mark.rows("CX-T83")
    async def test_a_settle_for_a_task_that_is_gone_is_stale(self, lab: Lab) -> None:
        """A forgotten task takes no settle and comes back by none."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        await lab.complete(leased)
        lab.later(1.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        assert [Settled.STALE] == await lab.settle(completed(leased))
        assert await lab.view.task(task) is None

    async def test_nothing_hangs_on_a_stale_settle(self, lab: Lab) -> None:
        """Its follow-ups are not stored."""
        await lab.declare()
        await lab.put()
        leased = await lab.one()
        await lab.retry(leased, 60.0)
        follow_up = lab.new()
        await self._refused(lab, completed(leased, follow_up))
        assert await lab.view.task(follow_up.id) is None
