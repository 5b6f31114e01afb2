"""Budgets: one limit and one set of rates that several pools share.

The used part of a budget is the number of running tasks in its pools: there is no other count.

Pools that wait for a budget queue for it. Each pool that got nothing has a slot reserved, or tokens
if it waits for tokens; while others wait, no pool takes more than an even share. A waiting pool is
woken when there is room, and loses its place if it does not claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core import bucket
from millpond.core.lease import STARVED_FOR
from millpond.core.plan import sooner
from millpond.core.ticks import rounded
from millpond.errors import ConfigError
from millpond.store.protocol import BudgetView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.bucket import Bucket
    from millpond.core.control import DeclareBudget, ResizeBudget
    from millpond.core.spec import BudgetSpec, PoolSpec
    from millpond.core.task import NewTask, Task
    from millpond.store.verbs.tables import PoolTable, Tables
    from millpond.store.verbs.tables.verb import VerbTables

SERVED = 1 << 52
"""The place of a pool that got something and wants more: behind all that got nothing."""


class Wait(msgspec.Struct, array_like=True):
    """A pool that waits for a budget."""

    place: int
    """Its place in the queue: the lowest is next."""
    tokens_at: float | None = None
    """When it has enough tokens, if it waits for tokens."""
    offered_at: float | None = None
    """When it was woken because there is room; None = not since it asked."""

    def counts(self, now: float) -> bool:
        """Return whether it still waits: it was not woken, or only recently."""
        offered_at = self.offered_at if self.tokens_at is None else self.tokens_at
        return offered_at is None or rounded(offered_at + STARVED_FOR) > now


class BudgetTable:
    """One budget: its settings, the state of its rates, its pools and which of them wait."""

    __slots__ = ("buckets", "declared", "name", "operator_limit", "pools", "spec", "waiting")

    def __init__(self, spec: BudgetSpec) -> None:
        self.name = spec.name
        self.spec = self.declared = spec
        self.operator_limit: int | None = None
        """The limit that an operator set by resize; it stays until reset."""
        self.buckets: list[Bucket] = bucket.fresh(spec.rates)
        self.pools: dict[str, float] = {}
        """The pools that share it, and since when."""
        self.waiting: dict[str, Wait] = {}


# Commands


def declare(tables: Tables, command: DeclareBudget, now: float) -> int:
    """Declare a budget, or apply a declaration that differs from the last one."""
    budget = tables.budgets.get(command.spec.name)
    if budget is None:
        budget = BudgetTable(command.spec)
        tables.budgets.add(budget.name, budget)
    elif budget.declared == command.spec:
        return 0
    else:
        budget.declared = command.spec
        _respec(tables, budget, now)
    _record(tables, budget, "declare", now)
    return 1


def resize(tables: Tables, command: ResizeBudget, now: float) -> int:
    """Set the limit of a budget for an operator, or reset it to its declaration."""
    budget = tables.budgets.get(command.budget)
    if budget is None:
        raise ConfigError("budget", command.budget, "was never declared")
    budget.operator_limit = command.max_concurrent
    _respec(tables, budget, now)
    _record(tables, budget, "reset" if command.max_concurrent is None else "resize", now)
    return 1


def _respec(tables: Tables, budget: BudgetTable, now: float) -> None:
    old, limit = budget.spec, budget.operator_limit
    budget.spec = budget.declared
    if limit is not None:
        budget.spec = msgspec.structs.replace(budget.declared, max_concurrent=limit)
    budget.buckets = bucket.taken_over(old.rates, budget.buckets, budget.spec.rates, now)
    _offer(tables, budget, "", now)
    for pool in budget.pools:
        tables.wake(pool, now)


def _record(tables: Tables, budget: BudgetTable, word: str, now: float) -> None:
    limit = budget.spec.max_concurrent
    tables.record_command(f"budget {budget.name}", f"{word} max_concurrent={limit}", now)


def check_known(tables: Tables, spec: PoolSpec) -> None:
    """Refuse a pool that names an undeclared budget."""
    for name in spec.budgets:
        if tables.budgets.get(name) is None:
            raise ConfigError("budgets", name, "was not declared; declare the budget first")


def share(tables: Tables, pool: PoolTable, before: PoolSpec | None, now: float) -> None:
    """Add a pool to the budgets it names, and remove it from the others."""
    old = () if before is None else before.budgets
    for budget in (tables.budgets.require(name) for name in old if name not in pool.spec.budgets):
        budget.pools.pop(pool.name, None)
        budget.waiting.pop(pool.name, None)
        _offer(tables, budget, pool.name, now)
    for budget in _of(tables, pool):
        # No task of a new pool began before: also one that begins at this very moment is charged.
        budget.pools.setdefault(pool.name, 0.0 if before is None else now)


# Claims


def _of(tables: VerbTables, pool: PoolTable) -> list[BudgetTable]:
    return [tables.budgets.require(name) for name in pool.spec.budgets]


def running(tables: Tables, budget: BudgetTable) -> int:
    """Return the used part of a budget: the running tasks of its pools."""
    return sum(tables.running_in(name) for name in budget.pools)


def room(tables: Tables, pool: PoolTable, now: float) -> int:
    """Return how many more tasks the budgets of a pool let it start, apart from their rates."""
    return min(_room(tables, budget, pool, now) for budget in _of(tables, pool))


def _room(tables: Tables, budget: BudgetTable, pool: PoolTable, now: float) -> int:
    limit = budget.spec.max_concurrent
    free = limit - running(tables, budget)
    others = _others(budget, pool, now)
    if free < 1 or not others:
        return free
    before = _before(budget, pool, others)
    if any(wait.tokens_at is not None for wait in before):
        return 0
    return min(free - len(before), _share(budget, others) - pool.running)


def _share(budget: BudgetTable, others: list[Wait]) -> int:
    """Return the even share of a budget while other pools wait for it."""
    return -(-budget.spec.max_concurrent // (1 + len(others)))


def _others(budget: BudgetTable, pool: PoolTable, now: float) -> list[Wait]:
    """Return the other pools that wait for a budget."""
    return [wait for name, wait in budget.waiting.items() if name != pool.name and wait.counts(now)]


def _before(budget: BudgetTable, pool: PoolTable, others: list[Wait]) -> list[Wait]:
    """Return the waiting pools that come before this one."""
    own = budget.waiting.get(pool.name)
    place = SERVED if own is None else own.place
    return [wait for wait in others if wait.place < place]


def ready_at(tables: Tables, pool: PoolTable, weight: int, now: float) -> float:
    """Return when the rates of all budgets of a pool allow a start of `weight`."""
    return max(
        bucket.ready_at(budget.spec.rates, budget.buckets, weight, now)
        for budget in _of(tables, pool)
    )


def next_room(tables: Tables, pool: PoolTable, now: float) -> float | None:
    """Return when room may come by time alone; None = only when a task ends."""
    moment: float | None = None
    for budget in _of(tables, pool):
        if budget.spec.max_concurrent - running(tables, budget) < 1:
            return None
        for wait in _others(budget, pool, now):
            offered_at = wait.offered_at if wait.tokens_at is None else wait.tokens_at
            if offered_at is not None:
                moment = sooner(moment, rounded(offered_at + STARVED_FOR))
    return moment


def charge(tables: Tables, pool: PoolTable, weight: int, now: float) -> None:
    """Charge a start to the rates of every budget of its pool."""
    for budget in _of(tables, pool):
        bucket.charge(budget.spec.rates, budget.buckets, weight, now)


def note_waiting(
    tables: Tables, pool: PoolTable, task: Task | None, now: float, *, got: int
) -> None:
    """Note that a pool waits for a budget to start `task`; None = it no longer waits."""
    for budget in _of(tables, pool):
        before = budget.waiting.pop(pool.name, None)
        if task is not None:
            _queue_up(tables, budget, pool, task, before, now, got=got)
        if before is not None and _yields(before, budget.waiting.get(pool.name)):
            # The pools behind it may come first now.
            _offer(tables, budget, pool.name, now)


def note_served(tables: Tables, pool: PoolTable, now: float) -> None:
    """Move a pool that got something behind those that got nothing."""
    for budget in _of(tables, pool):
        wait = budget.waiting.get(pool.name)
        if wait is not None and wait.place != SERVED:
            budget.waiting[pool.name] = Wait(SERVED)
            _offer(tables, budget, pool.name, now)


def _yields(before: Wait, after: Wait | None) -> bool:
    if after is None or after.place != before.place:
        return True
    return before.tokens_at is not None and after.tokens_at is None


def _queue_up(
    tables: Tables,
    budget: BudgetTable,
    pool: PoolTable,
    task: Task,
    before: Wait | None,
    now: float,
    *,
    got: int,
) -> None:
    """Queue a pool if this budget keeps it from a start, and wake the pools before it."""
    tokens_at = bucket.ready_at(budget.spec.rates, budget.buckets, task.new.weight, now)
    if before is not None:
        budget.waiting[pool.name] = before
    room = _room(tables, budget, pool, now)
    budget.waiting.pop(pool.name, None)
    if tokens_at <= now and room > 0:
        return
    place = SERVED
    if not got and pool.running < _share(budget, _others(budget, pool, now)):
        known = before is not None and before.place != SERVED and before.counts(now)
        place = before.place if before is not None and known else _last_place(budget)
    wait = budget.waiting[pool.name] = Wait(place, tokens_at if tokens_at > now else None)
    if budget.spec.max_concurrent > running(tables, budget):
        # The free room belongs to the pools before it.
        wait.offered_at = None if before is None or got else before.offered_at
        _offer(tables, budget, pool.name, now, again=False)


def _last_place(budget: BudgetTable) -> int:
    places = (wait.place for wait in budget.waiting.values() if wait.place != SERVED)
    return 1 + max(places, default=0)


def full(tables: Tables, pool: PoolTable) -> tuple[tuple[str, int, int], ...]:
    """Return the exhausted budgets of a pool: name, running, limit."""
    taken = ((budget, running(tables, budget)) for budget in _of(tables, pool))
    return tuple(
        (budget.name, count, budget.spec.max_concurrent)
        for budget, count in taken
        if count >= budget.spec.max_concurrent
    )


def view(tables: Tables, name: str) -> BudgetView | None:
    """Return a budget as it is now, or None if it was never declared."""
    budget = tables.budgets.get(name)
    if budget is None:
        return None
    return BudgetView(
        spec=budget.spec,
        declared=budget.declared,
        pools=tuple(sorted(budget.pools)),
        running=running(tables, budget),
        waiting=tuple(sorted(budget.waiting, key=lambda pool: (budget.waiting[pool].place, pool))),
    )


def views(tables: Tables, names: Sequence[str]) -> tuple[BudgetView, ...]:
    """Return the budgets of these names as they are now."""
    return tuple(one for name in names if (one := view(tables, name)) is not None)


# Ends


def freed(tables: VerbTables, pool: PoolTable, now: float) -> None:
    """Offer freed room of a pool's budgets to the other pools that wait for it."""
    for budget in _of(tables, pool):
        _offer(tables, budget, pool.name, now)


def _offer(
    tables: VerbTables, budget: BudgetTable, besides: str, now: float, *, again: bool = True
) -> None:
    """Wake all waiting pools but one, and start the time within which they must claim."""
    for name, wait in budget.waiting.items():
        if name != besides and (again or wait.offered_at is None):
            wait.offered_at = now if wait.offered_at is None else wait.offered_at
            tables.wake(name, now)


def settle_weight(
    tables: Tables, pool: PoolTable, task: Task, actual: int, *, since: float, now: float
) -> None:
    """Correct the charge of an attempt in the budgets of its pool to its actual weight."""
    for budget in _of(tables, pool):
        if since > budget.pools.get(pool.name, now):
            bucket.correct(
                budget.spec.rates, budget.buckets, task.new.weight, actual, since=since, now=now
            )
            _offer(tables, budget, "", now)


def weigh(tables: Tables, pool: PoolTable) -> bool:
    """Return whether a budget of a pool has a rate by weight."""
    return any(rate.of == "weight" for budget in _of(tables, pool) for rate in budget.spec.rates)


# Admission


def too_heavy(tables: Tables, pool: PoolTable, new: NewTask) -> int | None:
    """Return the burst of a budget that the weight of a task exceeds, or None."""
    rates = (rate for budget in _of(tables, pool) for rate in budget.spec.rates)
    return next((rate.depth for rate in rates if rate.cost(new.weight) > rate.depth), None)


def have_room_for(tables: Tables, pool: PoolTable, fresh: Sequence[NewTask], now: float) -> bool:
    """Return whether a batch could start now, behind what waits in the pool already."""
    count = pool.backlog.ready + len(fresh)
    weight = pool.backlog.ready + sum(new.weight for new in fresh)
    return room(tables, pool, now) >= count and all(
        _allows(budget, count, weight, now) for budget in _of(tables, pool)
    )


def _allows(budget: BudgetTable, count: int, weight: int, now: float) -> bool:
    for rate, state in zip(budget.spec.rates, budget.buckets, strict=True):
        cost = weight if rate.of == "weight" else count
        if cost > rate.depth or state.ready_at(rate, cost, now) > now:
            return False
    return True
