"""Renew: one small write keeps everything a worker holds."""

from __future__ import annotations

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.testing.conformance.lab import INSTANT, Lab
from millpond.testing.conformance.scenario import StoreSuite, mark


class RenewConformance(StoreSuite):
    """Staying alive."""

    @mark.rows("DE-R16")
    async def test_a_renewed_lease_holds(self, lab: Lab) -> None:
        """As long as a worker renews in time it keeps what it runs."""
        await lab.declare()
        await lab.join("w2", lease=30.0)
        task = await lab.put()
        leased = await lab.one(worker="w2")
        for _ in range(5):
            lab.later(20.0)
            assert (await lab.renew("w2", 30.0)).alive
            await lab.recover()
        assert Status.RUNNING == await lab.status(task)
        await lab.complete(leased)

    async def test_one_renewal_keeps_everything_a_worker_holds(self, lab: Lab) -> None:
        """Leases of one worker live and die together, whenever each was taken."""
        await lab.declare()
        await lab.join("w2", lease=10.0)
        await lab.put()
        await lab.one(worker="w2")
        lab.later(9.0)
        await lab.put()
        await lab.one(worker="w2")
        await lab.renew("w2", 10.0)
        lab.later(9.0)
        await lab.recover()
        assert 2 == (await lab.pool()).running

    async def test_a_lease_is_lost_at_its_moment_and_not_before(self, lab: Lab) -> None:
        """The lease counts from the renewal, to the instant."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        lab.later(2.0)
        await lab.renew("w2", 8.0)
        lost_at = lab.now + 8.0
        lab.now = lost_at - INSTANT
        await lab.recover()
        assert "w2" in await lab.view.workers()
        lab.now = lost_at
        await lab.recover()
        assert "w2" not in await lab.view.workers()

    async def test_an_unknown_worker_is_not_alive(self, lab: Lab) -> None:
        """Renewing an unknown worker does not register it."""
        answer = await lab.renew("stranger")
        assert (False, ()) == (answer.alive, answer.cancelled)
        assert "stranger" not in await lab.view.workers()

    async def test_a_recovered_worker_learns_that_it_lost(self, lab: Lab) -> None:
        """Too late is too late: a renewal does not bring leases back."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        task = await lab.put()
        await lab.one(worker="w2")
        lab.later(6.0)
        await lab.recover()
        assert not (await lab.renew("w2")).alive
        assert Status.QUEUED == await lab.status(task)

    @mark.rows("CX-T45")
    async def test_a_renewal_names_what_is_to_be_cancelled(self, lab: Lab) -> None:
        """The worker learns which of its own running tasks have a cancel request."""
        await lab.declare()
        await lab.join("w2")
        mine, spared = await lab.put(), await lab.put()
        await lab.lease(2, worker="w2")
        other = await lab.put()
        await lab.one()
        await lab.control(orders.Cancel((mine, other)))
        assert (mine,) == (await lab.renew("w2")).cancelled
        assert (other,) == (await lab.renew("worker")).cancelled
        assert Status.RUNNING == await lab.status(spared)

    async def test_a_settled_task_is_no_longer_named(self, lab: Lab) -> None:
        """What ended needs no cancel."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        await lab.control(orders.Cancel((task,)))
        await lab.complete(leased)
        assert () == (await lab.renew("worker")).cancelled

    async def test_a_late_worker_that_asks_is_kept(self, lab: Lab) -> None:
        """No process took its leases, so it stays registered and keeps new leases."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        task = await lab.put()
        lab.later(6.0)
        await lab.one(worker="w2")
        assert 0 == (await lab.recover()).moved
        assert Status.RUNNING == await lab.status(task)
        lab.later(5.0 - INSTANT)
        assert 0 == (await lab.recover()).moved
        lab.later(INSTANT)
        assert 1 == (await lab.recover()).moved
