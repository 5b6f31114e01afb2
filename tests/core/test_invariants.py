"""The judge is judged: each invariant has a trace that breaks it, and the nearest that does not.

A trace is made by a real store. Then one thing in it is changed, and the judge has to name the
promise that this breaks, and to have had no objection before.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.core.making import new_task

from millpond.core import control as orders
from millpond.core.admit import Reason, Refusal
from millpond.core.audit import Record
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.rate import Rate
from millpond.core.run import NewRun
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import PoolSpec, bounded, fair_round_robin, fifo
from millpond.core.task import Call, Dedupe, NewTask
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Admission, Batch
from millpond.testing.simulation.history import Stage, Verb
from millpond.testing.simulation.invariants import Judge, Violated, nothing_lost
from millpond.testing.simulation.trace_model import Step

WORKERS = frozenset({"w"})
changed = msgspec.structs.replace


class Scene:
    """A memory store on which a short story is played, a second per verb."""

    def __init__(self) -> None:
        self.stage = Stage(MemoryStore(audit_limit=None))
        self.now = 0.0

    async def do(self, verb: str, arguments: Any, *, wait: float = 1.0) -> Any:
        """Carry out one verb."""
        self.now += wait
        return await self.stage.do(Verb(verb, arguments, self.now, int(self.now * 7)))

    async def open(self, **options: Any) -> None:
        """Declare pool `p` and let a worker join."""
        spec = PoolSpec(**{"name": "p", "max_concurrent": 9, "order": fifo(), **options})
        await self.do("control", orders.Declare(spec))
        await self.do("control", orders.Register("w", 1000.0))

    async def submit(self, *tasks: NewTask, run: NewRun | None = None) -> None:
        """Submit one batch."""
        await self.do("submit", [Batch(tasks=tasks, run=run)])

    async def lease(self, want: int = 1, *, wait: float = 1.0) -> list[Leased]:
        """Lease some tasks."""
        answer = await self.do("lease", LeaseRequest(pool="p", worker="w", want=want), wait=wait)
        return list(answer.leased)

    async def settle(self, lease: Leased, event: Transition, **fields: Any) -> None:
        """End one attempt."""
        await self.do("settle", ([Settlement(fence=lease.fence, event=event, **fields)], None))


def verdict(steps: list[Step]) -> str | None:
    """Which invariant a trace breaks, or None."""
    judge = Judge()
    try:
        for step in steps:
            judge.see(step, WORKERS)
    except Violated as violated:
        return violated.invariant
    return None


def with_spec(steps: list[Step], **options: Any) -> list[Step]:
    """The same trace of a pool declared otherwise."""
    declared = changed(steps[0].asked.spec, **options)
    return [changed(steps[0], asked=orders.Declare(declared)), *steps[1:]]


def with_record(steps: list[Step], chosen: Callable[[Record], bool], **fields: Any) -> list[Step]:
    """The same trace with fields of some records changed."""
    altered = [
        changed(step, records=tuple(changed(r, **fields) if chosen(r) else r for r in step.records))
        for step in steps
    ]
    assert altered != steps
    return altered


def without(steps: list[Step], chosen: Callable[[Record], bool]) -> list[Step]:
    """The same trace with some records missing."""
    altered = [
        changed(step, records=tuple(r for r in step.records if not chosen(r))) for step in steps
    ]
    assert altered != steps
    return altered


def is_(event: Transition, task: int | None = None) -> Callable[[Record], bool]:
    """Records of an event, of one task if given."""
    return lambda entry: entry.event is event and task in (None, entry.task)


def ordered(order: orders.Command) -> Step:
    """A step in which an operator gives an order at the moment 0."""
    return Step(verb="control", asked=order, answer=None, records=(), now=0.0)


async def two_running(**fields: Any) -> list[Step]:
    """Two tasks are submitted and leased."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1, **fields), new_task(2, **fields))
    assert 2 == len(await scene.lease(2))
    return scene.stage.steps


async def test_i1_the_limit_of_the_pool() -> None:
    """Two may run where two may, not where one may."""
    steps = await two_running()
    assert verdict(with_spec(steps, max_concurrent=2)) is None
    assert "I1" == verdict(with_spec(steps, max_concurrent=1))


async def test_i1_a_lowered_limit_is_in_force_at_once_for_starts() -> None:
    """Lowered after the starts it is reached by attrition; lowered before, they broke it."""
    steps = await two_running()
    lower = ordered(orders.Resize("p", 1))
    assert verdict([*steps, lower]) is None
    assert "I1" == verdict([*steps[:-1], lower, steps[-1]])


async def test_i1_the_limit_of_a_key() -> None:
    """Two of one key may run where two may; keyless tasks are not limited."""
    steps = await two_running(key="acme")
    assert verdict(with_spec(steps, max_per_key=2)) is None
    assert "I1" == verdict(with_spec(steps, max_per_key=1))
    assert verdict(with_spec(await two_running(), max_per_key=1)) is None


@pytest.mark.parametrize(
    ("stop", "go"),
    [
        (orders.Pause("p"), orders.Resume("p")),
        (orders.Pause("p", "acme"), orders.Resume("p", "acme")),
        (orders.Hold("p", 60.0), orders.Pause("p", "other")),
        (orders.Hold("p", 60.0, "acme"), orders.Hold("p", 60.0, "other")),
    ],
)
async def test_i1_nothing_starts_while_it_is_stopped(
    stop: orders.Command, go: orders.Command
) -> None:
    """A start after a pause or hold of the pool or key breaks it; after another's it does not."""
    *before, lease = await two_running(key="acme")
    assert "I1" == verdict([*before, ordered(stop), lease])
    lifted = [ordered(stop), ordered(go)] if isinstance(go, orders.Resume) else [ordered(go)]
    assert verdict([*before, *lifted, lease]) is None


async def completed(**fields: Any) -> list[Step]:
    """One task is submitted, leased and completed."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1, **fields))
    (lease,) = await scene.lease()
    await scene.settle(lease, Transition.COMPLETE)
    return scene.stage.steps


async def test_i2_a_task_is_accepted_once() -> None:
    """The same id cannot be submitted by two records."""
    steps = await completed()
    assert verdict(steps) is None
    assert "I2" == verdict([*steps, steps[2]])


async def test_i2_a_record_says_where_the_task_was() -> None:
    """A record that starts from another status than the last one ended in is a lost arrow."""
    steps = await completed()
    assert "I2" == verdict(with_record(steps, is_(Transition.LEASE), before=Status.FAILED))
    assert "I2" == verdict(without(steps, is_(Transition.SUBMIT)))


async def test_i2_only_real_arrows() -> None:
    """A record whose arrow the lifecycle does not have is refused."""
    steps = await completed()
    assert "I2" == verdict(with_record(steps, is_(Transition.COMPLETE), after=Status.QUEUED))
    assert "I2" == verdict(with_record(steps, is_(Transition.COMPLETE), event=Transition.EXPIRE))


def refenced(step: Step, **fields: Any) -> Step:
    """A settle step that was asked with another fence."""
    (settlement,), then = step.asked
    fence = changed(settlement.fence, **fields)
    return changed(step, asked=([changed(settlement, fence=fence)], then))


async def test_i3_a_settle_needs_the_current_fence() -> None:
    """Applied with another token or attempt, or refused with the right one, breaks it."""
    *before, settle = await completed()
    assert "I3" == verdict([*before, refenced(settle, token=1)])
    assert "I3" == verdict([*before, refenced(settle, attempt=2)])
    stale = changed(settle.answer, settled=(Settled.STALE,))
    assert "I3" == verdict([*before, changed(settle, answer=stale, records=())])
    refused = changed(refenced(settle, token=1), answer=stale, records=())
    assert verdict([*before, refused]) is None
    assert verdict([*before, refused, settle]) is None


async def test_i3_a_fence_is_good_for_one_settle() -> None:
    """The same fence again is stale, in the next verb and in the same one."""
    *before, settle = await completed()
    assert "I3" == verdict([*before, settle, changed(settle, records=())])
    (settlement,), _ = settle.asked
    twice = changed(settle, asked=([settlement] * 2, None))
    both = changed(settle.answer, settled=(Settled.APPLIED,) * 2, started=())
    once = changed(settle.answer, settled=(Settled.APPLIED, Settled.STALE), started=())
    assert "I3" == verdict([*before, changed(twice, answer=both)])
    assert verdict([*before, changed(twice, answer=once)]) is None


async def test_i3_a_settle_touches_nothing_else_that_runs() -> None:
    """A settle that also ends a task whose fence it did not have breaks it."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1), new_task(2))
    first, second = await scene.lease(2)
    await scene.settle(first, Transition.COMPLETE)
    await scene.settle(second, Transition.COMPLETE)
    *before, one, other = scene.stage.steps
    assert verdict([*before, one, other]) is None
    assert "I3" == verdict([*before, changed(one, records=one.records + other.records)])


async def test_i4_a_lane_starts_in_sequence() -> None:
    """The second of a lane cannot start while the first waits; in two lanes it can."""
    scene = Scene()
    await scene.open(ordered=True)
    await scene.submit(new_task(1, key="a"), new_task(2, key="a"))
    await scene.lease()
    steps = scene.stage.steps
    assert verdict(steps) is None
    overtaking = with_record(steps, is_(Transition.LEASE, 1), task=2, sequence=2)
    assert "I4" == verdict(overtaking)
    assert verdict(with_record(overtaking, is_(Transition.SUBMIT, 1), lane="b", key="b")) is None


async def twice_leased() -> list[Step]:
    """A task of two attempts is leased, retried and leased again."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1, attempts=2))
    (lease,) = await scene.lease()
    await scene.settle(lease, Transition.RETRY)
    assert await scene.lease()
    return scene.stage.steps


async def test_i5_no_more_runs_than_attempts() -> None:
    """A second run is within a budget of two and beyond a budget of one."""
    steps = await twice_leased()
    assert verdict(steps) is None
    assert "I5" == verdict(with_record(steps, is_(Transition.SUBMIT), attempts=1))


async def test_i5_a_released_run_is_not_charged() -> None:
    """Given back, the second run is the first charged one; its record has to say so."""
    steps = await twice_leased()
    retry = steps[4]
    settlement = retry.asked[0][0]
    given_back = changed(retry, asked=([changed(settlement, spend=False)], None))
    uncharged = [*steps[:4], given_back, *steps[5:]]
    assert "I5" == verdict(uncharged)
    honest = [
        *steps[:4],
        given_back,
        changed(steps[5], records=(changed(steps[5].records[0], attempt=1),)),
    ]
    assert verdict(honest) is None
    assert verdict(with_record(honest, is_(Transition.SUBMIT), attempts=1)) is None


async def test_i6_the_bound_of_the_pool_and_of_a_key() -> None:
    """Two of one key wait where two may, not where one may."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1, key="a"), new_task(2, key="a"))
    steps = scene.stage.steps
    assert verdict(with_spec(steps, backpressure=bounded(2))) is None
    assert "I6" == verdict(with_spec(steps, backpressure=bounded(1)))
    assert verdict(with_spec(steps, backpressure=bounded(2, per_key=2))) is None
    assert "I6" == verdict(with_spec(steps, backpressure=bounded(2, per_key=1)))


async def test_i6_what_comes_from_within_or_came_back_does_not_count() -> None:
    """A follow-up, or a task once claimed, is no part of the bound."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1), new_task(2))
    steps = with_spec(scene.stage.steps, backpressure=bounded(1))
    assert "I6" == verdict(steps)
    assert verdict(with_record(steps, is_(Transition.SUBMIT, 2), fresh=False)) is None


async def test_i6_only_what_was_never_claimed_is_evicted() -> None:
    """An eviction is legal for a fresh task and not for one that ran before."""
    scene = Scene()
    await scene.open(backpressure=bounded(1, "drop_oldest"))
    await scene.submit(new_task(1))
    await scene.submit(new_task(2))
    steps = scene.stage.steps
    assert verdict(steps) is None
    assert "I6" == verdict(with_record(steps, is_(Transition.SUBMIT, 1), fresh=False))


async def test_i6_a_refusal_has_a_reason_and_no_side_effect() -> None:
    """A refused batch with an admission, without a reason or with a record breaks it."""
    scene = Scene()
    await scene.open(backpressure=bounded(1, "fail_submitter"))
    await scene.submit(new_task(1))
    await scene.submit(new_task(2))
    *before, taken, refused = scene.stage.steps
    assert verdict([*before, taken, refused]) is None
    (batch,) = refused.answer.batches
    assert Reason.QUEUE_FULL == batch.refusal.reason

    def answered(**fields: Any) -> Step:
        return changed(refused, answer=changed(refused.answer, batches=(changed(batch, **fields),)))

    partly = answered(admissions=(Admission(task=2, status=Status.QUEUED),))
    silent = answered(refusal=changed(batch.refusal, reason=""))
    stored = changed(refused, records=(changed(taken.records[0], task=2),))
    assert ["I6"] * 3 == [verdict([*before, taken, s]) for s in (partly, silent, stored)]
    assert isinstance(batch.refusal, Refusal)


@pytest.mark.parametrize(
    ("dedupe", "ended", "broken"),
    [
        (Dedupe.FOREVER, None, True),
        (Dedupe.FOREVER, Transition.COMPLETE, True),
        (Dedupe.RUN, Transition.FAIL, True),
        (Dedupe.SUCCESS, None, True),
        (Dedupe.SUCCESS, Transition.COMPLETE, True),
        (Dedupe.SUCCESS, Transition.FAIL, False),
        (Dedupe.INFLIGHT, None, True),
        (Dedupe.INFLIGHT, Transition.COMPLETE, False),
    ],
)
async def test_i7_one_key_one_lineage(
    dedupe: Dedupe, ended: Transition | None, broken: bool
) -> None:
    """A second task of a key is legal only where the first no longer answers for it."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1, idempotency_key="k", dedupe=dedupe))
    (lease,) = await scene.lease()
    if ended is not None:
        await scene.settle(lease, ended)
    await scene.submit(new_task(2, idempotency_key="other", dedupe=dedupe))
    steps = scene.stage.steps
    assert verdict(steps) is None
    same_key = with_record(steps, is_(Transition.SUBMIT, 2), idempotency_key="k")
    assert ("I7" if broken else None) == verdict(same_key)


async def test_i7_a_rejected_task_does_not_keep_its_key() -> None:
    """After an eviction the key is free."""
    scene = Scene()
    await scene.open(backpressure=bounded(1, "drop_oldest"))
    await scene.submit(new_task(1, idempotency_key="k"))
    await scene.submit(new_task(2))
    await scene.submit(new_task(3, idempotency_key="k"))
    assert verdict(scene.stage.steps) is None
    kept = without(with_spec(scene.stage.steps, backpressure=None), is_(Transition.EVICT))
    assert "I7" == verdict(kept)


async def a_run() -> list[Step]:
    """A run of two tasks is seeded and worked off."""
    scene = Scene()
    await scene.open()
    run = NewRun(id=7, pool="p", name="crawl")
    await scene.submit(new_task(1, run=7), new_task(2, run=7), run=run)
    for lease in await scene.lease(2):
        await scene.settle(lease, Transition.COMPLETE)
    return scene.stage.steps


def ends_run(entry: Record) -> bool:
    """Whether a record says that a run is over."""
    return entry.detail == "run finished"


async def test_i8_a_run_is_over_when_nothing_of_it_is_left() -> None:
    """Finished too late or too early breaks it."""
    steps = await a_run()
    assert verdict(steps) is None
    assert "I8" == verdict(without(steps, ends_run))
    (end,) = (entry for entry in steps[-1].records if ends_run(entry))
    early = changed(steps[4], records=(*steps[4].records, end))
    assert "I8" == verdict([*steps[:4], early, *steps[5:]])


async def test_i8_a_held_run_waits_for_its_holder() -> None:
    """With a holder it is not over before the seal, and over with it."""
    steps = await a_run()
    batch = steps[2].asked[0]
    held = changed(batch, run=changed(batch.run, holder="me"))
    opened = changed(steps[2], asked=[held])
    (end,) = (entry for entry in steps[-1].records if ends_run(entry))
    assert "I8" == verdict([*steps[:2], opened, *steps[3:]])
    waiting = without([*steps[:2], opened, *steps[3:]], ends_run)
    assert verdict(waiting) is None
    seal = changed(ordered(orders.Seal(7, "me")), records=(end,))
    assert verdict([*waiting, seal]) is None
    assert "I8" == verdict([*waiting, ordered(orders.Seal(7, "me"))])


async def test_i9_two_shares_that_stay_take_turns() -> None:
    """Two in a row are within the bound, three are not."""
    scene = Scene()
    await scene.open(order=fair_round_robin())
    tasks = [new_task(n, share="ab"[n % 2]) for n in range(1, 11)]
    await scene.submit(*tasks)
    for _ in range(6):
        await scene.lease()
    *before, b1, a1, b2, a2, b3, a3 = scene.stage.steps
    assert ["b", "a", "b", "a", "b", "a"] == [s.records[0].share for s in (b1, a1, b2, a2, b3, a3)]
    assert verdict([*before, b1, a1, b2, a2, b3, a3]) is None
    assert verdict([*before, b1, b2, a1, a2, a3, b3]) is None
    assert "I9" == verdict([*before, b1, b2, b3])


async def test_i9_a_weight_is_an_allowance() -> None:
    """Three in a row are legal for a share of weight three."""
    scene = Scene()
    await scene.open(order=fair_round_robin(weights={"b": 3.0}))
    await scene.submit(*[new_task(n, share="ab"[n % 2]) for n in range(1, 11)])
    leases = [(await scene.lease())[0].fence.task % 2 for _ in range(5)]
    assert 3 <= sum(leases)
    steps = scene.stage.steps
    assert verdict(steps) is None
    b_only = [s for s in steps[3:] if s.records[0].share == "b"]
    assert verdict([*steps[:3], *b_only[:3]]) is None
    assert "I9" == verdict(with_spec([*steps[:3], *b_only[:3]], order=fair_round_robin()))


async def test_i9_a_share_that_could_not_start_falls_behind_by_right() -> None:
    """A share whose tasks are not due, or which is paused, is not compared."""
    scene = Scene()
    await scene.open(order=fair_round_robin())
    await scene.submit(*[new_task(n, share="b") for n in (1, 2, 3, 4)], new_task(5, share="a"))
    for _ in range(5):
        await scene.lease()
    *before, b1, a1, b2, b3, b4 = scene.stage.steps
    assert "a" == a1.records[0].share
    assert "I9" == verdict([*before, b1, b2, b3])
    later = with_record(before, is_(Transition.SUBMIT, 5), due=1e9)
    assert verdict([*later, b1, b2, b3, b4]) is None


async def test_i10_the_end_of_a_task_brings_its_callback() -> None:
    """The callback is stored in the step that ends the task, in its queue and on its account."""
    steps = await completed(on_complete=Call("notify"))
    assert verdict(steps) is None

    def is_callback(entry: Record) -> bool:
        return entry.pool == "p~callbacks"

    assert "I10" == verdict(without(steps, is_callback))
    assert "I10" == verdict(with_record(steps, is_callback, cause=9))
    assert "I10" == verdict(with_record(steps, is_callback, pool="p"))
    assert verdict(without(await completed(), lambda entry: entry.detail is not None)) is None


async def a_run_with_a_callback() -> Scene:
    """A run of one task that fails; its callback was set while it was open."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1, run=7), run=NewRun(id=7, pool="p", name="crawl"))
    await scene.do("control", orders.CallWhenOver(7, Call("report")))
    (lease,) = await scene.lease()
    await scene.settle(lease, Transition.FAIL)
    return scene


async def test_i10_a_run_submits_the_callback_that_it_took() -> None:
    """One that it did not take, another one, or none breaks it."""
    steps = (await a_run_with_a_callback()).stage.steps

    def is_callback(entry: Record) -> bool:
        return entry.pool == "p~callbacks"

    assert verdict(steps) is None
    assert "I10" == verdict([step for step in steps if step.asked != steps[3].asked])
    assert "I10" == verdict(with_record(steps, is_callback, function="other"))
    assert "I10" == verdict(without(steps, is_callback))


@pytest.mark.parametrize("again", [False, True])
async def test_i10_a_run_that_is_over_takes_no_callback(again: bool) -> None:
    """Also if it is open once more; it answers for the one that it had. An open one takes any."""
    scene = await a_run_with_a_callback()
    if again:
        await scene.do("control", orders.Redrive((1,)))
    for function in ("report", "other"):
        await scene.do("control", orders.CallWhenOver(7, Call(function)))
    *before, refused = scene.stage.steps
    assert verdict([*before, refused]) is None
    assert "I10" == verdict([*before, changed(refused, answer=changed(refused.answer, count=1))])
    took = before[3]
    not_taken = changed(took, answer=changed(took.answer, count=0))
    assert "I10" == verdict([*before[:3], not_taken])


async def test_i13_no_window_holds_more_starts_than_promised() -> None:
    """Two at once are within a burst of two and beyond a burst of one."""
    steps = await two_running()
    assert verdict(with_spec(steps, rates=(Rate(2, per=60.0),))) is None
    assert "I13" == verdict(with_spec(steps, rates=(Rate(1, per=60.0),)))
    assert "I13" == verdict(with_spec(steps, rates=(Rate(9, per=1.0), Rate(1, per=60.0))))


async def test_i13_weights_count_where_the_rate_is_of_weight() -> None:
    """Two tasks of weight five take ten."""
    steps = await two_running(weight=5)
    assert verdict(with_spec(steps, rates=(Rate(10, per=60.0, of="weight"),))) is None
    assert "I13" == verdict(with_spec(steps, rates=(Rate(9, per=60.0, of="weight"),)))
    assert verdict(with_spec(steps, rates=(Rate(2, per=60.0),))) is None


@pytest.mark.parametrize(("wait", "broken"), [(2.0, False), (1.9, True)])
async def test_i13_a_start_is_legal_again_when_its_token_is_back(wait: float, broken: bool) -> None:
    """One per two seconds: two seconds later is legal, a little earlier is not."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1), new_task(2))
    await scene.lease()
    await scene.lease(wait=wait)
    slow = with_spec(scene.stage.steps, rates=(Rate(1, per=2.0),))
    assert ("I13" if broken else None) == verdict(slow)


async def test_the_judge_counts_the_arrows_it_saw() -> None:
    """A simulation can report which arrows its histories took."""
    judge = Judge()
    for step in await completed():
        judge.see(step, WORKERS)
    assert {
        (None, Transition.SUBMIT): 1,
        (Status.QUEUED, Transition.LEASE): 1,
        (Status.RUNNING, Transition.COMPLETE): 1,
    } == judge.arrows


@pytest.mark.parametrize(
    ("kept", "pruned", "lost"),
    [
        (Status.QUEUED, False, False),
        (Status.RUNNING, False, True),
        (None, False, True),
        (None, True, True),
    ],
)
async def test_i2_what_is_kept_is_what_the_audit_says(
    kept: Status | None, pruned: bool, lost: bool
) -> None:
    """A queued task that vanished or changed without a record is missed, pruning or not."""
    scene = Scene()
    await scene.do("control", orders.Declare(PoolSpec(name="p")))
    await scene.do("submit", (Batch(tasks=(new_task(1),)),))
    witness = scene.stage.judge.witness
    if pruned:
        witness.prunable.add(1)
    if not lost:
        nothing_lost(witness, {1: kept})
        return
    with pytest.raises(Violated, match="I2"):
        nothing_lost(witness, {1: kept})
