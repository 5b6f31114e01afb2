"""Lease: a fence for each start, and only for a worker that can run it."""

from __future__ import annotations

import pytest

from millpond.core import control as orders
from millpond.core.lifecycle import Status, Transition
from millpond.core.settle import Settled
from millpond.core.spec import fair_round_robin, priority
from millpond.core.task import Call
from millpond.errors import UnknownPool
from millpond.testing.conformance.lab import DAY, POOL, WORKER, Lab, completed, ids_of, names_of
from millpond.testing.conformance.scenario import StoreSuite, mark


class LeaseConformance(StoreSuite):
    """What a worker is given."""

    @mark.rows("CX-T11", "CX-T71")
    async def test_a_claim_is_a_start(self, lab: Lab) -> None:
        """A leased task is running, charged with one attempt and held by its worker."""
        await lab.declare()
        task = await lab.put()
        leased = await lab.one()
        answer = await lab.task(task)
        assert (Status.RUNNING, 1, 1, WORKER) == (
            answer.status,
            answer.attempt,
            answer.runs,
            answer.worker,
        )
        assert (answer.fence, lab.now) == (leased.fence, answer.started_at)
        assert not answer.fresh

    async def test_a_lease_has_all_that_a_worker_needs(self, lab: Lab) -> None:
        """Call, key, labels, limits and options come back as they were submitted."""
        await lab.declare()
        call = Call("work", b"\x00payload\xff")
        new = lab.new(
            "n", call=call, key="acme", timeout=2.5, attempts=7, weight=3, options=b"\x01"
        )
        await lab.submit(new)
        lab.later(3.0)
        leased = await lab.one()
        assert (call, "acme", {"name": "n"}) == (leased.call, leased.key, leased.labels)
        assert (2.5, 7, 3, b"\x01") == (
            leased.timeout,
            leased.max_attempts,
            leased.weight,
            leased.options,
        )
        assert (lab.now - 3.0, 1, POOL) == (leased.submitted_at, leased.sequence, leased.pool)

    @mark.rows("CX-T88")
    async def test_a_running_task_cannot_be_claimed(self, lab: Lab) -> None:
        """One task is leased once, however many ask."""
        await lab.declare()
        await lab.join("w2")
        await lab.put()
        assert 1 == len(await lab.lease())
        assert [] == await lab.lease()
        assert [] == await lab.lease(worker="w2")

    @mark.rows("CX-T108")
    async def test_a_claim_passes_over_what_is_claimed_due_later_or_gone(self, lab: Lab) -> None:
        """Of six tasks a worker gets the two that wait, are due and are still there."""
        await lab.declare(max_concurrent=9)
        await lab.join("w2")
        claimed, cancelled, pruned = [await lab.put(name) for name in ("a", "b", "c")]
        await lab.put("later", delay=60.0)
        assert [claimed] == ids_of(await lab.lease(1, worker="w2"))
        await lab.control(orders.Cancel((pruned,)))
        lab.later(1.0)
        await lab.control(orders.Prune(POOL, lab.now, lab.now))
        await lab.control(orders.Cancel((cancelled,)))
        assert await lab.view.task(pruned) is None
        await lab.put("d")
        await lab.put("e")
        assert "d e" == names_of(await lab.lease())
        assert 3 == (await lab.pool()).running

    async def test_no_more_is_leased_than_asked_for(self, lab: Lab) -> None:
        """A worker gets at most what it has room for."""
        await lab.declare(max_concurrent=10)
        await lab.put_many(5)
        assert 2 == len(await lab.lease(2))
        assert 3 == (await lab.pool()).queued

    async def test_an_empty_pool_gives_nothing_and_names_no_moment(self, lab: Lab) -> None:
        """With nothing to wait for, only a wake-up helps."""
        await lab.declare()
        answer = await lab.ask()
        assert ((), None, False) == (answer.leased, answer.next_at, answer.fenced)

    async def test_an_undeclared_pool_is_an_error(self, lab: Lab) -> None:
        """Leasing from an undeclared pool raises an error that names it."""
        with pytest.raises(UnknownPool) as caught:
            await lab.ask(pool="nowhere")
        assert "nowhere" == caught.value.pool

    async def test_an_unknown_worker_is_fenced(self, lab: Lab) -> None:
        """An unknown worker gets no tasks and must register again."""
        await lab.declare()
        await lab.put()
        answer = await lab.ask(worker="stranger")
        assert ((), True) == (answer.leased, answer.fenced)
        assert 0 == (await lab.pool()).running

    async def test_a_worker_that_left_is_fenced(self, lab: Lab) -> None:
        """Leaving ends the right to lease."""
        await lab.declare()
        await lab.join("w2")
        await lab.control(orders.Deregister("w2"))
        await lab.put()
        assert (await lab.ask(worker="w2")).fenced

    async def test_every_claim_has_its_own_fence(self, lab: Lab) -> None:
        """A task given back uncharged has the attempt's number again, and still a new fence."""
        await lab.declare()
        await lab.put()
        first = await lab.one()
        await lab.release(first)
        second = await lab.one()
        assert first.fence.attempt == second.fence.attempt
        assert first.fence != second.fence
        assert [Settled.STALE] == await lab.settle(completed(first))

    # Expiry

    @mark.rows("DE-R12")
    async def test_an_expired_task_fails_and_is_not_started(self, lab: Lab) -> None:
        """Too late to start is failed, and the next one starts instead."""
        await lab.declare()
        late = await lab.put(expires_in=5.0)
        await lab.put("next")
        lab.later(5.0)
        assert "next" == names_of(await lab.lease())
        answer = await lab.task(late)
        assert (Status.FAILED, "expired", 0) == (answer.status, answer.reason, answer.runs)

    async def test_a_task_starts_until_it_expires(self, lab: Lab) -> None:
        """Just before its expiry a task is started as any other."""
        await lab.declare()
        await lab.put(expires_in=5.0)
        lab.later(4.75)
        assert 1 == len(await lab.lease())

    # Functions

    async def test_a_task_of_an_unknown_function_is_parked(self, lab: Lab) -> None:
        """A worker that does not know the function puts the task aside, uncharged."""
        await lab.declare()
        await lab.join("w2", functions=("other",))
        rare = await lab.put(call=Call("rare"))
        await lab.put("next", call=Call("other"))
        assert "next" == names_of(await lab.lease(worker="w2"))
        answer = await lab.task(rare)
        assert (Status.QUEUED, True, 0) == (answer.status, answer.parked, answer.attempt)
        assert (1, 1) == ((await lab.pool()).parked, (await lab.pool()).queued)

    async def test_a_worker_gets_the_names_of_unknown_functions(self, lab: Lab) -> None:
        """Functions that parked tasks wait for, by name, also if another worker parked them."""
        await lab.declare()
        for name in ("w2", "w3"):
            await lab.join(name, functions=("other",))
        await lab.join("alone", functions=())
        for name in ("rare", "rare", "older", "other"):
            await lab.put(call=Call(name))
        first, second, alone = [await lab.ask(5, worker=name) for name in ("w2", "w3", "alone")]
        assert [1, 0, 0] == [len(answer.leased) for answer in (first, second, alone)]
        assert [("older", "rare")] * 2 == [first.unknown, second.unknown]
        # A worker that only runs closures knows no function.
        assert () == alone.unknown
        assert () == (await lab.ask(5)).unknown

    async def test_a_worker_may_come_to_know_more(self, lab: Lab) -> None:
        """One that presents itself again with more functions gets the tasks parked for them."""
        await lab.declare()
        await lab.join("w2", functions=("other",))
        await lab.put("late", call=Call("rare"))
        assert [] == await lab.lease(worker="w2")
        answer = await lab.join("w2", functions=("other", "rare"))
        assert (1, [POOL]) == (answer.count, [wake.pool for wake in answer.wakes])
        assert "late" == names_of(await lab.lease(worker="w2"))
        # Registering again changes nothing, and no worker forgets its functions.
        assert 0 == (await lab.join("w2", functions=("rare",))).count
        await lab.put("early", call=Call("other"))
        assert "early" == names_of(await lab.lease(worker="w2"))

    async def test_a_parked_task_starts_where_it_is_known(self, lab: Lab) -> None:
        """A worker that knows the function finds the task at its old place."""
        await lab.declare()
        await lab.join("w2", functions=("other",))
        await lab.put("parked", call=Call("rare"))
        assert [] == await lab.lease(worker="w2")
        await lab.put("later", call=Call("rare"))
        known = await lab.lease()
        assert "parked later" == names_of(known)
        assert not (await lab.task(known[0].fence.task)).parked
        assert 0 == (await lab.pool()).parked

    async def test_a_parked_task_can_be_cancelled(self, lab: Lab) -> None:
        """Out of reach is still queued."""
        await lab.declare()
        await lab.join("w2", functions=("other",))
        rare = await lab.put(call=Call("rare"))
        await lab.lease(worker="w2")
        await lab.control(orders.Cancel((rare,)))
        assert Status.CANCELLED == await lab.status(rare)
        assert (0, 0) == ((await lab.pool()).parked, (await lab.pool()).queued)

    async def test_a_parked_task_fails_after_a_day(self, lab: Lab) -> None:
        """A function unknown for a day fails its tasks, and not sooner."""
        await lab.declare()
        await lab.join("w2", functions=("other",), lease=3 * DAY)
        rare = await lab.put(call=Call("rare"))
        await lab.lease(worker="w2")
        lab.later(DAY - 1.0)
        await lab.recover()
        assert Status.QUEUED == await lab.status(rare)
        lab.later(1.0)
        await lab.recover()
        answer = await lab.task(rare)
        assert (Status.FAILED, "unknown_function") == (answer.status, answer.reason)
        assert 0 == (await lab.pool()).parked

    # Closures

    async def test_a_closure_runs_only_where_its_code_is(self, lab: Lab) -> None:
        """A task with an owner is passed over by every worker of another process."""
        await lab.declare()
        await lab.join("w1", owner="mine")
        await lab.join("w2", owner="other")
        closure = await lab.put(owner="mine")
        call = await lab.put()
        assert [call] == ids_of(await lab.lease(worker="w2"))
        assert [closure] == ids_of(await lab.lease(worker="w1"))

    async def test_a_closure_takes_its_turn_among_calls(self, lab: Lab) -> None:
        """For its owner a closure stands where it was submitted."""
        await lab.declare()
        await lab.join("w1", owner="mine")
        await lab.put("first")
        await lab.put("closure", owner="mine")
        await lab.put("last")
        assert "first closure last" == names_of(await lab.lease(worker="w1"))

    async def test_who_knows_no_function_runs_closures_of_its_owner_only(self, lab: Lab) -> None:
        """Calls are nothing to it: they are neither started nor parked, and do not starve it."""
        await lab.declare(max_concurrent=2)
        await lab.join("w1", owner="mine", functions=())
        await lab.join("w2", owner="other")
        call = await lab.put(priority=9)
        assert [] == await lab.lease(worker="w1")
        assert not await lab.view.ready(POOL, "w1", now=lab.now)
        await lab.put("theirs", owner="other")
        closure = await lab.put(owner="mine")
        assert await lab.view.ready(POOL, "w1", now=lab.now)
        assert [closure] == ids_of(await lab.lease(worker="w1"))
        assert 0 == (await lab.pool()).parked
        assert [call] == ids_of(await lab.lease(worker="w2"))

    async def test_in_a_fair_pool_too(self, lab: Lab) -> None:
        """Its closures take their turns among themselves; the shares of others are passed over."""
        await lab.declare(max_concurrent=9, order=fair_round_robin(), max_per_key=1)
        await lab.join("w1", owner="mine", functions=())
        await lab.put("call", share="a", key="a")
        await lab.put("second", share="b", key="b", owner="mine")
        await lab.put("third", share="c", key="c", owner="mine")
        assert "second third" == names_of(await lab.lease(worker="w1"))
        assert "call" == names_of(await lab.lease())

    async def test_waiting_closures_end_with_their_process(self, lab: Lab) -> None:
        """When the last worker of a process is gone, its waiting closures are failed as stale."""
        await lab.declare()
        await lab.join("w1", owner="mine")
        await lab.join("w2", owner="mine")
        closure = await lab.put(owner="mine", delay=60.0)
        await lab.control(orders.DeclareDead("w1"))
        assert Status.QUEUED == await lab.status(closure)
        await lab.control(orders.DeclareDead("w2"))
        answer = await lab.task(closure)
        assert (Status.FAILED, "stale") == (answer.status, answer.reason)

    async def test_a_running_closure_is_never_run_again(self, lab: Lab) -> None:
        """A closure that runs when its process dies is failed as stale, attempts left or not."""
        await lab.declare()
        await lab.join("w1", owner="mine")
        closure = await lab.put(owner="mine", attempts=5)
        await lab.one(worker="w1")
        await lab.control(orders.DeclareDead("w1"))
        answer = await lab.task(closure)
        assert (Status.FAILED, "stale") == (answer.status, answer.reason)
        assert Transition.STALE == (await lab.events(closure))[-1]

    # Parked tasks come back

    async def test_of_parked_tasks_the_best_comes_back_first(self, lab: Lab) -> None:
        """A worker that asks for one is given the one with the highest priority."""
        await lab.declare(order=priority())
        await lab.join("w2", functions=("other",))
        for level in (1, 5, 3, 4):
            await lab.put(str(level), call=Call("odd" if level == 4 else "rare"), priority=level)
            assert [] == await lab.lease(worker="w2")
        assert 4 == (await lab.pool()).parked
        starts = [names_of(await lab.lease(1)) for _ in range(4)]
        assert ["5", "4", "3", "1"] == starts
