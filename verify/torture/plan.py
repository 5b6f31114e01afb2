"""The plan of a torture: what is submitted by whom, and what must come of it, from one seed."""

from __future__ import annotations

import random
from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from millpond.core.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import Iterable


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a fleet is tortured; every process of it reads the same."""

    url: str
    home: str
    """The folder of the ledger and the logs."""
    seed: int
    tasks: int = 20_000
    seconds: float = 240.0
    """Seconds in which faults are injected; submitters spread their work over most of that time."""
    workers: int = 4
    submitters: int = 3
    concurrency: int = 12
    """Of each worker."""
    lease: float = 3.0
    kill_every: float = 2.0
    """Seconds between two kills, on average."""
    freeze_every: float = 9.0
    poisoned: int = 6
    """Tasks that kill the process they run in."""
    poison_attempts: int = 3
    patience: float = 240.0
    """Seconds for the fleet to finish everything after the last fault: a machine
    that has other work to do is slow, and that is no broken promise."""
    stalled: float = 25.0
    """Seconds in which at least one handler must begin, as long as there is something to do."""
    cancels: int = 300
    """Tasks that are cancelled while they run."""
    sees_deaths: bool = True
    """Whether the store sees at once who died; else it is known when a lease is over."""
    hears: bool = True
    """Whether processes notify each other; otherwise they poll."""
    cut_every: float = 0.0
    """Seconds between two connections that the server ends, on average; 0 = it ends none."""
    crashes: int = 0
    """How often the server crashes and comes back."""
    idlers: int = 0
    """Workers that stand idle in the end, while their questions to the store are counted."""
    idle_seconds: float = 30.0
    began: float = 0.0
    """When it began, by the clock that no process can set (CLOCK_MONOTONIC)."""

    @property
    def recovered_within(self) -> float:
        """Seconds in which the tasks of 99 of 100 killed workers must be taken back."""
        return 1.0 if self.sees_deaths else self.lease + 1.0

    @property
    def cancelled_within(self) -> float:
        """Seconds in which a cancel must reach a running handler."""
        return 1.0 if self.hears else 3.0

    @property
    def submitting(self) -> float:
        """Seconds over which the submitters spread their work."""
        return self.seconds * 0.8


class Behaviour(StrEnum):
    """How a handler behaves."""

    FINE = "fine"
    FLAKY = "flaky"
    """Raises now and then, but not for ever."""
    DOOMED = "doomed"
    """Raises each time."""
    POISON = "poison"
    """Kills its process."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One task to submit."""

    n: int
    submitters: tuple[int, ...]
    """Who submits it: each of them, where it has an idempotency key."""
    pool: str
    milliseconds: int
    behaviour: Behaviour = Behaviour.FINE
    key: str | None = None
    priority: int = 0
    delay: float = 0.0
    attempts: int | None = None
    """Its own budget; None = that of its pool."""
    idempotency_key: str | None = None
    has_callback: bool = False
    """Whether its end calls another task (on_complete)."""
    in_thread: bool = False
    awaited: bool = False
    """Whether its submitter waits for its result."""

    @property
    def expected(self) -> Status:
        """How it must end."""
        return (
            Status.FAILED
            if self.behaviour in (Behaviour.DOOMED, Behaviour.POISON)
            else Status.COMPLETED
        )


class Web(msgspec.Struct, frozen=True, kw_only=True):
    """A run: pages that link to each other, to be visited once each."""

    name: str
    submitter: int
    pages: int
    seed: int

    def links(self, page: int) -> list[int]:
        """Return the pages that a page links to; page 0 leads to all of them."""
        dice = random.Random(f"{self.seed}/{self.name}/{page}")
        onward = [2 * page + 1, 2 * page + 2, dice.randrange(self.pages)]
        return sorted({link for link in onward if link < self.pages})


POOLS = ("fair", "lanes", "ordered", "priority", "rate", "bounded", "twice", "ahead")
SHARES = (22, 14, 11, 20, 8, 8, 5, 7)
"""Of a hundred tasks, how many go to each of these; the rest are pages of runs."""

PAGES = 50

TENANTS = tuple(f"tenant-{number}" for number in range(9))
"""Keys; the first have the most to do."""


class Plan:
    """Everything that is submitted."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._dice = random.Random(f"{settings.seed}/plan")
        self.items: list[Item] = []
        for pool, share in zip(POOLS, SHARES, strict=True):
            self._fill(pool, settings.tasks * share // 100)
        for _ in range(settings.poisoned):
            self._add_poison()
        left = settings.tasks - len(self.items)
        self.webs = [self._web(number) for number in range(max(-(-left // PAGES), 1))]

    def of(self, submitter: int) -> dict[str, list[Item]]:
        """Return what one submitter submits to each pool, in order."""
        mine: dict[str, list[Item]] = defaultdict(list)
        for item in self.items:
            if submitter in item.submitters:
                mine[item.pool].append(item)
        return dict(mine)

    def webs_of(self, submitter: int) -> list[Web]:
        """Return the runs that one submitter drains."""
        return [web for web in self.webs if web.submitter == submitter]

    def _fill(self, pool: str, count: int) -> None:
        for _ in range(count):
            self.items.append(self._item(pool))

    def _item(self, pool: str) -> Item:
        dice, n = self._dice, len(self.items)
        key: str | None = dice.choice(TENANTS[: dice.randint(1, len(TENANTS))])
        if pool in ("rate", "bounded", "priority") or (pool == "lanes" and dice.random() < 0.3):
            key = None
        behaviour = self._behaviour(pool)
        twice = pool == "twice"
        first = dice.randrange(self.settings.submitters)
        others = ((first + 1) % self.settings.submitters,) if twice else ()
        return Item(
            n=n,
            submitters=tuple(sorted({first, *others})),
            pool=pool,
            milliseconds=milliseconds(dice) // (3 if pool in ("lanes", "ordered") else 1),
            behaviour=behaviour,
            key=key,
            priority=dice.randint(0, 5),
            delay=round(dice.uniform(0.1, 3.0), 3) if dice.random() < 0.06 else 0.0,
            attempts=3 if behaviour is Behaviour.DOOMED else None,
            idempotency_key=f"only-{n}" if twice else None,
            has_callback=dice.random() < 0.1,
            in_thread=pool in ("priority", "bounded") and dice.random() < 0.1,
            awaited=dice.random() < 0.1,
        )

    def _behaviour(self, pool: str) -> Behaviour:
        chance = self._dice.random()
        flaky, doomed = {"priority": (0.2, 0.04), "lanes": (0.04, 0.01)}.get(pool, (0.02, 0.0))
        if chance < flaky:
            return Behaviour.FLAKY
        return Behaviour.DOOMED if chance < flaky + doomed else Behaviour.FINE

    def _add_poison(self) -> None:
        self.items.append(
            Item(
                n=len(self.items),
                submitters=(self._dice.randrange(self.settings.submitters),),
                pool="poison",
                milliseconds=20,
                behaviour=Behaviour.POISON,
                attempts=self.settings.poison_attempts,
                has_callback=True,
            )
        )

    def _web(self, number: int) -> Web:
        submitter = self._dice.randrange(self.settings.submitters)
        return Web(name=f"web-{number}", submitter=submitter, pages=PAGES, seed=self.settings.seed)


def milliseconds(dice: random.Random) -> int:
    """Return how long a handler works: mostly a moment, now and then for longer than a lease."""
    chance = dice.random()
    if chance < 0.70:
        return dice.randint(2, 40)
    if chance < 0.95:
        return dice.randint(40, 250)
    if chance < 0.995:
        return dice.randint(250, 1_000)
    return dice.randint(1_500, 4_500)


def spread(
    items: Iterable[Item], seconds: float, dice: random.Random
) -> list[tuple[float, list[Item]]]:
    """Return items in bursts, and when each burst begins: only a crowd meets a limit."""
    waiting, bursts = list(items), []
    total, done = len(waiting), 0
    while done < total:
        # An item that kills its process is submitted alone, or processes would die too often.
        size = 1 if waiting[done].behaviour is Behaviour.POISON else dice.randint(5, 60)
        bursts.append((seconds * done / total, waiting[done : done + size]))
        done += size
    return bursts
