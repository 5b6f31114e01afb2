"""Runs: a seed of tasks and everything they submit, watched to its end."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.admit import Reason
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Status
from millpond.core.run import NewRun, OnError
from millpond.core.spec import bounded, ring_buffer
from millpond.core.task import Call
from millpond.store.protocol import Batch
from millpond.testing.conformance.lab import CALLBACKS, POOL, WORKER, Lab, completed
from millpond.testing.conformance.scenario import StoreSuite, mark


class OpensRuns(StoreSuite):
    """The base of the tests about runs."""

    async def _open(
        self,
        lab: Lab,
        size: int = 1,
        *,
        name: str | None = None,
        on_error: OnError = OnError.SKIP,
        max_tasks: int | None = None,
        holder: str | None = None,
        on_complete: Call | None = None,
    ) -> int:
        """Open a run with a seed, and a callback if one is given; return its id."""
        run = NewRun(
            id=lab.serial(),
            pool=POOL,
            name=name,
            on_error=on_error,
            max_tasks=max_tasks,
            holder=holder,
            on_complete=on_complete,
        )
        answer = await lab.submit(*(lab.new(run=run.id) for _ in range(size)), run=run)
        assert answer.refusal is None
        assert answer.run is not None
        return answer.run.id


class RunsConformance(OpensRuns):
    """When a run is over, and what it takes in."""

    @mark.rows("DP-03")
    async def test_a_run_ends_with_its_last_task(self, lab: Lab) -> None:
        """The settle that ends it says so, and the counts are on it."""
        await lab.declare()
        run = await self._open(lab, 2)
        first, second = await lab.lease()
        assert () == (await lab.complete(first)).finished_runs
        assert not (await lab.run_of(run)).finished
        assert (run,) == (await lab.fail(second)).finished_runs
        answer = await lab.run_of(run)
        assert (True, 0, 2) == (answer.finished, answer.live, answer.total)
        assert {"completed": 1, "failed": 1} == answer.ended

    async def test_a_backing_off_task_keeps_its_run_open(self, lab: Lab) -> None:
        """Queued for a retry is not ended."""
        await lab.declare()
        run = await self._open(lab)
        await lab.retry(await lab.one(), 60.0)
        assert (False, 1) == ((await lab.run_of(run)).finished, (await lab.run_of(run)).live)

    async def test_follow_ups_keep_a_run_open(self, lab: Lab) -> None:
        """What a completion submits is counted before the completion is."""
        await lab.declare()
        run = await self._open(lab)
        for _ in range(3):
            leased = await lab.one()
            answer = await lab.complete(leased, lab.new(run=run))
            assert () == answer.finished_runs
        last = await lab.complete(await lab.one())
        assert (run,) == last.finished_runs
        assert 4 == (await lab.run_of(run)).total

    async def test_a_run_that_is_empty_for_a_moment_within_a_verb_goes_on(self, lab: Lab) -> None:
        """The second of a seed evicts the first: in between nothing of the run was left."""
        await lab.declare(backpressure=ring_buffer(1))
        run = await self._open(lab, 2)
        answer = await lab.run_of(run)
        assert (False, 1, 2) == (answer.finished, answer.live, answer.total)
        await lab.run_one()
        assert (await lab.run_of(run)).finished

    async def test_other_tasks_of_the_pool_do_not_matter(self, lab: Lab) -> None:
        """A run ends whatever else its pool does."""
        await lab.declare()
        run = await self._open(lab)
        seed = await lab.one()
        await lab.put()
        assert (run,) == (await lab.complete(seed)).finished_runs

    async def test_a_run_goes_on_in_other_pools(self, lab: Lab) -> None:
        """Follow-ups belong to the run wherever they are queued."""
        await lab.declare()
        await lab.declare("other")
        run = await self._open(lab)
        seed = await lab.one()
        answer = await lab.complete(seed, lab.new(pool="other", run=run))
        assert () == answer.finished_runs
        leased = await lab.one(pool="other")
        assert run == leased.run
        assert (run,) == (await lab.complete(leased)).finished_runs

    async def test_a_callback_keeps_its_run_open_and_is_not_counted(self, lab: Lab) -> None:
        """A run is over when its callbacks are, and they are none of its tasks."""
        await lab.declare()
        run = NewRun(id=lab.serial(), pool=POOL)
        await lab.submit(lab.new(run=run.id, on_complete=Call("notify")), run=run)
        assert () == (await lab.complete(await lab.one())).finished_runs
        callback = await lab.one(pool=CALLBACKS)
        assert (run.id,) == (await lab.complete(callback)).finished_runs
        answer = await lab.run_of(run.id)
        assert (1, {"completed": 1}) == (answer.total, answer.ended)

    async def test_a_run_with_nothing_in_it_is_over(self, lab: Lab) -> None:
        """An empty run that no process holds open is over."""
        await lab.declare()
        run = await self._open(lab, 0)
        assert (True, 0, 0) == (
            (answer := await lab.run_of(run)).finished,
            answer.live,
            answer.total,
        )

    # Holding and sealing

    async def test_a_held_run_waits_for_its_seal(self, lab: Lab) -> None:
        """With nothing left a run stays open until its holder says that no more will come."""
        await lab.declare()
        run = await self._open(lab, holder="mine")
        assert () == (await lab.complete(await lab.one())).finished_runs
        assert (run,) == (await lab.control(orders.Seal(run, "mine"))).finished_runs

    async def test_a_sealed_run_ends_with_its_tasks(self, lab: Lab) -> None:
        """A seal while tasks are left ends nothing yet."""
        await lab.declare()
        run = await self._open(lab, holder="mine")
        assert () == (await lab.control(orders.Seal(run, "mine"))).finished_runs
        assert (run,) == (await lab.complete(await lab.one())).finished_runs

    async def test_only_its_holder_seals_a_run(self, lab: Lab) -> None:
        """A stranger's seal, a second seal and one of an unknown run change nothing."""
        await lab.declare()
        run = await self._open(lab, holder="mine")
        assert 0 == (await lab.control(orders.Seal(run, "stranger"))).count
        assert 0 == (await lab.control(orders.Seal(12345, "mine"))).count
        assert 1 == (await lab.control(orders.Seal(run, "mine"))).count
        assert 0 == (await lab.control(orders.Seal(run, "mine"))).count

    async def test_a_held_run_takes_more_from_outside(self, lab: Lab) -> None:
        """Its tasks are counted as the seed was."""
        await lab.declare()
        run = await self._open(lab, holder="mine")
        await lab.put(run=run)
        assert 2 == (await lab.run_of(run)).total

    async def test_a_run_whose_holder_died_is_sealed(self, lab: Lab) -> None:
        """When the last worker of the holding process is gone, the run is sealed."""
        await lab.declare()
        await lab.join("w2", owner="mine", lease=5.0)
        run = await self._open(lab, holder="mine")
        await lab.run_one()
        assert not (await lab.run_of(run)).finished
        lab.later(5.0)
        assert (run,) == (await lab.recover()).finished_runs
        assert (await lab.run_of(run)).finished

    async def test_a_finished_run_takes_nothing_more(self, lab: Lab) -> None:
        """A submit to it is refused, and so is one to a run that never was."""
        await lab.declare()
        run = await self._open(lab)
        await lab.run_one()
        for late in (run, 12345):
            assert Reason.RUN_NOT_OPEN == (await lab.refusal(lab.new(run=late))).reason

    # Names

    @mark.rows("DP-19")
    async def test_a_named_run_is_taken_up_and_not_seeded_again(self, lab: Lab) -> None:
        """While it is under way, opening it again finds it as it is."""
        await lab.declare()
        run = await self._open(lab, 2, name="nightly")
        await lab.run_one()
        again = NewRun(id=lab.serial(), pool=POOL, name="nightly")
        answer = await lab.submit(lab.new(run=again.id), run=again)
        assert answer.run is not None
        assert ((), run, True, 1) == (
            answer.admissions,
            answer.run.id,
            answer.run.resumed,
            answer.run.live,
        )
        assert 1 == (await lab.pool()).queued

    async def test_a_finished_named_run_is_answered_from_before(self, lab: Lab) -> None:
        """Its stored counts come back; nothing is seeded."""
        await lab.declare()
        run = await self._open(lab, name="nightly")
        await lab.run_one()
        again = NewRun(id=lab.serial(), pool=POOL, name="nightly")
        answer = await lab.submit(lab.new(run=again.id), run=again)
        assert answer.run is not None
        assert (run, True, {"completed": 1}) == (
            answer.run.id,
            answer.run.finished,
            answer.run.ended,
        )
        assert 0 == (await lab.pool()).queued

    @mark.rows("TRAP-13")
    async def test_runs_without_a_name_are_always_new(self, lab: Lab) -> None:
        """A second run of the same pool seeds its tasks although the first one's are kept."""
        await lab.declare()
        first = await self._open(lab)
        await lab.run_one()
        second = await self._open(lab)
        assert first != second
        assert 1 == (await lab.pool()).queued

    async def test_the_same_run_sent_again_is_answered(self, lab: Lab) -> None:
        """A lost answer to the opening of a run seeds nothing twice."""
        await lab.declare()
        run = NewRun(id=lab.serial(), pool=POOL)
        seed = lab.new(run=run.id)
        await lab.submit(seed, run=run)
        answer = await lab.submit(seed, run=run)
        assert answer.run is not None
        assert (run.id, True) == (answer.run.id, answer.run.resumed)
        assert 1 == (await lab.pool()).queued

    async def test_a_refused_seed_opens_no_run(self, lab: Lab) -> None:
        """A full pool refuses the batch, and there is no run of that name."""
        await lab.declare(backpressure=bounded(1, "fail_submitter"))
        run = NewRun(id=lab.serial(), pool=POOL, name="nightly")
        answer = await lab.submit(lab.new(run=run.id), lab.new(run=run.id), run=run)
        assert answer.refusal is not None
        assert answer.run is None
        assert await lab.view.run(run.id) is None
        assert not (await lab.run_of(await self._open(lab, name="nightly"))).resumed

    async def test_a_seed_cannot_smuggle_tasks_into_another_run(self, lab: Lab) -> None:
        """A batch that opens one run is refused for a task of a run that is over."""
        await lab.declare()
        over = await self._open(lab)
        await lab.run_one()
        run = NewRun(id=lab.serial(), pool=POOL)
        refusal = await lab.refusal(lab.new(run=run.id), lab.new(run=over), run=run)
        assert Reason.RUN_NOT_OPEN == refusal.reason
        assert await lab.view.run(run.id) is None

    # The verbs that report the end of a run

    async def test_a_submit_reports_that_it_ended_a_run(self, lab: Lab) -> None:
        """The last task of a run made room for another."""
        await lab.declare(backpressure=ring_buffer(1))
        run = await self._open(lab)
        answer = await lab.submit_all(Batch(tasks=(lab.new(),)))
        assert (run,) == answer.finished_runs

    async def test_a_submit_reports_that_an_empty_run_is_over(self, lab: Lab) -> None:
        """The run is returned as finished, and reported like every run that ends."""
        await lab.declare()
        run = NewRun(id=lab.serial(), pool=POOL)
        answer = await lab.submit_all(Batch(tasks=(), run=run))
        assert (run.id,) == answer.finished_runs
        assert answer.batches[0].run is not None
        assert answer.batches[0].run.finished

    @pytest.mark.parametrize("settling", [False, True], ids=["lease", "settle"])
    async def test_a_lease_reports_that_it_ended_a_run(self, lab: Lab, settling: bool) -> None:
        """It came upon the last task of a run after its time, alone or within a settle."""
        await lab.declare(max_concurrent=1)
        await lab.put()
        held = await lab.one()
        run = NewRun(id=lab.serial(), pool=POOL)
        await lab.submit(lab.new(run=run.id, expires_in=5.0), run=run)
        lab.later(5.0)
        if settling:
            then = LeaseRequest(pool=POOL, worker=WORKER, want=1)
            finished = (await lab.settle_all([completed(held)], then=then)).finished_runs
        else:
            await lab.complete(held)
            finished = (await lab.ask()).finished_runs
        assert (run.id,) == finished

    async def test_who_takes_a_run_up_holds_it_too(self, lab: Lab) -> None:
        """A run resumed by its name stays open until the new holder seals it as well."""
        await lab.declare()
        run = await self._open(lab, name="nightly", holder="mine")
        assert run == await self._open(lab, name="nightly", holder="yours")
        await lab.run_one()
        assert () == (await lab.control(orders.Seal(run, "mine"))).finished_runs
        assert (run,) == (await lab.control(orders.Seal(run, "yours"))).finished_runs

    async def test_a_settle_reports_follow_ups_with_their_final_status(self, lab: Lab) -> None:
        """Follow-ups over the run's budget are reported as cancelled."""
        await lab.declare()
        run = await self._open(lab, max_tasks=2)
        answer = await lab.complete(await lab.one(), lab.new(run=run), lab.new(run=run))
        found = answer.follow_ups[0]
        assert [Status.CANCELLED] * 2 == await lab.statuses(*(one.task for one in found))
        assert [Status.CANCELLED] * 2 == [one.status for one in found]
