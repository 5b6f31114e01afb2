"""Leader: one process at a time does what time alone does, and an old one is refused."""

from __future__ import annotations

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.testing.conformance.lab import Lab
from millpond.testing.conformance.scenario import StoreSuite, mark


class LeaderConformance(StoreSuite):
    """Who leads maintenance, for how long, and what a deposed leader can still do: nothing."""

    @mark.rows("CX-04", "CX-T57")
    async def test_one_leads_until_its_time_is_over(self, lab: Lab) -> None:
        """Other processes are refused meanwhile; each new leader has a higher generation."""
        await _two_processes(lab)
        first = await lab.control(orders.ClaimLeadership("first", 10.0))
        assert 1 == first.count
        assert 0 == (await lab.control(orders.ClaimLeadership("second", 10.0))).count
        lab.later(9.0)
        again = await lab.control(orders.ClaimLeadership("first", 10.0))
        assert (1, first.revision) == (again.count, again.revision)
        lab.later(9.0)
        assert 0 == (await lab.control(orders.ClaimLeadership("second", 10.0))).count
        lab.later(1.0)
        second = await lab.control(orders.ClaimLeadership("second", 10.0))
        assert (1, first.revision + 1) == (second.count, second.revision)
        assert 0 == (await lab.control(orders.ClaimLeadership("first", 10.0))).count

    @mark.rows("CX-04", "CX-T57")
    async def test_the_lead_of_a_buried_process_is_free(self, lab: Lab) -> None:
        """With the last worker of a process its lead is gone, whatever its time."""
        await _two_processes(lab)
        first = await lab.control(orders.ClaimLeadership("first", 100.0))
        await lab.control(orders.DeclareDead("w1"))
        second = await lab.control(orders.ClaimLeadership("second", 100.0))
        assert (1, first.revision + 1) == (second.count, second.revision)

    @mark.rows("CX-04", "CX-T56")
    async def test_an_old_generation_is_refused(self, lab: Lab) -> None:
        """Of two who think that they lead, the newer one goes on; the other changes nothing."""
        task = await _two_processes(lab)
        first = await lab.control(orders.ClaimLeadership("first", 10.0))
        lab.later(10.0)
        second = await lab.control(orders.ClaimLeadership("second", 100.0))
        lab.later(20.0)
        assert (await lab.recover(generation=first.revision)).deposed
        assert Status.RUNNING == await lab.status(task)
        answer = await lab.recover(generation=second.revision)
        assert (False, 1) == (answer.deposed, answer.moved)
        assert Status.QUEUED == await lab.status(task)

    @mark.rows("CX-T56")
    async def test_a_leader_whose_time_is_over_recovers_nothing(self, lab: Lab) -> None:
        """A verb that was delayed that long must not act as leader."""
        task = await _two_processes(lab)
        lead = await lab.control(orders.ClaimLeadership("first", 10.0))
        lab.later(30.0)
        assert (await lab.recover(generation=lead.revision)).deposed
        assert Status.RUNNING == await lab.status(task)
        again = await lab.control(orders.ClaimLeadership("first", 10.0))
        assert not (await lab.recover(generation=again.revision)).deposed
        assert Status.QUEUED == await lab.status(task)

    async def test_who_names_no_generation_is_not_fenced(self, lab: Lab) -> None:
        """A store with one process needs no leader."""
        task = await _two_processes(lab)
        await lab.control(orders.ClaimLeadership("first", 100.0))
        lab.later(30.0)
        assert not (await lab.recover()).deposed
        assert Status.QUEUED == await lab.status(task)


async def _two_processes(lab: Lab) -> int:
    """Let two processes join, the second with a task at work and a lease of 30 s."""
    await lab.declare()
    await lab.join("w1", owner="first", lease=1000.0)
    await lab.join("w2", owner="second", lease=1000.0)
    await lab.join("w3", owner="second", lease=30.0)
    task = await lab.put()
    await lab.one(worker="w3")
    return task
