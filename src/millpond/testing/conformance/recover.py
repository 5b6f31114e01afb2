"""Recover: what time alone does, and how workers go."""

from __future__ import annotations

from millpond.core import control as orders
from millpond.core.lifecycle import Status, Transition
from millpond.core.settle import Settled
from millpond.core.task import Call
from millpond.testing.conformance.lab import DAY, INSTANT, WORKER, Lab, completed, ids_of, released
from millpond.testing.conformance.scenario import StoreSuite, mark


class RecoverConformance(StoreSuite):
    """Lost leases, expired tasks, and workers that leave or die."""

    @mark.rows("DP-09", "DE-R17")
    async def test_a_worker_that_stops_renewing_loses_its_tasks(self, lab: Lab) -> None:
        """They go back to the queue and any worker may claim them."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        task = await lab.put()
        await lab.one(worker="w2")
        lab.later(5.0)
        assert not (await lab.recover()).more
        answer = await lab.task(task)
        assert (Status.QUEUED, lab.now, None) == (answer.status, answer.due, answer.reason)
        assert [task] == ids_of(await lab.lease())

    @mark.rows("DP-10")
    async def test_a_lost_lease_is_charged(self, lab: Lab) -> None:
        """The next claim is one attempt further, and the running count is right."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        await lab.put(attempts=3)
        await lab.one(worker="w2")
        lab.later(5.0)
        await lab.recover()
        assert 0 == (await lab.pool()).running
        assert 2 == (await lab.one()).fence.attempt
        assert 1 == (await lab.pool()).running

    @mark.rows("TRAP-2", "DE-R18")
    async def test_a_task_that_kills_its_workers_ends_failed(self, lab: Lab) -> None:
        """It runs as often as it has attempts, and then never again."""
        await lab.declare()
        poison = await lab.put(attempts=2)
        for worker in ("w1", "w2"):
            await lab.join(worker, lease=5.0)
            await lab.one(worker=worker)
            lab.later(5.0)
            await lab.recover()
        answer = await lab.task(poison)
        assert (Status.FAILED, "lease_lost", 2) == (answer.status, answer.reason, answer.runs)
        assert [] == await lab.lease()
        assert Transition.EXHAUST == (await lab.events(poison))[-1]

    @mark.rows("CX-T68")
    async def test_a_cancelled_task_is_not_queued_again(self, lab: Lab) -> None:
        """Cancelled while its worker died ends cancelled."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        task = await lab.put()
        await lab.one(worker="w2")
        await lab.control(orders.Cancel((task,)))
        lab.later(5.0)
        await lab.recover()
        assert Status.CANCELLED == await lab.status(task)

    @mark.rows("CX-T70", "CX-T111")
    async def test_recovery_leaves_the_living_alone(self, lab: Lab) -> None:
        """Tasks that wait, and tasks of workers whose lease holds, are not touched."""
        await lab.declare(max_concurrent=1)
        running, waiting = await lab.put(), await lab.put()
        await lab.one()
        before = len(await lab.records())
        lab.later(1000.0)
        assert 0 == (await lab.recover()).moved
        assert [Status.RUNNING, Status.QUEUED] == await lab.statuses(running, waiting)
        assert before == len(await lab.records())

    @mark.rows("CX-T63", "CX-T65", "CX-T69", "CX-20")
    async def test_one_pass_takes_all_that_was_lost_and_nothing_else(self, lab: Lab) -> None:
        """What its worker settled in time stays ended; what another holds by now stays there."""
        await lab.declare(max_concurrent=20)
        await lab.join("w2", lease=5.0)
        await lab.put_many(12, attempts=3)
        ended, given_back, *lost = await lab.lease(worker="w2")
        lab.later(4.0)
        await lab.applied(completed(ended), released(given_back))
        again = await lab.one()
        assert given_back.fence.task == again.fence.task
        lab.later(1.0)
        answer = await lab.recover()
        assert (10, False) == (answer.moved, answer.more)
        assert {Status.QUEUED} == set(await lab.statuses(*ids_of(lost)))
        assert Status.COMPLETED == await lab.status(ended.fence.task)
        assert again.fence == (await lab.task(again.fence.task)).fence
        await lab.complete(again)

    @mark.rows("CX-20", "DE-R16")
    async def test_a_renewed_lease_is_not_lost(self, lab: Lab) -> None:
        """A lease counts from the last renewal: an instant before its end nothing is lost."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        task = await lab.put()
        leased = await lab.one(worker="w2")
        lab.later(4.0)
        await lab.renew("w2", 5.0)
        lab.later(5.0 - INSTANT)
        assert 0 == (await lab.recover()).moved
        assert leased.fence == (await lab.task(task)).fence
        lab.later(INSTANT)
        assert 1 == (await lab.recover()).moved
        assert Status.QUEUED == await lab.status(task)

    async def test_an_expired_task_is_failed_without_being_asked_for(self, lab: Lab) -> None:
        """A task expires without a lease."""
        await lab.declare()
        late = await lab.put(expires_in=5.0)
        lab.later(4.75)
        await lab.recover()
        assert Status.QUEUED == await lab.status(late)
        lab.later(0.25)
        await lab.recover()
        answer = await lab.task(late)
        assert (Status.FAILED, "expired") == (answer.status, answer.reason)

    async def test_a_running_task_does_not_expire(self, lab: Lab) -> None:
        """Expiry is about starting; what runs may end."""
        await lab.declare()
        task = await lab.put(expires_in=5.0)
        leased = await lab.one()
        lab.later(60.0)
        await lab.recover()
        await lab.complete(leased)
        assert Status.COMPLETED == await lab.status(task)

    async def test_recovery_works_in_pages(self, lab: Lab) -> None:
        """A limit bounds a call, `more` says that it may have left some, and calling on ends."""
        await lab.declare()
        late = [await lab.put(expires_in=5.0) for _ in range(5)]
        lab.later(5.0)
        first = await lab.recover(limit=2)
        assert (2, True) == (first.moved, first.more)
        assert 3 == (await lab.pool()).queued
        calls = 1
        while (await lab.recover(limit=2)).more:
            calls += 1
            assert calls < 9
        assert [Status.FAILED] * 5 == await lab.statuses(*late)

    async def test_lost_workers_are_recovered_in_pages(self, lab: Lab) -> None:
        """A limit of one takes one lease at a time, and says whether there is more."""
        await lab.declare()
        for worker in ("w1", "w2"):
            await lab.join(worker, lease=5.0)
            await lab.put()
            await lab.one(worker=worker)
        lab.later(5.0)
        for left in (1, 0):
            answer = await lab.recover(limit=1)
            assert (1, bool(left)) == (answer.moved, answer.more)
            assert left == (await lab.pool()).running
            assert 1 + left == len(await lab.view.workers())

    async def test_forgotten_tasks_are_failed_in_pages(self, lab: Lab) -> None:
        """A limit of one fails one parked task at a time, the longest parked first."""
        await lab.declare()
        await lab.join("w2", functions=("other",), lease=3 * DAY)
        parked = [await lab.put(call=Call("rare")) for _ in range(2)]
        await lab.lease(worker="w2")
        lab.later(DAY)
        await lab.recover(limit=1)
        assert [Status.FAILED, Status.QUEUED] == await lab.statuses(*parked)

    # How workers go

    async def test_leaving_gives_back_uncharged(self, lab: Lab) -> None:
        """A worker that stops in good order costs its tasks no attempt."""
        await lab.declare()
        await lab.join("w2")
        task = await lab.put(attempts=2)
        await lab.one(worker="w2")
        await lab.control(orders.Deregister("w2"))
        answer = await lab.task(task)
        assert (Status.QUEUED, 0, 1) == (answer.status, answer.attempt, answer.runs)
        assert Transition.RELEASE == (await lab.events(task))[-1]
        assert 1 == (await lab.one()).fence.attempt

    @mark.rows("TR-22")
    async def test_leaving_ends_the_only_attempt_it_says_nothing_of(self, lab: Lab) -> None:
        """It may have begun, so it is not begun again: it failed, reason stopped."""
        await lab.declare()
        await lab.join("w2")
        task = await lab.put(attempts=1)
        await lab.one(worker="w2")
        await lab.control(orders.Deregister("w2"))
        answer = await lab.task(task)
        assert (Status.FAILED, "stopped", 1) == (answer.status, answer.reason, answer.attempt)
        assert not await lab.lease()

    @mark.rows("TR-22")
    async def test_disowning_gives_an_only_attempt_back(self, lab: Lab) -> None:
        """A lease whose answer was lost never reached its worker: nothing of it began."""
        await lab.declare()
        task = await lab.put(attempts=1)
        await lab.one()
        await lab.control(orders.Disown(WORKER, ()))
        assert Status.QUEUED == await lab.status(task)
        assert 1 == (await lab.one()).fence.attempt

    @mark.rows("CX-T66")
    async def test_burying_loses_at_once(self, lab: Lab) -> None:
        """A worker known to be dead loses its leases now, charged."""
        await lab.declare()
        await lab.join("w2", lease=1000.0)
        task = await lab.put()
        await lab.one(worker="w2")
        await lab.control(orders.DeclareDead("w2"))
        answer = await lab.task(task)
        assert (Status.QUEUED, 1) == (answer.status, answer.attempt)
        assert "w2" not in await lab.view.workers()

    async def test_a_worker_that_has_renewed_is_not_declared_dead(self, lab: Lab) -> None:
        """A declaration that names the end of its lease counts only while that is the end."""
        await lab.declare()
        await lab.join("w2", lease=1000.0)
        task = await lab.put()
        await lab.one(worker="w2")
        ends = lab.now + 1000.0
        lab.now += 1.0
        await lab.renew("w2", lease=1000.0)
        await lab.control(orders.DeclareDead("w2", ends))
        assert (Status.RUNNING, True) == (
            await lab.status(task),
            "w2" in await lab.view.workers(),
        )
        await lab.control(orders.DeclareDead("w2", ends + 1.0))
        assert (Status.QUEUED, False) == (
            await lab.status(task),
            "w2" in await lab.view.workers(),
        )

    async def test_an_unknown_worker_leaves_without_a_trace(self, lab: Lab) -> None:
        """Leaving or being buried twice changes nothing."""
        await lab.declare()
        before = len(await lab.records())
        assert 0 == (await lab.control(orders.Deregister("stranger"))).count
        assert 0 == (await lab.control(orders.DeclareDead("stranger"))).count
        assert before == len(await lab.records())

    @mark.rows("TRAP-1", "CX-T110")
    async def test_a_worker_that_lost_its_lease_cannot_settle(self, lab: Lab) -> None:
        """Back from the dead, it finds its fence stale and changes nothing."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        task = await lab.put()
        zombie = await lab.one(worker="w2")
        lab.later(5.0)
        await lab.recover()
        assert [Settled.STALE] == await lab.settle(completed(zombie))
        heir = await lab.one()
        assert [Settled.STALE] == await lab.settle(completed(zombie))
        assert Status.RUNNING == await lab.status(task)
        await lab.complete(heir, result=b"mine")
        assert b"mine" == (await lab.task(task)).result

    async def test_a_dead_worker_frees_its_slots(self, lab: Lab) -> None:
        """Its tasks no longer count as running, for the pool and for the key."""
        await lab.declare(max_concurrent=1, max_per_key=1)
        await lab.join("w2")
        await lab.put_keys("A")
        await lab.one(worker="w2")
        assert [] == await lab.lease()
        await lab.control(orders.DeclareDead("w2"))
        assert 1 == len(await lab.lease())

    async def test_leaving_does_not_give_back_what_was_cancelled(self, lab: Lab) -> None:
        """A running task that was cancelled ends when its worker leaves, and does not run again."""
        await lab.declare()
        await lab.join("w2")
        task = await lab.put()
        await lab.one(worker="w2")
        await lab.control(orders.Cancel((task,)))
        await lab.control(orders.Deregister("w2"))
        answer = await lab.task(task)
        assert (Status.CANCELLED, "cancelled", 1) == (answer.status, answer.reason, answer.runs)
        assert [] == await lab.lease()

    async def test_leaving_counts_what_it_gave_back(self, lab: Lab) -> None:
        """The answer to a worker's leaving says how many tasks it held."""
        await lab.declare()
        await lab.join("w2")
        await lab.join("w3")
        await lab.put_many(3)
        await lab.lease(worker="w2")
        assert 3 == (await lab.control(orders.Deregister("w2"))).count
        assert 0 == (await lab.control(orders.Deregister("w3"))).count
        assert 3 == (await lab.pool()).queued

    @mark.rows("CX-T111", "CX-12")
    async def test_the_leases_of_one_worker_are_lost_in_pages(self, lab: Lab) -> None:
        """A limit bounds what is moved also within one worker, and `more` is exact."""
        await lab.declare(max_concurrent=9)
        await lab.join("w2", lease=5.0)
        await lab.put_many(5)
        await lab.lease(worker="w2")
        lab.later(5.0)
        for moved, left in ((2, 3), (2, 1), (1, 0)):
            answer = await lab.recover(limit=2)
            assert (moved, left > 0) == (answer.moved, answer.more)
            assert left == (await lab.pool()).running
        assert "w2" not in await lab.view.workers()

    async def test_a_limit_that_is_just_met_leaves_nothing(self, lab: Lab) -> None:
        """Lost leases and expired tasks share one limit, and the last of them leaves no `more`."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        await lab.put()
        await lab.put()
        await lab.lease(worker="w2")
        await lab.put(expires_in=5.0)
        lab.later(5.0)
        answer = await lab.recover(limit=3)
        assert (3, False) == (answer.moved, answer.more)

    async def test_abandoned_closures_are_failed_in_pages(self, lab: Lab) -> None:
        """The limit of a call holds for the closures of a dead process too."""
        await lab.declare()
        await lab.join("w2", lease=5.0, owner="mine")
        closures = [await lab.put(owner="mine") for _ in range(5)]
        lab.later(5.0)
        calls = 0
        while True:
            answer = await lab.recover(limit=2)
            calls += 1
            assert answer.moved <= 2
            assert calls < 9
            if not answer.more:
                break
        assert [Status.FAILED] * 5 == await lab.statuses(*closures)
