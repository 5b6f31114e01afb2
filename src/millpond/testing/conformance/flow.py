"""Flow: weights that turn out different, peers that say slow down, limits that adapt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core import control as orders
from millpond.core.adaptive import adaptive
from millpond.core.lifecycle import Status, Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settled, Settlement
from millpond.testing.conformance.lab import POOL, Lab, completed, names_of, retried
from millpond.testing.conformance.scenario import StoreSuite, mark

if TYPE_CHECKING:
    from millpond.core.handler_signals import Scope
    from millpond.core.lease import Leased

TOKENS = Rate(60, per=60.0, of="weight")


def used(settlement: Settlement, weight: int) -> Settlement:
    """Return a settlement with the weight that its attempt used."""
    return msgspec.structs.replace(settlement, weight=weight)


def throttled(leased: Leased, seconds: float, scope: Scope) -> Settlement:
    """Return a settlement by Throttled, which holds back a pool or key."""
    again = retried(leased, seconds, spend=False)
    return msgspec.structs.replace(again, hold=scope, hold_for=seconds)


class FlowConformance(StoreSuite):
    """A settlement's hold or weight applies to all workers from that verb on."""

    # Weights

    async def test_what_was_not_used_is_refunded(self, lab: Lab) -> None:
        """A start is charged its weight; its end gives back the part that was not used."""
        await lab.declare(rates=(TOKENS,))
        await lab.put_many(2, weight=60)
        first = await lab.one()
        answer = await lab.ask()
        assert ((), lab.now + 60.0) == (answer.leased, answer.next_at)
        await lab.applied(used(completed(first), 10))
        answer = await lab.ask()
        assert ((), lab.now + 10.0) == (answer.leased, answer.next_at)
        lab.later(10.0)
        assert 1 == len(await lab.lease())

    async def test_a_refund_wakes_the_pool(self, lab: Lab) -> None:
        """Room that a refund makes is heard of."""
        await lab.declare(rates=(TOKENS,))
        await lab.put_many(3, weight=30)
        first, _ = await lab.lease()
        await lab.applied(used(completed(first), 0))
        assert POOL in lab.wakes
        assert 1 == len(await lab.lease())

    async def test_what_was_used_beyond_the_weight_is_charged(self, lab: Lab) -> None:
        """More than was thought is owed: nothing starts until it fits again."""
        await lab.declare(rates=(TOKENS,))
        await lab.put(weight=10)
        await lab.put(weight=10)
        first = await lab.one()
        await lab.applied(used(completed(first), 90))
        answer = await lab.ask()
        assert ((), lab.now + 40.0) == (answer.leased, answer.next_at)

    async def test_a_refund_gives_back_nothing_that_time_has_given_back(self, lab: Lab) -> None:
        """A bucket that ran full since the start owes nothing; its room is not had twice."""
        await lab.declare(max_concurrent=9, rates=(TOKENS,))
        await lab.put_many(3, weight=60)
        slow = await lab.one()
        lab.later(60.0)
        assert 1 == len(await lab.lease())
        await lab.applied(used(completed(slow), 0))
        answer = await lab.ask()
        assert ((), lab.now + 60.0) == (answer.leased, answer.next_at)

    async def test_a_refund_gives_back_what_is_still_owed(self, lab: Lab) -> None:
        """Of a start half of which was refilled meanwhile, the other half comes back."""
        await lab.declare(max_concurrent=9, rates=(TOKENS,))
        for weight in (60, 30, 60):
            await lab.put(weight=weight)
        slow = await lab.one()
        lab.later(30.0)
        assert 1 == len(await lab.lease())
        await lab.applied(used(completed(slow), 0))
        answer = await lab.ask()
        assert ((), lab.now + 30.0) == (answer.leased, answer.next_at)

    async def test_every_settlement_may_report_the_used_weight(self, lab: Lab) -> None:
        """A retry is charged again at its next start, and its first attempt is refunded now."""
        await lab.declare(rates=(TOKENS,))
        await lab.put(weight=60)
        await lab.applied(used(retried(await lab.one()), 0))
        assert 1 == len(await lab.lease())

    async def test_a_late_word_about_weight_is_not_heard(self, lab: Lab) -> None:
        """A settlement with a stale fence refunds nothing."""
        await lab.declare(rates=(TOKENS,))
        await lab.put(weight=60)
        first = await lab.one()
        await lab.complete(first)
        await lab.put(weight=60)
        assert [Settled.STALE] == await lab.settle(used(completed(first), 0))
        assert [] == await lab.lease()

    async def test_a_rate_of_starts_is_not_refunded(self, lab: Lab) -> None:
        """A start is a start, whatever it used."""
        await lab.declare(rates=(Rate(1, per=60.0),))
        await lab.put(weight=5)
        await lab.put()
        await lab.applied(used(completed(await lab.one()), 0))
        assert [] == await lab.lease()

    async def test_the_audit_has_the_used_weight(self, lab: Lab) -> None:
        """So a checker of a rate by weight finds the used weight of each start."""
        await lab.declare(rates=(TOKENS,))
        task = await lab.put(weight=60)
        await lab.applied(used(completed(await lab.one()), 7))
        answer = [each.weight for each in await lab.records(task) if each.detail == "weight"]
        assert [7] == answer

    async def test_a_new_rate_refunds_nothing_from_before(self, lab: Lab) -> None:
        """A rate that was declared while an attempt ran was never charged for it."""
        await lab.declare(max_concurrent=9)
        await lab.put(weight=60)
        slow = await lab.one()
        await lab.declare(max_concurrent=9, rates=(TOKENS,))
        await lab.put_many(2, weight=60)
        assert 1 == len(await lab.lease())
        await lab.applied(used(completed(slow), 0))
        assert [] == await lab.lease()

    # Throttled

    async def test_a_throttled_pool_waits(self, lab: Lab) -> None:
        """Nothing of the pool starts before the time is over, for any worker."""
        await lab.declare()
        for name in "abc":
            await lab.put(name)
        await lab.applied(throttled(await lab.one(), 5.0, "pool"))
        await lab.join("w2")
        answer = await lab.ask(worker="w2")
        assert ((), lab.now + 5.0) == (answer.leased, answer.next_at)
        lab.later(5.0)
        assert "a b c" == names_of(await lab.lease())

    async def test_a_throttled_key_waits_and_the_others_go_on(self, lab: Lab) -> None:
        """The tasks of its key are held back, those of other keys are not."""
        await lab.declare()
        await lab.put_keys("AAB")
        first = await lab.one()
        await lab.applied(throttled(first, 5.0, "key"))
        answer = await lab.ask(9)
        assert ("B", lab.now + 5.0) == (names_of(answer.leased), answer.next_at)
        lab.later(5.0)
        assert "A A" == names_of(await lab.lease())

    async def test_throttled_charges_no_attempt(self, lab: Lab) -> None:
        """However often it is throttled, a task keeps its attempts."""
        await lab.declare()
        task = await lab.put(attempts=1)
        for _ in range(3):
            await lab.applied(throttled(await lab.one(), 1.0, "pool"))
            lab.later(1.0)
        assert (Status.QUEUED, 0) == (await lab.status(task), (await lab.task(task)).attempt)
        await lab.complete(await lab.one())
        assert Status.COMPLETED == await lab.status(task)

    @mark.rows("TR-04")
    async def test_resume_ends_the_hold_of_a_pool(self, lab: Lab) -> None:
        """An operator can end a hold early; a view shows it until then."""
        await lab.declare()
        await lab.put()
        await lab.put()
        await lab.applied(throttled(await lab.one(), 86_400.0, "pool"))
        view = await lab.pool()
        assert lab.now + 86_400.0 == view.held_until
        assert () == (await lab.ask()).leased
        answer = await lab.control(orders.Resume(POOL))
        assert [POOL] == [wake.pool for wake in answer.wakes]
        view = await lab.pool()
        assert 0.0 == view.held_until
        assert 1 == len((await lab.ask()).leased)

    @mark.rows("TR-04")
    async def test_resume_ends_the_hold_of_a_key(self, lab: Lab) -> None:
        """Of that key and of no other; resuming the pool leaves the holds of keys alone."""
        await lab.declare(max_per_key=1)
        for key in ("acme", "emca", "acme", "emca"):
            await lab.put(key=key)
        for leased in (await lab.ask(want=2)).leased:
            await lab.applied(throttled(leased, 86_400.0, "key"))
        until = lab.now + 86_400.0
        view = await lab.pool()
        assert (("acme", until), ("emca", until)) == view.held_units
        await lab.control(orders.Resume(POOL))
        assert () == (await lab.ask(want=4)).leased
        await lab.control(orders.Resume(POOL, "acme"))
        view = await lab.pool()
        assert (("emca", until),) == view.held_units
        assert ["acme"] == [leased.key for leased in (await lab.ask(want=4)).leased]

    @mark.rows("TR-20")
    async def test_a_pool_view_counts_dead_tasks(self, lab: Lab) -> None:
        """Failed tasks that are kept, not those that ever failed: a redrive takes them out."""
        await lab.declare()
        await lab.put_many(3)
        first, second, third = (await lab.ask(want=3)).leased
        await lab.fail(first)
        await lab.fail(second)
        await lab.complete(third)
        view = await lab.pool()
        assert (2, 3) == (view.dead, view.kept)
        await lab.control(orders.Redrive((first.fence.task,)))
        view = await lab.pool()
        assert (1, 2) == (view.dead, view.totals[Status.FAILED])

    async def test_without_a_key_only_the_task_itself_waits(self, lab: Lab) -> None:
        """There is no key to hold back."""
        await lab.declare()
        await lab.put("a")
        await lab.put("b")
        await lab.applied(throttled(await lab.one(), 5.0, "key"))
        assert "b" == names_of(await lab.lease())

    async def test_a_throttled_lane_waits(self, lab: Lab) -> None:
        """In a pool with lanes it is the lane that waits."""
        await lab.declare(ordered=True, max_concurrent=4)
        await lab.put_keys("AAB")
        await lab.applied(throttled(await lab.one(), 5.0, "key"))
        assert "B" == names_of(await lab.lease())
        lab.later(5.0)
        assert "A" == names_of(await lab.lease())

    async def test_a_late_word_to_slow_down_is_not_heard(self, lab: Lab) -> None:
        """A settlement with a stale fence holds back nothing."""
        await lab.declare()
        await lab.put("a")
        first = await lab.one()
        await lab.complete(first)
        assert [Settled.STALE] == await lab.settle(throttled(first, 60.0, "pool"))
        await lab.put("b")
        assert "b" == names_of(await lab.lease())

    async def test_a_cancelled_task_still_says_slow_down(self, lab: Lab) -> None:
        """Its own end is another; that the peer is busy is as true as before."""
        await lab.declare()
        task = await lab.put("a")
        await lab.put("b")
        first = await lab.one()
        await lab.control(orders.Cancel((task,)))
        await lab.applied(throttled(first, 5.0, "pool"))
        assert Status.CANCELLED == await lab.status(task)
        assert [] == await lab.lease()

    async def test_the_audit_records_holds_with_their_end(self, lab: Lab) -> None:
        """A hold has a record of its own: its key, and its end."""
        await lab.declare()
        await lab.put_keys("A")
        await lab.applied(throttled(await lab.one(), 5.0, "key"))
        held = [each for each in await lab.records() if (each.detail or "").startswith("hold")]
        assert [("A", lab.now + 5.0)] == [(each.key, each.due) for each in held]
        assert Transition.RETRY in [each.event for each in await lab.records()]

    # Limits that adapt

    async def _adaptive(self, lab: Lab, most: int = 8) -> None:
        await lab.declare(max_concurrent=1, adaptive=adaptive(1, most))
        await lab.put_many(400)

    async def _run(self, lab: Lab, seconds: float, rounds: int) -> int:
        """Fill the pool and end all of it, over and over; return the limit in force then."""
        for _ in range(rounds):
            held = await lab.lease()
            lab.later(seconds)
            await lab.applied(*map(completed, held))
        return (await lab.pool()).spec.max_concurrent

    async def test_a_limit_that_adapts_grows_while_nothing_gets_slower(self, lab: Lab) -> None:
        """It begins at its least and doubles, up to its most; that is no new revision."""
        await self._adaptive(lab)
        before = (await lab.pool()).revision
        assert 1 == (await lab.pool()).spec.max_concurrent
        assert 8 == await self._run(lab, 0.1, 60)
        assert 8 == len(await lab.lease())
        assert before == (await lab.pool()).revision

    async def test_a_limit_that_adapts_shrinks_when_attempts_fail(self, lab: Lab) -> None:
        """A peer that refuses half of the work gets less work."""
        await self._adaptive(lab)
        high = await self._run(lab, 0.1, 60)
        for _ in range(12):
            held = await lab.lease()
            lab.later(0.1)
            await lab.applied(*(throttled(one, 0.0, "pool") for one in held))
        assert (await lab.pool()).spec.max_concurrent < high

    async def test_what_was_cancelled_or_given_back_says_nothing(self, lab: Lab) -> None:
        """Only ends of the peer's own making move a limit."""
        await self._adaptive(lab)
        for _ in range(40):
            for one in await lab.lease():
                lab.later(0.1)
                await lab.release(one)
        assert 1 == (await lab.pool()).spec.max_concurrent

    async def test_an_operator_rules_over_a_limit_that_adapts(self, lab: Lab) -> None:
        """A limit set by resize stays; after a reset, the adapted limit is back."""
        await self._adaptive(lab)
        adapted = await self._run(lab, 0.1, 60)
        await lab.control(orders.Resize(POOL, 2))
        assert 2 == await self._run(lab, 0.1, 20)
        await lab.control(orders.Resize(POOL))
        assert adapted == (await lab.pool()).spec.max_concurrent

    async def test_the_audit_records_adapted_limits(self, lab: Lab) -> None:
        """So a checker finds the limit in force at each time."""
        await self._adaptive(lab)
        await self._run(lab, 0.1, 60)
        answer = [each.detail for each in await lab.records() if "adapt" in (each.detail or "")]
        assert [f"adapt max_concurrent={limit}" for limit in (2, 4, 8)] == answer

    async def test_a_limit_that_is_declared_to_adapt_no_more_is_a_number(self, lab: Lab) -> None:
        """The declared limit is in force again, and the adapted one is forgotten."""
        await self._adaptive(lab)
        await self._run(lab, 0.1, 60)
        await lab.declare(max_concurrent=3)
        assert 3 == await self._run(lab, 0.1, 20)
        await lab.declare(max_concurrent=1, adaptive=adaptive(1, 8))
        assert 1 == (await lab.pool()).spec.max_concurrent
