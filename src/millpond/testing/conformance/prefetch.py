"""Ahead: claims that a worker holds beyond what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond.core import control as orders
from millpond.core.lifecycle import Status, Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settled
from millpond.core.spec import bounded, fail_fast, fair_round_robin, priority
from millpond.core.task import Call, Fence
from millpond.core.why import explain
from millpond.testing.conformance.lab import (
    POOL,
    WORKER,
    Lab,
    completed,
    corrupt,
    failed,
    handing_over,
    ids_of,
    names_of,
    released,
    retried,
    stopped,
)
from millpond.testing.conformance.scenario import StoreSuite, mark

if TYPE_CHECKING:
    from millpond.core.lease import Leased


class HoldsAhead(StoreSuite):
    """The base of the tests about tasks that are claimed ahead."""

    async def _hold(self, lab: Lab, count: int = 1) -> tuple[Leased, list[Leased]]:
        """Let the worker run one task of a pool of one slot, and hold some ahead."""
        await lab.declare(max_concurrent=1, prefetch=count)
        for number in range(count + 1):
            await lab.put(str(number))
        answer = await lab.ask(1, ahead=count)
        assert (1, count) == (len(answer.leased), len(answer.claimed))
        return answer.leased[0], list(answer.claimed)


class AheadConformance(HoldsAhead):
    """What is claimed ahead, how it starts, and how it goes back."""

    # What a claim is

    async def test_a_claim_ahead_shows_as_queued(self, lab: Lab) -> None:
        """It does not run and is not charged, but it has a worker and the fence of its attempt."""
        _, (claim,) = await self._hold(lab)
        answer = await lab.task(claim.fence.task)
        assert (Status.QUEUED, True, WORKER) == (answer.status, answer.claimed, answer.worker)
        assert (0, 0, None) == (answer.attempt, answer.runs, answer.started_at)
        assert (1, claim.fence) == (claim.fence.attempt, answer.fence)
        pool = await lab.pool()
        assert (1, 1, 1) == (pool.running, pool.queued, pool.claimed)
        assert ("queued",) == await lab.view.status([claim.fence.task])
        facts = await lab.view.why(claim.fence.task, now=lab.now)
        assert facts is not None
        assert "claimed ahead by worker worker" in explain(facts, lab.now)

    async def test_a_worker_holds_no_more_ahead_than_it_may(self, lab: Lab) -> None:
        """As many as the pool's prefetch, as it asks for and as there are; by default none."""
        await lab.declare(prefetch=2)
        await lab.declare("plain")
        for pool in (POOL, "plain"):
            await lab.put_many(5, pool=pool)
        await lab.join("w2")
        assert [] == await lab.claims(9, pool="plain")
        assert [] == await lab.claims(0)
        assert [1, 1, 0] == [len(await lab.claims(1)) for _ in range(3)]
        assert 2 == len(await lab.claims(9, worker="w2"))

    async def test_a_claim_ahead_does_not_take_a_slot(self, lab: Lab) -> None:
        """The limit of the pool is for what runs: another worker may start beside it."""
        await lab.declare(max_concurrent=1, prefetch=2)
        await lab.join("w2")
        await lab.put_many(3)
        assert 2 == len(await lab.claims())
        assert 1 == len(await lab.lease(worker="w2"))

    @pytest.mark.parametrize(
        "order", [priority(), fair_round_robin()], ids=lambda order: str(order.kind)
    )
    async def test_claims_ahead_are_made_in_order(self, lab: Lab, order: object) -> None:
        """What starts and what is held come from the front of the queue, as starts alone would."""
        assert isinstance(order, type(priority()))
        for name, prefetch in (("ahead", 3), ("plain", 0)):
            await lab.declare(name, max_concurrent=9, prefetch=prefetch, order=order)
            for key, level in (("a", 0), ("a", 2), ("b", 1), ("a", 1), ("c", 0)):
                await lab.put(f"{key}{level}", pool=name, share=key, priority=level)
        answer = await lab.ask(2, ahead=3, pool="ahead")
        taken = [*answer.leased, *answer.claimed]
        assert names_of(await lab.lease(5, pool="plain")) == names_of(taken)

    async def test_claims_ahead_count_for_their_key(self, lab: Lab) -> None:
        """Running and held together stay within max_per_key."""
        await lab.declare(max_concurrent=9, max_per_key=2, prefetch=3)
        await lab.put_keys("AAAB")
        answer = await lab.ask(1, ahead=3)
        assert ("A", "A B") == (names_of(answer.leased), names_of(answer.claimed))
        await lab.join("w2")
        assert [] == await lab.lease(worker="w2")
        await lab.release(answer.claimed[0])
        assert "A" == names_of(await lab.lease(worker="w2"))

    async def test_claims_ahead_count_for_the_rate(self, lab: Lab) -> None:
        """A claim takes its token when it is made, and its start takes none."""
        await lab.declare(max_concurrent=1, prefetch=2, rates=(Rate(2, per=60.0),))
        await lab.put_many(3)
        answer = await lab.ask(1, ahead=2)
        assert (1, 1) == (len(answer.leased), len(answer.claimed))
        first, second = answer.leased[0], answer.claimed[0]
        assert (Settled.APPLIED,) == (
            await lab.applied(handing_over(completed(first), second))
        ).started
        await lab.complete(second)
        assert [] == await lab.lease()
        lab.later(30.0)
        assert 1 == len(await lab.lease())

    @pytest.mark.parametrize("per_key", [False, True])
    async def test_a_claim_that_goes_back_returns_its_token(self, lab: Lab, per_key: bool) -> None:
        """The rate is as if it had not been made."""
        rate = Rate(1, per=60.0)
        await lab.declare(
            prefetch=1, rates=() if per_key else (rate,), rate_per_key=rate if per_key else None
        )
        await lab.put(key="a")
        await lab.put(key="a")
        (claim,) = await lab.claims()
        await lab.join("w2")
        assert [] == await lab.lease(worker="w2")
        await lab.release(claim)
        assert [claim.fence.task] == ids_of(await lab.lease(worker="w2"))
        assert [] == await lab.lease(worker="w2")

    async def test_a_new_rate_gets_nothing_back(self, lab: Lab) -> None:
        """A claim made under another rate never took of this one's."""
        await lab.declare(prefetch=1)
        await lab.put_many(3)
        (claim,) = await lab.claims()
        await lab.declare(prefetch=1, rates=(Rate(1, per=60.0),))
        await lab.join("w2")
        assert 1 == len(await lab.lease(1, worker="w2"))
        await lab.release(claim)
        assert [] == await lab.lease(worker="w2")

    async def test_what_is_claimed_ahead_is_not_evicted(self, lab: Lab) -> None:
        """It was claimed, so a bound no longer counts it, also when it comes back."""
        await lab.declare(prefetch=1, backpressure=bounded(1, "drop_oldest"))
        held = await lab.put()
        (claim,) = await lab.claims()
        assert 0 == (await lab.pool()).fresh
        await lab.put()
        await lab.release(claim)
        waiting = await lab.put()
        assert [Status.QUEUED] * 2 == await lab.statuses(held, waiting)

    async def test_what_is_claimed_ahead_keeps_others_from_starting_at_once(self, lab: Lab) -> None:
        """A fail-fast pool counts it: it is before any newcomer."""
        await lab.declare(max_concurrent=2, prefetch=2, backpressure=fail_fast())
        await lab.put()
        await lab.put()
        await lab.claims()
        await lab.refusal(lab.new())

    async def test_what_is_claimed_ahead_in_time_is_in_time(self, lab: Lab) -> None:
        """It does not expire while it is held; given back too late, it has."""
        await lab.declare(max_concurrent=2, prefetch=2)
        late, started = await lab.put(expires_in=5.0), await lab.put(expires_in=5.0)
        one, two = await lab.claims()
        lab.later(5.0)
        assert 0 == (await lab.recover()).moved
        await lab.release(one)
        await lab.recover()
        assert Status.FAILED == await lab.status(late)
        assert [two.fence] == [leased.fence for leased in await lab.lease()]
        assert Status.RUNNING == await lab.status(started)

    # How it starts

    async def test_a_claim_takes_over_the_slot_of_an_attempt(self, lab: Lab) -> None:
        """Reported with the attempt's end, it runs from then on, charged, under its fence."""
        running, (claim,) = await self._hold(lab)
        answer = await lab.applied(handing_over(completed(running), claim))
        assert ((Status.COMPLETED,), (Settled.APPLIED,)) == (answer.after, answer.started)
        found = await lab.task(claim.fence.task)
        assert (Status.RUNNING, False, 1, 1) == (
            found.status,
            found.claimed,
            found.attempt,
            found.runs,
        )
        assert (claim.fence, lab.now) == (found.fence, found.started_at)
        pool = await lab.pool()
        assert (1, 0, 0) == (pool.running, pool.queued, pool.claimed)
        assert [Transition.SUBMIT, Transition.CLAIM, Transition.LEASE] == await lab.events(
            claim.fence.task
        )
        await lab.complete(claim)

    async def test_generations_are_reported_in_one_step(self, lab: Lab) -> None:
        """Each starts in the slot of the one before; at no record do more run than may."""
        first, (second, third) = await self._hold(lab, 2)
        answer = await lab.applied(
            handing_over(completed(first), second),
            handing_over(retried(second), third),
            failed(third),
        )
        assert (Settled.APPLIED, Settled.APPLIED, None) == answer.started
        assert (Status.COMPLETED, Status.QUEUED, Status.FAILED) == answer.after
        running = 0
        for entry in await lab.records():
            running += (entry.after is Status.RUNNING) - (entry.before is Status.RUNNING)
            assert 0 <= running <= 1

    async def test_a_start_may_be_reported_again(self, lab: Lab) -> None:
        """When the answer was lost: it runs already, and nothing is charged twice."""
        running, (claim,) = await self._hold(lab)
        settlement = handing_over(completed(running), claim)
        await lab.applied(settlement)
        again = await lab.settle_all([settlement])
        assert ((Settled.STALE,), (Settled.APPLIED,)) == (again.settled, again.started)
        assert 1 == (await lab.task(claim.fence.task)).runs

    @pytest.mark.parametrize("how", ["forged", "given back", "lost", "over", "unknown"])
    async def test_without_its_claim_nothing_is_started(self, lab: Lab, how: str) -> None:
        """A start with any other fence than that of the claim is stale and changes nothing."""
        await lab.declare(max_concurrent=1, prefetch=1)
        await lab.join("w2")
        await lab.put()
        await lab.put()
        (claim,) = await lab.claims(worker="w2")
        running, fence = await lab.one(), claim.fence
        match how:
            case "forged":
                fence = Fence(fence.task, fence.attempt, fence.token + 1)
            case "given back":
                await lab.release(claim)
            case "lost":
                await lab.control(orders.DeclareDead("w2"))
            case "over":
                await lab.control(orders.Deregister("w2"))
                await lab.control(orders.Cancel((fence.task,)))
            case _:
                fence = Fence(12345, 1, 1)
        before = await lab.view.task(fence.task)
        settlement = handing_over(completed(running), claim)
        forged = type(settlement)(fence=running.fence, event=settlement.event, successor=fence)
        answer = await lab.settle_all([forged])
        assert ((Settled.APPLIED,), (Settled.STALE,)) == (answer.settled, answer.started)
        assert before == await lab.view.task(fence.task)

    @pytest.mark.parametrize("full", [False, True])
    async def test_without_a_slot_of_its_pool_a_start_needs_room(
        self, lab: Lab, full: bool
    ) -> None:
        """A slot of another pool is none of this one's: then the limit decides, as for a lease."""
        await lab.declare(max_concurrent=2, prefetch=1)
        await lab.declare("other")
        await lab.join("w2")
        await lab.put_many(3 if full else 2)
        (claim,) = await lab.claims()
        await lab.lease(2, worker="w2")
        await lab.put(pool="other")
        running = await lab.one(pool="other")
        answer = await lab.applied(handing_over(completed(running), claim))
        assert (Settled.STALE if full else Settled.APPLIED,) == answer.started
        assert full == (await lab.task(claim.fence.task)).claimed

    async def test_a_lease_starts_what_is_held_ahead_first(self, lab: Lab) -> None:
        """Under the fence it has; what is queued comes after it."""
        await lab.declare(max_concurrent=2, prefetch=1, order=priority())
        await lab.put("held")
        (claim,) = await lab.claims()
        await lab.put("urgent", priority=9)
        assert await lab.view.ready(POOL, WORKER, now=lab.now)
        first, second = await lab.lease()
        assert (claim.fence, "urgent") == (first.fence, names_of([second]))
        assert 1 == (await lab.task(claim.fence.task)).attempt
        assert [] == await lab.lease()

    async def test_a_retried_task_is_claimed_ahead_for_its_next_attempt(self, lab: Lab) -> None:
        """The fence names the attempt to come, and what earlier ones remembered comes with it."""
        await lab.declare(prefetch=1)
        await lab.put(attempts=2)
        leased = await lab.one()
        await lab.control(orders.SaveStep(leased.fence, "charge", b"42"))
        await lab.retry(leased)
        (claim,) = await lab.claims()
        assert (2, {"charge": b"42"}) == (claim.fence.attempt, claim.steps)
        assert 1 == (await lab.task(claim.fence.task)).attempt

    async def test_what_has_not_started_says_nothing(self, lab: Lab) -> None:
        """Progress and steps of an attempt count once its start was reported."""
        _, (claim,) = await self._hold(lab)
        assert 0 == (await lab.control(orders.Progress(claim.fence, 0.5))).count
        assert 0 == (await lab.control(orders.SaveStep(claim.fence, "charge", b""))).count

    async def test_what_starts_and_ends_in_one_step_is_not_measured(self, lab: Lab) -> None:
        """Its run time is not known."""
        first, (second,) = await self._hold(lab)
        await lab.applied(handing_over(completed(first), second), completed(second))
        assert 1 == (await lab.pool()).run_times.samples

    # How it goes back

    async def test_a_claim_goes_back_to_its_place(self, lab: Lab) -> None:
        """Uncharged and recorded; the order of the queue is as it was."""
        running, (one, two) = await self._hold(lab, 2)
        await lab.put("last")
        answer = await lab.applied(released(two), released(one))
        assert (Status.QUEUED, Status.QUEUED) == answer.after
        found = await lab.task(one.fence.task)
        assert (False, None, 0, 0) == (found.claimed, found.worker, found.attempt, found.runs)
        assert [Transition.SUBMIT, Transition.CLAIM, Transition.RELEASE] == await lab.events(
            one.fence.task
        )
        await lab.complete(running)
        assert "1 2 last" == await lab.serve(3)

    async def test_a_claim_that_goes_back_wakes_its_pool(self, lab: Lab) -> None:
        """There is a task to start again, for any worker with a slot."""
        await lab.declare(prefetch=1)
        await lab.put()
        (claim,) = await lab.claims()
        await lab.release(claim)
        assert {POOL: lab.now} == lab.wakes

    async def test_a_claim_of_an_unknown_function_is_parked(self, lab: Lab) -> None:
        """It waits for a worker that knows it, and this one is not asked again."""
        await lab.declare(prefetch=1)
        await lab.join("w2")
        task = await lab.put(call=Call("rare"))
        (claim,) = await lab.claims()
        await lab.release(claim, parked=True)
        assert (1, 1) == ((await lab.pool()).parked, (await lab.pool()).queued)
        assert [] == await lab.lease()
        assert [task] == ids_of(await lab.lease(worker="w2"))

    async def test_a_claim_that_cannot_be_read_is_set_aside(self, lab: Lab) -> None:
        """It fails as corrupt, without ever having run."""
        await lab.declare(prefetch=1)
        task = await lab.put()
        (claim,) = await lab.claims()
        await lab.applied(corrupt(claim))
        answer = await lab.task(task)
        assert (Status.FAILED, "corrupt", 0) == (answer.status, answer.reason, answer.runs)

    @pytest.mark.parametrize("end", [completed, failed, stopped, retried])
    async def test_what_was_not_started_has_no_other_end(self, lab: Lab, end: object) -> None:
        """A claim is given back or started first: any other settlement of it is stale."""
        assert callable(end)
        _, (claim,) = await self._hold(lab)
        assert [Settled.STALE] == await lab.settle(end(claim))
        assert (await lab.task(claim.fence.task)).claimed

    async def test_a_worker_that_leaves_gives_back_what_it_holds(self, lab: Lab) -> None:
        """Uncharged, what runs and what is held."""
        await lab.declare(max_concurrent=1, prefetch=1)
        await lab.join("w2")
        await lab.put(attempts=2)
        await lab.put(attempts=2)
        await lab.ask(1, ahead=1, worker="w2")
        assert 2 == (await lab.control(orders.Deregister("w2"))).count
        assert (0, 2, 0) == (
            (await lab.pool()).running,
            (await lab.pool()).queued,
            (await lab.pool()).claimed,
        )
        assert 1 == (await lab.one()).fence.attempt

    @mark.rows("TR-22")
    async def test_a_claim_that_began_unheard_is_not_begun_again(self, lab: Lab) -> None:
        """Its worker had started it before the store would: its only attempt is over."""
        await lab.declare(max_concurrent=1, prefetch=2)
        first, second = await lab.put(attempts=1), await lab.put(attempts=1)
        begun, unbegun = await lab.claims()
        await lab.applied(released(begun), released(unbegun, begun=False))
        answer = await lab.task(first)
        assert (Status.FAILED, "stopped", 1) == (answer.status, answer.reason, answer.attempt)
        assert second == (await lab.one()).fence.task

    @mark.rows("TR-22")
    async def test_a_worker_that_leaves_may_have_begun_what_it_held(self, lab: Lab) -> None:
        """What it did not give back before it left is not begun again, if it has one attempt."""
        await lab.declare(max_concurrent=1, prefetch=1)
        await lab.join("w2")
        tasks = [await lab.put(attempts=1), await lab.put(attempts=1)]
        await lab.ask(1, ahead=1, worker="w2")
        await lab.control(orders.Deregister("w2"))
        assert [Status.FAILED] * 2 == await lab.statuses(*tasks)
        assert 0 == (await lab.pool()).claimed

    async def test_a_lost_worker_is_charged_for_what_it_held(self, lab: Lab) -> None:
        """Each claim may have started: an attempt is gone, and with the last one the task."""
        await lab.declare(max_concurrent=1, prefetch=2)
        await lab.join("w2", lease=5.0)
        again, spent = await lab.put(attempts=2), await lab.put(attempts=1)
        claims = await lab.claims(worker="w2")
        lab.later(5.0)
        assert 2 == (await lab.recover()).moved
        answer = await lab.task(again)
        assert (Status.QUEUED, 1, 1, False) == (
            answer.status,
            answer.attempt,
            answer.runs,
            answer.claimed,
        )
        answer = await lab.task(spent)
        assert (Status.FAILED, "lease_lost", 1) == (answer.status, answer.reason, answer.runs)
        assert Transition.LOSE == (await lab.events(again))[-1]
        assert Transition.EXHAUST == (await lab.events(spent))[-1]
        assert [Settled.STALE] * 2 == await lab.settle(*map(released, claims))
        assert 2 == (await lab.one()).fence.attempt

    async def test_a_lost_closure_that_was_held_is_not_run_again(self, lab: Lab) -> None:
        """It may have started, and its code is gone."""
        await lab.declare(prefetch=1)
        await lab.join("w2", owner="mine")
        closure = await lab.put(owner="mine")
        await lab.claims(worker="w2")
        await lab.control(orders.DeclareDead("w2"))
        answer = await lab.task(closure)
        assert (Status.FAILED, "stale") == (answer.status, answer.reason)

    async def test_lost_claims_are_recovered_in_pages(self, lab: Lab) -> None:
        """A limit bounds what is moved, and the worker stays until all is."""
        await lab.declare(prefetch=3)
        await lab.join("w2", lease=5.0)
        await lab.put_many(3)
        await lab.claims(worker="w2")
        lab.later(5.0)
        assert (2, True) == ((answer := await lab.recover(limit=2)).moved, answer.more)
        assert (1, False) == ((answer := await lab.recover(limit=2)).moved, answer.more)
        assert 0 == (await lab.pool()).claimed
