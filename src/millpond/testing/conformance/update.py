"""Updates: a task that waits is changed, moved or replaced, and keeps its sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond.core import control as orders
from millpond.core.admit import Reason
from millpond.core.audit import RecordKind
from millpond.core.lifecycle import Status, Transition
from millpond.core.rate import Rate
from millpond.core.run import NewRun
from millpond.core.spec import bounded, fair_round_robin, lifo, priority
from millpond.core.task import Call, Dedupe, Fence
from millpond.errors import ConfigError, NotWaiting, StaleRevision, UnknownTask
from millpond.store.protocol import Batch
from millpond.testing.conformance.lab import CALLBACKS, POOL, Lab, completed, name_of, names_of
from millpond.testing.conformance.scenario import StoreSuite

if TYPE_CHECKING:
    from typing import Unpack

    from millpond.core.task import NewTask
    from millpond.testing.conformance.lab import TaskOptions


def replacing(lab: Lab, name: str = "", **options: Unpack[TaskOptions]) -> NewTask:
    """Describe a task that replaces the one that waits under its key."""
    options.setdefault("idempotency_key", "k")
    options["dedupe"] = Dedupe.REPLACE
    return lab.new(name, **options)


def arguments(text: bytes) -> Call:
    """Return a call with these arguments."""
    return Call("work", text)


class ReplaceConformance(StoreSuite):
    """What the two modes of an idempotency key do that look at waiting tasks only."""

    async def test_a_replacement_changes_the_task_that_waits(self, lab: Lab) -> None:
        """There is one task with the id of the first and the arguments of the last."""
        await lab.declare(order=priority())
        first = await lab.put(idempotency_key="k", call=arguments(b"1"), fingerprint=1)
        other = await lab.put()
        new = replacing(lab, "new", call=arguments(b"2"), fingerprint=2, priority=5, timeout=9.0)
        answer = (await lab.submit(new)).admissions[0]
        assert (first, True, Status.QUEUED) == (answer.task, answer.duplicate, answer.status)
        assert 2 == (await lab.pool()).queued
        leased = await lab.one()
        assert (first, b"2", 9.0) == (leased.fence.task, leased.call.payload, leased.timeout)
        assert other == (await lab.one()).fence.task

    async def test_a_replacement_sets_another_due_time(self, lab: Lab) -> None:
        """Each submit puts the start off: what comes in quick succession runs once."""
        await lab.declare()
        for _ in range(3):
            await lab.submit(replacing(lab, delay=5.0))
            lab.later(3.0)
            assert [] == await lab.lease()
        lab.later(2.0)
        assert 1 == len(await lab.lease())

    async def test_a_replacement_may_start_sooner(self, lab: Lab) -> None:
        """A scheduled task that is replaced by one without a delay wakes its pool."""
        await lab.declare()
        await lab.put(idempotency_key="k", delay=60.0)
        await lab.submit(replacing(lab))
        assert {POOL: lab.now} == lab.wakes
        assert 1 == len(await lab.lease())

    @pytest.mark.parametrize("mode", [Dedupe.WAITING, Dedupe.REPLACE])
    async def test_a_running_task_is_left_alone(self, lab: Lab, mode: Dedupe) -> None:
        """A new task is queued beside it, and the next submit finds that one."""
        await lab.declare()
        first = await lab.put(idempotency_key="k", dedupe=mode)
        running = await lab.one()
        second = await lab.put(idempotency_key="k", dedupe=mode)
        third = (await lab.submit(lab.new(idempotency_key="k", dedupe=mode))).admissions[0]
        assert (second, True) == (third.task, third.duplicate)
        await lab.complete(running)
        assert [Status.COMPLETED, Status.QUEUED] == await lab.statuses(first, second)

    @pytest.mark.parametrize("mode", [Dedupe.WAITING, Dedupe.REPLACE])
    async def test_a_prefetched_task_is_left_alone(self, lab: Lab, mode: Dedupe) -> None:
        """A worker may be starting it just now."""
        await lab.declare(prefetch=2)
        await lab.put(idempotency_key="k", dedupe=mode)
        assert 1 == len(await lab.claims())
        await lab.put(idempotency_key="k", dedupe=mode)
        assert 2 == (await lab.pool()).queued

    async def test_a_key_that_looks_at_waiting_tasks_is_joined(self, lab: Lab) -> None:
        """With dedupe="waiting" the task that waits answers, and stays as it is."""
        await lab.declare()
        first = await lab.put(idempotency_key="k", delay=60.0)
        joined = lab.new(idempotency_key="k", dedupe=Dedupe.WAITING)
        answer = (await lab.submit(joined)).admissions[0]
        assert (first, True) == (answer.task, answer.duplicate)
        assert (lab.now + 60.0, 0) == (
            (await lab.task(first)).due,
            (await lab.task(first)).new.revision,
        )

    async def test_a_key_of_waiting_tasks_with_other_arguments_conflicts(self, lab: Lab) -> None:
        """To join means to be the same; to replace does not."""
        await lab.declare()
        await lab.put(idempotency_key="k", fingerprint=1)
        new = lab.new(idempotency_key="k", fingerprint=2, dedupe=Dedupe.WAITING)
        refusal = await lab.refusal(new)
        assert Reason.CONFLICT == refusal.reason

    @pytest.mark.parametrize("mode", [Dedupe.WAITING, Dedupe.REPLACE])
    async def test_a_key_of_an_ended_task_is_free(self, lab: Lab, mode: Dedupe) -> None:
        """What has ended does not wait, however it ended."""
        await lab.declare()
        await lab.put(idempotency_key="k")
        await lab.run_one()
        await lab.put(idempotency_key="k", dedupe=mode, fingerprint=7)

    @pytest.mark.parametrize(
        "other", [{"call": Call("other")}, {"key": "b"}, {"share": "s"}], ids=str
    )
    async def test_a_replacement_that_belongs_elsewhere_conflicts(
        self, lab: Lab, other: TaskOptions
    ) -> None:
        """Function, key and share are the task's place; another place is refused."""
        await lab.declare()
        first = await lab.put(idempotency_key="k", key="a")
        options: TaskOptions = {"key": "a", **other}
        refusal = await lab.refusal(replacing(lab, **options))
        assert (Reason.CONFLICT, first) == (refusal.reason, refusal.task)
        assert 0 == (await lab.task(first)).new.revision

    async def test_the_last_of_a_batch_replaces_the_others(self, lab: Lab) -> None:
        """One key in one batch is one task with the last arguments."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        batch = [
            replacing(lab, call=arguments(bytes([n])), fingerprint=n, delay=float(n))
            for n in range(3)
        ]
        answer = await lab.submit(*batch)
        assert {batch[0].id} == {one.task for one in answer.admissions}
        lab.later(2.0)
        assert bytes([2]) == (await lab.one()).call.payload

    async def test_a_replacement_needs_no_room(self, lab: Lab) -> None:
        """A full pool and a closed one take it: nothing is added, nothing is evicted."""
        await lab.declare(backpressure=bounded(1, "drop_oldest"))
        first = await lab.put(idempotency_key="k")
        await lab.submit(replacing(lab, call=arguments(b"2")))
        await lab.control(orders.Close(POOL))
        await lab.submit(replacing(lab, call=arguments(b"3")))
        assert (1, 1) == ((await lab.pool()).queued, (await lab.pool()).fresh)
        assert (first, b"3") == ((leased := await lab.one()).fence.task, leased.call.payload)

    async def test_a_replaced_task_is_evicted_at_its_place(self, lab: Lab) -> None:
        """The oldest stays the oldest, also for the bound of its key."""
        await lab.declare(backpressure=bounded(2, "drop_oldest", 2))
        first = await lab.put(idempotency_key="k", key="a")
        second = await lab.put(key="a")
        await lab.submit(replacing(lab, key="a"))
        await lab.put(key="a")
        assert [Status.REJECTED, Status.QUEUED] == await lab.statuses(first, second)

    async def test_a_replacement_that_could_never_start_is_refused(self, lab: Lab) -> None:
        """A weight above the burst of a rate changes nothing."""
        await lab.declare(rates=(Rate(10, of="weight", burst=5),))
        first = await lab.put(idempotency_key="k")
        refusal = await lab.refusal(replacing(lab, weight=6))
        assert (Reason.WEIGHT_LIMIT, 5) == (refusal.reason, refusal.bound)
        assert 0 == (await lab.task(first)).new.revision

    async def test_a_replaced_retry_is_new_work(self, lab: Lab) -> None:
        """It gets a new budget of attempts, and no steps or error of the old arguments."""
        await lab.declare()
        first = await lab.put(idempotency_key="k", attempts=2)
        leased = await lab.one()
        await lab.control(orders.SaveStep(leased.fence, "step", b"1"))
        await lab.retry(leased, 60.0)
        await lab.submit(replacing(lab, call=arguments(b"2"), attempts=1))
        again = await lab.one()
        assert (first, 1, 1, {}) == (
            again.fence.task,
            again.fence.attempt,
            again.max_attempts,
            again.steps,
        )
        assert (await lab.task(first)).error is None

    async def test_a_follow_up_replaces_as_well(self, lab: Lab) -> None:
        """And it is refused in the same cases, with the completion stored."""
        await lab.declare(max_concurrent=1)
        await lab.put("seed")
        first = await lab.put(idempotency_key="k", delay=60.0)
        leased = await lab.one()
        good = replacing(lab, call=arguments(b"2"), delay=30.0)
        bad = replacing(lab, call=Call("other"))
        answer = await lab.complete(leased, good, bad)
        assert [(first, None), (first, Reason.CONFLICT)] == [
            (one.task, one.reason) for one in answer.follow_ups[0]
        ]
        lab.later(30.0)
        assert b"2" == (await lab.one()).call.payload

    async def test_a_replaced_task_stays_in_its_run(self, lab: Lab) -> None:
        """A submit from outside replaces it; the run still waits for it."""
        await lab.declare()
        run = NewRun(id=lab.serial(), pool=POOL)
        seed = lab.new(idempotency_key="k", run=run.id)
        await lab.submit(seed, run=run)
        await lab.submit(replacing(lab))
        assert not (await lab.run_of(run.id)).finished
        await lab.run_one()
        assert (True, 1) == ((found := await lab.run_of(run.id)).finished, found.total)

    async def test_a_repeated_replacement_is_answered_once_more(self, lab: Lab) -> None:
        """A submit whose answer was lost replaces nothing a second time, and adds nothing."""
        await lab.declare()
        first = await lab.put(idempotency_key="k")
        new = replacing(lab, call=arguments(b"2"))
        await lab.submit(new)
        await lab.one()
        answer = (await lab.submit_all(Batch(tasks=(new,), again=True))).batches[0].admissions[0]
        assert (first, True, Status.RUNNING) == (answer.task, answer.duplicate, answer.status)
        assert (0, 1) == (
            (await lab.pool()).queued,
            (await lab.task(first)).new.revision,
        )

    async def test_the_holder_of_a_key_is_one_that_waits(self, lab: Lab) -> None:
        """A view says the same as a submit would."""
        await lab.declare()
        first = await lab.put(idempotency_key="k")
        for mode in (Dedupe.WAITING, Dedupe.REPLACE):
            assert first == await lab.view.holder(POOL, "k", run=None, dedupe=mode)
        await lab.one()
        for mode in (Dedupe.WAITING, Dedupe.REPLACE):
            assert await lab.view.holder(POOL, "k", run=None, dedupe=mode) is None


class UpdateConformance(StoreSuite):
    """Orders that change a waiting task."""

    async def test_an_update_changes_what_it_names(self, lab: Lab) -> None:
        """Everything else stays, and the revision is the next one."""
        await lab.declare()
        task = await lab.put("old", call=arguments(b"1"), priority=3, timeout=5.0)
        update = orders.Update(task=task, labels={"name": "new"}, timeout=7.0)
        answer = await lab.control(update)
        assert (1, 1) == (answer.count, answer.revision)
        leased = await lab.one()
        assert ("new", b"1", 7.0) == (name_of(leased), leased.call.payload, leased.timeout)
        assert 3 == (await lab.task(task)).new.priority

    async def test_other_arguments_are_those_of_the_next_attempt(self, lab: Lab) -> None:
        """Whatever process leases it, and whatever attempt it is: it is new work."""
        await lab.declare()
        task = await lab.put(call=arguments(b"1"), attempts=2)
        await lab.retry(await lab.one(), 10.0)
        await lab.control(orders.Update(task=task, call=arguments(b"2")))
        assert [] == await lab.lease()
        lab.later(10.0)
        leased = await lab.one()
        assert (b"2", 1) == (leased.call.payload, leased.fence.attempt)

    async def test_other_arguments_are_those_of_the_key(self, lab: Lab) -> None:
        """From then on the old arguments are the conflict."""
        await lab.declare()
        task = await lab.put(idempotency_key="k", fingerprint=1)
        await lab.control(orders.Update(task=task, call=arguments(b"2"), fingerprint=2))
        assert (await lab.submit(lab.new(idempotency_key="k", fingerprint=2))).refusal is None
        await lab.refusal(lab.new(idempotency_key="k", fingerprint=1))

    async def test_a_task_that_is_run_now_keeps_its_sequence(self, lab: Lab) -> None:
        """It is due at once, and starts at the place that it was submitted at."""
        await lab.declare(max_concurrent=1)
        late = await lab.put("late", delay=60.0)
        await lab.put("next")
        await lab.control(orders.Update(task=late, delay=0.0))
        assert {POOL: lab.now} == lab.wakes
        assert "late next" == await lab.serve(2)

    async def test_a_task_is_put_off(self, lab: Lab) -> None:
        """It is due at the new moment, and then starts at its old place."""
        await lab.declare(max_concurrent=1)
        first = await lab.put("first")
        await lab.put("second")
        await lab.control(orders.Update(task=first, run_at=lab.now + 10.0))
        assert 1 == (await lab.pool()).scheduled
        assert "second" == await lab.serve(1)
        await lab.put("third")
        lab.later(10.0)
        assert "first third" == await lab.serve(2)

    async def test_a_moment_in_the_past_is_now(self, lab: Lab) -> None:
        """Nothing is due before it is known to be."""
        await lab.declare()
        task = await lab.put(delay=60.0)
        await lab.control(orders.Update(task=task, run_at=1.0))
        assert lab.now == (await lab.task(task)).due

    async def test_another_priority_is_another_place(self, lab: Lab) -> None:
        """Among equals the sequence decides, as always."""
        await lab.declare(max_concurrent=1, order=priority())
        tasks = {name: await lab.put(name, priority=1) for name in "abcd"}
        await lab.control(orders.Update(task=tasks["c"], priority=2))
        await lab.control(orders.Update(task=tasks["a"], priority=0))
        await lab.control(orders.Update(task=tasks["d"], priority=2))
        await lab.control(orders.Update(task=tasks["d"], priority=1))
        assert "c b d a" == await lab.serve(4)

    async def test_the_age_of_a_task_counts_after_an_update(self, lab: Lab) -> None:
        """Aging goes on from its submit, whatever its priority is now."""
        await lab.declare(max_concurrent=1, order=priority(aging=10.0))
        old = await lab.put("old")
        lab.later(25.0)
        for name, level in (("a", 1), ("b", 5)):
            await lab.put(name, priority=level)
        await lab.control(orders.Update(task=old, priority=2))
        assert "b old a" == await lab.serve(3)

    async def test_an_order_that_ignores_priority_keeps_it(self, lab: Lab) -> None:
        """The newest is first, whatever priority it gets."""
        await lab.declare(max_concurrent=1, order=lifo())
        first = await lab.put("first")
        await lab.put("second")
        await lab.control(orders.Update(task=first, priority=9))
        assert 9 == (await lab.task(first)).new.priority
        assert "second first" == await lab.serve(2)

    async def test_a_share_that_runs_empty_by_an_update_leaves_the_ring(self, lab: Lab) -> None:
        """It comes back behind those that wait in the round, as a delayed task does."""
        await lab.declare(max_concurrent=1, order=fair_round_robin())
        a, *_ = await lab.put_keys("aab")
        await lab.control(orders.Update(task=a, run_at=lab.now + 5.0))
        assert "a b" == await lab.serve(2)
        lab.later(5.0)
        assert "a" == await lab.serve(1)

    async def test_the_limit_of_a_key_holds_after_updates(self, lab: Lab) -> None:
        """Moved tasks wait for their key like all others."""
        await lab.declare(max_per_key=1)
        first = await lab.put("first", key="a", delay=60.0)
        await lab.put("second", key="a")
        await lab.control(orders.Update(task=first, delay=0.0))
        assert "first" == names_of(await lab.lease())
        assert [] == await lab.lease()

    async def test_the_head_of_a_lane_is_moved_with_its_lane(self, lab: Lab) -> None:
        """Put off it blocks the lane, brought forward it frees it; no task overtakes."""
        await lab.declare(lanes=2)
        head = await lab.put("head", key="a")
        await lab.put("next", key="a")
        await lab.control(orders.Update(task=head, run_at=lab.now + 60.0))
        assert [] == await lab.lease()
        assert lab.now + 60.0 == (await lab.ask()).next_at
        await lab.control(orders.Update(task=head, delay=0.0))
        assert {POOL: lab.now} == lab.wakes
        assert "head next" == await lab.serve(2)

    async def test_an_updated_task_expires_by_its_new_limit(self, lab: Lab) -> None:
        """The time to live counts from the update."""
        await lab.declare()
        short, long = await lab.put(expires_in=5.0), await lab.put()
        lab.later(3.0)
        await lab.control(orders.Update(task=short, expires_in=5.0))
        await lab.control(orders.Update(task=long, expires_in=3.0))
        lab.later(3.0)
        await lab.recover()
        assert [Status.QUEUED, Status.FAILED] == await lab.statuses(short, long)
        lab.later(2.0)
        assert 1 == (await lab.recover()).moved

    async def test_an_update_without_an_expiry_keeps_the_old_one(self, lab: Lab) -> None:
        """A task that is put off past it fails when its time comes."""
        await lab.declare()
        task = await lab.put(expires_in=5.0)
        await lab.control(orders.Update(task=task, run_at=lab.now + 9.0))
        lab.later(5.0)
        await lab.recover()
        assert Status.FAILED == await lab.status(task)

    async def test_a_stale_revision_is_refused(self, lab: Lab) -> None:
        """Of two who have read the same revision, the second gets an error."""
        await lab.declare()
        task = await lab.put()
        await lab.control(orders.Update(task=task, priority=1, revision=0))
        with pytest.raises(StaleRevision, match="revision=0") as refused:
            await lab.control(orders.Update(task=task, priority=2, revision=0))
        assert (0, 1) == (refused.value.given, refused.value.current)
        assert (1, 1) == ((new := (await lab.task(task)).new).priority, new.revision)

    @pytest.mark.parametrize("status", ["running", "prefetched", "completed", "cancelled"])
    async def test_only_a_task_that_waits_is_updated(self, lab: Lab, status: str) -> None:
        """Others are refused with their status, and stay as they are."""
        await lab.declare(prefetch=2)
        task = await lab.put()
        if status == "cancelled":
            await lab.control(orders.Cancel((task,)))
        elif status == "prefetched":
            await lab.claims()
        else:
            leased = await lab.one()
            if status == "completed":
                await lab.complete(leased)
        before = await lab.task(task)
        with pytest.raises(NotWaiting, match=status):
            await lab.control(orders.Update(task=task, priority=2))
        assert before == await lab.task(task)

    async def test_an_unknown_task_is_refused(self, lab: Lab) -> None:
        """Also one of another pool than the named one."""
        await lab.declare()
        await lab.declare("other")
        task = await lab.put()
        for update in (orders.Update(task=1), orders.Update(task=task, of="other")):
            with pytest.raises(UnknownTask):
                await lab.control(update)
        await lab.control(orders.Update(task=task, of=POOL, priority=1))

    @pytest.mark.parametrize("other", [{"call": Call("other")}, {"key": "b"}, {"share": "s"}])
    async def test_an_update_to_another_place_is_refused(
        self, lab: Lab, other: dict[str, str]
    ) -> None:
        """Function, key and share are as they were submitted."""
        await lab.declare()
        task = await lab.put(key="a")
        given = {"call": arguments(b"2"), "key": "a", **other}
        with pytest.raises(ConfigError):
            await lab.control(orders.Update(task=task, **given))  # type: ignore[arg-type]
        assert 0 == (await lab.task(task)).new.revision

    @pytest.mark.parametrize("lanes", [None, 1])
    async def test_a_parked_task_is_tried_again_after_an_update(
        self, lab: Lab, lanes: int | None
    ) -> None:
        """It returns to its place in the queue, also as the head of a lane."""
        await lab.declare(lanes=lanes)
        task = await lab.put(key="a")
        await lab.release(await lab.one(), parked=True)
        assert 1 == (await lab.pool()).parked
        await lab.control(orders.Update(task=task, call=arguments(b"2"), key="a"))
        assert 0 == (await lab.pool()).parked
        await lab.join("other")
        assert task == (await lab.one(worker="other")).fence.task

    async def test_a_callback_is_run_now(self, lab: Lab) -> None:
        """The queue of callbacks takes the same orders."""
        await lab.declare()
        await lab.put(on_complete=Call("notify"))
        await lab.run_one()
        leased = await lab.one(pool=CALLBACKS)
        await lab.retry(leased, 60.0)
        await lab.control(orders.Update(task=leased.fence.task, delay=0.0, of=POOL))
        assert 2 == (await lab.one(pool=CALLBACKS)).fence.attempt

    async def test_the_audit_records_an_update(self, lab: Lab) -> None:
        """With what it changed, the revision and who gave the order; older records stay."""
        await lab.declare()
        task = await lab.put(weight=1, idempotency_key="k")
        await lab.control(orders.Update(task=task, priority=1, run_at=lab.now + 5.0, by="cli:ada"))
        await lab.submit(replacing(lab, weight=2))
        assert [Transition.SUBMIT, Transition.UPDATE, Transition.UPDATE] == await lab.events(task)
        submitted, updated, replaced = await lab.records(task)
        assert (RecordKind.UPDATE, "priority due revision=1", "cli:ada", lab.now + 5.0) == (
            updated.kind,
            updated.detail,
            updated.by,
            updated.due,
        )
        assert ("replace revision=2", 1, 2) == (replaced.detail, submitted.weight, replaced.weight)

    async def test_a_late_settle_after_an_update_is_stale(self, lab: Lab) -> None:
        """A worker that lost its lease writes nothing, though the attempt is again the first."""
        await lab.declare()
        task = await lab.put()
        await lab.join("lost", lease=5.0)
        leased = await lab.one(worker="lost")
        lab.later(5.0)
        await lab.recover()
        await lab.control(orders.Update(task=task, call=arguments(b"2"), delay=0.0))
        again = await lab.one()
        assert 1 == again.fence.attempt
        assert Fence(task, 1, leased.fence.token) != again.fence
        assert ["stale"] == await lab.settle(completed(leased))

    async def test_many_updates_of_a_long_queue_keep_its_order(self, lab: Lab) -> None:
        """Tasks that go forth and back, from anywhere, start where they belong."""
        await lab.declare(max_concurrent=1, order=priority())
        tasks = [await lab.put(f"{n:02}", priority=n % 3) for n in range(30)]
        levels = {n: n % 3 for n in range(30)}
        for n in range(60):
            which, level = n * 7 % 30, n % 5
            await lab.control(orders.Update(task=tasks[which], priority=level))
            levels[which] = level
        expected = sorted(levels, key=lambda n: (-levels[n], n))
        assert " ".join(f"{n:02}" for n in expected) == await lab.serve(30)
