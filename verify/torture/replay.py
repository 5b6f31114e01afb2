"""The audit, replayed in order: each record is held against every limit in force at that point.

The predicates of the simulations (testing/simulation/invariants.py) judge it. Here there are no
verbs and no answers, only the records of a store that many processes wrote to. It judges what
happened, one status change after another, not a sample.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

import msgspec

from millpond.core.control import Register
from millpond.core.lifecycle import Status, Transition
from millpond.core.task import CALLBACKS, Fence
from millpond.testing.simulation import invariants as judge
from millpond.testing.simulation.invariants import Violated
from millpond.testing.simulation.trace_model import BudgetFacts, Fact, PoolFacts, Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millpond.core.audit import Record
    from millpond.core.spec import BudgetSpec, PoolSpec

ENDINGS = (Transition.COMPLETE, Transition.FAIL, Transition.RETRY)
"""The ends of attempts that a handler brought about."""

LOSSES = (Transition.LOSE, Transition.EXHAUST)


class LeaseHeld(msgspec.Struct, kw_only=True):
    """A task in the hands of a worker under one fence, from its claim or start to its end."""

    fence: Fence
    pool: str
    worker: str
    since: float
    started: bool
    """Whether it was ever started, by the store's records."""
    end: Record | None = None

    @property
    def end_at(self) -> float:
        """When it ended; never, if it did not."""
        return inf if self.end is None else self.end.at

    @property
    def lost(self) -> bool:
        """Whether it was taken away from its worker."""
        return self.end is not None and self.end.event in LOSSES


class Replay:
    """What an onlooker knows who has read the audit up to some record."""

    def __init__(self, specs: Mapping[str, PoolSpec], budgets: Sequence[BudgetSpec] = ()) -> None:
        self.witness = Witness()
        known = {budget.name: BudgetFacts(budget) for budget in budgets}
        for name, spec in specs.items():
            shared = [known[budget] for budget in spec.budgets]
            self.witness.pools[name] = PoolFacts(spec, shared)
        self.broken: dict[str, list[str]] = {}
        """By invariant: what broke it, and where in the audit."""
        self.held: dict[Fence, LeaseHeld] = {}
        self.reached: Counter[str] = Counter()
        """How often each limit was reached: a limit that never was is not tested."""
        self.events: Counter[Transition] = Counter()
        self._open: dict[int, LeaseHeld] = {}
        self._latest = 0.0
        self._owed: dict[int, tuple[float, int]] = {}
        """Tasks that ended and whose callbacks were not stored yet: when, and their place."""
        self._place = 0

    def read(self, records: Sequence[Record]) -> None:
        """Take in the whole audit."""
        for record in records:
            self._place += 1
            self._take(record)
        for task, (_, place) in self._owed.items():
            self._note("I10", f"task {task} ended without its callback", place)

    def _note(self, invariant: str, what: str, place: int | None = None) -> None:
        broken = self.broken.setdefault(invariant, [])
        broken.append(f"{what} (record {place or self._place})")

    def _check(self, check: Callable[..., object], *given: object) -> None:
        try:
            check(*given)
        except Violated as violated:
            self._note(violated.invariant, str(violated).removeprefix(f"{violated.invariant}: "))

    def _take(self, record: Record) -> None:
        if record.at < self._latest:
            self._note("clock", f"the clock went back by {self._latest - record.at:g} s")
        self._latest = max(self._latest, record.at)
        if record.worker is not None:
            # Every process of the fleet knows every function, and so can run every task.
            self.witness.workers.setdefault(record.worker, Register(record.worker, 1.0))
        if record.event is None or record.task is None:
            self.witness.apply(record)
            return
        self.events[record.event] += 1
        before = self.witness.tasks.get(record.task)
        was_claimed = before is not None and before.claimed
        due = before.due if before is not None else record.due
        facts = self.witness.pools.get(record.pool)
        if facts is None:
            self._note("I2", f"task {record.task}: pool {record.pool!r} was never declared")
            return
        self._before(record, facts, was_claimed=was_claimed)
        fact = self.witness.apply(record)
        if fact is not None:
            self._after(record, facts, fact, due, was_claimed=was_claimed)

    def _before(self, record: Record, facts: PoolFacts, *, was_claimed: bool) -> None:
        """Check a record against the state before it."""
        self._check(judge.continuity, self.witness, record)
        if _takes(record, was_claimed=was_claimed):
            self._check(judge.fairness, self.witness, facts, record, record.at)
        if record.event is Transition.SUBMIT:
            self._check(judge.idempotency, self.witness, facts, record)

    def _after(
        self, record: Record, facts: PoolFacts, fact: Fact, due: float, *, was_claimed: bool
    ) -> None:
        """Hold a record against what it made true."""
        self._hold(record, was_claimed=was_claimed)
        if record.event is Transition.RETRY and record.attempt < fact.charged:
            # There is no settlement here to say that the attempt was not spent; its record does.
            self.witness.uncharge(fact.id)
        if record.event is Transition.LEASE or (was_claimed and record.event in LOSSES):
            self._check(judge.attempts, fact, record)
        if _takes(record, was_claimed=was_claimed):
            if record.at < due:
                self._note("due", f"task {fact.id} was taken {due - record.at:g} s too early")
            self._check(judge.taking, facts, fact, record, record.at)
        if record.event is Transition.LEASE:
            self._check(judge.limits, facts, fact, record.at)
        if was_claimed and record.event in (Transition.RELEASE, Transition.CANCEL):
            judge.returned(facts, fact, record, record.at)
        if record.event is Transition.SUBMIT:
            self._check(judge.bound, facts)
        self._callbacks(record, fact)
        self._note_reached(record, facts, fact)

    def _callbacks(self, record: Record, fact: Fact) -> None:
        """I10: the end of a task and the callback it calls for are one step."""
        if record.event is Transition.SUBMIT and record.pool.endswith(CALLBACKS):
            ended = self._owed.pop(record.cause or 0, None)
            if ended is None:
                self._note("I10", f"callback {record.task} of a task that calls for none")
            elif ended[0] != record.at:
                self._note("I10", f"the callback of task {record.cause} was stored later than it")
        elif fact.status.terminal and record.callback:
            self._owed[fact.id] = record.at, self._place

    def _hold(self, record: Record, *, was_claimed: bool) -> None:
        """Track the valid fence of a task; checks I3 as far as records show."""
        task = record.task or 0
        held = self._open.get(task)
        if record.event is Transition.CLAIM or (
            record.event is Transition.LEASE and not was_claimed
        ):
            attempt = record.attempt + (record.event is Transition.CLAIM)
            fence = Fence(task, attempt, record.token)
            if fence in self.held:
                self._note("I3", f"{fence} was given twice")
            self._open[task] = self.held[fence] = LeaseHeld(
                fence=fence,
                pool=record.pool,
                worker=record.worker or "",
                since=record.at,
                started=record.event is Transition.LEASE,
            )
            return
        if held is None:
            return
        if record.token != held.fence.token:
            self._note("I3", f"{record.event} of task {task} is not of the fence in force")
        if record.event is Transition.LEASE:
            held.started = True
        else:
            held.end = record
            del self._open[task]

    def _note_reached(self, record: Record, facts: PoolFacts, fact: Fact) -> None:
        spec = facts.spec
        if record.event is Transition.LEASE and len(facts.running) == spec.max_concurrent:
            self.reached[f"{spec.name}: all {spec.max_concurrent} slots taken"] += 1
        if record.event in (Transition.LEASE, Transition.CLAIM):
            limit = spec.unit_limit
            if limit is not None and fact.unit is not None and facts.held_in(fact.unit) == limit:
                self.reached[f"{spec.name}: all {limit} of a key or lane taken"] += 1
            for ledger in facts.all_ledgers():
                if ledger.left(record.at) < 1.0:
                    self.reached[f"{spec.name}: rate of {ledger.rate.n} used up"] += 1
        if record.event is Transition.CLAIM:
            self.reached[f"{spec.name}: claimed ahead"] += 1
        depth = spec.backpressure.depth if spec.backpressure is not None else None
        if record.event is Transition.SUBMIT and len(facts.fresh) == depth:
            self.reached[f"{spec.name}: bound of {depth} reached"] += 1

    def status(self, task: int) -> Status | None:
        """Return where a task is, by the audit."""
        fact = self.witness.tasks.get(task)
        return None if fact is None else fact.status


def _takes(record: Record, *, was_claimed: bool) -> bool:
    """Return whether a record takes a task from the queue, to start it or to hold it."""
    return record.event is Transition.CLAIM or (
        record.event is Transition.LEASE and not was_claimed
    )
