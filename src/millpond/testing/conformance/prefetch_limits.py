"""Ahead, under limits: which claims are wanted back, and by whom."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Status
from millpond.core.run import NewRun, OnError
from millpond.core.settle import Settled
from millpond.testing.conformance.lab import (
    INSTANT,
    POOL,
    WORKER,
    Lab,
    completed,
    handing_over,
    ids_of,
    names_of,
    retried,
)
from millpond.testing.conformance.prefetch import HoldsAhead


class AheadLimitsConformance(HoldsAhead):
    """Pauses, limits and cancels reach what is claimed ahead, and workers share it."""

    # Pauses, limits and cancels

    @pytest.mark.parametrize("what", ["pool", "key", "hold", "resize"])
    async def test_claims_are_wanted_back_when_nothing_may_start(self, lab: Lab, what: str) -> None:
        """A renewal says of which pools; a lease starts none of them."""
        await lab.declare(max_concurrent=2, prefetch=1)
        await lab.put(key="a")
        (claim,) = await lab.claims()
        assert () == (await lab.renew(WORKER)).give_back
        match what:
            case "pool":
                await lab.control(orders.Pause(POOL))
                assert {POOL: lab.now} == lab.wakes
            case "key":
                await lab.control(orders.Pause(POOL, "a"))
            case "hold":
                await lab.control(orders.Hold(POOL, 5.0))
            case _:
                await lab.control(orders.Resize(POOL, 0))
        assert (POOL,) == (await lab.renew(WORKER)).give_back
        assert not await lab.view.ready(POOL, WORKER, now=lab.now)
        answer = await lab.ask(1, ahead=1)
        assert ((), what != "key") == (answer.leased, answer.give_back)
        await lab.release(claim)
        assert () == (await lab.renew(WORKER)).give_back

    async def test_claims_go_back_when_fewer_may_run_than_do(self, lab: Lab) -> None:
        """A lowered limit is reached by attrition, so nothing is to take over a slot."""
        await lab.declare(max_concurrent=2, prefetch=1)
        await lab.put_many(3)
        await lab.ask(2, ahead=1)
        assert () == (await lab.renew(WORKER)).give_back
        await lab.control(orders.Resize(POOL, 1))
        assert (POOL,) == (await lab.renew(WORKER)).give_back

    @pytest.mark.parametrize("what", ["pause", "key", "resize", "hold"])
    async def test_what_started_in_good_faith_counts(self, lab: Lab, what: str) -> None:
        """Its worker had not heard: the start is taken, and makes no more run than before."""
        await lab.declare(max_concurrent=1, prefetch=1)
        await lab.put(key="a")
        await lab.put(key="a")
        held = await lab.ask(1, ahead=1)
        (running,), (claim,) = held.leased, held.claimed
        match what:
            case "pause":
                await lab.control(orders.Pause(POOL))
            case "key":
                await lab.control(orders.Pause(POOL, "a"))
            case "resize":
                await lab.control(orders.Resize(POOL, 0))
            case _:
                await lab.control(orders.Hold(POOL, 5.0))
        answer = await lab.applied(handing_over(completed(running), claim))
        assert (Settled.APPLIED,) == answer.started
        assert 1 == (await lab.pool()).running
        await lab.complete(claim)
        assert Status.COMPLETED == await lab.status(claim.fence.task)

    async def test_a_held_key_lets_its_claim_start_later(self, lab: Lab) -> None:
        """A lease says when, and asking then starts it."""
        await lab.declare(prefetch=1)
        await lab.put(key="a")
        (claim,) = await lab.claims()
        await lab.control(orders.Hold(POOL, 5.0, "a"))
        moment = (await lab.ask()).next_at
        assert lab.now + 5.0 == moment
        lab.later(5.0 - INSTANT)
        assert [] == await lab.lease()
        lab.later(INSTANT)
        assert [claim.fence.task] == ids_of(await lab.lease())

    async def test_a_cancel_asks_for_a_claim_back(self, lab: Lab) -> None:
        """Its worker may be starting it, so it gets a request; given back, it ends cancelled."""
        _, (claim,) = await self._hold(lab)
        task = claim.fence.task
        answer = await lab.control(orders.Cancel((task,)))
        assert (1, ()) == (answer.count, answer.ended)
        assert Status.QUEUED == await lab.status(task)
        assert 0 == (await lab.control(orders.Cancel((task,)))).count
        assert (task,) == (await lab.renew(WORKER)).cancelled
        ended = await lab.release(claim)
        assert ((Status.CANCELLED,), (task,)) == (ended.after, ended.ended)
        found = await lab.task(task)
        assert ("cancelled", 0) == (found.reason, found.runs)

    async def test_an_interrupt_reaches_a_claim_that_started_meanwhile(self, lab: Lab) -> None:
        """Its worker gets the request with all it holds; the first reason for its end stands."""
        running, (claim,) = await self._hold(lab)
        task = claim.fence.task
        await lab.control(orders.Purge(POOL))
        answer = await lab.control(orders.Cancel((task,), interrupt=True))
        assert (1, (task,)) == (answer.count, answer.interrupted)
        assert "purged" == (await lab.task(task)).reason
        await lab.applied(handing_over(completed(running), claim))
        found = await lab.task(task)
        assert (Status.RUNNING, True) == (found.status, found.interrupt_requested)
        assert (task,) == (await lab.renew(WORKER)).interrupted

    async def test_a_cancelled_claim_that_started_may_still_complete(self, lab: Lab) -> None:
        """Work begun in good faith is not thrown away, but not tried again either."""
        running, (one, two) = await self._hold(lab, 2)
        await lab.control(orders.Cancel((one.fence.task, two.fence.task)))
        answer = await lab.applied(
            handing_over(completed(running), one), handing_over(completed(one), two), retried(two)
        )
        assert (Status.COMPLETED, Status.COMPLETED, Status.CANCELLED) == answer.after
        assert (await lab.task(one.fence.task)).reason is None

    async def test_a_lease_does_not_start_what_is_to_be_cancelled(self, lab: Lab) -> None:
        """It stays held until its worker gives it back or is lost."""
        await lab.declare(prefetch=1)
        await lab.join("w2")
        task = await lab.put()
        await lab.claims(worker="w2")
        await lab.control(orders.Cancel((task,)))
        assert [] == await lab.lease(worker="w2")
        await lab.control(orders.DeclareDead("w2"))
        answer = await lab.task(task)
        assert (Status.CANCELLED, "cancelled") == (answer.status, answer.reason)

    async def test_a_purge_asks_for_claims_back(self, lab: Lab) -> None:
        """It counts them; given back, they end as purged."""
        _, (claim,) = await self._hold(lab)
        await lab.put()
        answer = await lab.control(orders.Purge(POOL))
        assert (2, 1) == (answer.count, len(answer.ended))
        await lab.release(claim)
        found = await lab.task(claim.fence.task)
        assert (Status.CANCELLED, "purged") == (found.status, found.reason)

    @pytest.mark.parametrize("how", ["failed", "cancelled"])
    async def test_a_stopped_run_asks_for_its_claims_back(self, lab: Lab, how: str) -> None:
        """What its workers hold ahead ends with it, as what waits does."""
        await lab.declare(max_concurrent=1, prefetch=1)
        run = NewRun(id=lab.serial(), pool=POOL, on_error=OnError.FAIL)
        await lab.submit(*(lab.new(run=run.id) for _ in range(3)), run=run)
        held = await lab.ask(1, ahead=1)
        if how == "failed":
            await lab.fail(held.leased[0])
        else:
            assert 3 == (await lab.control(orders.CancelRun(run.id))).count
            await lab.stop(held.leased[0])
        answer = await lab.release(held.claimed[0])
        assert ((Status.CANCELLED,), (run.id,)) == (answer.after, answer.finished_runs)
        reason = "run_failed" if how == "failed" else "cancelled"
        assert reason == (await lab.task(held.claimed[0].fence.task)).reason

    # Sharing with others

    async def test_claims_are_wanted_back_for_a_worker_without_work(self, lab: Lab) -> None:
        """One that asks and finds all of it held ahead by others; until it has something."""
        await lab.declare(max_concurrent=4, prefetch=2)
        await lab.join("w2")
        await lab.put_many(2)
        one, two = await lab.claims()
        assert [] == await lab.lease(worker="w2")
        assert (POOL,) == (await lab.renew(WORKER)).give_back
        assert [] == await lab.claims()
        await lab.release(one)
        assert [one.fence.task] == ids_of(await lab.lease(worker="w2"))
        assert () == (await lab.renew(WORKER)).give_back
        assert [two.fence.task] == ids_of(await lab.lease())

    async def test_nothing_is_held_ahead_while_another_starves(self, lab: Lab) -> None:
        """A worker that got no slot comes before claims of those who have some."""
        await lab.declare(max_concurrent=1, prefetch=2)
        await lab.join("w2")
        await lab.put_many(4)
        running = await lab.one()
        assert [] == await lab.lease(worker="w2")
        assert [] == await lab.claims()
        await lab.complete(running)
        assert [] == await lab.lease()
        assert 1 == len(await lab.lease(worker="w2"))

    async def test_who_holds_only_claims_can_starve_too(self, lab: Lab) -> None:
        """A claim without a slot to start it in makes the others share."""
        await lab.declare(max_concurrent=1, prefetch=1)
        await lab.join("w2")
        await lab.put()
        await lab.put()
        running = await lab.one()
        (claim,) = await lab.claims(worker="w2")
        assert [] == await lab.lease(worker="w2")
        await lab.put()
        await lab.complete(running)
        assert [] == await lab.lease()
        assert [claim.fence.task] == ids_of(await lab.lease(worker="w2"))

    async def test_a_settle_may_hand_over_and_claim_in_one_step(self, lab: Lab) -> None:
        """The slot goes to the held task, and the next one is held instead."""
        running, (claim,) = await self._hold(lab)
        await lab.put("next")
        ask = LeaseRequest(pool=POOL, worker=WORKER, want=0, ahead=1)
        answer = await lab.settle_all([handing_over(completed(running), claim)], then=ask)
        assert answer.lease is not None
        assert ((), "next") == (answer.lease.leased, names_of(answer.lease.claimed))
        assert (1, 1) == ((await lab.pool()).running, (await lab.pool()).claimed)

    async def test_a_claim_that_never_reached_its_worker_goes_back(self, lab: Lab) -> None:
        """A worker whose answer was lost says what it holds; the rest was never started."""
        await lab.declare(max_concurrent=1, prefetch=2)
        await lab.put_many(3)
        held = await lab.ask(1, ahead=2)
        known = (held.leased[0].fence.task, held.claimed[0].fence.task)
        assert 1 == (await lab.control(orders.Disown(WORKER, known))).count
        pool = await lab.pool()
        assert (1, 1, 2) == (pool.running, pool.claimed, pool.queued)
        answer = await lab.task(held.claimed[1].fence.task)
        assert (0, 0, None) == (answer.attempt, answer.runs, answer.worker)

    async def test_a_redriven_claim_keeps_its_fence(self, lab: Lab) -> None:
        """A claim cancelled and redriven before it ran has the same fence in all records."""
        _, (claim,) = await self._hold(lab)
        task = claim.fence.task
        await lab.control(orders.Cancel((task,)))
        await lab.release(claim)
        await lab.control(orders.Redrive((task,)))
        assert claim.fence.token == (await lab.task(task)).token
