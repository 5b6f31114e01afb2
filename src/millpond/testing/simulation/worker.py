"""Simulated workers: they keep to the rules of the real ones, and break as those break.

Plan, lease, renew, settle, as the core decides; and crash, freeze past their leases, lose
answers, leave, and come back as zombies with stale settlements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core import control as orders
from millpond.core.backoff import Retry
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.plan import ClaimTimer, Work
from millpond.core.settle import (
    Interrupted,
    Outcome,
    Raised,
    Settled,
    Settlement,
    Stopped,
    Succeeded,
    Unfit,
    settle,
)

if TYPE_CHECKING:
    from millpond.core.handler_signals import Scope
    from millpond.core.task import NewTask
    from millpond.store.protocol import LeaseAnswer
    from millpond.testing.simulation.world import World

LEASE = 6.0
FUNCTIONS = ("fetch", "parse", "store", "rare")


class SimWorker:
    """Plans, leases, runs, renews and settles as a real worker does, and breaks as they break."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.slots = world.dice.randint(1, 4)
        self.id = ""
        self.owner = ""
        self.joined = False
        self.calm = False
        self.frozen_until = 0.0
        self.renew_at = 0.0
        self.running: dict[int, tuple[Leased, float]] = {}
        self.ahead: dict[int, Leased] = {}
        self.unwanted: set[str] = set()
        self.cancel_requested: set[int] = set()
        self.unanswered: list[Settlement] = []
        self.watches: dict[str, ClaimTimer] = {}
        self.functions = FUNCTIONS[:3] if number % 2 or world.rare_is_unknown else None

    @property
    def free(self) -> int:
        """How many tasks more it could run."""
        return self.slots - len(self.running)

    def could_hear(self, pool: str) -> bool:
        """Whether a wake-up could make it start something: alive, not frozen, with a free slot."""
        alive = self.joined and self.frozen_until <= self.world.now
        return alive and self.free > 0 and pool in self.watches

    def watching(self, pool: str) -> bool:
        """Return whether it means to ask a pool now."""
        return isinstance(self.watches[pool].plan(free=self.free, now=self.world.now), Work)

    async def join(self) -> None:
        """Present itself under a new name; a process is new each time."""
        world = self.world
        self.id = f"worker-{self.number}-{world.serial()}"
        self.owner = f"process-{self.id}"
        functions = None if self.functions is None else (*self.functions, "notify")
        order = orders.Register(self.id, LEASE, self.owner, functions)
        await world.do("control", order)
        self.joined = True
        self.running = {}
        self.ahead = {}
        self.unwanted = set()
        self.unanswered = []
        self.frozen_until = 0.0
        self.renew_at = world.now + LEASE / 3
        self.watches = {name: ClaimTimer() for name in world.stage_pools()}

    async def calm_down(self) -> None:
        """Restart, knowing every function, without further faults."""
        if self.joined:
            await self.world.do("control", orders.Deregister(self.id))
        self.calm = True
        self.functions = None
        await self.join()

    async def act(self) -> None:
        """Do one thing: break, come back, renew, settle or lease."""
        world = self.world
        if not self.joined:
            if self.calm or world.chance(0.5):
                await self.join()
            return
        if self.frozen_until > world.now and not self.calm:
            return
        if not self.calm and await self.break_down():
            return
        if world.now >= self.renew_at:
            await self.renew()
        elif self.unanswered or self.finished() or self.to_return():
            await self.settle()
        elif self.running and world.chance(0.1):
            await self.speak()
        else:
            await self.lease()

    async def break_down(self) -> bool:
        """Crash, freeze or leave, now and then."""
        world = self.world
        draw = world.dice.random()
        if draw < 0.006:
            world.fault("crash")
            self.joined = False
            if world.chance(0.3):
                world.fault("buried")
                await world.do("control", orders.DeclareDead(self.id))
        elif draw < 0.014:
            world.fault("freeze")
            self.frozen_until = world.now + world.dice.choice((1.0, LEASE, 3 * LEASE))
        elif draw < 0.018:
            world.fault("leave")
            await world.do("control", orders.Deregister(self.id))
            self.joined = False
        else:
            return False
        return True

    async def renew(self) -> None:
        """Keep the leases, or find them lost and restart."""
        world = self.world
        answer = await world.do("renew", (self.id, LEASE))
        self.renew_at = world.now + LEASE / 3
        if not answer.alive:
            world.fault("lease lost")
            self.joined = False
            return
        self.cancel_requested.update(answer.cancelled)
        for task in answer.interrupted:
            if task in self.running:
                self.running[task] = (self.running[task][0], world.now)
        self.unwanted.update(answer.give_back)

    def finished(self) -> list[int]:
        """Return what has run long enough."""
        return [task for task, (_, end) in self.running.items() if end <= self.world.now]

    async def settle(self) -> None:
        """Settle what has finished, perhaps leasing more in the same step."""
        world = self.world
        batch = list(self.unanswered)
        self.unanswered = []
        for leased in self.to_return():
            del self.ahead[leased.fence.task]
            batch.append(self.give_back(leased))
        self.unwanted.clear()
        while finished := self.finished():
            batch += [self.hand_over(task) for task in finished]
        if world.chance(0.25) and not self.calm:
            # A started attempt is reported later: meanwhile the world goes on.
            self.unanswered = batch
            return
        then = self.ask(world.dice.choice(list(self.watches))) if world.chance(0.5) else None
        answer = await world.do("settle", (tuple(batch), then))
        if world.chance(0.03):
            world.fault("lost answer")
            self.unanswered = batch
        for settlement, started in zip(batch, answer.started, strict=True):
            if settlement.successor is not None and started is Settled.STALE:
                self.not_started(settlement.successor.task)
        if then is not None:
            self.take_in(then, answer.lease)

    def not_started(self, task: int) -> None:
        """Stop what could not be started: there was no room, or the claim is lost."""
        leased, _ = self.running.pop(task, (None, 0.0))
        if leased is not None and task not in self.ahead:
            self.ahead[task] = leased

    def to_return(self) -> list[Leased]:
        """Return what it holds ahead that is wanted back, or that it does not want."""
        return [
            leased
            for leased in self.ahead.values()
            if leased.pool in self.unwanted
            or (leased.fence.task in self.cancel_requested and self.world.chance(0.7))
            or self.world.chance(0.02)
        ]

    def give_back(self, leased: Leased) -> Settlement:
        """Give back a claim, now and then because it cannot be run here."""
        dice = self.world.dice
        unbegun = Interrupted(begun=False)
        outcome = dice.choice((unbegun, unbegun, Unfit(dice.random() < 0.3)))
        return settle(
            leased, unbegun if self.calm else outcome, Retry(), jitter=0.0, now=self.world.now
        )

    def hand_over(self, task: int) -> Settlement:
        """End an attempt, and perhaps start a prefetched task of its pool in its slot."""
        leased, _ = self.running.pop(task)
        settlement = self.decide(leased)
        # Of the same pool, as it should be; now and then of another, which needs room there.
        anywhere = self.world.chance(0.05)
        claims = [c for c in self.ahead.values() if anywhere or c.pool == leased.pool]
        if not claims or self.world.chance(0.3):
            return settlement
        self.start(claims[0])
        return msgspec.structs.replace(settlement, successor=claims[0].fence)

    async def speak(self) -> None:
        """Say how far a task is, or that a step of it is done; now and then of a lost one."""
        dice = self.world.dice
        leased, _ = dice.choice(list(self.running.values()))
        order: orders.Command = orders.Progress(leased.fence, dice.random(), "on it")
        if dice.random() < 0.6:
            order = orders.SaveStep(leased.fence, dice.choice(("charge", "send")), self.id.encode())
        await self.world.do("control", order)

    def decide(self, leased: Leased) -> Settlement:
        """Let the core decide what an outcome means."""
        policy = Retry(initial=0.5, max_delay=4.0)
        dice = self.world.dice
        decided = settle(
            leased, self.outcome(leased), policy, jitter=dice.random(), now=self.world.now
        )
        if dice.random() < 0.6:
            return decided
        return msgspec.structs.replace(decided, weight=dice.randint(0, leased.weight + 1))

    def outcome(self, leased: Leased) -> Outcome:
        """Make up how a handler ended."""
        world = self.world
        if leased.fence.task in self.cancel_requested and world.chance(0.7):
            return Stopped()
        draw = world.dice.random()
        if draw < 0.60 or self.calm:
            return Succeeded(b"ok", self.follow_ups(leased))
        if draw < 0.64:
            world.fault("throttled")
            hold: Scope = "key" if draw < 0.62 else "pool"
            return Raised(b"slow down", spend=False, retry_in=draw * 2, hold=hold)
        if draw < 0.88:
            return Raised(b"no", spend=draw > 0.68, retry_in=0.2 if draw < 0.68 else None)
        if draw < 0.92:
            return Raised(b"never", final=True)
        if draw < 0.96:
            return Interrupted(begun=draw < 0.95)
        return Unfit(corrupt=draw < 0.99)

    def follow_ups(self, leased: Leased) -> tuple[NewTask, ...]:
        """Submit more from inside a handler, of the same run."""
        world = self.world
        depth = leased.call.payload[0] if leased.call.payload else 9
        if self.calm or depth > 2 or not world.chance(0.35):
            return ()
        pool = world.dice.choice(list(world.specs))
        count = world.dice.randint(1, 2)
        return tuple(world.new_task(pool, leased.run, depth + 1) for _ in range(count))

    async def lease(self) -> None:
        """Ask where the plan says there is something to ask for."""
        world = self.world
        for pool, watch in self.watches.items():
            if isinstance(watch.plan(free=self.free, now=world.now), Work):
                ask = self.ask(pool)
                if ask is not None:
                    self.take_in(ask, await world.do("lease", ask))
                return

    def ask(self, pool: str) -> LeaseRequest | None:
        """Ask a pool for what there is room for, and where it may for some to hold ahead."""
        dice, spec = self.world.dice, self.world.specs.get(pool)
        ahead = dice.randint(0, spec.prefetch + 1) if spec and spec.prefetch else 0
        if self.free < 1 and not ahead:
            return None
        self.watches[pool].claim_sent()
        want = dice.randint(1, self.free) if self.free > 0 else 0
        return LeaseRequest(pool=pool, worker=self.id, want=want, ahead=ahead)

    def start(self, leased: Leased) -> None:
        """Run a task, whether it was held ahead or not, for as long as it takes."""
        duration = self.world.dice.choice((0.0, 0.1, 0.5, 2.0, 2 * LEASE))
        end = self.world.now + (0 if self.calm else duration)
        self.ahead.pop(leased.fence.task, None)
        self.running[leased.fence.task] = (leased, end)

    def take_in(self, ask: LeaseRequest, answer: LeaseAnswer) -> None:
        """Start the leased tasks, and remember when to lease again."""
        world = self.world
        if answer.fenced:
            world.fault("lease lost")
            self.joined = False
            return
        for leased in answer.leased:
            self.start(leased)
        for leased in answer.claimed:
            self.ahead[leased.fence.task] = leased
        if answer.give_back:
            self.unwanted.add(ask.pool)
        self.watches[ask.pool].claim_answered(
            want=ask.want, got=len(answer.leased), next_at=answer.next_at, now=world.now
        )
