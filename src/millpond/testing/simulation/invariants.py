"""The invariants I1 to I13 as predicates over a trace.

`Judge.see(step)` takes the steps of a history one by one and raises `Violated` at the first one
that breaks a promise. Nothing here looks into a store: verbs, answers and audit records are all
the evidence there is, so the same judge serves a simulation, a replayed log and a real fleet.

I11 (never asleep with work due) and I12 (same history, same trace) need two witnesses and live
with the simulation, as `never_asleep` and `same_story` there.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millpond.core.admit import Reason
from millpond.core.audit import RUN_FINISHED
from millpond.core.control import CallWhenOver, Disown, Progress, SaveStep, Update
from millpond.core.lifecycle import LIFECYCLE, Status, Transition
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import OrderKind
from millpond.core.task import CALLBACKS, Dedupe, Fence
from millpond.testing.simulation.rate_ledger import Ledger
from millpond.testing.simulation.trace_model import Fact, PoolFacts, Step, Witness

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from millpond.core.audit import Record
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Call, NewTask
    from millpond.store.protocol import Admission


class Violated(AssertionError):
    """A promise was broken; `invariant` names it."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


class Judge:
    """Watches a history and objects."""

    def __init__(self) -> None:
        self.witness = Witness()
        self.arrows: dict[tuple[Status | None, Transition], int] = {}

    def see(self, step: Step, known_workers: frozenset[str]) -> None:
        """Check one step of a history against every promise, then remember it."""
        settles = fences(self.witness, step)
        words(self.witness, step)
        joins(self.witness, step)
        calls_when_over(self.witness, step)
        refusals(step)
        self.witness.before(step)
        for index, entry in enumerate(step.records):
            self._see_record(entry, step, index, settles)
        remembered(self.witness, step)
        newest_call(self.witness, step)
        self.witness.after(step, known_workers)
        for facts in self.witness.pools.values():
            bound(facts)
        runs(self.witness)

    def _see_record(self, entry: Record, step: Step, index: int, settles: Settles) -> None:
        before = self.witness.tasks.get(entry.task or 0)
        held = before is not None and before.claimed
        if entry.event is not None:
            arrow = (entry.before, entry.event)
            self.arrows[arrow] = self.arrows.get(arrow, 0) + 1
            continuity(self.witness, entry)
        facts = self.witness.pools.get(entry.pool)
        taken = entry.event is Transition.CLAIM or (entry.event is Transition.LEASE and not held)
        if taken and facts is not None:
            fairness(self.witness, facts, entry, step.now)
        if entry.event is Transition.SUBMIT and facts is not None:
            idempotency(self.witness, facts, entry)
        if entry.event is Transition.UPDATE and before is not None:
            updates(before, entry)
        fact = self.witness.apply(entry)
        if entry.detail == RUN_FINISHED and entry.run is not None:
            run_callbacks(self.witness, entry.pool, entry.run, step.records[index + 1 :])
        if fact is None:
            return
        if entry.event is Transition.LEASE or (
            held and entry.event in (Transition.LOSE, Transition.EXHAUST)
        ):
            attempts(fact, entry)
            once(fact)
        if facts is not None:
            if taken:
                taking(facts, fact, entry, step.now)
            if entry.event is Transition.LEASE and fence_of(entry) in settles.handed_over:
                handed_over(facts)
            elif entry.event is Transition.LEASE:
                limits(facts, fact, step.now)
            if held and entry.event in (Transition.RELEASE, Transition.CANCEL):
                returned(facts, fact, entry, step.now)
        settlement = settles.applied.get(fact.id)
        if entry.event is Transition.RETRY and settlement is not None and not settlement.spend:
            self.witness.uncharge(fact.id)
        if entry.event is Transition.RELEASE and never_began(step, settlement):
            fact.begun = False
        if fact.status.terminal and entry.callback:
            callbacks(entry, step.records[index + 1 :])


def limits(facts: PoolFacts, fact: Fact, now: float) -> None:
    """I1: no lease takes a running count above the limit in force at that instant."""
    spec = facts.spec
    if len(facts.running) > spec.max_concurrent:
        raise Violated("I1", f"{len(facts.running)} run in {spec.name}, of {spec.max_concurrent}")
    bounds = None if facts.limit_of_operator is not None else spec.adaptive
    if bounds is not None and not bounds.least <= spec.max_concurrent <= bounds.most:
        raise Violated("I1", f"{spec.name} adapted to {spec.max_concurrent}, out of its bounds")
    for budget in facts.budgets:
        if budget.running() > budget.spec.max_concurrent:
            raise Violated("I1", f"{budget.running()} run of budget {budget.spec.name}")
    _not_stopped(facts, fact, now)


def handed_over(facts: PoolFacts) -> None:
    """I1: a claim that took over the slot of an attempt makes no more run than before."""
    most = max(facts.spec.max_concurrent, facts.ran)
    if len(facts.running) > most:
        raise Violated("I1", f"{len(facts.running)} run in {facts.spec.name}, of {most}")


def taking(facts: PoolFacts, fact: Fact, entry: Record, now: float) -> None:
    """I1, I4, I13: whatever is taken from the queue, to start or to hold, is within its limits."""
    spec, limit = facts.spec, facts.spec.unit_limit
    if limit is not None and fact.unit is not None and facts.held_in(fact.unit) > limit:
        raise Violated("I1", f"more than {limit} of {fact.unit!r} run or are held in {spec.name}")
    ahead = sum(1 for other in facts.claimed.values() if other.worker == fact.worker)
    if fact.claimed and ahead > spec.prefetch:
        raise Violated("I1", f"{fact.worker} holds {ahead} ahead of {spec.name}")
    _not_stopped(facts, fact, now)
    lanes(facts, fact)
    rates(facts, fact, entry, now)


def _not_stopped(facts: PoolFacts, fact: Fact, now: float) -> None:
    held = facts.held_until.get(None, 0.0) > now
    if facts.paused or held or facts.stopped(fact.unit, now):
        raise Violated("I1", f"task {fact.id} started while {facts.spec.name} was paused or held")


def continuity(witness: Witness, entry: Record) -> None:
    """I2: every accepted task is queued, running or terminal; it takes no arrow but a real one."""
    fact = witness.tasks.get(entry.task or 0)
    before = fact.status if fact is not None else None
    if entry.event in (Transition.SUBMIT, Transition.REFUSE):
        if entry.event is Transition.SUBMIT and before is not None:
            raise Violated("I2", f"task {entry.task} was accepted twice")
        return
    if before != entry.before:
        raise Violated("I2", f"task {entry.task} was {before}, its record says {entry.before}")
    if entry.event is None or LIFECYCLE.get((entry.before, entry.event)) is not entry.after:
        raise Violated("I2", f"{entry.before} --{entry.event}--> {entry.after} is no arrow")
    if entry.event is Transition.EVICT and fact is not None and not fact.fresh:
        raise Violated("I6", f"task {entry.task} was evicted though it was claimed before")


def nothing_lost(witness: Witness, kept: Mapping[int, Status | None]) -> None:
    """I2: what a store keeps is what its audit says; only retention makes an ended task vanish."""
    for identifier, fact in witness.tasks.items():
        found = kept[identifier]
        forgotten = found is None and fact.status.terminal and identifier in witness.prunable
        if found is not fact.status and not forgotten:
            raise Violated("I2", f"task {identifier} is {found}, the audit says {fact.status}")


def is_current(fact: Fact | None, fence: Fence) -> bool:
    """Return whether a fence gives the right to write for its task, as the witness knows it."""
    return (
        fact is not None
        and fact.status is Status.RUNNING
        and (fact.attempt, fact.token) == (fence.attempt, fence.token)
    )


def words(witness: Witness, step: Step) -> None:
    """I3: what an attempt says of itself counts if and only if its fence is the current one."""
    if step.verb != "control" or not isinstance(step.asked, Progress | SaveStep):
        return
    order, fact = step.asked, witness.tasks.get(step.asked.fence.task)
    expected = is_current(fact, order.fence)
    if isinstance(order, SaveStep) and fact is not None and expected:
        expected = order.name not in fact.steps
        fact.steps.setdefault(order.name, order.value)
    if step.answer.count != expected:
        raise Violated("I3", f"{order} was answered with {step.answer.count}")
    if step.records:
        raise Violated("I3", f"{order} took an arrow")


def remembered(witness: Witness, step: Step) -> None:
    """I2: what an attempt remembered is given to the next one, until a redrive."""
    answer = step.answer.lease if step.verb == "settle" else step.answer
    if step.verb not in ("lease", "settle") or answer is None:
        return
    for leased in (*answer.leased, *answer.claimed):
        fact = witness.tasks[leased.fence.task]
        if leased.steps != fact.steps:
            raise Violated("I2", f"task {fact.id} was given {leased.steps}, not {fact.steps}")


def updates(fact: Fact, entry: Record) -> None:
    """I2: an update changes a task that no worker holds, and keeps its place and what it counts."""
    if fact.claimed or fact.status is not Status.QUEUED:
        raise Violated("I2", f"task {fact.id} was updated while {fact.worker} held it")
    if (fact.sequence, fact.fresh) != (entry.sequence, entry.fresh):
        raise Violated("I2", f"task {fact.id} lost its place with an update")


def newest_call(witness: Witness, step: Step) -> None:
    """I7: an attempt gets the arguments of the last update, or of the submit that replaced it."""
    updated = {entry.task for entry in step.records if entry.event is Transition.UPDATE}
    for task, call in _calls(step):
        if task in updated:
            witness.tasks[task].call = call
        elif step.verb == "submit" and not any(batch.again for batch in step.asked):
            raise Violated("I7", f"task {task} did not take the arguments that replace its own")
    answer = step.answer.lease if step.verb == "settle" else step.answer
    if step.verb not in ("lease", "settle") or answer is None:
        return
    for leased in (*answer.leased, *answer.claimed):
        expected = witness.tasks[leased.fence.task].call
        if expected not in (None, leased.call):
            raise Violated("I7", f"task {leased.fence.task} was given {leased.call}")


def _calls(step: Step) -> list[tuple[int, Call]]:
    """Return the calls that a verb gave to tasks that were there before, in order."""
    if step.verb == "control" and isinstance(step.asked, Update) and step.asked.call is not None:
        return [(step.asked.task, step.asked.call)]
    return [
        (one.task, new.call)
        for _, new, one in _admitted(step)
        if new.dedupe is Dedupe.REPLACE and one.task != new.id and one.reason != Reason.CONFLICT
    ]


def joins(witness: Witness, step: Step) -> None:
    """I7: a key of waiting tasks is answered with a task that no worker holds."""
    returned = (Transition.RETRY, Transition.RELEASE)
    back = {entry.task for entry in step.records if entry.event in returned}
    for again, new, one in _admitted(step):
        fact = witness.tasks.get(one.task)
        if not new.dedupe.of_waiting or fact is None or one.task in {new.id, *back}:
            continue
        if again and new.dedupe is Dedupe.REPLACE:
            # The task that it replaced when it was sent first may have started since.
            continue
        if fact.status is not Status.QUEUED or fact.claimed:
            raise Violated("I7", f"task {fact.id} answers for {new.idempotency_key!r}, and is held")


def _admitted(step: Step) -> Iterator[tuple[bool, NewTask, Admission]]:
    """Yield what a verb submitted and its answers, and whether it was sent again."""
    if step.verb == "submit":
        for batch, answer in zip(step.asked, step.answer.batches, strict=True):
            for new, one in zip(batch.tasks, answer.admissions, strict=False):
                yield batch.again, new, one
    if step.verb == "settle":
        for settlement, admissions in zip(step.asked[0], step.answer.follow_ups, strict=False):
            for new, one in zip(settlement.follow_ups, admissions, strict=False):
                yield False, new, one


class Settles:
    """What a settle should have done, as far as fences decide: one by one, in order."""

    def __init__(self, witness: Witness) -> None:
        self.applied: dict[int, Settlement] = {}
        self.returned: set[int] = set()
        """Claims that went back without having been started."""
        self.handed_over: set[Fence] = set()
        """Claims that took over the slot of an attempt."""
        self._witness = witness
        self._running: dict[int, Fence | None] = {}

    def runs(self, fence: Fence) -> bool:
        """Return whether a fence is that of a running attempt, by now."""
        if fence.task in self._running:
            return self._running[fence.task] == fence
        return is_current(self._witness.tasks.get(fence.task), fence)

    def holds(self, fence: Fence) -> bool:
        """Return whether a fence is that of a claim which was not started yet."""
        fact = self._witness.tasks.get(fence.task)
        gone = fence.task in self._running or fence.task in self.returned
        return fact is not None and not gone and is_claim(fact, fence)

    def settle(self, settlement: Settlement) -> bool:
        """Return whether a settlement counts."""
        fence = settlement.fence
        if self.runs(fence):
            self.applied[fence.task] = settlement
            self._running[fence.task] = None
            return True
        if self.holds(fence) and settlement.event in (Transition.RELEASE, Transition.CORRUPT):
            self.returned.add(fence.task)
            return True
        return False

    def start(self, settlement: Settlement, *, answered: bool) -> bool:
        """Return whether the start of a successor counts; where room decides, as answered."""
        fence, facts = settlement.successor, self._witness.tasks
        if fence is None or self.runs(fence) or not self.holds(fence):
            return fence is not None and self.runs(fence)
        left, claim = facts.get(settlement.fence.task), facts[fence.task]
        ended = left is not None and self.applied.get(left.id) is settlement
        if left is not None and ended and (left.pool, left.worker) == (claim.pool, claim.worker):
            self.handed_over.add(fence)
            answered_as = True
        else:
            answered_as = answered
        if answered_as:
            self._running[fence.task] = fence
        return answered_as


def fences(witness: Witness, step: Step) -> Settles:
    """I3: a settle is applied if and only if its fence is the current one."""
    settles = Settles(witness)
    if step.verb != "settle":
        return settles
    starts = step.answer.started or [None] * len(step.asked[0])
    for settlement, answer, started in zip(step.asked[0], step.answer.settled, starts, strict=True):
        if settles.settle(settlement) != (answer is Settled.APPLIED):
            raise Violated("I3", f"the settle {settlement} was {answer}")
        begun = started is Settled.APPLIED
        if settlement.successor is not None and begun != settles.start(settlement, answered=begun):
            raise Violated("I3", f"the start of {settlement.successor} was {started}")
    touched = {entry.task for entry in step.records if entry.before is Status.RUNNING}
    back = {entry.task for entry in step.records if _goes_back(entry)}
    strangers = (touched - set(settles.applied)) | (back - settles.returned)
    if strangers:
        raise Violated("I3", f"a settle touched {strangers} without their fences")
    return settles


def _goes_back(entry: Record) -> bool:
    return entry.event is Transition.RELEASE and entry.before is Status.QUEUED


def is_claim(fact: Fact, fence: Fence) -> bool:
    """Return whether a fence is that of the claim which holds a task ahead."""
    return fact.claimed and (fact.attempt + 1, fact.token) == (fence.attempt, fence.token)


def fence_of(entry: Record) -> Fence:
    """Return the fence of the attempt that a record starts."""
    return Fence(entry.task or 0, entry.attempt, entry.token)


def lanes(facts: PoolFacts, fact: Fact) -> None:
    """I4: per lane at most one lease, and starts in sequence order."""
    if not facts.spec.strict or fact.unit is None:
        return
    for other in facts.live.values():
        if other.unit == fact.unit and other.sequence < fact.sequence:
            raise Violated("I4", f"{fact.sequence} overtook {other.sequence} in {fact.unit!r}")


def attempts(fact: Fact, entry: Record) -> None:
    """I5: charged runs never exceed the attempts of the current budget."""
    if fact.charged > fact.attempts:
        raise Violated("I5", f"task {fact.id} runs for the {fact.charged}th of {fact.attempts}")
    if entry.attempt != fact.charged:
        raise Violated("I5", f"task {fact.id} says run {entry.attempt}, it is {fact.charged}")


def once(fact: Fact) -> None:
    """I5: a task with one attempt starts once, unless a redrive or its own handler asked again."""
    if fact.begun and fact.attempts == 1:
        raise Violated("I5", f"task {fact.id} has one attempt and was started twice")
    fact.begun = True


def never_began(step: Step, settlement: Settlement | None) -> bool:
    """Return whether the worker that gave a task back says that its handler was not called."""
    if settlement is not None:
        return not settlement.begun
    return step.verb == "control" and isinstance(step.asked, Disown)


def bound(facts: PoolFacts) -> None:
    """I6: outside tasks never yet claimed stay within the bound at every commit."""
    policy = facts.spec.backpressure
    if policy is None or policy.depth is None:
        return
    if len(facts.fresh) > policy.depth:
        raise Violated("I6", f"{len(facts.fresh)} wait in {facts.spec.name}, of {policy.depth}")
    if policy.per_lane is not None:
        for lane, same in Counter(fact.unit for fact in facts.fresh.values()).items():
            if same > policy.per_lane:
                raise Violated("I6", f"{same} of lane {lane!r} wait in {facts.spec.name}")
    if policy.per_key is None:
        return
    waiting = Counter(fact.key for fact in facts.fresh.values() if fact.key is not None)
    for key, same in waiting.items():
        if same > policy.per_key:
            raise Violated("I6", f"{same} of key {key!r} wait in {facts.spec.name}")


def refusals(step: Step) -> None:
    """I6: a refusal has a reason and no side effect."""
    if step.verb != "submit":
        return
    touched = {entry.task for entry in step.records}
    for batch, answer in zip(step.asked, step.answer.batches, strict=True):
        if answer.refusal is None:
            continue
        if not answer.refusal.reason or answer.admissions:
            raise Violated("I6", "a refused batch has no reason, or was taken in part")
        if touched & {new.id for new in batch.tasks} and len(step.asked) == 1:
            raise Violated("I6", "a refused batch left a trace")


def idempotency(witness: Witness, facts: PoolFacts, entry: Record) -> None:
    """I7: one idempotency key, one lineage: a new task only where the last no longer answers."""
    if entry.idempotency_key is None or entry.task is None:
        return
    name = (entry.idempotency_key, entry.run if entry.dedupe == Dedupe.RUN else None)
    holder = witness.tasks.get(facts.lineage.get(name, 0))
    facts.lineage[name] = entry.task
    if holder is None or holder.status is Status.REJECTED:
        return
    over = holder.status.terminal
    allowed = {
        Dedupe.FOREVER: False,
        Dedupe.RUN: False,
        Dedupe.SUCCESS: over and holder.status is not Status.COMPLETED,
        Dedupe.INFLIGHT: over,
        Dedupe.WAITING: holder.status is not Status.QUEUED or holder.claimed,
        Dedupe.REPLACE: holder.status is not Status.QUEUED or holder.claimed,
    }
    if not allowed[Dedupe(entry.dedupe or "forever")]:
        raise Violated(
            "I7", f"key {entry.idempotency_key!r} has tasks {holder.id} and {entry.task}"
        )


def runs(witness: Witness) -> None:
    """I8: a run is finished if and only if it is sealed and has nothing queued or running."""
    for run, live in witness.run_live.items():
        if run not in witness.run_holders:
            continue
        done = not live and not witness.run_holders[run]
        if (run in witness.run_finished) != done:
            word = "finished" if run in witness.run_finished else "not finished"
            raise Violated("I8", f"run {run} is {word} with {len(live)} live tasks")


def fairness(witness: Witness, facts: PoolFacts, entry: Record, now: float) -> None:
    """I9: between two shares that both stayed in the ring, service differs by at most a turn.

    By a turn of each, to be exact: turns in the ring lie between V and V + stride, so since any
    moment at which both were in, their service (starts x stride) differs by no more than both
    strides together. That is the bound of start-time fair queueing.
    """
    spec = facts.spec
    if spec.order.kind is not OrderKind.FAIR or spec.rate_per_key is not None:
        return
    queued = list(witness.eligible(facts, now))
    if not all(witness.reachable(fact, entry.worker) for fact in queued):
        # Shares out of this worker's reach fall behind by right; the comparison restarts.
        facts.lags.clear()
        return
    ring = {_share(fact, spec) for fact in queued}
    served = _share(witness.tasks[entry.task or 0], spec)
    facts.lags = {pair: lag for pair, lag in facts.lags.items() if ring.issuperset(pair)}
    for other in ring - {served}:
        ahead = facts.lags.get((served, other), 0) + spec.order.stride(served)
        facts.lags[served, other] = ahead
        facts.lags[other, served] = -ahead
        if ahead > spec.order.stride(served) + spec.order.stride(other):
            raise Violated("I9", f"{served!r} is {ahead} ahead of {other!r} in {spec.name}")


def _share(fact: Fact, spec: PoolSpec) -> str | None:
    return fact.unit if spec.strict else fact.share


def callbacks(entry: Record, rest: tuple[Record, ...]) -> None:
    """I10: the end of a task and the callback it calls for are one step."""
    wanted = (Transition.SUBMIT, entry.pool + CALLBACKS, entry.task)
    if not any((r.event, r.pool, r.cause) == wanted for r in rest):
        raise Violated("I10", f"task {entry.task} ended without its callback")


def run_callbacks(witness: Witness, pool: str, run: int, rest: tuple[Record, ...]) -> None:
    """I10: the end of a run and its callback are one step, and there is one for each run."""
    wanted = (Transition.SUBMIT, pool + CALLBACKS, run)
    called = [r.function for r in rest if (r.event, r.pool, r.cause) == wanted]
    call = None if run in witness.runs_called else witness.run_calls.get(run)
    if called != ([] if call is None else [call.function]):
        raise Violated("I10", f"run {run} ended with the callbacks {called}")
    witness.runs_called.update([] if call is None else [run])


def calls_when_over(witness: Witness, step: Step) -> None:
    """I10: a run takes a callback until it has ended, and then says which one it had."""
    if step.verb != "control" or not isinstance(step.asked, CallWhenOver):
        return
    run, call, known = step.asked.run, step.asked.call, witness.run_calls
    over = run in witness.run_finished or run in witness.runs_called
    if over and step.answer.count and known.get(run) != call:
        raise Violated("I10", f"run {run} took the callback {call} after its end")
    if not over and not step.answer.count:
        raise Violated("I10", f"run {run} is not over, and did not take the callback {call}")


def rates(facts: PoolFacts, fact: Fact, entry: Record, now: float) -> None:
    """I13: over any time t at most burst + t*n/per starts, as a bucket that is never overdrawn.

    By weight it is the weight each start turned out to have, from the start on.
    """
    ledgers = list(facts.all_ledgers())
    if facts.spec.rate_per_key is not None and fact.unit is not None:
        known = facts.ledgers_of_units
        ledgers.append(known.setdefault(fact.unit, Ledger(facts.spec.rate_per_key)))
    for ledger in ledgers:
        if not ledger.start(fact.id, entry.weight, now):
            rate = ledger.rate
            raise Violated("I13", f"{facts.spec.name} starts faster than {rate.n} per {rate.per} s")


def returned(facts: PoolFacts, fact: Fact, entry: Record, now: float) -> None:
    """I13: a claim that was never started gives its tokens back, up to a full bucket."""
    own = facts.ledgers_of_units.get(fact.unit or "")
    for ledger in (*facts.all_ledgers(), *(() if own is None else (own,))):
        ledger.give_back(entry.weight, now)
