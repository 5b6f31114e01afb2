"""Seeded simulation over any store: one number makes a whole history, and makes it again."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import msgspec

from millpond.core.adaptive import adaptive
from millpond.core.rate import Rate
from millpond.core.spec import (
    Backpressure,
    BudgetSpec,
    Order,
    OrderKind,
    PoolSpec,
    bounded,
    fail_fast,
    fair_round_robin,
    fifo,
    lifo,
    priority,
    ring_buffer,
)
from millpond.errors import MillpondError
from millpond.store.memory import MemoryStore
from millpond.testing.simulation.history import Stage, Verb, replay, trace
from millpond.testing.simulation.invariants import Violated
from millpond.testing.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.core.lifecycle import Status, Transition
    from millpond.store.protocol import Store

    MakeSpecs = Callable[[random.Random], tuple[list[PoolSpec], list[BudgetSpec]]]


FAILURES = (Violated, MillpondError, LookupError, ValueError, TypeError, AttributeError)
"""What a broken promise, or a broken store, looks like."""


STEPS = 200

FLOW_SEEDS, FLOW_STEPS = (5, 8, 10, 56), 100
"""Worlds of `flow_specs` in which keys and pools are throttled, too, within so many steps."""


class Lived(msgspec.Struct, kw_only=True):
    """What one history was like."""

    seed: int
    verbs: int
    workers: int
    producers: int
    faults: frozenset[str]
    arrows: dict[tuple[Status | None, Transition], int]
    history: list[Verb]


class Broken(Exception):
    """A seed found a broken promise."""

    def __init__(self, seed: int, cause: BaseException, history: list[Verb]) -> None:
        super().__init__(seed, cause, history)
        self.seed = seed
        self.cause = cause
        self.history = history

    def __str__(self) -> str:
        return f"seed {self.seed}, verb {len(self.history)}: {self.cause}"


def memory_store() -> Store:
    """Return a fresh memory store that keeps its whole audit."""
    return MemoryStore(audit_limit=None)


def simulate(
    seed: int, make_store: Callable[[], Store] = memory_store, *, steps: int = STEPS
) -> Lived:
    """Live through the history of `seed`; raise Broken at the first broken promise."""
    return asyncio.run(simulate_on(seed, make_store(), steps=steps))


async def simulate_on(
    seed: int, store: Store, *, steps: int = STEPS, make_specs: MakeSpecs | None = None
) -> Lived:
    """Live through the history of `seed` on `store`, which must be fresh."""
    dice = random.Random(seed)
    stage = Stage(store)
    specs, budgets = (make_specs or some_specs)(dice)
    world = World(stage, dice, specs, budgets)
    try:
        await world.open()
        for _ in range(steps):
            await world.step()
        await world.settle_down()
    except FAILURES as cause:
        raise Broken(seed, cause, stage.history) from cause
    return Lived(
        seed=seed,
        verbs=world.verbs,
        workers=len(world.workers),
        producers=len(world.producers),
        faults=frozenset(world.faults),
        arrows=stage.judge.arrows,
        history=stage.history,
    )


def some_specs(dice: random.Random) -> tuple[list[PoolSpec], list[BudgetSpec]]:
    """Make up two pools, and now and then a budget that they share."""
    return shared([some_spec(dice, name) for name in ("alpha", "beta")], dice)


def shared(specs: list[PoolSpec], dice: random.Random) -> tuple[list[PoolSpec], list[BudgetSpec]]:
    """Let pools share a budget, now and then."""
    if dice.random() < 0.7:
        return specs, []
    budget = BudgetSpec(name="both", max_concurrent=dice.randint(1, 6), rates=some_rates(dice))
    sharing = [msgspec.structs.replace(spec, budgets=("both",), prefetch=0) for spec in specs]
    return sharing, [budget]


def flow_specs(dice: random.Random) -> tuple[list[PoolSpec], list[BudgetSpec]]:
    """Make up two pools that share a budget, with rates of every kind, wherever they are."""
    rates = (Rate(4, per=1.0, burst=3), Rate(6, per=1.0, burst=5, of="weight"))
    budget = BudgetSpec(
        name="both", max_concurrent=dice.randint(2, 4), rates=dice.choice((rates, rates[1:]))
    )
    made = [some_spec(dice, name) for name in ("alpha", "beta")]
    first, second = (
        msgspec.structs.replace(spec, budgets=("both",), prefetch=0, rates=dice.choice(some))
        for spec, some in zip(made, ((rates, rates[1:]), (rates[:1], ())), strict=True)
    )
    per_key = Rate(2, per=1.0, burst=dice.randint(1, 2))
    return [first, msgspec.structs.replace(second, rate_per_key=per_key)], [budget]


def some_spec(dice: random.Random, name: str) -> PoolSpec:
    """Make up a pool."""
    strict = dice.random() < 0.25
    lanes = dice.choice((None, 2, 3)) if strict else None
    weights = {"acme": 2.0, "bolt": 0.5} if dice.random() < 0.3 else {}
    orders: tuple[Order, ...] = (fifo(), fair_round_robin("key", weights))
    if not strict:
        orders += (fair_round_robin(), priority(), priority(aging=2.0), lifo())
    order = dice.choice(orders)
    limit = dice.randint(1, lanes or 5)
    adapts = adaptive(1, lanes or 5, initial=limit) if dice.random() < 0.2 else None
    return PoolSpec(
        name=name,
        max_concurrent=limit,
        adaptive=adapts,
        order=order,
        backpressure=some_backpressure(dice),
        max_per_key=None if strict else dice.choice((None, 1, 2)),
        rates=some_rates(dice),
        rate_per_key=Rate(2, per=1.0, burst=1) if dice.random() < 0.1 else None,
        prefetch=0 if strict or order.kind is OrderKind.LIFO else dice.choice((0, 2, 3)),
        lanes=lanes,
        ordered=strict and lanes is None,
    )


def some_rates(dice: random.Random) -> tuple[Rate, ...]:
    """Make up rates: mostly none, now and then two, of starts and of weight."""
    starts = (Rate(4, per=1.0, burst=3),) if dice.random() < 0.35 else ()
    weight = (Rate(6, per=1.0, burst=5, of="weight"),) if dice.random() < 0.25 else ()
    return starts + weight


def some_backpressure(dice: random.Random) -> Backpressure | None:
    """Make up a bound, or none."""
    per_key = dice.choice((None, 2))
    depth = dice.randint(2, 6)
    choices: tuple[Backpressure | None, ...] = (
        None,
        bounded(depth, "block_submitter", per_key),
        bounded(depth, "fail_submitter", per_key),
        bounded(depth, "drop_oldest", per_key),
        bounded(depth, "drop_newest", per_key),
        ring_buffer(depth),
        fail_fast(),
    )
    return dice.choice(choices)


async def same_story(history: list[Verb], one: Store, other: Store) -> None:
    """I12: the same history gives the same trace on two stores."""
    first = trace(await replay(one, history, judged=False))
    second = trace(await replay(other, history, judged=False))
    for index, (mine, theirs) in enumerate(zip(first, second, strict=True)):
        if mine != theirs:
            raise Violated("I12", f"verb {index}: {mine} on one store, {theirs} on the other")


def breaks(history: list[Verb], make_store: Callable[[], Store] = memory_store) -> str | None:
    """Return which promise a history breaks when it is replayed, as far as the judge can see."""
    try:
        asyncio.run(replay(make_store(), history))
    except FAILURES as failure:
        return kind_of(failure)
    return None


def kind_of(failure: BaseException) -> str:
    """Return what kind of failure this is: an invariant, or the type of an error."""
    return failure.invariant if isinstance(failure, Violated) else type(failure).__name__


def shrink(history: list[Verb], make_store: Callable[[], Store] = memory_store) -> list[Verb]:
    """Return a part of a breaking history that breaks the same promise: the shortest by halving.

    Delta debugging (Zeller and Hildebrandt, 2002): leave out ever smaller chunks.
    """
    kind = breaks(history, make_store)
    if kind is None:
        return history
    size = len(history) // 2
    while size >= 1:
        start = 0
        while start < len(history):
            shorter = history[:start] + history[start + size :]
            if breaks(shorter, make_store) == kind:
                history = shorter
            else:
                start += size
        size //= 2
    return history
