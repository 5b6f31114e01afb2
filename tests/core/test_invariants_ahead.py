"""The judge on claims ahead: each promise about them has a trace that breaks it."""

from typing import Any

import pytest
from tests.core.making import new_task
from tests.core.test_invariants import Scene, changed, is_, verdict, with_record, with_spec, without

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settled, Settlement
from millpond.core.task import Dedupe
from millpond.testing.simulation.trace_model import Step


async def hold(scene: Scene, want: int = 1, ahead: int = 1) -> tuple[list[Leased], list[Leased]]:
    """Lease some tasks and hold some ahead."""
    answer = await scene.do("lease", LeaseRequest(pool="p", worker="w", want=want, ahead=ahead))
    return list(answer.leased), list(answer.claimed)


async def handed_over(**options: Any) -> list[Step]:
    """A pool of one slot in which a claim took over from an attempt."""
    scene = Scene()
    await scene.open(**{"max_concurrent": 1, "prefetch": 2, **options})
    await scene.submit(new_task(1, key="a"), new_task(2, key="a"))
    (running,), (claim,) = await hold(scene)
    await scene.settle(running, Transition.COMPLETE, successor=claim.fence)
    return scene.stage.steps


async def test_i1_claims_count_for_their_key() -> None:
    """Held and running together stay within the limit of a key."""
    steps = await handed_over(max_per_key=2)
    assert verdict(steps) is None
    assert "I1" == verdict(with_spec(steps, max_per_key=1))


async def test_i1_claims_stay_within_the_prefetch() -> None:
    """No worker holds more ahead than the pool allows."""
    steps = await handed_over()
    assert verdict(with_spec(steps, prefetch=1)) is None
    assert "I1" == verdict(with_spec(steps, prefetch=0))


async def test_i1_claims_are_not_made_while_nothing_may_start() -> None:
    """A claim is a start to be: a pause forbids it."""
    steps = await handed_over()
    pause = Step(verb="control", asked=orders.Pause("p"), answer=None, records=(), now=0.0)
    assert "I1" == verdict([steps[0], pause, *steps[1:]])


async def test_i1_a_slot_is_handed_over_whatever_was_ordered_since() -> None:
    """A pause or a lower limit between claim and start does not make the start a breach."""
    *before, settle = await handed_over()
    now = settle.now
    for order in (orders.Pause("p"), orders.Resize("p", 0)):
        ordered = Step(verb="control", asked=order, answer=None, records=(), now=now)
        assert verdict([*before, ordered, settle]) is None


async def test_i1_a_slot_is_handed_over_once() -> None:
    """A start without a free slot is above the limit."""
    *before, settle = await handed_over()
    kept = changed(settle, records=tuple(r for r in settle.records if r.event is Transition.LEASE))
    assert "I1" == verdict([*before, kept])


async def test_i3_a_start_needs_its_claim() -> None:
    """Refused with the right fence and a slot, or taken with another one, breaks it."""
    *before, settle = await handed_over()
    refused = changed(settle.answer, started=(Settled.STALE,))
    assert "I3" == verdict([*before, changed(settle, answer=refused)])
    (settlement,), then = settle.asked
    forged = changed(settlement, successor=changed(settlement.successor, token=1))
    assert "I3" == verdict([*before, changed(settle, asked=([forged], then))])


async def test_i3_a_claim_goes_back_by_its_fence() -> None:
    """A settle that gives back what it had no fence for breaks it."""
    scene = Scene()
    await scene.open(prefetch=1)
    await scene.submit(new_task(1))
    _, (claim,) = await hold(scene, want=0)
    await scene.settle(claim, Transition.RELEASE, spend=False)
    *before, settle = scene.stage.steps
    assert verdict([*before, settle]) is None
    other = Settlement(fence=changed(claim.fence, token=1), event=Transition.RELEASE)
    stale = changed(settle.answer, settled=(Settled.STALE,))
    assert "I3" == verdict([*before, changed(settle, asked=([other], None), answer=stale)])


@pytest.mark.parametrize("dedupe", [Dedupe.WAITING, Dedupe.REPLACE])
@pytest.mark.parametrize("ahead", [0, 1])
async def test_i7_a_held_task_does_not_answer_for_its_key(dedupe: Dedupe, ahead: int) -> None:
    """A key of waiting tasks that is answered with one that runs or is held ahead breaks it."""
    scene = Scene()
    await scene.open(prefetch=1)
    for task in (1, 2):
        await scene.submit(new_task(task, idempotency_key="k", dedupe=dedupe))
    *before, joined = scene.stage.steps
    await hold(scene, want=1 - ahead, ahead=ahead)
    *_, held = scene.stage.steps
    assert verdict([*before, joined, held]) is None
    answered = changed(joined, records=())
    assert "I7" == verdict([*before, held, answered])
    # Sent again, it may have replaced a task that a worker held since.
    again = changed(answered, asked=[changed(joined.asked[0], again=True)])
    assert ("I7" if dedupe is Dedupe.WAITING else None) == verdict([*before, held, again])


@pytest.mark.parametrize("dedupe", [Dedupe.WAITING, Dedupe.REPLACE])
async def test_i7_a_follow_up_may_join_what_goes_back_with_its_settle(dedupe: Dedupe) -> None:
    """Of two attempts that end in one settle, one goes back and the other's follow-up joins it."""
    scene = Scene()
    await scene.open()
    await scene.submit(new_task(1, idempotency_key="k", dedupe=dedupe), new_task(2))
    back, over = await scene.lease(2)
    follow_up = new_task(3, idempotency_key="k", dedupe=dedupe)
    settled = [
        Settlement(fence=back.fence, event=Transition.RETRY),
        Settlement(fence=over.fence, event=Transition.COMPLETE, follow_ups=(follow_up,)),
    ]
    answer = await scene.do("settle", (settled, None))
    assert 1 == answer.follow_ups[1][0].task
    assert verdict(scene.stage.steps) is None
    stays = without(scene.stage.steps, is_(Transition.RETRY))
    assert "I7" == verdict(stays)


@pytest.mark.parametrize("event", [Transition.LOSE, Transition.EXHAUST])
async def test_i5_a_lost_claim_is_charged(event: Transition) -> None:
    """It may have started, so its record has to count it."""
    scene = Scene()
    await scene.open(prefetch=1)
    await scene.submit(new_task(1, attempts=1 if event is Transition.EXHAUST else 2))
    await hold(scene, want=0)
    await scene.do("control", orders.DeclareDead("w"))
    assert verdict(scene.stage.steps) is None
    assert "I5" == verdict(with_record(scene.stage.steps, is_(event), attempt=0))


async def test_i5_a_claim_that_went_back_is_not_charged() -> None:
    """Its next attempt has the number it would have had."""
    scene = Scene()
    await scene.open(prefetch=1)
    await scene.submit(new_task(1, attempts=1))
    _, (claim,) = await hold(scene, want=0)
    await scene.settle(claim, Transition.RELEASE, spend=False, begun=False)
    await scene.lease()
    assert verdict(scene.stage.steps) is None
    assert "I5" == verdict(with_record(scene.stage.steps, is_(Transition.LEASE), attempt=2))


async def test_i13_claims_take_tokens_and_returned_ones_count_again() -> None:
    """A rate counts what is claimed, once, and no longer what went back unstarted."""
    scene = Scene()
    await scene.open(prefetch=1, rates=(Rate(1, per=1000.0),))
    await scene.submit(new_task(1), new_task(2))
    _, (claim,) = await hold(scene, want=0)
    await scene.settle(claim, Transition.RELEASE, spend=False)
    _, (again,) = await hold(scene, want=0)
    assert claim.fence.task == again.fence.task
    assert verdict(scene.stage.steps) is None
    assert "I13" == verdict(without(scene.stage.steps, is_(Transition.RELEASE)))
