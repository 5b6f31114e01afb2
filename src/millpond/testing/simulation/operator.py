"""The simulated operator: gives orders, and triggers recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.core.task import Call
from millpond.testing.simulation.leaders import Leaders

if TYPE_CHECKING:
    from millpond.testing.simulation.world import World

DAY = 90_000.0


class Operator:
    """Gives orders, and triggers recovery."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leaders = Leaders(world)

    async def act(self) -> None:
        """Recover, or give one order."""
        world = self.world
        # More often where a task waits for a function that no worker knows.
        if world.chance(0.04 if world.rare_is_unknown else 0.006):
            world.fault("day passes")
            world.now += DAY
            await world.do("recover", 1000)
        if world.chance(0.35):
            await self.leaders.recover(world.dice.choice((1, 3, 1000)))
            return
        order = await self.order()
        if order is not None:
            await world.do("control", order)

    async def order(self) -> orders.Command | None:
        """Make up an order."""
        world, dice = self.world, self.world.dice
        pool = dice.choice(list(world.specs))
        unit = dice.choice((None, None, self.some_unit(pool)))
        match dice.randint(0, 12):
            case 0 | 1:
                world.fault("pause")
                return orders.Pause(pool, unit)
            case 2 | 3 | 4:
                return orders.Resume(pool, unit)
            case 5 if world.budgets and world.chance(0.6):
                world.fault("budget resized")
                limit = dice.choice((None, 0, 1, 3))
                return orders.ResizeBudget(dice.choice(world.budgets).name, limit)
            case 5:
                world.fault("resize")
                return self.resize(pool)
            case 6 | 7:
                world.fault("cancel")
                chosen = dice.sample(world.known, min(2, len(world.known)))
                return orders.Cancel(tuple(chosen), self.interrupts())
            case 8 | 9:
                return await self.redrive()
            case 10:
                world.fault("purge")
                return orders.Purge(pool, self.some_unit(pool))
            case 11:
                world.fault("update")
                return await self.update()
            case _:
                return self.seldom(pool, unit)

    def seldom(self, pool: str, unit: str | None) -> orders.Command | None:
        """Make up an order that is given seldom."""
        world, dice = self.world, self.world.dice
        match dice.randint(0, 4):
            case 0:
                world.fault("hold")
                return orders.Hold(pool, dice.choice((0.5, 3.0)), unit)
            case 1:
                unit = self.some_unit(pool)
                return orders.CancelAll(pool, world.now - 2.0, unit, interrupt=self.interrupts())
            case 2:
                return orders.Prune(pool, world.now - 5.0, world.now - 20.0, 5)
            case 3:
                return orders.CancelRun(dice.choice(list(world.runs))) if world.runs else None
            case _:
                held = [(run, holder) for run, holder in world.runs.items() if holder is not None]
                if not held:
                    return None
                run, holder = dice.choice(held)
                world.runs[run] = None
                return orders.Seal(run, holder or "")

    def resize(self, pool: str) -> orders.Command:
        """Make up a new limit, now and then from a stale revision."""
        world = self.world
        most = world.specs[pool].lanes or 5
        revision = 999 if world.chance(0.05) else None
        limit = None if world.chance(0.2) else world.dice.randint(0, min(most, 5))
        return orders.Resize(pool, limit, revision)

    async def update(self) -> orders.Command | None:
        """Change a task that was submitted lately, now and then with a stale revision."""
        world, dice = self.world, self.world.dice
        named = dice.choice(world.known[-30:]) if world.known else 0
        task = await world.stage.store.view.task(named)
        if task is None:
            return None
        new, call = task.new, None
        if new.owner is None and world.chance(0.4):
            call = Call(new.call.function, new.call.payload[:1] + bytes([dice.randrange(256)]))
        return orders.Update(
            task=named,
            call=call,
            fingerprint=dice.choice((0, 1)),
            key=new.key,
            share=new.share,
            priority=dice.choice((None, -3, 0, 3)),
            delay=dice.choice((None, 0.0, 0.0, 2.0)),
            expires_in=dice.choice((None, None, None, 4.0)),
            revision=dice.choice((None, None, new.revision, new.revision + 1)),
        )

    def interrupts(self) -> bool:
        """Choose whether a cancel interrupts."""
        if self.world.chance(0.5):
            return False
        self.world.fault("interrupt")
        return True

    def some_unit(self, pool: str) -> str | None:
        """Choose a lane or a key."""
        lanes = self.world.specs[pool].lanes
        if lanes is not None:
            return str(self.world.dice.randrange(lanes))
        return self.world.dice.choice(self.world.keys)

    async def redrive(self) -> orders.Command | None:
        """Redrive some of what has ended."""
        world = self.world
        chosen = world.dice.sample(world.known, min(4, len(world.known)))
        tasks = [await world.stage.store.view.task(task) for task in chosen]
        ended = [t.new.id for t in tasks if t and t.status in (Status.FAILED, Status.CANCELLED)]
        return orders.Redrive(tuple(ended)) if ended else None
