"""Events in the simulated fleet: processes with different triggers, which emit the same events."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from millpond.core.event import SYSTEM
from millpond.testing.simulation.invariants import Violated
from verify.live.handlers import DEEPEST

if TYPE_CHECKING:
    from millpond.pool.events.receipt import Receipt
    from verify.live.process import Process
    from verify.live.producer import Producer
    from verify.live.world import LiveWorld

NAME = "happened"


def triggers(process: Process) -> None:
    """Declare the triggers of a process; not every process knows both."""
    work, dice = process.functions.work, random.Random(f"{process.world.seed}/{process.name}/on")
    pools = list(process.world.specs)
    for number, (name, into) in enumerate(zip(("first", "second"), pools, strict=False)):
        if process.calm or number == 0 or dice.random() < 0.6:
            process.mp.trigger(
                name,
                on=NAME,
                into=into,
                make=lambda _event: work.bind(1, DEEPEST),
                # The same limit in all processes: the judge knows a pool by its first declaration.
                max_concurrent=random.Random(f"{process.world.seed}/{name}").randint(1, 4),
            )


class Happenings:
    """Emits events, with its own random stream: worlds without events do not change."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._world = producer.world
        self._dice = random.Random(f"{self._world.seed}/{producer.name}/events")

    def due(self) -> bool:
        """Return whether to emit an event now."""
        return self._world.eventful and self._dice.random() < 0.25

    async def emit(self) -> None:
        """Emit an event that other processes emit too, or again; perhaps wait for its tasks."""
        mp, dice = self._producer.process.mp, self._dice
        event = f"e{self._world.now // 4:g}-{dice.randint(0, 2)}"
        emission = await mp.emit(NAME, event_id=event)
        self._world.fault("event")
        if dice.random() < 0.3:
            emission = await mp.replay(NAME, event)
        if dice.random() < 0.7:
            for receipt in await emission.receipts(timeout=dice.choice((1.0, 20.0))):
                self._judge(receipt)

    def _judge(self, receipt: Receipt) -> None:
        """I7: one event is one task for each trigger, but for what a full pool dropped."""
        if receipt.outcome not in ("submitted", "duplicate") or receipt.task_id is None:
            return
        known = self._world.made_of_events
        first = known.setdefault((receipt.trigger, receipt.event_id), receipt.task_id)
        if first == receipt.task_id:
            return
        if self._world.watch.knows(first) and self._world.watch.knows(receipt.task_id):
            raise Violated("I7", f"event {receipt.event_id} stands for {first} and another task")
        known[receipt.trigger, receipt.event_id] = receipt.task_id


async def pools_of_events(world: LiveWorld) -> tuple[str, ...]:
    """Return the pools that events are in, once there were any."""
    return await world.stage.store.view.names(SYSTEM) if world.eventful else ()
