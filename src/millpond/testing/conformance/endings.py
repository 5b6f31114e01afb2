"""Endings: every verb reports the tasks it ended, and the lanes and pools that ran dry."""

from __future__ import annotations

from millpond.core import control as orders
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Status
from millpond.core.run import NewRun, OnError
from millpond.core.spec import bounded
from millpond.core.task import Call
from millpond.store.protocol import Batch, Drained
from millpond.testing.conformance.lab import (
    DAY,
    POOL,
    WORKER,
    Lab,
    completed,
    corrupt,
    failed,
    released,
    retried,
    stopped,
    with_fence,
)
from millpond.testing.conformance.scenario import StoreSuite, mark


def dry(lane: str | None = None, processed: int = 0, pool: str = POOL) -> Drained:
    """A lane or a pool that ran dry."""
    return Drained(pool=pool, lane=lane, processed=processed)


class EndingsConformance(StoreSuite):
    """The ended tasks with their outcomes, and the pools that are empty now."""

    # Tasks that ended

    async def test_a_settle_names_what_it_ended(self, lab: Lab) -> None:
        """Completed, failed and cancelled tasks are named, one that is tried again is not."""
        await lab.declare()
        tasks = [await lab.put() for _ in range(4)]
        one, two, three, four = await lab.lease()
        answer = await lab.applied(completed(one), failed(two), stopped(three), retried(four))
        assert set(tasks[:3]) == set(answer.ended)

    async def test_a_settle_returns_the_outcome_of_each_task(self, lab: Lab) -> None:
        """One status per settlement, as it left its task."""
        await lab.declare(max_concurrent=9)
        await lab.put_many(6, attempts=1)
        one, two, three, four, five, six = await lab.lease()
        answer = await lab.applied(
            completed(one),
            failed(two),
            stopped(three),
            retried(four),
            released(five, begun=False),
            corrupt(six),
        )
        assert (
            Status.COMPLETED,
            Status.FAILED,
            Status.CANCELLED,
            Status.FAILED,
            Status.QUEUED,
            Status.FAILED,
        ) == answer.after

    async def test_a_stale_settle_has_no_status_after(self, lab: Lab) -> None:
        """None stands where nothing was applied, and nothing has ended by it."""
        await lab.declare()
        await lab.put()
        leased = await lab.one()
        forged = with_fence(completed(leased), token=leased.fence.token + 1)
        answer = await lab.settle_all([forged, completed(leased), completed(leased)])
        assert (None, Status.COMPLETED, None) == answer.after
        assert (leased.fence.task,) == answer.ended

    async def test_what_is_leased_again_at_once_was_queued_between(self, lab: Lab) -> None:
        """The status after a settlement is not that after the lease made in the same step."""
        await lab.declare()
        await lab.put()
        ask = LeaseRequest(pool=POOL, worker=WORKER, want=1)
        answer = await lab.settle_all([retried(await lab.one())], then=ask)
        assert (Status.QUEUED,) == answer.after
        assert answer.lease is not None
        assert 1 == len(answer.lease.leased)

    async def test_a_failed_run_names_what_it_took_along(self, lab: Lab) -> None:
        """What is cancelled on another task's account has ended in the same verb."""
        await lab.declare(max_concurrent=1)
        run = NewRun(id=lab.serial(), pool=POOL, on_error=OnError.FAIL)
        seed = [lab.new(run=run.id) for _ in range(3)]
        await lab.submit(*seed, run=run)
        answer = await lab.fail(await lab.one())
        assert {new.id for new in seed} == set(answer.ended)

    async def test_a_submit_names_what_it_evicted(self, lab: Lab) -> None:
        """The oldest that made room has ended; the new one has not."""
        await lab.declare(backpressure=bounded(1, "drop_oldest"))
        old = await lab.put()
        answer = await lab.submit_all(Batch(tasks=(lab.new(),)))
        assert (old,) == answer.ended

    async def test_a_lease_names_what_was_too_late(self, lab: Lab) -> None:
        """A task found expired when it was its turn has ended by that lease."""
        await lab.declare()
        late = await lab.put(expires_in=5.0)
        lab.later(5.0)
        answer = await lab.ask()
        assert ((late,), (dry(None, 1),)) == (answer.ended, answer.emptied)

    async def test_a_lease_within_a_settle_reports_ended_tasks_in_the_answer(
        self, lab: Lab
    ) -> None:
        """An ended task is reported once, in the answer of its verb."""
        await lab.declare()
        await lab.put()
        leased = await lab.one()
        late = await lab.put(expires_in=5.0)
        lab.later(5.0)
        ask = LeaseRequest(pool=POOL, worker=WORKER, want=1)
        answer = await lab.settle_all([completed(leased)], then=ask)
        assert {leased.fence.task, late} == set(answer.ended)
        assert answer.lease is not None
        assert ((), ()) == (answer.lease.ended, answer.lease.emptied)

    async def test_recovery_names_what_it_ended(self, lab: Lab) -> None:
        """Expired tasks and leases lost for the last time; not those that are tried again."""
        await lab.declare()
        await lab.join("w2", lease=5.0)
        spent, again = await lab.put(attempts=1), await lab.put(attempts=2)
        await lab.lease(worker="w2")
        late = await lab.put(expires_in=5.0)
        lab.later(5.0)
        answer = await lab.recover()
        assert {spent, late} == set(answer.ended)
        assert Status.QUEUED == await lab.status(again)

    async def test_orders_name_what_they_ended(self, lab: Lab) -> None:
        """Cancelled and purged tasks; a running one with a request has not ended."""
        await lab.declare(max_concurrent=1)
        running, one, two = [await lab.put() for _ in range(3)]
        await lab.one()
        assert (one,) == (await lab.control(orders.Cancel((one, running)))).ended
        assert (two,) == (await lab.control(orders.Purge(POOL))).ended

    # Lanes and pools that ran dry

    @mark.rows("TRAP-5")
    async def test_the_last_task_of_a_lane_empties_it(self, lab: Lab) -> None:
        """Reported by the verb that ends the last task, with the number of tasks ever."""
        await lab.declare(lanes=1)
        await lab.put_keys("aab")
        assert () == (await lab.complete(await lab.one())).emptied
        assert () == (await lab.complete(await lab.one())).emptied
        assert (dry("0", 3),) == (await lab.complete(await lab.one())).emptied

    async def test_a_lane_that_waits_for_a_retry_is_not_dry(self, lab: Lab) -> None:
        """A task that comes back keeps its lane alive, and so does one that is scheduled."""
        await lab.declare(lanes=1)
        await lab.put()
        assert () == (await lab.retry(await lab.one(), 5.0)).emptied
        lab.later(5.0)
        await lab.put(delay=60.0)
        assert () == (await lab.complete(await lab.one())).emptied

    async def test_each_time_a_lane_runs_dry_is_reported(self, lab: Lab) -> None:
        """Filled and emptied again, it is reported again, and the count goes on."""
        await lab.declare(ordered=True)
        for processed in (1, 2):
            await lab.put(key="a")
            await lab.put(key="b")
            first, second = await lab.lease()
            answer = await lab.applied(completed(first), failed(second))
            assert (dry("a", processed), dry("b", processed)) == answer.emptied

    async def test_what_was_only_cancelled_was_not_processed(self, lab: Lab) -> None:
        """A purge may empty a lane; it has processed nothing."""
        await lab.declare(ordered=True)
        await lab.put(key="a")
        await lab.put(key="b")
        assert (dry("a"),) == (await lab.control(orders.Purge(POOL, "a"))).emptied

    async def test_work_without_a_lane_empties_none(self, lab: Lab) -> None:
        """In an ordered pool a task without a key is in no lane."""
        await lab.declare(ordered=True)
        await lab.put()
        assert () == (await lab.complete(await lab.one())).emptied

    async def test_a_pool_is_dry_as_a_whole(self, lab: Lab) -> None:
        """Without lanes it is the pool that runs dry, once, not each of its keys."""
        await lab.declare()
        await lab.put_keys("ab")
        first, second = await lab.lease()
        assert () == (await lab.complete(first)).emptied
        assert (dry(None, 2),) == (await lab.fail(second)).emptied

    async def test_a_follow_up_keeps_a_pool_from_running_dry(self, lab: Lab) -> None:
        """What an attempt submits is there before the attempt is over."""
        await lab.declare()
        await lab.put()
        assert () == (await lab.complete(await lab.one(), lab.new())).emptied

    async def test_what_is_filled_again_in_the_same_step_is_not_dry(self, lab: Lab) -> None:
        """Only how it stands at the end of the step counts."""
        await lab.declare()
        await lab.declare("other")
        await lab.put()
        await lab.put(pool="other")
        here, there = await lab.one(), await lab.one(pool="other")
        answer = await lab.applied(completed(here), completed(there, lab.new()))
        assert (dry(None, 1, "other"),) == answer.emptied

    async def test_a_pool_that_was_empty_did_not_run_dry(self, lab: Lab) -> None:
        """What comes and ends within one step leaves no trace here."""
        await lab.declare(rates=())
        run = NewRun(id=lab.serial(), pool=POOL, max_tasks=1)
        await lab.submit(lab.new(run=run.id), run=run)
        leased = await lab.one()
        await lab.declare("other")
        two = (lab.new(pool="other", run=run.id), lab.new(pool="other", run=run.id))
        answer = await lab.complete(leased, *two)
        assert {leased.fence.task, *(new.id for new in two)} == set(answer.ended)
        assert (dry(None, 1),) == answer.emptied

    async def test_callbacks_empty_nothing(self, lab: Lab) -> None:
        """The queue of a pool's callbacks is no pool of its own and keeps no pool full."""
        await lab.declare()
        await lab.put(on_complete=Call("notify"))
        assert (dry(None, 1),) == (await lab.complete(await lab.one())).emptied
        callback = await lab.one(pool=f"{POOL}~callbacks")
        assert () == (await lab.complete(callback)).emptied

    # When recovery is worth calling

    @mark.rows("CX-T62")
    async def test_recovery_says_when_time_gives_it_something_to_do(self, lab: Lab) -> None:
        """The next lease or task to expire, or the day a parked task has waited; else never."""
        await lab.control(orders.Deregister(WORKER))
        await lab.declare()
        assert (await lab.recover()).next_at is None
        await lab.join("w2", lease=3 * DAY, functions=("other",))
        assert lab.now + 3 * DAY == (await lab.recover()).next_at
        await lab.put(call=Call("rare"))
        await lab.lease(worker="w2")
        assert lab.now + DAY == (await lab.recover()).next_at
        await lab.put(expires_in=5.0)
        assert lab.now + 5.0 == (await lab.recover()).next_at

    async def test_recovery_at_its_moment_finds_something(self, lab: Lab) -> None:
        """Asked exactly then it moves something; asked again it names a later moment."""
        await lab.declare()
        await lab.put(expires_in=0.1)
        moment = (await lab.recover()).next_at
        assert moment is not None
        lab.now = moment
        answer = await lab.recover()
        assert 1 == answer.moved
        assert answer.next_at is None or answer.next_at > moment

    async def test_recovery_left_off_at_its_limit_is_wanted_now(self, lab: Lab) -> None:
        """With more to do the moment is this one."""
        await lab.declare()
        await lab.put(expires_in=5.0)
        await lab.put(expires_in=5.0)
        lab.later(6.0)
        answer = await lab.recover(limit=1)
        assert (True, lab.now) == (answer.more, answer.next_at)
