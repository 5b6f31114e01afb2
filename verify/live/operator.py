"""The operator of the simulated fleet, and random faults."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.pool.internals import internals_of
from verify.live.handlers import EXPECTED
from verify.live.process import LEASE

if TYPE_CHECKING:
    from millpond.pool.pool import Pool
    from verify.live.process import Process
    from verify.live.world import LiveWorld

DAY = 90_000.0


class Operator:
    """Gives orders through some process that is up, now and then straight to the store."""

    def __init__(self, world: LiveWorld) -> None:
        self.world = world
        self.dice = random.Random(f"{world.seed}/operator")
        self.updates = random.Random(f"{world.seed}/updates")

    async def live(self) -> None:
        """Give orders until the trouble is over."""
        while not self.world.calm:
            await asyncio.sleep(self.dice.choice((0.2, 1.0, 2.0)))
            up = [process for process in self.world.processes if process.healthy]
            if not up:
                continue
            process = self.dice.choice(up)
            # It may die before it has answered: no process waits for that.
            await asyncio.wait([process.do(self.guarded(process))], timeout=5.0)

    async def guarded(self, process: Process) -> None:
        """Give one order; that it is refused or does not get through is nothing new."""
        try:
            await self.act(process)
        except EXPECTED:
            pass
        except Exception as error:  # noqa: BLE001 - an unexpected error breaks the world
            self.world.broke(error)

    async def act(self, process: Process) -> None:
        """Give one order."""
        dice = self.dice
        pool = process.mp.get_pool(dice.choice(list(self.world.specs)))
        if self.updates.random() < 0.1:
            await self.update(process, pool)
            return
        unit = dice.choice((None, None, self.some_unit(pool)))
        of: dict[str, Any] = {} if unit is None else unit
        match dice.randint(0, 13):
            case 0 | 1:
                self.world.fault("pause")
                await pool.pause(**of)
            case 2 | 3 | 4:
                await pool.resume(**of)
            case 5:
                self.world.fault("resize")
                most = pool.spec.lanes or 5
                await pool.resize(dice.choice((None, *range(min(most, 5) + 1))))
            case 6 | 7:
                await self.cancel(process, pool)
            case 8 | 9:
                await self.redrive(pool)
            case 10:
                self.world.fault("purge")
                await pool.purge(**(of or self.some_unit(pool)))
            case 11:
                await pool.cancel_all(before=self.world.now - 1.0, mode=self.mode(), **of)
            case _:
                await self.seldom(pool)

    def mode(self) -> Any:  # noqa: ANN401 - a literal
        """Choose how to cancel."""
        mode = self.dice.choice(("cooperative", "interrupt"))
        if mode == "interrupt":
            self.world.fault("interrupt")
        return mode

    def some_unit(self, pool: Pool) -> dict[str, str]:
        """Choose a lane or a key."""
        if pool.spec.lanes is not None:
            return {"lane": str(self.dice.randrange(pool.spec.lanes))}
        return {"key": self.dice.choice(("acme", "bolt", "cord"))}

    async def cancel(self, process: Process, pool: Pool) -> None:
        """Cancel something that waits or runs."""
        self.world.fault("cancel")
        live = self.world.watch.live(pool.name)
        if live:
            await process.mp.cancel(self.dice.choice(live), mode=self.mode())

    async def redrive(self, pool: Pool) -> None:
        """Redrive some of what has ended badly."""
        ended = self.world.watch.ended(pool.name, (Status.FAILED, Status.CANCELLED))
        if ended:
            self.world.fault("redrive")
            await pool.redrive(self.dice.sample(ended, min(3, len(ended))))

    async def update(self, process: Process, pool: Pool) -> None:
        """Change something that waits, or try to."""
        live = self.world.watch.live(pool.name)
        if live:
            dice = self.updates
            delay, priority = dice.choice((None, 0.0, 2.0)), dice.randint(-2, 2)
            update = orders.Update(task=dice.choice(live), priority=priority, delay=delay)
            await internals_of(process.mp).runtime.control.order(update)

    async def seldom(self, pool: Pool) -> None:
        """Give an order that has no public name yet."""
        unit = self.dice.choice((None, *self.some_unit(pool).values()))
        if self.dice.random() < 0.6:
            self.world.fault("hold")
            await self.world.order(orders.Hold(pool.name, self.dice.choice((0.5, 3.0)), unit))
        else:
            now = self.world.now
            await self.world.order(orders.Prune(pool.name, now - 5.0, now - 20.0, 5))


class Chaos:
    """Crashes, freezes, cuts, restarts, and days that pass."""

    def __init__(self, world: LiveWorld) -> None:
        self.world = world
        self.dice = random.Random(f"{world.seed}/chaos")
        self.absences = random.Random(f"{world.seed}/absences")

    async def live(self) -> None:
        """Make trouble until it is over."""
        while not self.world.calm:
            await asyncio.sleep(self.dice.choice((0.5, 2.0, 4.0)))
            await self.act()

    async def act(self) -> None:
        """Make some trouble."""
        world, dice = self.world, self.dice
        up = [one for one in world.processes if not one.dead and not one.stopped]
        if world.solo:
            if up and dice.random() < 0.25:
                self.restart(up[0])
            return
        if dice.random() < (0.01 if world.rare_is_known else 0.1):
            world.fault("day passes")
            world.jump(DAY)
        if not up:
            return
        process = dice.choice(up)
        match dice.randint(0, 9):
            case 0 | 1:
                await self.crash(process)
            case 2 | 3:
                self.freeze(process)
            case 4:
                self.cut(process)
            case 5:
                self.restart(process)
            case 6 | 7:
                process.line.bad = dice.choice((0.05, 0.3, 1.0))
                world.later(dice.choice((0.5, 2.0)), process.line.mend)
            case _:
                process.line.slow = dice.choice((0.0, 0.05, 0.5, 1.0))

    async def crash(self, process: Process) -> None:
        """Kill a process; its successor comes soon."""
        self.world.fault("crash")
        process.crash()
        if self.dice.random() < 0.3:
            self.world.fault("buried")
            await process.bury()
        self.world.later(self.dice.choice((0.1, 1.0, 2 * LEASE)), self.world.another)

    def freeze(self, process: Process) -> None:
        """Stop a process for a while, perhaps for longer than its leases last."""
        if process.frozen:
            return
        self.world.fault("freeze")
        process.frozen = True
        self.world.later(self.absent(1.0, LEASE, 3 * LEASE), self.thaw, process)

    def thaw(self, process: Process) -> None:
        """Let it go on."""
        if not process.dead and process.frozen:
            process.thawed_at = self.world.now
            process.thaw(self.world.loop)

    def cut(self, process: Process) -> None:
        """Cut a process off from the store while it goes on."""
        self.world.fault("cut off")
        process.line.cut = True
        self.world.later(self.absent(0.5, 3.0, 2 * LEASE), process.line.mend)

    def absent(self, *seconds: float) -> float:
        """Choose for how long; where recovery is slow, it often ends in the midst of one."""
        usual = self.dice.choice(seconds)
        return usual if self.world.recovers > 2 else self.absences.uniform(0.8, 2.0) * LEASE

    def restart(self, process: Process) -> None:
        """Stop a process in good order; its successor comes soon."""
        if process.stopping.is_set():
            return
        self.world.fault("leave")
        process.stop()
        if not self.world.solo:
            self.world.later(self.dice.choice((0.1, 1.0)), self.world.another)
        else:
            self.world.succeed(process)
