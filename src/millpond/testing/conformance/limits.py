"""Limits: how many may run, of a pool, a key and a worker, and how fast they may start."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.rate import Rate
from millpond.core.spec import fifo
from millpond.errors import ConfigError, StaleRevision
from millpond.testing.conformance.lab import INSTANT, POOL, Lab, completed, ids_of, names_of
from millpond.testing.conformance.scenario import StoreSuite, mark


class LimitsConformance(StoreSuite):
    """Nothing starts above a limit, and nothing waits below it."""

    @mark.rows("CX-T39", "CX-T40")
    async def test_exactly_as_many_run_as_may(self, lab: Lab) -> None:
        """Seven tasks and three slots: three start, four wait, and each end lets one more in."""
        await lab.declare(max_concurrent=3)
        await lab.put_many(7)
        running = await lab.lease()
        assert (3, 4) == ((await lab.pool()).running, (await lab.pool()).queued)
        await lab.complete(running[1])
        assert 1 == len(await lab.lease())

    @mark.rows("CX-T121")
    async def test_the_limit_is_one_for_all_workers(self, lab: Lab) -> None:
        """Two workers share the slots of a pool."""
        await lab.declare(max_concurrent=3)
        await lab.join("w2")
        await lab.put_many(6)
        assert [2, 1] == [len(await lab.lease(2)), len(await lab.lease(2, worker="w2"))]

    async def test_a_backoff_holds_no_slot(self, lab: Lab) -> None:
        """While one task waits for its retry the next one runs."""
        await lab.declare(max_concurrent=1)
        await lab.put("a")
        await lab.put("b")
        await lab.retry(await lab.one(), 60.0)
        assert "b" == names_of(await lab.lease())

    async def test_at_most_so_many_of_one_key_run(self, lab: Lab) -> None:
        """A key at its limit is passed over; the others fill the pool."""
        await lab.declare(max_concurrent=9, max_per_key=2)
        await lab.put_keys("AAAABA")
        assert "A A B" == names_of(await lab.lease())

    async def test_a_key_goes_on_as_its_tasks_end(self, lab: Lab) -> None:
        """Each end of a task lets the next of its key start."""
        await lab.declare(max_concurrent=9, max_per_key=1)
        await lab.put_keys("AA")
        first = await lab.one()
        assert [] == await lab.lease()
        await lab.complete(first)
        assert 1 == len(await lab.lease())

    async def test_tasks_without_a_key_have_no_key_limit(self, lab: Lab) -> None:
        """The limit of a key is for those that have one."""
        await lab.declare(max_concurrent=9, max_per_key=1)
        await lab.put_many(3)
        assert 3 == len(await lab.lease())

    # Resize

    @mark.rows("TRAP-15", "CX-T41")
    async def test_a_lower_limit_is_reached_by_attrition(self, lab: Lab) -> None:
        """What runs goes on; nothing starts until fewer run than the new limit allows."""
        await lab.declare(max_concurrent=3)
        await lab.put_many(5)
        running = await lab.lease()
        await lab.control(orders.Resize(POOL, 1))
        assert 3 == (await lab.pool()).running
        await lab.applied(completed(running[0]), completed(running[1]))
        assert [] == await lab.lease()
        await lab.complete(running[2])
        assert 1 == len(await lab.lease())

    async def test_a_raised_limit_lets_more_start(self, lab: Lab) -> None:
        """The new limit is in force with the next lease."""
        await lab.declare(max_concurrent=1)
        await lab.put_many(3)
        await lab.lease()
        await lab.control(orders.Resize(POOL, 3))
        assert 2 == len(await lab.lease())

    async def test_a_limit_of_zero_is_a_pause(self, lab: Lab) -> None:
        """Nothing starts, running work is settled, and a raised limit goes on."""
        await lab.declare(max_concurrent=1)
        await lab.put()
        await lab.put()
        running = await lab.one()
        await lab.control(orders.Resize(POOL, 0))
        await lab.complete(running)
        assert [] == await lab.lease()
        await lab.control(orders.Resize(POOL, 1))
        assert 1 == len(await lab.lease())

    async def test_a_resize_from_an_old_revision_is_refused(self, lab: Lab) -> None:
        """Numbered changes apply in order: one not above the one in force changes nothing."""
        await lab.declare(max_concurrent=1)
        assert 7 == (await lab.control(orders.Resize(POOL, 2, 7))).revision
        for stale in (6, 7):
            with pytest.raises(StaleRevision) as caught:
                await lab.control(orders.Resize(POOL, 3, stale))
            assert (stale, 7) == (caught.value.given, caught.value.current)
        assert 2 == (await lab.pool()).spec.max_concurrent
        assert 8 == (await lab.control(orders.Resize(POOL, 3))).revision

    async def test_a_negative_limit_is_refused(self, lab: Lab) -> None:
        """A limit that cannot be is blamed by name and changes nothing."""
        await lab.declare(max_concurrent=2)
        with pytest.raises(ConfigError):
            await lab.control(orders.Resize(POOL, -1))
        assert (2, 1) == ((await lab.pool()).spec.max_concurrent, (await lab.pool()).revision)

    # Pause and hold

    @mark.rows("DE-T14", "DE-T16", "DE-07")
    async def test_a_paused_pool_takes_submits_and_starts_nothing(self, lab: Lab) -> None:
        """Tasks submitted during a pause run after it."""
        await lab.declare()
        await lab.control(orders.Pause(POOL))
        task = await lab.put()
        answer = await lab.ask()
        assert ((), None) == (answer.leased, answer.next_at)
        assert (await lab.pool()).paused
        await lab.control(orders.Resume(POOL))
        assert [task] == ids_of(await lab.lease())

    @mark.rows("TRAP-7")
    async def test_a_pause_keeps_timers_and_takes_completions(self, lab: Lab) -> None:
        """A backoff that ends during the pause is over when the pause is."""
        await lab.declare()
        await lab.put("retried")
        await lab.put("completed")
        retry, complete = await lab.lease()
        await lab.retry(retry, 5.0)
        await lab.control(orders.Pause(POOL))
        await lab.complete(complete)
        lab.later(5.0)
        await lab.control(orders.Resume(POOL))
        assert "retried" == names_of(await lab.lease())

    async def test_a_paused_key_stops_alone(self, lab: Lab) -> None:
        """A pause of one key leaves the others running."""
        await lab.declare()
        await lab.put_keys("AB")
        await lab.control(orders.Pause(POOL, "A"))
        assert "B" == names_of(await lab.lease())
        await lab.control(orders.Resume(POOL, "A"))
        assert "A" == names_of(await lab.lease())

    async def test_a_key_may_be_paused_before_it_is_seen(self, lab: Lab) -> None:
        """A pause of a key holds for tasks that come later."""
        await lab.declare()
        await lab.control(orders.Pause(POOL, "A"))
        await lab.put_keys("A")
        assert [] == await lab.lease()

    async def test_a_hold_is_over_at_its_moment(self, lab: Lab) -> None:
        """A pool that is held starts nothing, says until when, and starts then to the instant."""
        await lab.declare()
        await lab.put()
        await lab.put(key="A")
        await lab.control(orders.Hold(POOL, 3.0))
        answer = await lab.ask()
        assert ((), lab.now + 3.0) == (answer.leased, answer.next_at)
        lab.later(2.75)
        assert [] == await lab.lease()
        lab.later(0.25)
        assert 2 == len(await lab.lease())

    async def test_a_hold_of_a_key_leaves_the_others_alone(self, lab: Lab) -> None:
        """One key waits, the rest goes on, and the answer says when it is worth asking again."""
        await lab.declare()
        await lab.put_keys("AB")
        await lab.control(orders.Hold(POOL, 3.0, "A"))
        answer = await lab.ask(9)
        assert ("B", lab.now + 3.0) == (names_of(answer.leased), answer.next_at)
        lab.later(3.0)
        assert "A" == names_of(await lab.lease())

    async def test_a_shorter_hold_does_not_cut_a_longer_one(self, lab: Lab) -> None:
        """Two holds of two keys are both in force."""
        await lab.declare()
        await lab.put()
        await lab.control(orders.Hold(POOL, 8.0))
        await lab.control(orders.Hold(POOL, 1.0))
        assert lab.now + 8.0 == (await lab.ask()).next_at

    # Rates

    async def test_a_rate_allows_its_burst_and_no_more(self, lab: Lab) -> None:
        """After a rest `burst` tasks start at once, and not one more."""
        await lab.declare(max_concurrent=99, rates=(Rate(2, per=1.0, burst=3),))
        await lab.put_many(9)
        assert 3 == len(await lab.lease())

    async def test_a_rate_without_a_burst_saves_up_to_its_number(self, lab: Lab) -> None:
        """Rate(n, per) has a burst of n."""
        await lab.declare(max_concurrent=99, rates=(Rate(4, per=1.0),))
        await lab.put_many(9)
        assert 4 == len(await lab.lease())

    @pytest.mark.parametrize("rate", [Rate(2, per=1.0, burst=1), Rate(3, per=7.0, burst=2)])
    async def test_the_moment_named_is_exact(self, lab: Lab, rate: Rate) -> None:
        """Asking at `next_at` succeeds each time; one instant before it nothing starts."""
        await lab.declare(max_concurrent=99, rates=(rate,))
        await lab.put_many(12)
        await lab.lease()
        for _ in range(8):
            moment = (await lab.ask()).next_at
            assert moment is not None
            lab.now = moment - INSTANT
            assert [] == await lab.lease()
            lab.now = moment
            assert 1 == len(await lab.lease())

    async def test_a_rate_holds_over_any_window(self, lab: Lab) -> None:
        """Over ten seconds at most burst + 10 * n / per tasks start, however often one asks."""
        await lab.declare(max_concurrent=99, rates=(Rate(2, per=1.0, burst=3),))
        await lab.put_many(40)
        started = 0
        for _ in range(41):
            started += len(await lab.lease())
            lab.later(0.25)
        assert 3 + 2 * 10 == started

    async def test_every_attempt_counts_for_the_rate(self, lab: Lab) -> None:
        """A retry is a start like the first."""
        await lab.declare(rates=(Rate(1, per=10.0),))
        await lab.put()
        await lab.retry(await lab.one())
        assert [] == await lab.lease()
        lab.later(10.0)
        assert 1 == len(await lab.lease())

    async def test_a_rate_of_weight_counts_weight(self, lab: Lab) -> None:
        """A start costs its weight, and the next waits until the bucket can pay for it."""
        await lab.declare(rates=(Rate(4, per=4.0, of="weight"),))
        await lab.put(weight=3)
        await lab.put(weight=2)
        answer = await lab.ask(9)
        assert (1, lab.now + 1.0) == (len(answer.leased), answer.next_at)
        lab.later(1.0)
        assert 1 == len(await lab.lease())

    async def test_of_two_rates_the_slower_rules(self, lab: Lab) -> None:
        """Every rate of a pool has to agree to a start."""
        await lab.declare(max_concurrent=99, rates=(Rate(100, per=1.0), Rate(1, per=60.0, burst=2)))
        await lab.put_many(5)
        assert 2 == len(await lab.lease())

    async def test_a_rate_per_key_slows_each_key_by_itself(self, lab: Lab) -> None:
        """Each key starts at its own rate, and the moment named is exact."""
        await lab.declare(max_concurrent=9, rate_per_key=Rate(1, per=2.0, burst=1))
        await lab.put_keys("AAB")
        answer = await lab.ask(9)
        assert ("A B", lab.now + 2.0) == (names_of(answer.leased), answer.next_at)
        lab.now += 2.0 - INSTANT
        assert [] == await lab.lease()
        lab.now = answer.next_at or 0.0
        assert "A" == names_of(await lab.lease())

    async def test_a_rate_per_key_does_not_slow_tasks_without_one(self, lab: Lab) -> None:
        """Tasks without a key are not held to the rate of a key."""
        await lab.declare(max_concurrent=9, rate_per_key=Rate(1, per=60.0))
        await lab.put_many(3)
        assert 3 == len(await lab.lease())

    # Sharing between workers

    async def test_a_worker_that_holds_all_slots_yields(self, lab: Lab) -> None:
        """When another asked and got none, the next free slot is not taken by who has most."""
        await lab.declare(max_concurrent=4, order=fifo())
        await lab.join("w1")
        await lab.join("w2")
        await lab.put_many(9)
        held = await lab.lease(worker="w1")
        assert [] == await lab.lease(worker="w2")
        await lab.complete(held[0])
        assert [] == await lab.lease(worker="w1")
        assert 1 == len(await lab.lease(worker="w2"))

    async def test_a_starved_worker_gets_an_even_share(self, lab: Lab) -> None:
        """As work ends, slots pass over until each of the two holds half."""
        await lab.declare(max_concurrent=4)
        await lab.join("w1")
        await lab.join("w2")
        await lab.put_many(20)
        held = await lab.lease(worker="w1")
        await lab.lease(worker="w2")
        await lab.applied(*map(completed, held))
        assert 2 == len(await lab.lease(worker="w1"))
        assert 2 == len(await lab.lease(worker="w2"))

    async def test_who_asked_no_more_is_not_waited_for(self, lab: Lab) -> None:
        """A share kept free for another is named by its moment, and taken up from then on."""
        await lab.declare(max_concurrent=2)
        await lab.join("w1")
        await lab.join("w2")
        await lab.put_many(9)
        held = await lab.lease(worker="w1")
        assert [] == await lab.lease(worker="w2")
        await lab.complete(held[0])
        answer = await lab.ask(9, worker="w1")
        assert () == answer.leased
        assert answer.next_at is not None
        lab.now = answer.next_at
        assert 1 == len(await lab.lease(worker="w1"))

    async def _two_workers(self, lab: Lab, *, slots: int) -> None:
        await lab.declare(max_concurrent=slots)
        await lab.join("w1")
        await lab.join("w2")

    async def _takes_every_free_slot(self, lab: Lab, held: Leased) -> None:
        """Check that w1 is held to no share: it refills the slot it just freed."""
        await lab.complete(held)
        assert 1 == len(await lab.lease(worker="w1"))

    async def test_a_worker_that_was_served_no_longer_claims_a_share(self, lab: Lab) -> None:
        """Once the starved worker got something, slots go to the first worker again."""
        await self._two_workers(lab, slots=4)
        await lab.put_many(20)
        held = await lab.lease(worker="w1")
        await lab.lease(worker="w2")
        await lab.complete(held[0])
        assert 1 == len(await lab.lease(1, worker="w2"))
        await self._takes_every_free_slot(lab, held[1])

    async def test_a_worker_that_holds_something_is_not_starved(self, lab: Lab) -> None:
        """Asking for more than one has is no reason for others to yield."""
        await self._two_workers(lab, slots=4)
        await lab.put_many(20)
        assert 1 == len(await lab.lease(1, worker="w2"))
        held = await lab.lease(worker="w1")
        assert [] == await lab.lease(worker="w2")
        await self._takes_every_free_slot(lab, held[0])

    async def test_a_worker_that_ran_dry_can_be_starved(self, lab: Lab) -> None:
        """What it held before is over; it asks as a newcomer does."""
        await self._two_workers(lab, slots=2)
        await lab.put_many(9)
        before = (await lab.lease(1, worker="w2"))[0]
        await lab.complete(before)
        held = await lab.lease(worker="w1")
        assert [] == await lab.lease(worker="w2")
        await lab.complete(held[0])
        assert [] == await lab.lease(worker="w1")
        assert 1 == len(await lab.lease(worker="w2"))

    async def test_a_lease_of_an_empty_pool_starves_no_worker(self, lab: Lab) -> None:
        """Who got nothing because there was nothing has no claim on slots."""
        await self._two_workers(lab, slots=2)
        await lab.put_many(2)
        held = await lab.lease(worker="w1")
        assert [] == await lab.lease(worker="w2")
        await lab.put()
        await self._takes_every_free_slot(lab, held[0])

    async def test_a_lease_of_a_paused_pool_starves_no_worker(self, lab: Lab) -> None:
        """Slots that are free and closed to all are held by no one."""
        await self._two_workers(lab, slots=2)
        await lab.put_many(9)
        await lab.control(orders.Pause(POOL))
        assert [] == await lab.lease(worker="w2")
        await lab.control(orders.Resume(POOL))
        assert 2 == len(await lab.lease(worker="w1"))

    async def test_a_starved_worker_that_left_is_not_waited_for(self, lab: Lab) -> None:
        """A share is kept free for the living only."""
        await self._two_workers(lab, slots=2)
        await lab.put_many(9)
        held = await lab.lease(worker="w1")
        assert [] == await lab.lease(worker="w2")
        await lab.control(orders.Deregister("w2"))
        await self._takes_every_free_slot(lab, held[0])

    async def test_two_workers_that_settle_and_ask_take_turns(self, lab: Lab) -> None:
        """One slot, each asking for the next as it settles: it passes from one to the other."""
        await self._two_workers(lab, slots=1)
        await lab.put_many(9)
        mine, other = "w1", "w2"
        held = await lab.one(worker=mine)
        for _ in range(6):
            assert [] == await lab.lease(worker=other)
            then = LeaseRequest(pool=POOL, worker=mine, want=1)
            answer = await lab.settle_all([completed(held)], then=then)
            assert answer.lease is not None
            assert () == answer.lease.leased
            held = await lab.one(worker=other)
            mine, other = other, mine

    async def test_the_moment_named_to_who_yields_is_exact(self, lab: Lab) -> None:
        """If the starved one never comes back, asking at `next_at` succeeds, and not before."""
        lab.now = 1_700_000_000.123456
        await self._two_workers(lab, slots=1)
        await lab.put()
        await lab.put()
        held = await lab.one(worker="w1")
        assert [] == await lab.lease(worker="w2")
        lab.later(0.3)
        await lab.complete(held)
        moment = (await lab.ask(worker="w1")).next_at
        assert moment is not None
        lab.now = moment - INSTANT
        assert [] == await lab.lease(worker="w1")
        lab.now = moment
        assert 1 == len(await lab.lease(worker="w1"))

    async def test_a_lease_of_zero_tasks_starves_no_worker(self, lab: Lab) -> None:
        """A worker that wants no task claims no share."""
        await self._two_workers(lab, slots=2)
        await lab.put_many(9)
        held = await lab.lease(worker="w1")
        assert () == (await lab.ask(0, worker="w2")).leased
        await self._takes_every_free_slot(lab, held[0])

    async def test_three_workers_take_turns_at_one_slot(self, lab: Lab) -> None:
        """No worker starves, however often others lease: the one that waited longest is next."""
        await lab.declare(max_concurrent=1)
        started = dict.fromkeys(("w1", "w2", "w3"), 0)
        for worker in started:
            await lab.join(worker)
        await lab.put_many(40)
        for _ in range(12):
            for worker in ("w2", "w1", "w3"):
                for leased in await lab.lease(worker=worker):
                    started[worker] += 1
                    await lab.lease(worker="w1")
                    await lab.lease(worker="w3")
                    await lab.complete(leased)
            lab.later(0.1)
        assert min(started.values()) >= 5
