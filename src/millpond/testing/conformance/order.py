"""Order: which of the ready tasks is next."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.spec import Order, fair_round_robin, fifo, lifo, priority
from millpond.core.task import Call
from millpond.testing.conformance.lab import (
    A_LONG_LEASE,
    POOL,
    Lab,
    TaskOptions,
    completed,
    names_of,
)
from millpond.testing.conformance.scenario import StoreSuite, mark


class OrderConformance(StoreSuite):
    """Fifo, lifo, priority and the fair ring."""

    @mark.rows("HN-03")
    async def test_fifo_ignores_priority(self, lab: Lab) -> None:
        """First come, first served; priority is recorded and not looked at."""
        await lab.declare(order=fifo())
        await lab.put("a", priority=-1)
        second = await lab.put("b", priority=9)
        await lab.put("c")
        assert 9 == (await lab.task(second)).new.priority
        assert "a b c" == names_of(await lab.lease())

    @mark.rows("HN-03")
    async def test_lifo_starts_the_newest(self, lab: Lab) -> None:
        """The last to come is the first to start."""
        await lab.declare(order=lifo(), max_concurrent=1)
        for name in "abc":
            await lab.put(name)
        assert "c" == await lab.serve(1)
        await lab.put("d")
        assert "d b a" == await lab.serve(3)

    @mark.rows("HN-03")
    async def test_priority_starts_the_highest_first(self, lab: Lab) -> None:
        """Highest first, and among equals the one that came first."""
        await lab.declare(order=priority(), max_concurrent=9)
        for name, level in [("low", -5), ("a", 0), ("b", 0), ("top", 7), ("c", 0)]:
            await lab.put(name, priority=level)
        assert "top a b c low" == names_of(await lab.lease())

    async def test_aging_lets_the_old_overtake_the_important(self, lab: Lab) -> None:
        """Each `aging` seconds of waiting weigh as much as one step of priority."""
        await lab.declare(order=priority(aging=2.0), max_concurrent=9)
        await lab.put("old")
        lab.later(1.0)
        await lab.put("important", priority=1)
        lab.later(2.0)
        await lab.put("too late", priority=1)
        assert "important old too late" == names_of(await lab.lease())

    @pytest.mark.parametrize(
        ("order", "early", "late"),
        [
            (fifo(), "b", "a c"),
            (lifo(), "c", "b a"),
            (priority(), "b", "a c"),
            (priority(aging=2.0), "b", "a c"),
            (fair_round_robin(), "b", "a c"),
        ],
        ids=["fifo", "lifo", "priority", "aging", "fair"],
    )
    async def test_a_retried_task_rejoins_at_its_place(
        self, lab: Lab, order: Order, early: str, late: str
    ) -> None:
        """When its backoff is over a task stands where its submit had put it."""
        await lab.declare(order=order, max_concurrent=1)
        await lab.put("a")
        await lab.retry(await lab.one(), 5.0)
        await lab.put("b")
        await lab.put("c")
        assert early == await lab.serve(1)
        lab.later(5.0)
        assert late == await lab.serve(2)

    async def test_a_delayed_task_rejoins_at_its_place(self, lab: Lab) -> None:
        """A delay moves the start, not the place in the queue."""
        await lab.declare(max_concurrent=1)
        await lab.put("a", delay=5.0)
        await lab.put("b")
        await lab.put("c")
        assert "b" == await lab.serve(1)
        lab.later(5.0)
        assert "a c" == await lab.serve(2)

    async def test_a_released_task_is_next_again(self, lab: Lab) -> None:
        """What a worker gives back stands where it stood."""
        await lab.declare(max_concurrent=1)
        for name in "ab":
            await lab.put(name)
        await lab.release(await lab.one())
        assert "a b" == await lab.serve(2)

    # The fair ring

    async def _fair(self, lab: Lab, **weights: float) -> None:
        await lab.declare(order=fair_round_robin("key", weights), max_concurrent=1)

    @mark.rows("HN-04", "TRAP-8")
    async def test_a_heavy_key_does_not_delay_the_light_ones(self, lab: Lab) -> None:
        """Eight of A and one each of B to F are served A B C D E F, and then the rest of A."""
        await self._fair(lab)
        await lab.put_keys("AAAAAAAABCDEF")
        assert "A B C D E F A A A A A A A" == await lab.serve(13)

    @mark.rows("HN-04")
    async def test_a_newcomer_is_served_in_the_round_under_way(self, lab: Lab) -> None:
        """C arrives after the first A and is served behind B, which still waits in that round."""
        await self._fair(lab)
        await lab.put_keys("AAABBB")
        first = await lab.serve(1)
        await lab.put_keys("CCC")
        assert "A B C A B C A B C" == f"{first} {await lab.serve(8)}"

    async def test_within_a_key_the_first_to_come_is_first(self, lab: Lab) -> None:
        """A turn serves the oldest task of its key."""
        await self._fair(lab)
        for name, share in [("A1", "A"), ("A2", "A"), ("B1", "B"), ("A3", "A"), ("B2", "B")]:
            await lab.put(name, share=share)
        assert "A1 B1 A2 B2 A3" == await lab.serve(5)

    async def test_a_weight_of_two_is_served_twice_as_often(self, lab: Lab) -> None:
        """Over any round a key of weight two has two starts for each of the others'."""
        await self._fair(lab, A=2.0)
        await lab.put_keys("AAAAAABBB")
        served = (await lab.serve(9)).split()
        assert [2, 2, 2] == [served[i : i + 3].count("A") for i in (0, 3, 6)]

    async def test_a_weight_below_one_is_served_less_often(self, lab: Lab) -> None:
        """A key of weight one half has one start for each two of the others'."""
        await self._fair(lab, A=0.5)
        await lab.put_keys("AAABBBBBB")
        served = (await lab.serve(9)).split()
        assert [1, 1, 1] == [served[i : i + 3].count("A") for i in (0, 3, 6)]

    async def test_tasks_without_a_share_have_one_turn_together(self, lab: Lab) -> None:
        """The shared default lane is one key among the others."""
        await self._fair(lab)
        for name, share in [("-", None), ("-", None), ("A", "A"), ("A", "A")]:
            await lab.put(name, share=share)
        assert "- A - A" == await lab.serve(4)

    async def test_a_claim_of_many_equals_many_claims(self, lab: Lab) -> None:
        """One lease of six serves the same tasks in the same order as six leases of one."""
        keys = "AAABBCDDDA"
        await lab.declare("single", order=fair_round_robin(), max_concurrent=10)
        await lab.declare("batch", order=fair_round_robin(), max_concurrent=10)
        for pool in ("single", "batch"):
            for key in keys:
                await lab.put(key, share=key, pool=pool)
        singles = [await lab.one(pool="single") for _ in range(6)]
        assert names_of(singles) == names_of(await lab.lease(6, pool="batch"))

    async def test_a_key_that_was_away_saved_up_nothing(self, lab: Lab) -> None:
        """A key that rejoins takes part from the round under way, not from where it left."""
        await self._fair(lab)
        await lab.put_keys("ABBBBB")
        assert "A B B B" == await lab.serve(4)
        await lab.put_keys("AAA")
        assert "A B A B A" == await lab.serve(5)

    async def test_a_key_that_comes_straight_back_gets_no_second_turn(self, lab: Lab) -> None:
        """Leaving the ring and rejoining before the others were served wins nothing."""
        await self._fair(lab)
        await lab.put_keys("AB")
        assert "A" == await lab.serve(1)
        await lab.put_keys("A")
        assert "B A" == await lab.serve(2)

    async def test_a_key_at_its_limit_is_out_of_the_ring(self, lab: Lab) -> None:
        """The others are served past it, and it comes back without a credit."""
        await lab.declare(order=fair_round_robin(), max_concurrent=4, max_per_key=1)
        await lab.put_keys("AAABC")
        running = await lab.lease()
        assert "A B C" == names_of(running)
        await lab.put_keys("BC")
        await lab.applied(*map(completed, running))
        assert "A B C" == names_of(await lab.lease())

    async def test_a_paused_key_is_out_of_the_ring(self, lab: Lab) -> None:
        """A pause of one key gives its turns to the others and no credit for later."""
        await self._fair(lab)
        await lab.put_keys("AAABBBB")
        await lab.control(orders.Pause(POOL, "A"))
        assert "B B" == await lab.serve(2)
        await lab.control(orders.Resume(POOL, "A"))
        assert "A B A B A" == await lab.serve(5)

    @pytest.mark.parametrize(
        "needs",
        [{}, {"on_complete": Call("note")}, {"owner": "process"}],
        ids=["plain", "callback", "closure"],
    )
    async def test_shares_of_a_freed_key_join_the_ring_by_their_first_tasks(
        self, lab: Lab, needs: TaskOptions
    ) -> None:
        """The share with the older task is served first, whatever the other task needs."""
        await lab.declare(order=fair_round_robin(), max_concurrent=4, max_per_key=1)
        await lab.join("other", lease=A_LONG_LEASE, owner="process")
        await lab.put(key="k", share="x")
        running = await lab.lease(worker="other")
        await lab.put("old", key="k", share="z")
        await lab.put("new", **(needs | {"key": "k", "share": "a"}))
        await lab.applied(*map(completed, running))
        assert "old" == names_of(await lab.lease(worker="other"))

    async def test_a_delayed_task_joins_before_a_newer_one_of_its_freed_key(self, lab: Lab) -> None:
        """Not when a task came into the queue counts, but when it was submitted."""
        await lab.declare(order=fair_round_robin(), max_concurrent=4, max_per_key=1)
        await lab.put("old", key="k", share="z", delay=5.0)
        await lab.put(key="k", share="x")
        running = await lab.lease()
        await lab.put("new", key="k", share="a")
        lab.later(5.0)
        assert [] == await lab.lease()
        await lab.applied(*map(completed, running))
        assert "old" == names_of(await lab.lease())

    async def test_a_higher_limit_lets_keys_join_the_ring_by_their_first_tasks(
        self, lab: Lab
    ) -> None:
        """The key of the oldest task that could not start is served first."""
        await lab.declare(order=fair_round_robin(), max_concurrent=9, max_per_key=1)
        await lab.put_keys("ABC")
        await lab.lease()
        for key, share in ("C", "z"), ("A", "y"), ("B", "x"):
            await lab.put(key, key=key, share=share)
        assert [] == await lab.lease()
        await lab.declare(order=fair_round_robin(), max_concurrent=9, max_per_key=2)
        assert "C A B" == names_of(await lab.lease())
