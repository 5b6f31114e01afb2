"""Budgets: one limit and one set of rates for several pools."""

from __future__ import annotations

import msgspec
import pytest

from millpond.core import control as orders
from millpond.core.lease import STARVED_FOR
from millpond.core.rate import Rate
from millpond.core.spec import fail_fast
from millpond.core.why import explain
from millpond.errors import ConfigError
from millpond.testing.conformance.lab import INSTANT, Lab, completed, names_of
from millpond.testing.conformance.scenario import StoreSuite


class BudgetsConformance(StoreSuite):
    """What several pools share is one, and each of them gets its turn."""

    async def _share(self, lab: Lab, limit: int, rates: tuple[Rate, ...] = ()) -> None:
        await lab.budget("both", limit, rates)
        for name in "ab":
            await lab.declare(name, max_concurrent=9, budgets=("both",))

    async def _put(self, lab: Lab, pool: str, count: int, weight: int = 1) -> None:
        for _ in range(count):
            await lab.put(pool, pool=pool, weight=weight)

    async def test_pools_of_one_budget_share_its_slots(self, lab: Lab) -> None:
        """What runs in one pool is not there for the other."""
        await self._share(lab, 3)
        await self._put(lab, "a", 9)
        await self._put(lab, "b", 9)
        assert 2 == len(await lab.lease(2, pool="a"))
        assert 1 == len(await lab.lease(pool="b"))
        assert [] == await lab.lease(pool="a")

    async def test_an_end_in_one_pool_wakes_who_waits_in_another(self, lab: Lab) -> None:
        """The slot is heard of, and taken."""
        await self._share(lab, 1)
        await self._put(lab, "a", 1)
        await self._put(lab, "b", 1)
        held = await lab.one(pool="a")
        answer = await lab.ask(pool="b")
        assert ((), None) == (answer.leased, answer.next_at)
        await lab.complete(held)
        assert "b" in lab.wakes
        assert 1 == len(await lab.lease(pool="b"))

    async def test_pools_take_turns_at_a_full_budget(self, lab: Lab) -> None:
        """A worker that settles and leases does not take the slot of one that waited longer."""
        await self._share(lab, 1)
        await self._put(lab, "a", 9)
        await self._put(lab, "b", 9)
        order, mine, other = "", "a", "b"
        held = await lab.one(pool=mine)
        for _ in range(6):
            assert [] == await lab.lease(pool=other)
            await lab.complete(held)
            assert [] == await lab.lease(pool=mine)
            held = await lab.one(pool=other)
            order += other
            mine, other = other, mine
        assert "bababa" == order

    async def test_a_pool_that_asks_no_more_is_not_waited_for(self, lab: Lab) -> None:
        """The time at which a yielding worker may lease is exact: then any worker gets the slot."""
        await self._share(lab, 1)
        await self._put(lab, "a", 2)
        await self._put(lab, "b", 2)
        held = await lab.one(pool="a")
        assert [] == await lab.lease(pool="b")
        await lab.complete(held)
        answer = await lab.ask(pool="a")
        assert ((), lab.now + STARVED_FOR) == (answer.leased, answer.next_at)
        lab.now = (answer.next_at or 0.0) - INSTANT
        assert [] == await lab.lease(pool="a")
        lab.now = answer.next_at or 0.0
        assert 1 == len(await lab.lease(pool="a"))

    async def test_a_budget_leaves_the_limits_of_its_pools_in_force(self, lab: Lab) -> None:
        """Both have to agree: the smaller rules."""
        await lab.budget("both", 9)
        await lab.declare("a", max_concurrent=2, budgets=("both",))
        await self._put(lab, "a", 5)
        assert 2 == len(await lab.lease(pool="a"))

    async def test_of_several_budgets_each_has_to_agree(self, lab: Lab) -> None:
        """A pool may share with different others at once."""
        await lab.budget("one", 5)
        await lab.budget("two", 2)
        await lab.declare("a", max_concurrent=9, budgets=("one", "two"))
        await lab.declare("b", max_concurrent=9, budgets=("one",))
        await self._put(lab, "a", 9)
        await self._put(lab, "b", 9)
        assert (2, 3) == (len(await lab.lease(pool="a")), len(await lab.lease(pool="b")))

    async def test_the_rate_of_a_budget_is_one_for_its_pools(self, lab: Lab) -> None:
        """Starts of all pools come out of one bucket, and the moment named is exact."""
        await self._share(lab, 9, (Rate(2, per=10.0),))
        await self._put(lab, "a", 3)
        await self._put(lab, "b", 3)
        assert 1 == len(await lab.lease(1, pool="a"))
        answer = await lab.ask(9, pool="b")
        assert (1, lab.now + 5.0) == (len(answer.leased), answer.next_at)
        lab.later(5.0)
        assert 1 == len(await lab.lease(pool="b"))

    async def test_a_heavy_task_is_not_starved_by_light_ones_of_another_pool(
        self, lab: Lab
    ) -> None:
        """Who waits for tokens comes before those who came later, however little they want."""
        await self._share(lab, 9, (Rate(10, per=10.0, of="weight"),))
        await self._put(lab, "a", 9, weight=5)
        await self._put(lab, "b", 1, weight=10)
        held = await lab.lease(pool="a")
        moment = (await lab.ask(pool="b")).next_at
        assert (2, lab.now + 10.0) == (len(held), moment)
        lab.later(5.0)
        assert [] == await lab.lease(pool="a")
        lab.now = moment or 0.0
        assert [] == await lab.lease(pool="a")
        assert 1 == len(await lab.lease(pool="b"))

    async def test_a_refund_goes_to_the_budget(self, lab: Lab) -> None:
        """What one pool did not use, another may."""
        await self._share(lab, 9, (Rate(10, per=10.0, of="weight"),))
        await self._put(lab, "a", 1, weight=10)
        await self._put(lab, "b", 1, weight=10)
        held = await lab.one(pool="a")
        assert [] == await lab.lease(pool="b")
        answer = msgspec.structs.replace(completed(held), weight=0)
        await lab.applied(answer)
        assert "b" in lab.wakes
        assert 1 == len(await lab.lease(pool="b"))

    async def test_weight_beyond_the_charged_one_is_charged_to_the_budget(self, lab: Lab) -> None:
        """Also when the task began at the very moment at which its pool was declared."""
        await self._share(lab, 9, (Rate(10, per=10.0, of="weight"),))
        await self._put(lab, "a", 1, weight=5)
        await self._put(lab, "b", 1, weight=5)
        answer = msgspec.structs.replace(completed(await lab.one(pool="a")), weight=6)
        await lab.applied(answer)
        assert [] == await lab.lease(pool="b")
        lab.later(1.0)
        assert 1 == len(await lab.lease(pool="b"))

    async def test_a_retry_gives_its_part_back(self, lab: Lab) -> None:
        """A backoff holds no slot of a budget."""
        await self._share(lab, 1)
        await self._put(lab, "a", 1)
        await self._put(lab, "b", 1)
        await lab.retry(await lab.one(pool="a"), 60.0)
        assert 1 == len(await lab.lease(pool="b"))

    async def test_a_lost_worker_gives_its_part_back(self, lab: Lab) -> None:
        """What is taken of a budget is what runs: nothing leaks."""
        await self._share(lab, 1)
        await self._put(lab, "a", 1)
        await self._put(lab, "b", 1)
        await lab.join("w2")
        assert 1 == len(await lab.lease(pool="a", worker="w2"))
        assert [] == await lab.lease(pool="b")
        await lab.control(orders.DeclareDead("w2"))
        assert "b" in lab.wakes
        assert 1 == len(await lab.lease(pool="b"))

    async def test_a_budget_can_be_resized_and_reset(self, lab: Lab) -> None:
        """A lower limit is reached by attrition; a higher one wakes; None is as declared."""
        await self._share(lab, 3)
        await self._put(lab, "a", 9)
        held = await lab.lease(pool="a")
        await lab.control(orders.ResizeBudget("both", 1))
        await lab.complete(held[0])
        assert [] == await lab.lease(pool="a")
        await lab.control(orders.ResizeBudget("both"))
        assert "a" in lab.wakes
        assert 1 == len(await lab.lease(pool="a"))

    async def test_what_an_operator_set_outlives_a_declaration(self, lab: Lab) -> None:
        """A process that redeclares the budget does not undo a resize."""
        await self._share(lab, 3)
        await lab.control(orders.ResizeBudget("both", 1))
        await lab.budget("both", 7)
        found = await lab.view.budget("both")
        assert found is not None
        assert (1, 7) == (found.spec.max_concurrent, found.declared.max_concurrent)

    async def test_a_budget_can_be_looked_at(self, lab: Lab) -> None:
        """Who shares it, how much of it is taken, and who waits for it."""
        await self._share(lab, 1)
        await self._put(lab, "a", 1)
        await self._put(lab, "b", 1)
        await lab.lease(pool="a")
        await lab.lease(pool="b")
        found = await lab.view.budget("both")
        assert found is not None
        assert (("a", "b"), 1, ("b",)) == (found.pools, found.running, found.waiting)
        assert None is await lab.view.budget("none")

    async def test_a_pool_that_leaves_a_budget_is_free_of_it(self, lab: Lab) -> None:
        """What it runs is no longer counted for the others."""
        await self._share(lab, 1)
        await self._put(lab, "a", 2)
        await self._put(lab, "b", 1)
        await lab.lease(1, pool="a")
        assert [] == await lab.lease(pool="b")
        await lab.declare("a", max_concurrent=9)
        assert "b" in lab.wakes
        assert (1, 1) == (len(await lab.lease(pool="a")), len(await lab.lease(pool="b")))

    async def test_an_undeclared_budget_is_refused(self, lab: Lab) -> None:
        """So is its resize; nothing is stored."""
        with pytest.raises(ConfigError, match="budgets"):
            await lab.declare("a", budgets=("none",))
        assert None is await lab.view.pool("a")
        with pytest.raises(ConfigError, match="budget"):
            await lab.control(orders.ResizeBudget("none", 1))

    async def test_what_a_budget_could_never_pay_is_refused(self, lab: Lab) -> None:
        """A task heavier than the burst of a budget's rate would wait for ever."""
        await self._share(lab, 9, (Rate(10, per=10.0, of="weight"),))
        refusal = await lab.refusal(lab.new(pool="a", weight=11))
        assert ("weight_limit", 10) == (refusal.reason, refusal.bound)

    async def test_a_fail_fast_pool_asks_its_budget(self, lab: Lab) -> None:
        """What could not start at once for want of a budget is refused."""
        await lab.budget("both", 1)
        await lab.declare("a", budgets=("both",), backpressure=fail_fast())
        await lab.declare("b", budgets=("both",))
        await self._put(lab, "b", 1)
        await lab.lease(pool="b")
        assert "no_capacity" == (await lab.refusal(lab.new(pool="a"))).reason

    async def test_why_names_the_budget(self, lab: Lab) -> None:
        """`why` names the budget that is used up."""
        await self._share(lab, 1)
        await self._put(lab, "a", 1)
        await lab.lease(pool="a")
        waiting = await lab.put(pool="b")
        facts = await lab.view.why(waiting, now=lab.now)
        assert facts is not None
        assert "budget both at 1/1" in explain(facts, lab.now)

    async def test_a_blocked_budget_is_not_walked_around(self, lab: Lab) -> None:
        """Order holds: nothing behind the head starts because it is lighter."""
        await self._share(lab, 9, (Rate(10, per=10.0, of="weight"),))
        await self._put(lab, "a", 1, weight=6)
        await lab.put("heavy", pool="a", weight=6)
        await lab.put("light", pool="a", weight=1)
        assert "a" == names_of(await lab.lease(pool="a"))

    async def test_a_pool_held_by_its_own_rate_asks_again_in_time(self, lab: Lab) -> None:
        """It does not stand in line for a full budget, so the moment of its rate is named."""
        await lab.budget("both", 1)
        await lab.declare("a", budgets=("both",), rates=(Rate(1, per=10.0),))
        await lab.declare("b", budgets=("both",))
        await self._put(lab, "a", 2)
        await self._put(lab, "b", 1)
        await lab.complete(await lab.one(pool="a"))
        held = await lab.one(pool="b")
        answer = await lab.ask(pool="a")
        assert ((), lab.now + 10.0) == (answer.leased, answer.next_at)
        lab.later(10.0)
        assert [] == await lab.lease(pool="a")
        await lab.complete(held)
        assert "a" in lab.wakes
        assert 1 == len(await lab.lease(pool="a"))
