"""Audit: one record for each arrow, in order, and nothing unrecorded."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.audit import Record, RecordKind
from millpond.core.lifecycle import Status, Transition
from millpond.core.run import NewRun
from millpond.core.spec import bounded
from millpond.testing.conformance.lab import POOL, Lab, completed, corrupt, retried
from millpond.testing.conformance.scenario import StoreSuite, mark


class AuditConformance(StoreSuite):
    """What can be read of what happened."""

    async def _kinds(self, lab: Lab, task: int) -> list[str]:
        return [each.kind for each in await lab.records(task)]

    async def test_each_arrow_has_one_record(self, lab: Lab) -> None:
        """A life with a retry, a release and a completion reads as it was lived."""
        await lab.declare()
        task = await lab.put()
        await lab.retry(await lab.one())
        await lab.release(await lab.one())
        await lab.complete(await lab.one())
        queued, running = Status.QUEUED, Status.RUNNING
        assert [
            (None, Transition.SUBMIT, queued),
            (queued, Transition.LEASE, running),
            (running, Transition.RETRY, queued),
            (queued, Transition.LEASE, running),
            (running, Transition.RELEASE, queued),
            (queued, Transition.LEASE, running),
            (running, Transition.COMPLETE, Status.COMPLETED),
        ] == [(each.before, each.event, each.after) for each in await lab.records(task)]

    async def test_the_kinds_of_an_ordinary_life(self, lab: Lab) -> None:
        """Submit, dequeue, retry, dequeue, settle."""
        await lab.declare()
        task = await lab.put()
        await lab.retry(await lab.one())
        await lab.fail(await lab.one())
        assert [
            RecordKind.SUBMIT,
            RecordKind.DEQUEUE,
            RecordKind.RETRY,
            RecordKind.DEQUEUE,
            RecordKind.SETTLE,
        ] == await self._kinds(lab, task)

    async def test_a_drop_is_of_its_own_kind(self, lab: Lab) -> None:
        """An eviction and a refusal at the door are drops, each with its reason."""
        await lab.declare("oldest", backpressure=bounded(1, "drop_oldest"))
        await lab.declare("newest", backpressure=bounded(1, "drop_newest"))
        evicted = await lab.put(pool="oldest")
        await lab.put(pool="oldest")
        await lab.put(pool="newest")
        refused = lab.new(pool="newest")
        await lab.submit(refused)
        assert [RecordKind.SUBMIT, RecordKind.DROP] == await self._kinds(lab, evicted)
        assert [RecordKind.DROP] == await self._kinds(lab, refused.id)
        assert "drop_newest_queue_full" == (await lab.records(refused.id))[0].reason

    @mark.rows("CX-T67")
    async def test_a_lost_lease_is_of_its_own_kind(self, lab: Lab) -> None:
        """Both the loss and the exhaustion say that a lease expired, and whose."""
        await lab.declare()
        task = await lab.put(attempts=2)
        for _ in range(2):
            await lab.join("w2")
            await lab.one(worker="w2")
            await lab.control(orders.DeclareDead("w2"))
        lost, exhausted = [
            each for each in await lab.records(task) if each.kind is RecordKind.LEASE_EXPIRED
        ]
        assert (Transition.LOSE, Transition.EXHAUST) == (lost.event, exhausted.event)
        assert ("w2", "w2") == (lost.worker, exhausted.worker)
        assert "lease_lost" == exhausted.reason

    async def test_a_cancel_is_of_its_own_kind(self, lab: Lab) -> None:
        """A waiting task that was cancelled says so."""
        await lab.declare()
        task = await lab.put()
        await lab.control(orders.Cancel((task,)))
        assert [RecordKind.SUBMIT, RecordKind.CANCEL] == await self._kinds(lab, task)

    async def test_a_request_to_cancel_is_recorded_before_it_takes_effect(self, lab: Lab) -> None:
        """A running task has a record of the request and one of the end."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        await lab.control(orders.Cancel((task,)))
        await lab.retry(leased)
        assert [
            RecordKind.SUBMIT,
            RecordKind.DEQUEUE,
            RecordKind.CONTROL,
            RecordKind.CANCEL,
        ] == await self._kinds(lab, task)

    async def test_a_corrupt_task_is_given_back_and_set_aside(self, lab: Lab) -> None:
        """The attempt is released and the task is failed: two arrows, two records."""
        await lab.declare()
        task = await lab.put()
        await lab.applied(corrupt(await lab.one()))
        assert [
            Transition.SUBMIT,
            Transition.LEASE,
            Transition.RELEASE,
            Transition.CORRUPT,
        ] == await lab.events(task)

    @pytest.mark.parametrize(
        "order",
        [
            orders.Pause(POOL),
            orders.Resume(POOL),
            orders.Pause(POOL, "A"),
            orders.Resize(POOL, 3),
            orders.Hold(POOL, 1.0),
            orders.Hold(POOL, 1.0, "A"),
            orders.Close(POOL),
        ],
        ids=lambda order: type(order).__name__.lower(),
    )
    async def test_an_order_is_recorded(self, lab: Lab, order: orders.Command) -> None:
        """What an operator did to a pool stands in its audit, once."""
        await lab.declare()
        before = len(await lab.records())
        await lab.control(order)
        (entry,) = (await lab.records())[before:]
        assert (RecordKind.CONTROL, POOL, lab.now) == (entry.kind, entry.pool, entry.at)
        assert type(order).__name__.lower() in (entry.detail or "")
        assert (getattr(order, "unit", None) or "") in (entry.detail or "")

    async def test_a_declaration_is_recorded_when_it_changes_something(self, lab: Lab) -> None:
        """The first and each different one, and none for the same again."""
        await lab.declare(max_concurrent=1)
        await lab.declare(max_concurrent=2)
        await lab.declare(max_concurrent=2)
        assert ["declare max_concurrent=1", "declare max_concurrent=2"] == [
            each.detail for each in await lab.records()
        ]

    async def test_the_end_of_a_run_is_recorded_once(self, lab: Lab) -> None:
        """After the arrow that ended it, in the same step."""
        await lab.declare()
        run = NewRun(id=lab.serial(), pool=POOL)
        await lab.submit(lab.new(run=run.id), run=run)
        await lab.run_one()
        assert [("run finished", run.id)] == [
            (each.detail, each.run) for each in await lab.records() if each.event is None
        ][1:]
        assert run.id == (await lab.records())[-1].run

    async def test_a_record_has_its_worker_and_time(self, lab: Lab) -> None:
        """Moment, worker, attempt and fence are those of the arrow itself."""
        await lab.declare()
        task = await lab.put(key="acme")
        lab.later(2.0)
        leased = await lab.one()
        entry = (await lab.records(task))[-1]
        assert (lab.now, "worker", "acme") == (entry.at, entry.worker, entry.key)
        assert (leased.fence.attempt, leased.fence.token) == (entry.attempt, entry.token)

    async def test_a_follow_ups_record_comes_before_its_cause_ends(self, lab: Lab) -> None:
        """So no reader sees a run empty that is still growing."""
        await lab.declare()
        task = await lab.put()
        follow_up = lab.new()
        await lab.complete(await lab.one(), follow_up)
        added, ended = (await lab.records())[-2:]
        assert (follow_up.id, Transition.SUBMIT) == (added.task, added.event)
        assert (task, Transition.COMPLETE) == (ended.task, ended.event)

    async def test_the_audit_is_read_in_pages(self, lab: Lab) -> None:
        """Positions are stable: page after page gives the whole, without gap or overlap."""
        await lab.declare()
        await lab.put_many(5)
        all_records = (await lab.view.audit(limit=1000)).records
        read: list[Record] = []
        position = 0
        while (page := await lab.view.audit(after=position, limit=2)).records:
            read += page.records
            position = page.next
        assert list(all_records) == read
        assert 6 == len(all_records) == position

    async def _all_pages(
        self, lab: Lab, since: float | None = None, task: int | None = None, limit: int = 3
    ) -> list[Record]:
        """Read on until the position stays where it is."""
        read: list[Record] = []
        position = -1
        page = await lab.view.audit(limit=limit, since=since, task=task)
        while page.next != position:
            read += page.records
            position = page.next
            page = await lab.view.audit(after=position, limit=limit, since=since, task=task)
        return read

    async def test_the_audit_of_one_task_is_its_history(self, lab: Lab) -> None:
        """All that happened to it and nothing else, also what others shared a step with it."""
        await lab.declare(max_concurrent=3)
        tasks = [new.id for new in (lab.new(), lab.new(), lab.new())]
        await lab.submit(*(lab.new(id=task) for task in tasks))
        leased = await lab.lease()
        await lab.applied(*map(completed, leased[:2]), retried(leased[2]))
        await lab.control(orders.Pause(POOL))
        await lab.control(orders.Cancel((leased[2].fence.task,)))
        for task in tasks:
            assert await lab.records(task) == await self._all_pages(lab, task=task)
        assert [] == await self._all_pages(lab, task=12345)

    async def test_the_audit_is_read_from_a_moment_on(self, lab: Lab) -> None:
        """Each record of that moment or later, once; and of one task if that is asked for."""
        await lab.declare()
        tasks = []
        moments = []
        for _ in range(5):
            lab.later(1.0)
            moments.append(lab.now)
            tasks.append(await lab.put())
            await lab.run_one()
        for moment in (0.0, *moments, lab.now + 1.0):
            expected = [each for each in await lab.records() if each.at >= moment]
            assert expected == await self._all_pages(lab, since=moment)
            assert [each for each in expected if each.task == tasks[2]] == await self._all_pages(
                lab, since=moment, task=tasks[2]
            )
