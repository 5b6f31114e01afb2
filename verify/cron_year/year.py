"""A year: a thousand schedules, a fleet whose processes die, and what the store says was fired.

Everything is drawn from one number. Processes are real Millponds on one virtual loop. They are
killed at the worst moments: before the settlement of a firing is carried out, after it and before
its answer, with firings just leased; some are frozen until their leases are lost, and go on then.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.lifecycle import Transition
from millpond.core.settle import Settled
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from millpond.runtime.fleet import poll, prune
from millpond.runtime.observe import report
from millpond.runtime.retention import Keep
from verify.cron_year.oracle import Clock, Line
from verify.live.loop import Body, ProcessLoop, WatchedClock, body_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from millpond.store.protocol import SettleAnswer, Store

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
HOUR, DAY = 3_600.0, 86_400.0
LEASE = 4 * HOUR
"""As long as that, for a year of renewals; what a dead process held is late by as much."""
GRACE = DAY
WORK = "work"
DEATHS = ("before settle", "after settle", "after lease", "after renew", "after control", "frozen")
"""How a process may end, or seem to."""


class Planned(msgspec.Struct, frozen=True):
    """One schedule of the year."""

    id: str
    expression: str | None
    zone: str
    every: float
    missed: str
    grace: float


class Year(msgspec.Struct, frozen=True, kw_only=True):
    """What to live through."""

    seed: int = 0
    schedules: int = 1_000
    since: float = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    days: float = 365.0
    processes: int = 3
    deaths_apart: float = 2.0
    """Days between two deaths, on average."""


class Lived(msgspec.Struct, kw_only=True):
    """The result of a year."""

    fired: int
    """Firings, each of them once."""
    schedules: int
    processes: int
    deaths: dict[str, int]
    duplicates: int
    """How often a firing was submitted again, and found by its idempotency key."""
    stale: int
    """Settlements that came too late, and were refused."""
    wrong: list[str]
    """What differs from what the oracle says; nothing, if all is well."""


def some_schedules(year: Year) -> list[Planned]:
    """Make up schedules: most at a time of day, many of them in the hours that clocks are set."""
    dice = random.Random(f"{year.seed}/schedules")
    return [_some_schedule(dice, number) for number in range(year.schedules)]


def _some_schedule(dice: random.Random, number: int) -> Planned:
    minute = dice.choice((0, 15, 30, 45, dice.randrange(60)))
    hour = dice.choice((0, 1, 2, 2, 3, dice.randrange(24)))
    weekday = dice.choice(("mon", "wed", "sat", "sun", "sun"))
    expression = dice.choices(
        (
            f"{minute} {hour} * * *",
            f"{minute} {hour} * * mon-fri",
            f"{minute} {hour} * * {weekday}",
            f"{minute} {hour} {dice.randint(1, 31)} * *",
            f"{minute},{(minute + 20) % 60} {hour},{(hour + 1) % 24} * mar,apr,oct,nov sun",
            f"*/20 {hour} * * sun",
            f"{minute} */6 * * sat,sun",
            None,
        ),
        (20, 15, 25, 20, 8, 4, 4, 4),
    )[0]
    missed = dice.choice(("all", "once", "skip"))
    return Planned(
        id=f"schedule-{number}",
        expression=expression,
        zone=dice.choice(ZONES) if expression else "UTC",
        every=0.0 if expression else dice.choice((DAY, 36 * HOUR, 7 * DAY)),
        missed=missed,
        grace=60.0 if missed == "all" else GRACE,
    )


def expected_firings(
    planned: Sequence[Planned], since: float, until: float
) -> dict[str, list[float]]:
    """Return when each schedule has to fire, as the oracle sees it."""
    clocks = {zone: Clock(zone, since, until) for zone in {one.zone for one in planned}}
    return {
        one.id: Line(one.expression).firings(clocks[one.zone])
        if one.expression
        else _multiples(one.every, since, until)
        for one in planned
    }


def _multiples(pace: float, since: float, until: float) -> list[float]:
    numbers = range(int(since // pace), int(until // pace) + 1)
    return [number * pace for number in numbers if since < number * pace < until]


class Book:
    """What the store has stored: the only witness that does not die."""

    def __init__(self) -> None:
        self.fired: dict[tuple[str, float], list[int]] = defaultdict(list)
        self.completed: Counter[int] = Counter()
        self.duplicates = self.stale = 0

    def settled(self, settlements: Sequence[Any], answer: SettleAnswer) -> None:
        """Note what settlements stored."""
        for settlement, settled, stored in zip(
            settlements, answer.settled, answer.follow_ups, strict=False
        ):
            if settled is not Settled.APPLIED:
                self.stale += 1
                continue
            if settlement.event is Transition.COMPLETE:
                self.completed[settlement.fence.task] += 1
            for new, admission in zip(settlement.follow_ups, stored, strict=False):
                if admission.duplicate:
                    self.duplicates += 1
                elif new.pool == WORK:
                    moment = datetime.fromisoformat(new.labels["scheduled_at"]).timestamp()
                    self.fired[new.labels["cron"], moment].append(admission.task)

    def compared(self, expected: dict[str, list[float]], until: float) -> list[str]:
        """Return what differs from what should have been, in words."""
        wanted = {(name, moment) for name, moments in expected.items() for moment in moments}
        found = {one for one in self.fired if one[1] < until}
        wrong = [f"never fired: {name} at {at:.0f}" for name, at in sorted(wanted - found)]
        wrong += [f"should not have fired: {name} at {at:.0f}" for name, at in found - wanted]
        for (name, at), tasks in self.fired.items():
            if len(tasks) > 1:
                wrong.append(f"fired {len(tasks)} times: {name} at {at:.0f}")
            elif at < until and self.completed[tasks[0]] != 1:
                wrong.append(f"done {self.completed[tasks[0]]} times: {name} at {at:.0f}")
        return wrong


class Deadly:
    """The store for one process, which may die while it uses it."""

    elects = True

    def __init__(self, process: Process) -> None:
        self._process = process
        self._store = process.world.store
        self.view = self._store.view

    async def _do(self, name: str, carry_out: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        process = self._process
        if process.world.over:
            raise ConnectionError("the year is over")
        if process.doom == f"before {name}":
            await process.die()
        if process.doom == "frozen" and name == "settle":
            await process.freeze()
        # A real store is elsewhere: others have their turn meanwhile.
        await asyncio.sleep(0)
        answer = await carry_out()
        if process.doom == f"after {name}" and (name != "lease" or answer.leased):
            await process.die()
        return answer

    async def submit(self, batches: Any, **_: Any) -> Any:  # noqa: ANN401
        """Take in batches."""
        return await self._do("submit", lambda: self._store.submit(batches))

    async def lease(self, ask: Any, **_: Any) -> Any:  # noqa: ANN401
        """Give a worker the next tasks of a pool."""
        return await self._do("lease", lambda: self._store.lease(ask))

    async def renew(self, worker: str, lease: float, **_: Any) -> Any:  # noqa: ANN401
        """Keep everything a worker holds."""
        return await self._do("renew", lambda: self._store.renew(worker, lease))

    async def settle(self, settlements: Any, *, then: Any = None, **_: Any) -> Any:  # noqa: ANN401
        """End attempts, and note what that stored."""

        async def carry_out() -> SettleAnswer:
            answer = await self._store.settle(settlements, then=then)
            self._process.world.book.settled(settlements, answer)
            return answer

        return await self._do("settle", carry_out)

    async def recover(self, **arguments: Any) -> Any:  # noqa: ANN401
        """Do what time alone does."""
        return await self._do("recover", lambda: self._store.recover(**arguments))

    async def control(self, command: Any, **_: Any) -> Any:  # noqa: ANN401
        """Carry out an order."""
        return await self._do("control", lambda: self._store.control(command))

    async def close(self) -> None:
        """Leave the store to the others."""


class Process(Body):
    """One process of the fleet."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(f"process-{number}")
        self.world = world
        self.doom = ""
        mp = Millpond(work=True, lease=LEASE, keep=Keep(completed=HOUR))
        internals_of(mp).owner.make_store = lambda: Deadly(self)
        internals_of(mp).owner.shared = True
        internals_of(mp).owner.seed = random.Random(f"{world.year.seed}/ids/{number}").getrandbits(
            63
        )
        work = mp.pool(WORK, max_concurrent=50)

        @work.task
        async def note() -> None:
            await asyncio.sleep(0)

        for one in world.planned:
            mp.cron(
                one.id,
                one.expression,
                tz=one.zone,
                every=one.every or None,
                task=note,
                missed=one.missed,  # type: ignore[arg-type] # one of three
                grace=one.grace,
                most_missed=1_000,
            )
        context = world.context.copy()
        context.run(body_of.set, self)
        self.main = world.loop.create_task(self._live(mp), context=context)

    async def _live(self, mp: Millpond) -> None:
        async with mp:
            await asyncio.Event().wait()

    async def die(self) -> None:
        """End here: nothing of this process moves any more."""
        self.world.died(self)
        self.frozen = True
        await asyncio.sleep(0)

    async def freeze(self) -> None:
        """Stop until others may think it dead, and then go on as if nothing had been."""
        self.world.deaths[self.doom] += 1
        self.doom = ""
        self.frozen = True
        later = self.world.dice.uniform(0.2, 3) * LEASE
        self.world.loop.call_later(later, self._go_on, context=self.world.context.copy())
        await asyncio.sleep(0)

    def _go_on(self) -> None:
        if not self.world.over:
            self.thaw(self.world.loop)


class World:
    """The fleet, its store and its year."""

    def __init__(self, year: Year, store: Store, planned: list[Planned]) -> None:
        self.year = year
        self.store = store
        self.planned = planned
        self.loop: ProcessLoop = asyncio.get_running_loop()  # type: ignore[assignment]
        self.context = copy_context()
        self.dice = random.Random(f"{year.seed}/deaths")
        self.book = Book()
        self.deaths: Counter[str] = Counter()
        self.processes: list[Process] = []
        self.over = False

    def another(self) -> None:
        """Start a process."""
        if not self.over:
            self.processes.append(Process(self, len(self.processes) + 1))

    def died(self, process: Process) -> None:
        """Record a death; another process is started later."""
        self.deaths[process.doom] += 1
        process.doom = ""
        later = self.dice.uniform(0.0, HOUR)
        self.loop.call_later(later, self.another, context=self.context.copy())

    async def live(self) -> None:
        """Live through the year, and a day more for what is late."""
        for _ in range(self.year.processes):
            self.another()
        await asyncio.sleep(60.0)
        chaos = self.loop.create_task(self._kill())
        await asyncio.sleep(self.year.days * DAY)
        chaos.cancel()
        await asyncio.sleep(DAY)
        await self._end()

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(self.dice.expovariate(1 / (self.year.deaths_apart * DAY)))
            alive = [one for one in self.processes if not one.frozen]
            # Now and then no process is left for a while.
            count = len(alive) if self.dice.random() < 0.1 else 1
            for one in self.dice.sample(alive, min(count, len(alive))):
                one.doom = self.dice.choice(DEATHS)

    async def _end(self) -> None:
        self.over = True
        for process in self.processes:
            if process.frozen:
                process.thaw(self.loop)
        this = asyncio.current_task()
        for _ in range(50):
            left = [task for task in asyncio.all_tasks() if task is not this]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1.0)


@contextmanager
def unhurried() -> Iterator[None]:
    """Let processes look around less often: a year has thirty million seconds."""
    slow = [
        (poll, "POLL_FLOOR", HOUR),
        (poll, "IDLE_FLOOR", HOUR),
        (prune, "PRUNE_EVERY", 6 * HOUR),
        (report, "EVERY", DAY),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in slow]
    for module, name, value in slow:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def live_through(year: Year, make_store: Callable[[Callable[[], float]], Store]) -> Lived:
    """Simulate a year on a store that `make` creates with the virtual clock."""
    clock = WatchedClock(year.since)
    planned = some_schedules(year)

    async def live() -> World:
        world = World(year, make_store(clock.now), planned)
        try:
            await world.live()
        finally:
            await world.store.close()
        return world

    with unhurried(), asyncio.Runner(loop_factory=lambda: ProcessLoop(clock)) as runner:
        world = runner.run(live())
    until = year.since + year.days * DAY
    expected = expected_firings(planned, year.since, until)
    return Lived(
        fired=sum(len(tasks) for tasks in world.book.fired.values()),
        schedules=len(planned),
        processes=len(world.processes),
        deaths=dict(world.deaths),
        duplicates=world.book.duplicates,
        stale=world.book.stale,
        wrong=world.book.compared(expected, until),
    )
