"""Submit: stored before it is answered, whole or not at all, and within the bound."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.core import control as orders
from millpond.core.admit import Reason
from millpond.core.lease import Leased
from millpond.core.lifecycle import Status, Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settlement
from millpond.core.spec import bounded, fail_fast, ring_buffer
from millpond.core.task import Call, Dedupe
from millpond.errors import ConfigError
from millpond.store.protocol import Batch
from millpond.testing.conformance.lab import POOL, WORKER, Lab, completed, ids_of, released, retried
from millpond.testing.conformance.scenario import StoreSuite, mark

WHOLE = pytest.mark.parametrize("policy", ["block_submitter", "fail_submitter"])


class SubmitConformance(StoreSuite):
    """The results of submits."""

    async def test_a_task_is_stored_before_submit_answers(self, lab: Lab) -> None:
        """Whatever submit answered can be read back at once, as it was described."""
        await lab.declare()
        new = lab.new("first", key="acme", priority=3, call=Call("work", b"\x00\xff"))
        answer = await lab.submit(new)
        task = await lab.task(new.id)
        assert (Status.QUEUED, new) == (task.status, task.new)
        assert (new.id, Status.QUEUED) == (answer.admissions[0].task, answer.admissions[0].status)
        assert not answer.admissions[0].duplicate

    async def test_tasks_are_numbered_in_the_order_of_their_submit(self, lab: Lab) -> None:
        """The sequence of a pool grows by one per task, within a batch and across batches."""
        await lab.declare()
        batch = await lab.submit(lab.new(), lab.new())
        single = await lab.submit(lab.new())
        assert [1, 2, 3] == [a.sequence for a in (*batch.admissions, *single.admissions)]

    async def test_without_lanes_a_key_is_no_lane(self, lab: Lab) -> None:
        """Keyed tasks of an unordered pool are numbered with all the others."""
        await lab.declare()
        answer = await lab.submit(lab.new(key="A"), lab.new(key="B"), lab.new(key="A"))
        assert [(None, 1), (None, 2), (None, 3)] == [
            (admission.lane, admission.sequence) for admission in answer.admissions
        ]

    async def test_a_fifo_pool_reports_the_position(self, lab: Lab) -> None:
        """The position in a fifo pool counts what waits, not what runs."""
        await lab.declare(max_concurrent=1)
        await lab.put_many(3)
        await lab.one()
        answer = await lab.submit(lab.new(), lab.new())
        assert [2, 3] == [admission.position for admission in answer.admissions]

    async def test_batches_of_one_submit_are_judged_one_by_one(self, lab: Lab) -> None:
        """A refused batch leaves the batches beside it alone."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        first, second = lab.new(), lab.new()
        answer = await lab.submit_all(Batch(tasks=(first,)), Batch(tasks=(second,)))
        assert [None, Reason.QUEUE_FULL] == [
            batch.refusal and batch.refusal.reason for batch in answer.batches
        ]
        assert Status.QUEUED == await lab.status(first.id)
        assert await lab.view.task(second.id) is None

    async def test_an_empty_batch_changes_nothing(self, lab: Lab) -> None:
        """A batch without tasks is answered, wakes no worker and leaves no record."""
        await lab.declare()
        before = len(await lab.records())
        answer = await lab.submit()
        assert ((), None) == (answer.admissions, answer.refusal)
        assert {} == lab.wakes
        assert before == len(await lab.records())

    async def test_ids_have_sixty_three_bits(self, lab: Lab) -> None:
        """The smallest and the largest id are kept as they are, and so are fences."""
        await lab.declare()
        ends = [1, 2**63 - 1]
        for identifier in ends:
            await lab.put(id=identifier, fingerprint=2**63 - 1)
        leased = await lab.lease()
        assert ends == ids_of(leased)
        assert all(0 <= each.fence.token < 2**63 for each in leased)
        await lab.applied(*map(completed, leased))

    # The same id again

    async def test_an_id_sent_again_is_answered_and_not_stored_twice(self, lab: Lab) -> None:
        """A submitter that never saw the answer may send the same batch again."""
        await lab.declare()
        batch = lab.new("first"), lab.new("second")
        first = await lab.submit(*batch)
        again = await lab.submit(*batch)
        assert [(a.task, a.sequence) for a in first.admissions] == [
            (a.task, a.sequence) for a in again.admissions
        ]
        assert [False, False] == [admission.duplicate for admission in again.admissions]
        assert 2 == (await lab.pool()).queued

    async def test_an_id_sent_again_returns_the_status_of_its_task(self, lab: Lab) -> None:
        """The answer to a repeated submit is the task as it is now."""
        await lab.declare()
        new = lab.new()
        await lab.submit(new)
        await lab.run_one()
        again = await lab.submit(new)
        assert Status.COMPLETED == again.admissions[0].status
        assert 0 == (await lab.pool()).queued

    async def test_an_id_sent_again_is_answered_also_by_a_full_or_closed_pool(
        self, lab: Lab
    ) -> None:
        """A task that was taken is never refused afterwards."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        new = lab.new()
        await lab.submit(new)
        full = await lab.submit(new)
        await lab.control(orders.Close(POOL))
        closed = await lab.submit(new)
        assert [new.id, new.id] == [full.admissions[0].task, closed.admissions[0].task]

    @pytest.mark.parametrize("dedupe", [None, Dedupe.INFLIGHT, Dedupe.FOREVER])
    async def test_an_id_sent_again_is_not_taken_twice_when_its_task_was_removed(
        self, lab: Lab, dedupe: Dedupe | None
    ) -> None:
        """A submitter that was away for longer than ended tasks are kept submits nothing new."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        new = lab.new()
        if dedupe is not None:
            new = lab.new(idempotency_key="k", dedupe=dedupe)
        await lab.submit(new)
        await lab.run_one()
        lab.later(10.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        fresh = lab.new()
        answer = await lab.submit_all(Batch(tasks=(new, fresh), again=True))
        found = answer.batches[0].admissions
        assert [(new.id, False), (fresh.id, False)] == [(a.task, a.duplicate) for a in found]
        assert await lab.view.task(new.id) is None
        assert 1 == (await lab.pool()).queued

    # Refusals

    async def test_an_undeclared_pool_is_refused(self, lab: Lab) -> None:
        """A batch for an undeclared pool is refused by name."""
        refusal = await lab.refusal(lab.new(pool="nowhere"))
        assert (Reason.UNKNOWN_POOL, "nowhere") == (refusal.reason, refusal.pool)

    async def test_a_closed_pool_refuses_and_serves_on(self, lab: Lab) -> None:
        """A closed pool takes nothing more from outside; what it holds still runs."""
        await lab.declare()
        waiting = await lab.put()
        await lab.control(orders.Close(POOL))
        assert Reason.CLOSED == (await lab.refusal(lab.new())).reason
        assert waiting == await lab.run_one()

    async def test_a_weight_above_every_burst_is_refused(self, lab: Lab) -> None:
        """A task that no full bucket could pay for would never start, so it is not taken."""
        await lab.declare(rates=(Rate(10, per=1.0, burst=5, of="weight"),))
        refusal = await lab.refusal(lab.new(weight=5), lab.new(weight=6))
        assert (Reason.WEIGHT_LIMIT, 5) == (refusal.reason, refusal.bound)
        assert 0 == (await lab.pool()).queued

    async def test_a_closure_whose_process_is_gone_is_refused(self, lab: Lab) -> None:
        """No process could run it: its code went with its process."""
        await lab.declare()
        await lab.join("w1", owner="process")
        await lab.put(owner="process")
        await lab.control(orders.Deregister("w1"))
        assert Reason.OWNER_GONE == (await lab.refusal(lab.new(owner="process"))).reason

    async def test_a_call_needs_no_process_of_its_own(self, lab: Lab) -> None:
        """Only closures have an owner; any other task is accepted, whichever workers there are."""
        await lab.declare()
        await lab.control(orders.Deregister(WORKER))
        await lab.put()

    # Bounds

    @WHOLE
    async def test_a_batch_is_taken_whole_or_not_at_all(self, lab: Lab, policy: str) -> None:
        """A batch that does not fit is refused with depth and bound, and nothing of it is kept."""
        await lab.declare(backpressure=bounded(3, policy))
        await lab.put()
        await lab.put()
        before = len(await lab.records())
        found = await lab.refusal(lab.new(), lab.new())
        assert (Reason.QUEUE_FULL, POOL, 2, 3) == (
            found.reason,
            found.pool,
            found.depth,
            found.bound,
        )
        assert (policy == "block_submitter") == found.may_wait
        assert before == len(await lab.records())
        assert 2 == (await lab.pool()).queued

    @WHOLE
    async def test_a_batch_larger_than_the_bound_can_never_fit(self, lab: Lab, policy: str) -> None:
        """It is refused as too large, so that no submitter waits in vain."""
        await lab.declare(backpressure=bounded(2, policy))
        found = await lab.refusal(lab.new(), lab.new(), lab.new())
        assert (Reason.BATCH_TOO_LARGE, 2, False) == (found.reason, found.bound, found.may_wait)

    async def test_a_batch_with_too_many_of_one_key_can_never_fit(self, lab: Lab) -> None:
        """The bound of a key makes a batch too large as the pool's own does."""
        await lab.declare(backpressure=bounded(10, "fail_submitter", per_key=1))
        refusal = await lab.refusal(lab.new(key="acme"), lab.new(key="acme"))
        assert (Reason.BATCH_TOO_LARGE, 1) == (refusal.reason, refusal.bound)

    async def test_one_full_key_leaves_room_for_the_others(self, lab: Lab) -> None:
        """The bound per key refuses that key alone, and names it with its depth and bound."""
        await lab.declare(backpressure=bounded(10, "fail_submitter", per_key=2))
        await lab.put_keys("AA")
        found = await lab.refusal(lab.new(key="A"))
        assert (Reason.QUEUE_FULL, "A", 2, 2) == (
            found.reason,
            found.lane,
            found.depth,
            found.bound,
        )
        await lab.put_keys("B")

    async def test_drop_newest_rejects_the_new_one(self, lab: Lab) -> None:
        """The new task is answered as rejected, recorded as dropped and never stored."""
        await lab.declare(backpressure=bounded(2, "drop_newest"))
        kept = [await lab.put(), await lab.put()]
        new = lab.new()
        answer = await lab.submit(new)
        found = answer.admissions[0]
        assert (new.id, Status.REJECTED) == (found.task, found.status)
        assert Reason.DROP_NEWEST == found.reason
        assert await lab.view.task(new.id) is None
        assert [Transition.REFUSE] == await lab.events(new.id)
        assert [Status.QUEUED] * 2 == await lab.statuses(*kept)

    @mark.rows("HN-08")
    async def test_drop_oldest_rejects_the_oldest_that_never_started(self, lab: Lab) -> None:
        """The oldest waiting task makes room, with the reason and the new task on its record."""
        await lab.declare(backpressure=bounded(2, "drop_oldest"))
        oldest, newer, newest = await lab.put(), await lab.put(), await lab.put()
        answer = await lab.task(oldest)
        assert (Status.REJECTED, Reason.DROP_OLDEST) == (answer.status, answer.reason)
        assert [Status.QUEUED] * 2 == await lab.statuses(newer, newest)
        assert newest == (await lab.records(oldest))[-1].cause

    async def test_a_ring_buffer_keeps_the_newest(self, lab: Lab) -> None:
        """A ring buffer drops the oldest and says so as its own policy."""
        await lab.declare(backpressure=ring_buffer(2))
        first, second, third, fourth = [await lab.put() for _ in range(4)]
        rejected, queued = Status.REJECTED, Status.QUEUED
        assert [rejected, rejected, queued, queued] == await lab.statuses(
            first, second, third, fourth
        )
        assert Reason.RING_BUFFER == (await lab.task(first)).reason

    async def test_under_a_drop_policy_a_batch_is_taken_item_by_item(self, lab: Lab) -> None:
        """What fits is taken, what does not is rejected, in the order of the batch."""
        await lab.declare(backpressure=bounded(2, "drop_newest"))
        answer = await lab.submit(lab.new(), lab.new(), lab.new(), lab.new())
        queued, rejected = Status.QUEUED, Status.REJECTED
        assert [queued, queued, rejected, rejected] == [a.status for a in answer.admissions]

    async def test_a_full_key_evicts_its_own_oldest(self, lab: Lab) -> None:
        """Where a key is at its bound, the oldest of that key makes room, not another's."""
        await lab.declare(backpressure=bounded(10, "drop_oldest", per_key=1))
        other, mine, _ = await lab.put_keys("BAA")
        assert [Status.QUEUED, Status.REJECTED] == await lab.statuses(other, mine)

    @mark.rows("HN-06")
    async def test_the_bound_counts_what_was_never_claimed(self, lab: Lab) -> None:
        """A running task is neither counted nor evicted."""
        await lab.declare(backpressure=bounded(1, "drop_oldest"))
        running = await lab.put()
        await lab.one()
        waiting = await lab.put()
        await lab.put()
        assert [Status.RUNNING, Status.REJECTED] == await lab.statuses(running, waiting)

    async def test_the_bound_counts_scheduled_tasks(self, lab: Lab) -> None:
        """A task that is not due yet takes up room, too."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        await lab.put(delay=60.0)
        await lab.refusal(lab.new())
        assert 1 == (await lab.pool()).fresh

    @pytest.mark.parametrize("end", [retried, released], ids=["retried", "released"])
    async def test_what_comes_back_is_neither_counted_nor_evicted(
        self, lab: Lab, end: Callable[[Leased], Settlement]
    ) -> None:
        """A task that was claimed once stays out of the bound, wherever it waits now."""
        await lab.declare(backpressure=bounded(1, "drop_oldest"))
        back = await lab.put()
        await lab.applied(end(await lab.one()))
        await lab.control(orders.Pause(POOL))
        await lab.put_many(3)
        assert Status.QUEUED == await lab.status(back)
        assert (2, 1) == ((await lab.pool()).queued, (await lab.pool()).fresh)

    async def test_follow_ups_are_never_refused_and_not_counted(self, lab: Lab) -> None:
        """What a handler submits with its completion is stored beyond any bound."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        await lab.put()
        leased = await lab.one()
        await lab.put()
        await lab.complete(leased, lab.new(), lab.new())
        assert (3, 1) == ((await lab.pool()).queued, (await lab.pool()).fresh)

    async def test_a_redriven_task_is_not_counted(self, lab: Lab) -> None:
        """An operator's redrive needs no room under the bound."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        dead = await lab.put()
        await lab.fail(await lab.one())
        await lab.put()
        await lab.control(orders.Redrive((dead,)))
        assert (2, 1) == ((await lab.pool()).queued, (await lab.pool()).fresh)

    async def test_room_comes_back_with_each_claim(self, lab: Lab) -> None:
        """A claimed task frees its place under the bound at once."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        await lab.put()
        await lab.one()
        await lab.put()

    async def test_room_of_a_key_comes_back_with_each_claim(self, lab: Lab) -> None:
        """A claimed task frees its place under the bound of its key, too."""
        await lab.declare(backpressure=bounded(9, "fail_submitter", per_key=2))
        await lab.put_keys("AA")
        await lab.one()
        await lab.put_keys("A")
        await lab.refusal(lab.new(key="A"))

    async def test_room_comes_back_with_each_cancel(self, lab: Lab) -> None:
        """A cancelled task frees its place under the bound at once."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        waiting = await lab.put()
        await lab.control(orders.Cancel((waiting,)))
        await lab.put()

    # Fail fast

    async def _refused_for_capacity(self, lab: Lab, **options: str | None) -> bool:
        answer = await lab.submit(lab.new(key=options.get("key")))
        if answer.refusal is None:
            return False
        assert Reason.NO_CAPACITY == answer.refusal.reason
        assert not answer.refusal.may_wait
        return True

    async def test_fail_fast_takes_only_what_could_start(self, lab: Lab) -> None:
        """Running and waiting tasks together never exceed the slots."""
        await lab.declare(max_concurrent=2, backpressure=fail_fast())
        await lab.put()
        await lab.one()
        await lab.put()
        assert await self._refused_for_capacity(lab)

    async def test_fail_fast_takes_again_when_a_slot_is_free(self, lab: Lab) -> None:
        """A settled attempt makes room for the next submit."""
        await lab.declare(max_concurrent=1, backpressure=fail_fast())
        await lab.put()
        await lab.run_one()
        await lab.put()

    async def test_fail_fast_refuses_a_batch_whole(self, lab: Lab) -> None:
        """A batch of which not every task could start is not taken at all."""
        await lab.declare(max_concurrent=2, backpressure=fail_fast())
        assert Reason.NO_CAPACITY == (await lab.refusal(lab.new(), lab.new(), lab.new())).reason
        assert 0 == (await lab.pool()).queued

    async def test_fail_fast_refuses_while_paused(self, lab: Lab) -> None:
        """Nothing starts in a paused pool, so nothing is taken."""
        await lab.declare(backpressure=fail_fast())
        await lab.control(orders.Pause(POOL))
        assert await self._refused_for_capacity(lab)

    async def test_fail_fast_refuses_while_held(self, lab: Lab) -> None:
        """A pool that is held back takes nothing until the hold is over."""
        await lab.declare(backpressure=fail_fast())
        await lab.control(orders.Hold(POOL, 5.0))
        assert await self._refused_for_capacity(lab)
        lab.later(5.0)
        assert not await self._refused_for_capacity(lab)

    async def test_fail_fast_refuses_a_key_at_its_limit(self, lab: Lab) -> None:
        """A key that runs as much as it may gets no further slot; the others do."""
        await lab.declare(max_per_key=1, backpressure=fail_fast())
        await lab.put(key="acme")
        await lab.one()
        assert await self._refused_for_capacity(lab, key="acme")
        assert not await self._refused_for_capacity(lab, key="bolt")

    async def test_fail_fast_refuses_while_the_rate_allows_no_start(self, lab: Lab) -> None:
        """An empty bucket refuses, a refilled one takes."""
        await lab.declare(rates=(Rate(1, per=10.0),), backpressure=fail_fast())
        await lab.put()
        await lab.run_one()
        assert await self._refused_for_capacity(lab)
        lab.later(10.0)
        assert not await self._refused_for_capacity(lab)

    async def test_fail_fast_counts_a_batch_against_the_rate(self, lab: Lab) -> None:
        """A batch that the bucket could not pay for at once is refused."""
        await lab.declare(rates=(Rate(1, per=60.0),), backpressure=fail_fast())
        await lab.refusal(lab.new(), lab.new())
        await lab.put()

    async def test_fail_fast_counts_a_batch_against_the_limit_of_a_key(self, lab: Lab) -> None:
        """Two of one key cannot both start where one may run; two without a key can."""
        await lab.declare(max_per_key=1, backpressure=fail_fast())
        await lab.refusal(lab.new(key="A"), lab.new(key="A"))
        assert (await lab.submit(lab.new(key="A"), lab.new(key="B"))).refusal is None
        assert (await lab.submit(lab.new(), lab.new())).refusal is None

    async def test_fail_fast_needs_no_limit_per_key(self, lab: Lab) -> None:
        """Without one, tasks of one key fill the pool."""
        await lab.declare(max_concurrent=2, backpressure=fail_fast())
        assert (await lab.submit(lab.new(key="A"), lab.new(key="A"))).refusal is None

    async def test_fail_fast_refuses_a_paused_key(self, lab: Lab) -> None:
        """A key that starts nothing takes nothing; the others do."""
        await lab.declare(backpressure=fail_fast())
        await lab.control(orders.Pause(POOL, "A"))
        assert await self._refused_for_capacity(lab, key="A")
        assert not await self._refused_for_capacity(lab, key="B")

    # Time

    async def test_a_delayed_task_starts_when_it_is_due(self, lab: Lab) -> None:
        """A task with a delay waits it out, to the instant."""
        await lab.declare()
        await lab.put(delay=8.0)
        lab.later(7.5)
        assert [] == await lab.lease()
        lab.later(0.5)
        assert 1 == len(await lab.lease())

    async def test_run_at_wins_over_delay(self, lab: Lab) -> None:
        """A moment is a moment; one that has passed means now."""
        await lab.declare()
        future = await lab.put(run_at=lab.now + 4.0, delay=60.0)
        past = await lab.put(run_at=lab.now - 100.0, delay=60.0)
        assert (lab.now + 4.0, lab.now) == (
            (await lab.task(future)).due,
            (await lab.task(past)).due,
        )

    async def test_fail_fast_does_not_count_what_is_scheduled(self, lab: Lab) -> None:
        """A task for later takes no slot from one that could start now."""
        await lab.declare(max_concurrent=1, backpressure=fail_fast())
        await lab.put(delay=60.0)
        await lab.put()
        assert Reason.NO_CAPACITY == (await lab.refusal(lab.new())).reason

    async def test_fail_fast_counts_what_waits_against_the_limit_of_a_key(self, lab: Lab) -> None:
        """A waiting task of the key will take its slot first; another key has its own."""
        await lab.declare(max_concurrent=9, max_per_key=1, backpressure=fail_fast())
        await lab.put(key="A")
        assert Reason.NO_CAPACITY == (await lab.refusal(lab.new(key="A"))).reason
        await lab.put(key="B")

    # Exact bounds in refusals

    @pytest.mark.parametrize(
        "policy", ["block_submitter", "fail_submitter", "drop_newest", "drop_oldest"]
    )
    async def test_a_bound_per_key_leaves_tasks_without_one_alone(
        self, lab: Lab, policy: str
    ) -> None:
        """They have no key in common; only the depth of the pool bounds them."""
        await lab.declare(backpressure=bounded(9, policy, per_key=1))
        tasks = [lab.new() for _ in range(3)]
        assert (await lab.submit(*tasks)).refusal is None
        await lab.put()
        assert [Status.QUEUED] * 3 == await lab.statuses(*(new.id for new in tasks))

    async def test_the_totals_count_what_was_dropped_at_the_door(self, lab: Lab) -> None:
        """A newcomer that was dropped is a rejected task like one that was evicted."""
        await lab.declare(backpressure=bounded(1, "drop_newest"))
        await lab.put()
        await lab.submit(lab.new(), lab.new())
        assert {"rejected": 2} == (await lab.pool()).totals

    async def test_a_batch_reports_which_of_its_items_it_evicted(self, lab: Lab) -> None:
        """An item that a later one of the same batch pushed out is answered as rejected."""
        await lab.declare(backpressure=ring_buffer(2))
        answer = (await lab.submit(*(lab.new() for _ in range(4)))).admissions
        gone = (Status.REJECTED, Reason.RING_BUFFER)
        assert [gone, gone, (Status.QUEUED, None), (Status.QUEUED, None)] == [
            (one.status, one.reason) for one in answer
        ]
        assert [one.status for one in answer] == await lab.statuses(*(one.task for one in answer))

    async def test_a_batch_is_for_one_pool(self, lab: Lab) -> None:
        """Tasks for two pools are refused before any is stored."""
        await lab.declare()
        await lab.declare("other")
        with pytest.raises(ConfigError) as caught:
            await lab.submit(lab.new(), lab.new(pool="other"))
        assert "tasks" == caught.value.option
        assert (0, 0) == ((await lab.pool()).queued, (await lab.pool("other")).queued)
