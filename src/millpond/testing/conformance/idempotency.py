"""Idempotency: one key, one task, however often and wherever it is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millpond.core import control as orders
from millpond.core.admit import Reason
from millpond.core.lifecycle import Status
from millpond.core.rate import Rate
from millpond.core.run import NewRun
from millpond.core.spec import bounded
from millpond.core.task import Call, Dedupe
from millpond.testing.conformance.lab import POOL, Lab, completed, failed
from millpond.testing.conformance.scenario import StoreSuite, mark

if TYPE_CHECKING:
    from collections.abc import Mapping


class IdempotencyConformance(StoreSuite):
    """What a known key is answered with."""

    @mark.rows("DE-R01", "HN-16")
    async def test_a_known_key_is_answered_with_its_task(self, lab: Lab) -> None:
        """The second submit of a key makes no task and names the first."""
        await lab.declare()
        first = await lab.put(idempotency_key="k")
        answer = await lab.submit(lab.new(idempotency_key="k"))
        assert (first, True) == (answer.admissions[0].task, answer.admissions[0].duplicate)
        assert 1 == (await lab.pool()).queued

    @mark.rows("DE-R02")
    async def test_keys_never_answer_for_each_other(self, lab: Lab) -> None:
        """Another key, and the same key in another pool, make tasks of their own."""
        await lab.declare()
        await lab.declare("other")
        await lab.put(idempotency_key="k")
        await lab.put(idempotency_key="K")
        await lab.put(idempotency_key="k", pool="other")

    @mark.rows("DE-R04")
    @pytest.mark.parametrize("key", ["%", "a'b\"c", "a\\b", "\u00e9 \U0001f600", "x" * 500])
    async def test_no_character_of_a_key_is_special(self, lab: Lab, key: str) -> None:
        """A key is matched exactly, whatever it is made of."""
        await lab.declare()
        first = await lab.put(idempotency_key=key)
        again = await lab.submit(lab.new(idempotency_key=key))
        assert first == again.admissions[0].task
        assert not (await lab.submit(lab.new(idempotency_key=key + "."))).admissions[0].duplicate

    async def test_duplicates_within_a_batch_are_one_task(self, lab: Lab) -> None:
        """Only the first of a key in a batch is stored, and only it counts."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        first = lab.new(idempotency_key="k")
        answer = await lab.submit(first, lab.new(idempotency_key="k"))
        assert [(first.id, False), (first.id, True)] == [
            (admission.task, admission.duplicate) for admission in answer.admissions
        ]
        assert 1 == (await lab.pool()).queued

    async def test_the_key_is_looked_at_before_the_bound(self, lab: Lab) -> None:
        """A full pool answers a known key."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        first = await lab.put(idempotency_key="k")
        assert first == (await lab.submit(lab.new(idempotency_key="k"))).admissions[0].task

    async def test_a_known_key_evicts_no_task(self, lab: Lab) -> None:
        """A duplicate needs no room, so nothing is dropped for it."""
        await lab.declare(backpressure=bounded(1, "drop_oldest"))
        first = await lab.put(idempotency_key="k")
        await lab.submit(lab.new(idempotency_key="k"))
        assert Status.QUEUED == await lab.status(first)

    async def test_the_key_is_looked_at_before_closed_and_paused(self, lab: Lab) -> None:
        """A pool that takes nothing more still answers a known key."""
        await lab.declare()
        first = await lab.put(idempotency_key="k")
        await lab.control(orders.Pause(POOL))
        await lab.control(orders.Close(POOL))
        assert first == (await lab.submit(lab.new(idempotency_key="k"))).admissions[0].task

    async def test_a_known_key_beside_new_tasks_is_not_counted(self, lab: Lab) -> None:
        """Only what is really new in a batch must fit under the bound."""
        await lab.declare(backpressure=bounded(2, "fail_submitter"))
        await lab.put(idempotency_key="k")
        answer = await lab.submit(lab.new(idempotency_key="k"), lab.new())
        assert [True, False] == [admission.duplicate for admission in answer.admissions]

    @pytest.mark.parametrize(
        "other", [{"fingerprint": 2}, {"call": Call("other")}], ids=["arguments", "function"]
    )
    async def test_a_key_with_another_call_is_a_conflict(
        self, lab: Lab, other: dict[str, int]
    ) -> None:
        """The same key with another function or other arguments is refused and names the task."""
        await lab.declare()
        first = await lab.put(idempotency_key="k", fingerprint=1)
        call = Call("other") if "call" in other else Call("work")
        new = lab.new(idempotency_key="k", call=call, fingerprint=other.get("fingerprint", 1))
        refusal = await lab.refusal(lab.new(), new)
        assert (Reason.CONFLICT, first) == (refusal.reason, refusal.task)
        assert 1 == (await lab.pool()).queued

    async def test_tasks_without_a_key_never_conflict(self, lab: Lab) -> None:
        """No key, no lineage: whatever they call, each is a task of its own."""
        await lab.declare()
        answer = await lab.submit(
            lab.new(fingerprint=1), lab.new(fingerprint=2), lab.new(call=Call("other"))
        )
        assert [False] * 3 == [admission.duplicate for admission in answer.admissions]
        assert 3 == (await lab.pool()).queued

    async def test_a_key_for_an_undeclared_pool_is_refused_as_any_other(self, lab: Lab) -> None:
        """Looking at the key first needs no pool to look in."""
        refusal = await lab.refusal(lab.new(pool="nowhere", idempotency_key="k"))
        assert Reason.UNKNOWN_POOL == refusal.reason

    async def test_a_conflict_within_a_batch_refuses_it(self, lab: Lab) -> None:
        """One key with two meanings in one batch is a conflict too."""
        await lab.declare()
        refusal = await lab.refusal(
            lab.new(idempotency_key="k", fingerprint=1), lab.new(idempotency_key="k", fingerprint=2)
        )
        assert Reason.CONFLICT == refusal.reason
        assert 0 == (await lab.pool()).queued

    @pytest.mark.parametrize(
        ("mode", "end", "answers"),
        [
            (Dedupe.FOREVER, "completed", True),
            (Dedupe.FOREVER, "failed", True),
            (Dedupe.FOREVER, "cancelled", True),
            (Dedupe.SUCCESS, "completed", True),
            (Dedupe.SUCCESS, "failed", False),
            (Dedupe.SUCCESS, "cancelled", False),
            (Dedupe.INFLIGHT, "completed", False),
            (Dedupe.INFLIGHT, "failed", False),
            (Dedupe.INFLIGHT, "cancelled", False),
        ],
    )
    @mark.rows("HN-17")
    async def test_how_long_a_key_answers(
        self, lab: Lab, mode: Dedupe, end: str, answers: bool
    ) -> None:
        """Forever, until it ends without success, or only while it is queued or running."""
        await lab.declare()
        first = await lab.put(idempotency_key="k", dedupe=mode)
        if end == "cancelled":
            await lab.control(orders.Cancel((first,)))
        else:
            leased = await lab.one()
            await lab.applied(completed(leased) if end == "completed" else failed(leased))
        answer = await lab.submit(lab.new(idempotency_key="k", dedupe=mode))
        assert answers == answer.admissions[0].duplicate

    @pytest.mark.parametrize("mode", [Dedupe.FOREVER, Dedupe.SUCCESS, Dedupe.INFLIGHT])
    async def test_a_key_answers_while_its_task_is_queued_or_running(
        self, lab: Lab, mode: Dedupe
    ) -> None:
        """Whatever the mode, a live task answers for its key, waiting, running or backing off."""
        await lab.declare()
        await lab.put(idempotency_key="k", dedupe=mode)
        again = lab.new(idempotency_key="k", dedupe=mode)
        assert (await lab.submit(again)).admissions[0].duplicate
        await lab.one()
        assert (await lab.submit(again)).admissions[0].duplicate

    async def test_a_key_that_counts_per_run_is_new_in_each_run(self, lab: Lab) -> None:
        """With dedupe="run" the key answers within its run and nowhere else."""
        await lab.declare()
        for name in ("first", "second"):
            run = NewRun(id=lab.serial(), pool=POOL, name=name)
            seed = [lab.new(idempotency_key="k", dedupe=Dedupe.RUN, run=run.id) for _ in range(2)]
            answer = await lab.submit(*seed, run=run)
            assert [False, True] == [admission.duplicate for admission in answer.admissions]
        assert 2 == (await lab.pool()).queued

    async def test_a_dropped_task_does_not_keep_its_key(self, lab: Lab) -> None:
        """What drop_newest turned away may be submitted again under its key."""
        await lab.declare(backpressure=bounded(1, "drop_newest"))
        await lab.put()
        refused = await lab.submit(lab.new(idempotency_key="k"))
        assert Status.REJECTED == refused.admissions[0].status
        await lab.run_one()
        assert not (await lab.submit(lab.new(idempotency_key="k"))).admissions[0].duplicate

    async def test_an_evicted_task_does_not_keep_its_key(self, lab: Lab) -> None:
        """An evicted task may be submitted again under its key."""
        await lab.declare(backpressure=bounded(1, "drop_oldest"))
        await lab.put(idempotency_key="k")
        await lab.put()
        assert not (await lab.submit(lab.new(idempotency_key="k"))).admissions[0].duplicate

    @pytest.mark.parametrize("one", [{"owner": "gone"}, {"weight": 3}], ids=["owner", "weight"])
    async def test_a_batch_that_evicts_the_holder_of_its_key_takes_no_hopeless_task(
        self, lab: Lab, one: Mapping[str, Any]
    ) -> None:
        """The key is known when the batch is checked, and free when the task comes."""
        rates = (Rate(2, per=1.0, of="weight"),)
        await lab.declare(backpressure=bounded(1, "drop_oldest"), rates=rates)
        await lab.put(idempotency_key="k")
        answer = await lab.submit(lab.new(), lab.new(idempotency_key="k", **one))
        ended = answer.admissions[1]
        reason = Reason.OWNER_GONE if "owner" in one else Reason.WEIGHT_LIMIT
        assert (Status.CANCELLED, reason) == (ended.status, ended.reason)

    async def test_a_refused_batch_does_not_keep_its_keys(self, lab: Lab) -> None:
        """A key of a refused batch is as unknown as before."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        await lab.put()
        await lab.refusal(lab.new(idempotency_key="k"))
        await lab.run_one()
        assert not (await lab.submit(lab.new(idempotency_key="k"))).admissions[0].duplicate

    async def test_a_key_outlives_the_record_of_its_task(self, lab: Lab) -> None:
        """Pruning forgets the task; its key still answers, with the id and how it ended."""
        await lab.declare()
        first = await lab.put(idempotency_key="k", fingerprint=1)
        await lab.run_one()
        lab.later(10.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        assert await lab.view.task(first) is None
        answer = (await lab.submit(lab.new(idempotency_key="k", fingerprint=1))).admissions[0]
        assert (first, Status.COMPLETED, True) == (answer.task, answer.status, answer.duplicate)

    async def test_a_key_outlives_its_record_with_its_meaning(self, lab: Lab) -> None:
        """After pruning, another call under the key is still a conflict."""
        await lab.declare()
        await lab.put(idempotency_key="k", fingerprint=1)
        await lab.run_one()
        lab.later(10.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        refusal = await lab.refusal(lab.new(idempotency_key="k", fingerprint=2))
        assert Reason.CONFLICT == refusal.reason

    async def test_a_follow_up_with_a_known_key_is_not_stored_again(self, lab: Lab) -> None:
        """Handlers that find the same thing twice submit it once."""
        await lab.declare()
        await lab.put(idempotency_key="k")
        seed = await lab.put()
        leased = {each.fence.task: each for each in await lab.lease()}
        await lab.complete(leased[seed], lab.new(idempotency_key="k"))
        assert 0 == (await lab.pool()).queued
