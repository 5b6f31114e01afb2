"""The live simulation: real Millponds on a virtual loop, over one faulty store, from one seed."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.spec import bounded
from millpond.testing.simulation.invariants import Violated
from millpond.testing.simulation.seeded import Broken, Lived, memory_store, shared, some_spec
from verify.live.handlers import EXPECTED
from verify.live.loop import ProcessLoop, WatchedClock
from verify.live.world import FAULTS, LiveWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.core.spec import BudgetSpec, PoolSpec
    from millpond.store.protocol import Store

__all__ = ["FAULTS", "LiveWorld", "simulate_live"]


def simulate_live(seed: int, make_store: Callable[[], Store] = memory_store) -> Lived:
    """Live through the live history of `seed`; raise Broken at the first broken promise."""
    clock = WatchedClock(1000.0)
    with listening() as ear, asyncio.Runner(loop_factory=lambda: ProcessLoop(clock)) as runner:
        return runner.run(_simulate(seed, make_store(), ear))


async def _simulate(seed: int, store: Store, ear: _Ear) -> Lived:
    dice = random.Random(f"{seed}/pools")
    world = LiveWorld(seed, store, *some_specs(dice))
    loop = world.loop
    ear.heard = world.broke
    loop.set_exception_handler(lambda _, context: unhandled(world, context))
    clock = loop.clock
    assert isinstance(clock, WatchedClock)
    clock.before_it_moves = world.watch.no_worker_sleeps
    story = loop.create_task(world.live())
    try:
        await asyncio.wait([story, world.broken], return_when=asyncio.FIRST_COMPLETED)
        failure = world.broken.exception() if world.broken.done() else story.exception()
    finally:
        await world.end()
    if failure is not None:
        raise Broken(seed, failure, world.stage.history) from failure
    return Lived(
        seed=seed,
        verbs=len(world.stage.history),
        workers=len(world.processes),
        producers=sum(len(process.producers) for process in world.processes),
        faults=frozenset(world.faults),
        arrows=world.stage.judge.arrows,
        history=world.stage.history,
    )


def some_specs(dice: random.Random) -> tuple[list[PoolSpec], list[BudgetSpec]]:
    """Make up two pools; in some worlds the first is so small that submitters stand in line.

    In some they share a budget.
    """
    first, second = (some_spec(dice, name) for name in ("alpha", "beta"))
    if dice.random() < 0.3:
        narrow = bounded(dice.randint(1, 3), "block_submitter", dice.choice((None, 1)))
        first = msgspec.structs.replace(first, backpressure=narrow)
    return shared([first, second], dice)


def unhandled(world: LiveWorld, context: dict[str, Any]) -> None:
    """No task of a runtime may end in an unhandled error."""
    world.broke(Violated("unhandled", f"{context.get('message')}: {context.get('exception')!r}"))


class _Ear(logging.Handler):
    """Listens to what pools log: only the store's failures and the users' are to be expected."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: Callable[[BaseException], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on an error that no world like this one can cause."""
        context = [*(record.args or ()), *(record.exc_info or ())[1:2]]
        for error in context:
            if isinstance(error, Exception) and not isinstance(error, EXPECTED) and self.heard:
                self.heard(error)


@contextmanager
def listening() -> Iterator[_Ear]:
    """Let the pools keep their warnings to themselves: here everything goes wrong on purpose."""
    log = logging.getLogger("millpond")
    ear = _Ear()
    before = log.propagate
    log.propagate = False
    log.addHandler(ear)
    try:
        yield ear
    finally:
        log.removeHandler(ear)
        log.propagate = before
