"""Lanes and ordered pools: one at a time, in sequence, and only the lane waits."""

from __future__ import annotations

from collections import Counter

import pytest

from millpond.core import control as orders
from millpond.core.admit import Reason
from millpond.core.lifecycle import Status
from millpond.core.order.rank import lane_of
from millpond.core.spec import bounded, fail_fast, fair_round_robin
from millpond.core.task import Call
from millpond.errors import ConfigError
from millpond.testing.conformance.lab import POOL, Lab, completed, name_of, names_of, retried
from millpond.testing.conformance.scenario import StoreSuite, mark

LANE_OF = {"acme": "6", "bolt": "7", "cord": "1", "dune": "5", "\u00fcn\u00efcode": "2"}
"""Where these keys go in a pool of eight lanes: on every store, in every release."""


class LanesConformance(StoreSuite):
    """Strict order within a lane, independence between lanes."""

    @mark.rows("DE-01", "DE-T05")
    async def test_a_lane_runs_one_at_a_time_in_sequence(self, lab: Lab) -> None:
        """The second task of a lane starts when the first has ended."""
        await lab.declare(lanes=8)
        for name in "abc":
            await lab.put(name, key="acme")
        for name in "abc":
            running = await lab.lease()
            assert name == names_of(running)
            await lab.complete(running[0])

    @mark.rows("DE-02")
    async def test_a_key_leads_to_the_same_lane_everywhere(self, lab: Lab) -> None:
        """The lane of a key is a stable function of its text."""
        await lab.declare(lanes=8)
        answer = await lab.submit(*(lab.new(key=key) for key in LANE_OF))
        assert list(LANE_OF.values()) == [admission.lane for admission in answer.admissions]

    @mark.rows("DE-T22")
    async def test_tasks_without_a_key_go_round_the_lanes(self, lab: Lab) -> None:
        """They spread evenly, also between keyed tasks and across batches."""
        await lab.declare(lanes=4)
        lanes: list[str | None] = []
        for _ in range(4):
            answer = await lab.submit(lab.new(), lab.new())
            lanes += [admission.lane for admission in answer.admissions]
            await lab.put(key="acme")
        assert {str(lane): 2 for lane in range(4)} == Counter(lanes)

    @mark.rows("DE-T01")
    async def test_a_lane_is_numbered_without_gaps(self, lab: Lab) -> None:
        """Each lane counts by itself from one, whatever the other lanes take in."""
        await lab.declare(ordered=True)
        keys = ["A", "B", "A", "A", "B", "C"]
        answer = await lab.submit(*(lab.new(key=key) for key in keys))
        assert [("A", 1), ("B", 1), ("A", 2), ("A", 3), ("B", 2), ("C", 1)] == [
            (admission.lane, admission.sequence) for admission in answer.admissions
        ]

    @mark.rows("DE-03")
    async def test_what_is_not_stored_uses_no_number(self, lab: Lab) -> None:
        """A refused batch, a duplicate and a cancelled task leave no gap in their lane."""
        await lab.declare(ordered=True, backpressure=bounded(4, "fail_submitter"))
        await lab.submit(lab.new(key="A", idempotency_key="once"))
        await lab.refusal(*(lab.new(key="A") for _ in range(4)))
        again = await lab.submit(lab.new(key="A", idempotency_key="once"), lab.new(key="A"))
        assert [(1, True), (2, False)] == [(a.sequence, a.duplicate) for a in again.admissions]
        await lab.control(orders.Cancel((again.admissions[1].task,)))
        assert 3 == (await lab.submit(lab.new(key="A"))).admissions[0].sequence

    async def test_a_refused_batch_leaves_no_gap(self, lab: Lab) -> None:
        """Numbers are given to what is stored, and only to that."""
        await lab.declare(ordered=True)
        await lab.put(key="A", fingerprint=1, idempotency_key="k")
        conflict = lab.new(key="A", fingerprint=2, idempotency_key="k")
        await lab.refusal(lab.new(key="A"), conflict)
        assert 2 == (await lab.submit(lab.new(key="A"))).admissions[0].sequence

    async def test_ordered_gives_every_key_its_lane(self, lab: Lab) -> None:
        """Keys run side by side, each one task at a time."""
        await lab.declare(ordered=True, max_concurrent=9)
        await lab.put_keys("AABBC")
        assert "A B C" == names_of(await lab.lease())

    async def test_in_an_ordered_pool_tasks_without_a_key_are_free(self, lab: Lab) -> None:
        """No key, no lane: they run side by side and are numbered with the pool."""
        await lab.declare(ordered=True, max_concurrent=9)
        answer = await lab.submit(lab.new(key="A"), lab.new(), lab.new())
        assert [("A", 1), (None, 2), (None, 3)] == [
            (admission.lane, admission.sequence) for admission in answer.admissions
        ]
        assert 3 == len(await lab.lease())

    @mark.rows("DE-T21")
    async def test_a_retry_blocks_its_lane_and_only_its_lane(self, lab: Lab) -> None:
        """Those behind a backing-off head wait for it; the others do not."""
        await lab.declare(ordered=True, max_concurrent=9)
        for name in ("A1", "A2", "B1", "B2"):
            await lab.put(name, key=name[0])
        first, other = await lab.lease()
        await lab.applied(retried(first, 5.0), completed(other))
        assert "B2" == names_of(await lab.lease())
        lab.later(4.75)
        assert [] == await lab.lease()
        lab.later(0.25)
        assert "A1" == names_of(await lab.lease())

    async def test_a_blocked_lane_names_its_moment(self, lab: Lab) -> None:
        """A worker that finds only a backing-off head gets the time at which it is due."""
        await lab.declare(ordered=True)
        await lab.put_keys("AA")
        await lab.retry(await lab.one(), 5.0)
        answer = await lab.ask()
        assert ((), lab.now + 5.0) == (answer.leased, answer.next_at)

    async def test_a_delayed_head_blocks_its_lane(self, lab: Lab) -> None:
        """A task that is not due keeps those behind it waiting."""
        await lab.declare(ordered=True)
        await lab.put("A1", key="A", delay=5.0)
        await lab.put("A2", key="A")
        assert [] == await lab.lease()
        lab.later(5.0)
        assert "A1" == names_of(await lab.lease())

    async def test_cancelling_a_waiting_head_frees_its_lane(self, lab: Lab) -> None:
        """The next in line starts at once."""
        await lab.declare(ordered=True)
        head = await lab.put("A1", key="A", delay=60.0)
        await lab.put("A2", key="A")
        await lab.control(orders.Cancel((head,)))
        assert {POOL: lab.now} == lab.wakes
        assert "A2" == names_of(await lab.lease())

    async def test_cancelling_a_head_that_just_became_due_leaves_no_timer(self, lab: Lab) -> None:
        """A lane that is empty again is served again when something comes."""
        await lab.declare(ordered=True)
        head = await lab.put("A1", key="A", delay=5.0)
        lab.later(5.0)
        await lab.control(orders.Cancel((head,)))
        assert ((), None) == ((answer := await lab.ask()).leased, answer.next_at)
        await lab.put("A2", key="A")
        assert "A2" == names_of(await lab.lease())

    @mark.rows("DE-T13")
    async def test_a_lane_goes_on_after_a_failure(self, lab: Lab) -> None:
        """The task behind a dead one runs."""
        await lab.declare(lanes=1)
        await lab.put("a")
        await lab.put("b")
        await lab.fail(await lab.one())
        assert "b" == names_of(await lab.lease())

    async def test_a_redriven_task_enters_at_the_tail(self, lab: Lab) -> None:
        """It gets the next number of its lane and runs behind what waits there."""
        await lab.declare(ordered=True)
        dead = await lab.put("A1", key="A")
        await lab.fail(await lab.one())
        await lab.put("A2", key="A")
        await lab.control(orders.Redrive((dead,)))
        assert ("A", 3) == ((await lab.task(dead)).lane, (await lab.task(dead)).sequence)
        assert "A2 A1" == await lab.serve(2)

    async def test_a_released_task_keeps_its_place_in_the_lane(self, lab: Lab) -> None:
        """What is given back is the head again, with its number."""
        await lab.declare(ordered=True)
        await lab.put("A1", key="A")
        await lab.put("A2", key="A")
        await lab.release(await lab.one())
        again = await lab.one()
        assert ("A1", 1) == (name_of(again), again.sequence)

    async def test_a_lost_lease_keeps_its_place_in_the_lane(self, lab: Lab) -> None:
        """After its worker died the head runs again before those behind it."""
        await lab.declare(ordered=True)
        await lab.join("w2")
        await lab.put("A1", key="A")
        await lab.put("A2", key="A")
        await lab.one(worker="w2")
        await lab.control(orders.DeclareDead("w2"))
        assert "A1" == names_of(await lab.lease())

    async def test_a_paused_lane_stops_alone(self, lab: Lab) -> None:
        """One lane waits for its resume, the others are served."""
        await lab.declare(ordered=True)
        await lab.put_keys("AB")
        await lab.control(orders.Pause(POOL, "A"))
        assert "B" == names_of(await lab.lease())
        await lab.control(orders.Resume(POOL, "A"))
        assert "A" == names_of(await lab.lease())

    async def test_a_lane_is_purged_alone(self, lab: Lab) -> None:
        """Its waiting tasks are cancelled, those of the other lanes stay."""
        await lab.declare(ordered=True)
        first, other, second = await lab.put_keys("ABA")
        assert 2 == (await lab.control(orders.Purge(POOL, "A"))).count
        assert [Status.CANCELLED, Status.QUEUED, Status.CANCELLED] == await lab.statuses(
            first, other, second
        )

    async def test_an_unknown_head_blocks_its_lane(self, lab: Lab) -> None:
        """A head that the worker does not know is parked, and no task overtakes it."""
        await lab.declare(ordered=True)
        await lab.join("w2", functions=("other",))
        await lab.put("A1", key="A", call=Call("rare"))
        await lab.put("A2", key="A", call=Call("other"))
        assert [] == await lab.lease(worker="w2")
        assert "A1" == names_of(await lab.lease())

    async def test_lanes_of_a_fair_pool_take_turns(self, lab: Lab) -> None:
        """In a fair pool the lanes are what is served in turn."""
        await lab.declare(ordered=True, order=fair_round_robin(), max_concurrent=1)
        await lab.put_keys("AAABC")
        assert "A B C A A" == await lab.serve(5)

    async def test_a_limit_above_the_lanes_is_refused(self, lab: Lab) -> None:
        """More slots than lanes cannot be used; the order is refused and changes nothing."""
        await lab.declare(lanes=2)
        with pytest.raises(ConfigError):
            await lab.control(orders.Resize(POOL, 3))
        assert (2, 1) == ((await lab.pool()).spec.max_concurrent, (await lab.pool()).revision)

    @pytest.mark.parametrize("ordered", [False, True], ids=["lanes", "ordered"])
    async def test_a_position_is_counted_in_its_lane(self, lab: Lab, ordered: bool) -> None:
        """How many wait ahead in the lane, whatever waits in others or runs."""
        await lab.declare(lanes=None if ordered else 8, ordered=ordered, max_concurrent=8)
        keys = ("acme", "acme", "bolt", "acme", "bolt")
        answer = [(await lab.submit(lab.new(key=key))).admissions[0] for key in keys]
        assert [0, 1, 0, 2, 1] == [one.position for one in answer]
        assert 2 == len(await lab.lease())
        assert 2 == (await lab.submit(lab.new(key="acme"))).admissions[0].position

    async def test_fewer_lanes_are_all_there_are(self, lab: Lab) -> None:
        """After an empty pool lost lanes, tasks without a key go round those that are left."""
        await lab.declare(lanes=4)
        await lab.put_many(3)
        await lab.serve(3)
        await lab.declare(lanes=2)
        batch = [lab.new() for _ in range(4)]
        answer = (await lab.submit(*batch)).admissions
        assert {"0": 2, "1": 2} == Counter(one.lane for one in answer)
        assert 2 == len(await lab.lease())

    @pytest.mark.parametrize("ordered", [False, True], ids=["lanes", "ordered"])
    async def test_a_closure_has_no_place_in_a_lane(self, lab: Lab, ordered: bool) -> None:
        """It would block its lane for every other process: refused, with or without a key."""
        await lab.declare(lanes=None if ordered else 4, ordered=ordered)
        await lab.join("w2", owner="mine")
        for key in (None, "acme"):
            refusal = await lab.refusal(lab.new(owner="mine", key=key))
            assert Reason.CLOSURE_IN_LANES == refusal.reason
        assert 0 == (await lab.pool()).queued

    async def test_fail_fast_refuses_a_busy_lane(self, lab: Lab) -> None:
        """A lane with one task, waiting or running, could not start another; the rest could."""
        await lab.declare(lanes=8, backpressure=fail_fast())
        await lab.put(key="acme")
        for _ in ("waiting", "running"):
            assert Reason.NO_CAPACITY == (await lab.refusal(lab.new(key="acme"))).reason
            await lab.lease()
        await lab.put(key="bolt")
        await lab.run_one()

    async def test_a_closure_cannot_follow_up_into_a_lane(self, lab: Lab) -> None:
        """A lane waits for no process: such a follow-up is cancelled, and says why."""
        await lab.declare(lanes=4)
        await lab.join("w2", owner="mine")
        await lab.put(key="bolt")
        closure = lab.new(owner="mine", key="acme")
        answer = await lab.complete(await lab.one(), closure)
        assert (Status.CANCELLED, Reason.CLOSURE_IN_LANES) == (
            answer.follow_ups[0][0].status,
            answer.follow_ups[0][0].reason,
        )

    # Bounds of lanes

    @mark.rows("TR-27")
    async def test_a_bound_per_lane_refuses_what_its_lane_has_no_room_for(self, lab: Lab) -> None:
        """The refusal names the lane; other lanes, and other keys of them, still have room."""
        bound = bounded(100, "fail_submitter", per_lane=2)
        await lab.declare(lanes=2, backpressure=bound, max_concurrent=2)
        key, other = _keys_of_lanes()
        await lab.put_many(2, key=key)
        refusal = await lab.refusal(lab.new(key=key))
        assert (Reason.QUEUE_FULL, "0", True, 2, 2) == (
            refusal.reason,
            refusal.lane,
            refusal.in_lane,
            refusal.depth,
            refusal.bound,
        )
        await lab.put(key=other)
        (leased,) = (await lab.ask(want=1)).leased
        assert key == leased.key
        await lab.put(key=key)
        await lab.refusal(lab.new(key=key))

    @mark.rows("TR-27")
    async def test_tasks_without_a_key_come_to_lanes_that_have_room(self, lab: Lab) -> None:
        """In turn, past full ones; a batch that all lanes together have no room for never fits."""
        bound = bounded(100, "fail_submitter", per_lane=2)
        await lab.declare(lanes=2, backpressure=bound, max_concurrent=2)
        key, _ = _keys_of_lanes()
        await lab.put_many(2, key=key)
        taken = (await lab.submit(lab.new(), lab.new())).admissions
        assert ["1", "1"] == [admission.lane for admission in taken]
        refusal = await lab.refusal(lab.new())
        assert (Reason.QUEUE_FULL, True) == (refusal.reason, refusal.in_lane)
        refusal = await lab.refusal(*(lab.new() for _ in range(5)))
        assert Reason.BATCH_TOO_LARGE is refusal.reason
        refusal = await lab.refusal(*(lab.new(key=key) for _ in range(3)))
        assert Reason.BATCH_TOO_LARGE is refusal.reason

    @mark.rows("TR-27")
    async def test_a_full_lane_drops_its_own(self, lab: Lab) -> None:
        """The oldest of the lane makes room, or the newest is not taken; other lanes lose none."""
        key, other = _keys_of_lanes()
        for policy, word in (("drop_oldest", "oldest"), ("drop_newest", "newest")):
            await lab.declare(lanes=2, backpressure=bounded(9, policy, per_lane=1), name=word)
            kept = await lab.put(key=other, pool=word)
            first = await lab.put(key=key, pool=word)
            (second,) = (await lab.submit(lab.new(key=key, pool=word))).admissions
            gone = first if word == "oldest" else second.task
            statuses = await lab.view.status((kept, first, second.task))
            rejected = [
                task
                for task, status in zip((kept, first, second.task), statuses, strict=True)
                if status == Status.REJECTED
            ]
            assert ([gone] if word == "oldest" else []) == rejected
            assert (second.status is Status.REJECTED) == (word == "newest")


def _keys_of_lanes() -> tuple[str, str]:
    """Return a key of lane 0 and one of lane 1, of two."""
    names = [f"k{number}" for number in range(50)]
    return tuple(  # type: ignore[return-value]
        next(name for name in names if lane_of(name, 2) == lane) for lane in ("0", "1")
    )
