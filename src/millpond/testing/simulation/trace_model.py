"""A witness: what an onlooker knows who has seen every verb, its answer and the audit.

It keeps plain facts in plain dicts, by code that shares nothing with the queues it watches. The
invariants (invariants.py) are predicates over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core import control as orders
from millpond.core.audit import Record
from millpond.core.lifecycle import Status, Transition
from millpond.core.task import CALLBACKS, EVERY, Call, with_misfit
from millpond.core.ticks import rounded
from millpond.testing.simulation.rate_ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.core.run import NewRun, RunView
    from millpond.core.settle import Settlement
    from millpond.core.spec import BudgetSpec, PoolSpec


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One verb of a history: arguments, answer and audit records."""

    verb: str
    asked: Any
    answer: Any
    records: tuple[Record, ...]
    now: float


class Fact(msgspec.Struct, kw_only=True):
    """What the audit says of one task."""

    id: int
    pool: str
    status: Status
    unit: str | None
    key: str | None
    share: str | None
    sequence: int
    due: float
    attempts: int
    fresh: bool
    run: int | None
    owner: str | None
    function: str = ""
    idempotency_key: str | None = None
    dedupe: str = "forever"
    attempt: int = 0
    token: int = 0
    charged: int = 0
    begun: bool = False
    """Whether an attempt of its current budget may have begun."""
    worker: str | None = None
    claimed: bool = False
    """Held ahead by `worker`: queued, with the fence of its next attempt."""
    misfits: tuple[str, ...] = ()
    """Signatures of its function whose workers gave it back: they could not read its arguments."""
    steps: dict[str, bytes] = {}
    call: Call | None = None
    """What the last update or replacement made it call; None = as submitted."""


class BudgetFacts:
    """What is known of one budget."""

    def __init__(self, spec: BudgetSpec) -> None:
        self.spec = self.declared = spec
        self.ledgers = [Ledger(rate) for rate in spec.rates]
        self.pools: list[PoolFacts] = []

    def running(self) -> int:
        """Return how many tasks run in its pools."""
        return sum(len(facts.running) for facts in self.pools)


class PoolFacts:
    """What is known of one pool."""

    def __init__(self, spec: PoolSpec, budgets: Sequence[BudgetFacts] = ()) -> None:
        self.budgets = budgets
        for budget in budgets:
            budget.pools.append(self)
        self.spec = spec
        self.declared = spec
        self.limit_of_operator: int | None = None
        self.paused = False
        self.paused_units: set[str] = set()
        self.live: dict[int, Fact] = {}
        self.running: dict[int, Fact] = {}
        self.claimed: dict[int, Fact] = {}
        self.ran = 0
        """How many ran when the verb began."""
        self.fresh: dict[int, Fact] = {}
        self.lineage: dict[tuple[str, int | None], int] = {}
        self.lags: dict[tuple[str | None, str | None], int] = {}
        self.ledgers = [Ledger(rate) for rate in spec.rates]
        self.ledgers_of_units: dict[str, Ledger] = {}
        self.held_until: dict[str | None, float] = {}

    def all_ledgers(self) -> Iterator[Ledger]:
        """Yield those of the pool and of its budgets."""
        yield from self.ledgers
        for budget in self.budgets:
            yield from budget.ledgers

    def stopped(self, unit: str | None, now: float) -> bool:
        """Return whether a lane or key is paused or held back."""
        return unit in self.paused_units or self.held_until.get(unit, 0.0) > now

    def lets_start(self, fact: Fact) -> bool:
        """Return whether the limit of a lane or key leaves room for one of its tasks."""
        if self.spec.strict:
            mates = (other for other in self.live.values() if other.unit == fact.unit)
            return all(other.sequence >= fact.sequence for other in mates)
        limit = self.spec.unit_limit
        return limit is None or self.held_in(fact.unit) < limit

    def held_in(self, unit: str | None) -> int:
        """Return how many tasks of a lane or key run or are held ahead."""
        held = (*self.running.values(), *self.claimed.values())
        return sum(1 for fact in held if fact.unit == unit)


class Witness:
    """Everything seen so far."""

    def __init__(self) -> None:
        self.pools: dict[str, PoolFacts] = {}
        self.budgets: dict[str, BudgetFacts] = {}
        self.tasks: dict[int, Fact] = {}
        self.prunable: set[int] = set()
        self.workers: dict[str, orders.Register] = {}
        self.could_not_run: set[tuple[str | None, str]] = set()
        """Which worker gave back which function, because it did not know it."""
        self.run_live: dict[int, set[int]] = {}
        self.run_holders: dict[int, set[str]] = {}
        self.run_finished: set[int] = set()
        self.run_calls: dict[int, Call] = {}
        """The callbacks that runs have."""
        self.runs_called: set[int] = set()
        """Runs whose callback was submitted."""

    def before(self, step: Step) -> None:
        """Apply a verb's arguments before its records."""
        for facts in self.pools.values():
            facts.ran = len(facts.running)
        if step.verb == "settle":
            for settlement in (one for one in step.asked[0] if one.parked):
                self._given_back(settlement)
        if step.verb == "submit":
            for batch, answer in zip(step.asked, step.answer.batches, strict=True):
                if answer.run is not None:
                    self._see_run(answer.run, batch.run)
        elif step.verb == "control":
            self._order(step.asked, step.now)
            if isinstance(step.asked, orders.CallWhenOver) and step.answer.count:
                self.run_calls[step.asked.run] = step.asked.call

    def _given_back(self, settlement: Settlement) -> None:
        """Note who could not run a task: for lack of its function, or with these arguments."""
        fact = self.tasks.get(settlement.fence.task)
        if fact is None or fact.owner is not None:
            return
        if not settlement.misfit:
            self.could_not_run.add((fact.worker, fact.function))
        elif settlement.fence.token == fact.token:
            joined = self.workers.get(fact.worker or "")
            signature = joined.signatures.get(fact.function, "") if joined is not None else ""
            fact.misfits = with_misfit(fact.misfits, signature)

    def _see_run(self, run: RunView, new: NewRun) -> None:
        if not run.resumed:
            self.run_holders[run.id] = set()
            self.run_live.setdefault(run.id, set())
            if new.on_complete is not None:
                self.run_calls[run.id] = new.on_complete
        if new.holder is not None and run.id not in self.run_finished:
            self.run_holders[run.id].add(new.holder)

    def _order(self, order: orders.Command, now: float) -> None:
        match order:
            case orders.Declare(spec):
                if spec.name not in self.pools:
                    shared = [self.budgets[name] for name in spec.budgets]
                    self.pools[spec.name] = PoolFacts(spec, shared)
            case orders.DeclareBudget(budget):
                self.budgets.setdefault(budget.name, BudgetFacts(budget))
            case orders.ResizeBudget(name, limit):
                known = self.budgets[name]
                in_force = known.declared.max_concurrent if limit is None else limit
                known.spec = msgspec.structs.replace(known.spec, max_concurrent=in_force)
            case orders.Resize(pool, limit):
                facts = self.pools[pool]
                facts.limit_of_operator = limit
                in_force = facts.declared.max_concurrent if limit is None else limit
                facts.spec = msgspec.structs.replace(facts.spec, max_concurrent=in_force)
            case orders.Pause(pool, unit) | orders.Resume(pool, unit):
                self._pause(self.pools[pool], unit, paused=isinstance(order, orders.Pause))
            case orders.Hold(pool, seconds, unit):
                self._hold(self.pools[pool], unit, rounded(now + seconds))
            case orders.Redrive(tasks, of):
                self._tried_again(tasks, of)
            case orders.Register():
                self._joined(order)
            case orders.Deregister(worker) | orders.DeclareDead(worker):
                self._gone(worker)
            case orders.Seal(run, holder):
                self.run_holders.get(run, set()).discard(holder)
            case _:
                pass

    def _tried_again(self, tasks: Sequence[int], of: str | None) -> None:
        """Forget who could not read the arguments of tasks that an operator redrives."""
        for fact in (self.tasks[one] for one in tasks if one in self.tasks):
            if of is None or fact.pool == of:
                fact.misfits = ()

    def _joined(self, order: orders.Register) -> None:
        before = self.workers.setdefault(order.worker, order)
        if before.functions and order.functions:
            known = tuple({*before.functions, *order.functions})
            signatures = {**before.signatures, **order.signatures}
            self.workers[order.worker] = msgspec.structs.replace(
                before, functions=known, signatures=signatures
            )
            self.could_not_run -= {
                (order.worker, name) for name in set(known) - set(before.functions)
            }

    def _pause(self, facts: PoolFacts, unit: str | None, *, paused: bool) -> None:
        if not paused:
            facts.held_until.pop(unit, None)
        if unit is None:
            facts.paused = paused
        elif paused:
            facts.paused_units.add(unit)
        else:
            facts.paused_units.discard(unit)

    def _hold(self, facts: PoolFacts, unit: str | None, until: float) -> None:
        facts.held_until[unit] = max(facts.held_until.get(unit, 0.0), until)

    def _gone(self, worker: str) -> None:
        gone = self.workers.pop(worker, None)
        owner = gone.owner if gone else None
        if owner is None or any(w.owner == owner for w in self.workers.values()):
            return
        for holders in self.run_holders.values():
            holders.discard(owner)

    def after(self, step: Step, known_workers: frozenset[str]) -> None:
        """Take in what a verb did that its records do not say: forgotten tasks, lost workers."""
        for worker in set(self.workers) - known_workers:
            self._gone(worker)
        if step.verb == "control" and isinstance(step.asked, orders.Prune):
            pruned = (step.asked.pool, step.asked.pool + CALLBACKS)
            self.prunable |= {i for i, f in self.tasks.items() if f.pool in pruned}

    def apply(self, entry: Record) -> Fact | None:
        """Take in one record; return the task it is about, after it."""
        if entry.event is None or entry.task is None:
            self._record_answer(entry)
            return None
        if entry.event is Transition.REFUSE:
            return None
        fact = self.tasks.get(entry.task)
        if fact is None or entry.event is Transition.SUBMIT:
            fact = self.tasks[entry.task] = _new_fact(entry)
        self._charge(fact, entry)
        fact.status = entry.after or Status.QUEUED
        fact.due = entry.due
        fact.attempt = entry.attempt
        fact.token = entry.token
        fact.worker = entry.worker
        fact.claimed = entry.event is Transition.CLAIM
        fact.fresh = entry.fresh and fact.status is Status.QUEUED
        fact.unit = entry.lane if entry.lane is not None else entry.key
        fact.sequence = entry.sequence
        self._index(fact)
        return fact

    def _record_answer(self, entry: Record) -> None:
        """Take in a record that is no arrow."""
        detail, facts = entry.detail or "", self.pools.get(entry.pool)
        if entry.run is not None and detail == "run finished":
            self.run_finished.add(entry.run)
        if facts is None:
            return
        if detail.startswith("hold "):
            self._hold(facts, entry.key, entry.due)
        elif facts.spec.adaptive is not None and detail.startswith(("adapt ", "reset ")):
            limit = int(detail.rpartition("=")[2])
            facts.spec = msgspec.structs.replace(facts.spec, max_concurrent=limit)
        elif detail == "weight":
            for ledger in facts.all_ledgers():
                ledger.correct(entry.task or 0, entry.weight, entry.at)

    def _charge(self, fact: Fact, entry: Record) -> None:
        """Count charged runs independently of what the record claims."""
        if entry.event is Transition.LEASE:
            fact.charged += 1
        elif entry.event is Transition.REDRIVE:
            fact.charged = 0
            fact.begun = False
            fact.steps = {}
        elif entry.event is Transition.UPDATE:
            self._update(fact, entry)
        elif entry.event is Transition.RELEASE and entry.before is Status.RUNNING:
            fact.charged -= 1
        elif fact.claimed and entry.event in (Transition.LOSE, Transition.EXHAUST):
            # It may have started when its worker was lost.
            fact.charged += 1

    def _update(self, fact: Fact, entry: Record) -> None:
        """Take in an update: other arguments make a task new work."""
        fact.misfits = ()
        fact.attempts = entry.attempts
        if (entry.detail or "").startswith(("arguments", "replace")):
            fact.charged = 0
            fact.begun = False
            fact.steps = {}

    def uncharge(self, task: int) -> None:
        """Take back the charge of a retry that asked not to spend an attempt."""
        self.tasks[task].charged -= 1
        self.tasks[task].begun = False

    def _index(self, fact: Fact) -> None:
        facts = self.pools.get(fact.pool)
        if facts is not None:
            _put(facts.live, fact, present=not fact.status.terminal)
            _put(facts.running, fact, present=fact.status is Status.RUNNING)
            _put(facts.claimed, fact, present=fact.claimed)
            _put(facts.fresh, fact, present=fact.fresh)
            if fact.status is not Status.RUNNING and not fact.claimed:
                for ledger in facts.all_ledgers():
                    ledger.close(fact.id)
        if fact.run is not None:
            live = self.run_live.setdefault(fact.run, set())
            if fact.status.terminal:
                live.discard(fact.id)
            else:
                live.add(fact.id)
                self.run_finished.discard(fact.run)

    def eligible(self, facts: PoolFacts, now: float) -> Iterator[Fact]:
        """Yield the queued tasks that some worker could have started at `now`."""
        for fact in facts.live.values():
            if fact.status is not Status.QUEUED or fact.claimed or fact.due > now:
                continue
            if facts.stopped(fact.unit, now):
                continue
            if fact.unit is None or facts.lets_start(fact):
                yield fact

    def reachable(self, fact: Fact, worker: str | None) -> bool:
        """Return whether this very worker could start a task: its code is there and known."""
        joined = self.workers.get(worker or "")
        if joined is None:
            return False
        if fact.owner is not None:
            return fact.owner == joined.owner
        known = joined.functions is None or fact.function in joined.functions
        signature = joined.signatures.get(fact.function, "")
        fits = signature not in fact.misfits and EVERY not in fact.misfits
        return known and fits and (worker, fact.function) not in self.could_not_run


def _put(index: dict[int, Fact], fact: Fact, *, present: bool) -> None:
    if present:
        index[fact.id] = fact
    else:
        index.pop(fact.id, None)


def _new_fact(entry: Record) -> Fact:
    return Fact(
        id=entry.task or 0,
        pool=entry.pool,
        status=Status.QUEUED,
        unit=entry.lane if entry.lane is not None else entry.key,
        key=entry.key,
        share=entry.share,
        sequence=entry.sequence,
        due=entry.due,
        attempts=entry.attempts,
        fresh=entry.fresh,
        run=entry.run,
        owner=entry.owner,
        function=entry.function,
        idempotency_key=entry.idempotency_key,
        dedupe=entry.dedupe or "forever",
    )
