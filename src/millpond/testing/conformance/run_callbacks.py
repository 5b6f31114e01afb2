"""Callbacks of runs: the end of a run and the call that waits for it are one step."""

from __future__ import annotations

import msgspec
import pytest

from millpond.core import bounds
from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.core.run import OnError
from millpond.core.settle import RunEnding, Settled
from millpond.core.spec import bounded, ring_buffer
from millpond.core.task import Call
from millpond.testing.conformance.lab import CALLBACKS, POOL, Lab, completed
from millpond.testing.conformance.runs import OpensRuns
from millpond.testing.conformance.scenario import mark

NOTIFY = Call("notify", b"ops")


class RunCallbacksConformance(OpensRuns):
    """on_complete of a run: stored with the end of the run, once, in its pool's own queue."""

    async def _run_ending(self, lab: Lab) -> RunEnding:
        """Lease the only callback; return the end of the run that it has."""
        leased = await lab.one(pool=CALLBACKS)
        assert NOTIFY == leased.call
        return msgspec.msgpack.decode(leased.options, type=RunEnding)

    async def _callbacks(self, lab: Lab) -> int:
        """Return how many callbacks wait."""
        return (await lab.pool(CALLBACKS)).queued

    @mark.rows("DP-23")
    async def test_the_end_of_a_run_stores_its_callback(self, lab: Lab) -> None:
        """It is there in the step that ends the run, not before, with counts and results."""
        await lab.declare()
        run = await self._open(lab, 2, name="nightly", on_complete=NOTIFY)
        first, second = await lab.lease()
        await lab.fail(second)
        assert 0 == await self._callbacks(lab)
        answer = await lab.complete(first, result=b"\x00out")
        assert ((run,), 1) == (answer.finished_runs, await self._callbacks(lab))
        assert lab.now == lab.wakes.get(CALLBACKS)
        ending = await self._run_ending(lab)
        assert (run, POOL, "nightly", 2) == (ending.run, ending.pool, ending.name, ending.total)
        assert {"completed": 1, "failed": 1} == ending.ended
        assert [(first.fence.task, "completed"), (second.fence.task, "failed")] == [
            (task.task, task.status) for task in ending.tasks
        ]
        assert b"\x00out" == ending.tasks[0].result

    async def test_a_run_is_over_before_its_callback_runs(self, lab: Lab) -> None:
        """The callback is no task of the run, and its failure does not change the report."""
        await lab.declare()
        run = await self._open(lab, on_complete=NOTIFY)
        await lab.run_one()
        assert (True, 1) == ((found := await lab.run_of(run)).finished, found.total)
        await lab.fail(await lab.one(pool=CALLBACKS))
        assert {"completed": 1} == (await lab.run_of(run)).ended

    @mark.rows("DP-24")
    async def test_a_run_calls_back_once(self, lab: Lab) -> None:
        """A redriven task ends the run again; a late settle ends nothing."""
        await lab.declare()
        await self._open(lab, on_complete=NOTIFY)
        leased = await lab.one()
        await lab.fail(leased)
        assert [Settled.STALE] == await lab.settle(completed(leased))
        await lab.control(orders.Redrive((leased.fence.task,)))
        await lab.run_one()
        assert 1 == await self._callbacks(lab)

    async def test_an_empty_run_calls_back(self, lab: Lab) -> None:
        """All of no tasks have ended."""
        await lab.declare()
        await self._open(lab, 0, on_complete=NOTIFY)
        assert (0, ()) == ((ending := await self._run_ending(lab)).total, ending.tasks)

    async def test_a_held_run_calls_back_when_it_is_sealed(self, lab: Lab) -> None:
        """A run whose holder may add tasks has not ended."""
        await lab.declare()
        run = await self._open(lab, holder="me", on_complete=NOTIFY)
        await lab.run_one()
        assert 0 == await self._callbacks(lab)
        await lab.control(orders.Seal(run, "me"))
        assert 1 == len((await self._run_ending(lab)).tasks)

    async def test_a_run_whose_holder_died_calls_back(self, lab: Lab) -> None:
        """The loss of the last worker of its process ends the run, and the callback is stored."""
        await lab.declare()
        await lab.join("w2", owner="gone")
        await self._open(lab, holder="gone", on_complete=NOTIFY)
        await lab.run_one()
        await lab.control(orders.DeclareDead("w2"))
        assert 1 == await self._callbacks(lab)

    @pytest.mark.parametrize("how", ["failed", "cancelled"])
    async def test_a_stopped_run_calls_back(self, lab: Lab, how: str) -> None:
        """Whatever ends a run, its callback gets the reason."""
        await lab.declare(max_concurrent=1)
        run = await self._open(lab, 2, on_error=OnError.FAIL, on_complete=NOTIFY)
        if how == "failed":
            await lab.fail(await lab.one())
        else:
            await lab.control(orders.CancelRun(run))
        ending = await self._run_ending(lab)
        assert {"failed": "run_failed", "cancelled": "cancelled"}[how] == ending.stopped
        assert 2 == sum(ending.ended.values())

    async def test_an_evicted_task_may_end_a_run(self, lab: Lab) -> None:
        """A submit that drops the last task of a run stores the callback."""
        await lab.declare(backpressure=ring_buffer(1))
        await self._open(lab, on_complete=NOTIFY)
        await lab.put()
        assert {"rejected": 1} == (await self._run_ending(lab)).ended

    async def test_a_dropped_task_of_a_run_is_counted(self, lab: Lab) -> None:
        """A full pool that takes only some of a run's tasks does not make the run complete."""
        await lab.declare(backpressure=bounded(1, "drop_newest"))
        await self._open(lab, 3, on_complete=NOTIFY)
        await lab.run_one()
        ending = await self._run_ending(lab)
        assert (3, {"completed": 1, "rejected": 2}) == (ending.total, ending.ended)

    async def test_a_run_of_dropped_tasks_only_has_them(self, lab: Lab) -> None:
        """It ends at once, and nothing of it completed."""
        await lab.declare(backpressure=bounded(1, "drop_newest"))
        await lab.put()
        await self._open(lab, 2, on_complete=NOTIFY)
        ending = await self._run_ending(lab)
        assert (2, {"rejected": 2}) == (ending.total, ending.ended)

    async def test_follow_ups_are_among_the_results(self, lab: Lab) -> None:
        """In the order in which they were submitted, also those of other pools."""
        await lab.declare()
        await lab.declare("other")
        run = await self._open(lab, on_complete=NOTIFY)
        follow_up = lab.new(pool="other", run=run)
        seed = await lab.one()
        await lab.complete(seed, follow_up, result=b"1")
        await lab.complete(await lab.one(pool="other"), result=b"2")
        ending = await self._run_ending(lab)
        assert [(seed.fence.task, b"1"), (follow_up.id, b"2")] == [
            (task.task, task.result) for task in ending.tasks
        ]

    async def test_the_number_of_results_is_bounded(self, lab: Lab) -> None:
        """The counts are of all tasks, the results of the first ones."""
        most = bounds.MAX_RUN_RESULTS
        await lab.declare(max_concurrent=most + 5)
        await self._open(lab, most + 2, on_complete=NOTIFY)
        leased = await lab.lease(want=most + 2)
        await lab.applied(*map(completed, leased))
        ending = await self._run_ending(lab)
        assert (most + 2, {"completed": most + 2}) == (ending.total, ending.ended)
        assert [one.fence.task for one in leased[:most]] == [task.task for task in ending.tasks]

    async def test_the_size_of_the_results_is_bounded(self, lab: Lab) -> None:
        """What does not fit is left out, and all that was submitted behind it."""
        await lab.declare()
        await self._open(lab, 3, on_complete=NOTIFY)
        first, second, third = await lab.lease()
        half = b"x" * (bounds.MAX_PAYLOAD // 2)
        await lab.applied(
            completed(first, result=half), completed(second, result=half + b"x"), completed(third)
        )
        ending = await self._run_ending(lab)
        assert (3, [first.fence.task]) == (ending.total, [task.task for task in ending.tasks])

    async def test_results_that_are_no_longer_kept_are_left_out(self, lab: Lab) -> None:
        """A task that retention removed before the end of its run is counted only."""
        await lab.declare()
        run = await self._open(lab, holder="me", on_complete=NOTIFY)
        await lab.run_one()
        lab.later(10.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        await lab.control(orders.Seal(run, "me"))
        assert (1, ()) == ((ending := await self._run_ending(lab)).total, ending.tasks)

    # Setting it later

    async def test_a_callback_can_be_set_until_the_run_ends(self, lab: Lab) -> None:
        """It gets the results of tasks that had not ended then, and of those that came later."""
        await lab.declare()
        run = await self._open(lab, holder="me")
        await lab.run_one()
        waiting = lab.new(run=run)
        await lab.submit(waiting)
        assert 1 == (await lab.control(orders.CallWhenOver(run, NOTIFY))).count
        later = lab.new(run=run)
        await lab.submit(later)
        await lab.applied(*map(completed, await lab.lease()))
        await lab.control(orders.Seal(run, "me"))
        ending = await self._run_ending(lab)
        assert (3, [waiting.id, later.id]) == (ending.total, [task.task for task in ending.tasks])

    async def test_the_last_callback_that_was_set_counts(self, lab: Lab) -> None:
        """A second one replaces the first, and the results are those of the whole run."""
        await lab.declare()
        run = await self._open(lab, on_complete=Call("other"))
        assert 1 == (await lab.control(orders.CallWhenOver(run, NOTIFY))).count
        await lab.run_one()
        assert 1 == len((await self._run_ending(lab)).tasks)
        assert 0 == await self._callbacks(lab)

    async def test_a_run_that_has_ended_takes_no_callback(self, lab: Lab) -> None:
        """Nothing changes; the answer is 1 only for the callback that it had."""
        await lab.declare()
        run = await self._open(lab, on_complete=NOTIFY)
        await lab.run_one()
        for call, count in ((NOTIFY, 1), (Call("other"), 0)):
            assert count == (await lab.control(orders.CallWhenOver(run, call))).count
        assert 0 == (await lab.control(orders.CallWhenOver(12345, NOTIFY))).count
        assert 1 == await self._callbacks(lab)

    async def test_a_run_that_has_called_takes_no_other_callback(self, lab: Lab) -> None:
        """Also not while a redriven task is in it: what it took then would never be submitted."""
        await lab.declare()
        run = await self._open(lab, on_complete=NOTIFY)
        leased = await lab.one()
        await lab.fail(leased)
        await lab.control(orders.Redrive((leased.fence.task,)))
        for call, count in ((Call("other"), 0), (NOTIFY, 1)):
            assert count == (await lab.control(orders.CallWhenOver(run, call))).count
        await lab.run_one()
        assert 1 == await self._callbacks(lab)

    async def test_a_resumed_run_keeps_its_callback(self, lab: Lab) -> None:
        """The second open of a name neither seeds the run nor changes the call."""
        await lab.declare()
        run = await self._open(lab, name="nightly", on_complete=NOTIFY)
        assert run == await self._open(lab, name="nightly", on_complete=Call("other"))
        await lab.run_one()
        await self._run_ending(lab)

    async def test_the_callback_is_a_task_like_any_other(self, lab: Lab) -> None:
        """It is listed as unsettled until it has run, and names the run that it is for."""
        await lab.declare()
        run = await self._open(lab, on_complete=NOTIFY)
        await lab.run_one()
        leased = await lab.one(pool=CALLBACKS)
        task = await lab.task(leased.fence.task)
        assert (Status.RUNNING, f"run:{run}") == (task.status, task.new.submitted_by)
        assert [task.new.id] == [one.new.id for one in (await lab.view.tasks(CALLBACKS)).tasks]
        await lab.complete(leased)
        assert run == next(
            record.cause for record in await lab.records() if record.pool == CALLBACKS
        )
