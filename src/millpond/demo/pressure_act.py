"""Act 2: everybody pushes. Weighted turns, a bounded queue that refuses, failures retried."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import combinations

import msgspec

from millpond import Context, Millpond, Retry, Status, bounded, fair_round_robin
from millpond.core.admit import Reason
from millpond.core.quantiles import Quantiles
from millpond.demo.books import Books, Start
from millpond.demo.story import (
    Bar,
    Bill,
    Camera,
    Columns,
    Ending,
    Legend,
    Note,
    Piece,
    Promise,
    Row,
    Spark,
    Stack,
    Tone,
    dice_of,
    share,
)

SLOTS = 6
WEIGHTS = {"acme": 3.0, "bolt": 2.0, "cara": 1.0}
TENANTS = {"acme": Tone.ONE, "bolt": Tone.TWO, "cara": Tone.THREE}
PROMISED = {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
ROOM, ROOM_EACH = 24, 10
RETRY = Retry(attempts=3, initial=0.4)
OFFERED_EVERY = 0.12
FAILING = 1 / 7
HOPELESS = ("cara", 3)
"""The offer that fails at every attempt: whose, and which of theirs."""
CLOSE_AT, STOP_AT = 6.5, 7.2
TICK = 0.1
LENGTH = 95
"""How many pictures are expected."""

BILL = Bill(
    title="Everybody pushes",
    words="Each tenant offers more than the pool can do, and one call in seven fails. Promised: "
    f"shares of 3 : 2 : 1, a queue of {ROOM}. After {CLOSE_AT:g} s the pool is closed.",
    code=(
        f'mp.pool("reviews", max_concurrent={SLOTS}, retry=Retry(3, initial={RETRY.initial:g}),',
        '        queue=fair_round_robin("tenant", {"acme": 3, "bolt": 2, "cara": 1}),',
        f'        backpressure=bounded({ROOM}, on_full="fail_submitter", per_key={ROOM_EACH}))',
    ),
)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What act 2 measured."""

    offered: int
    accepted: int
    refused: dict[str, int]
    """How many submits were refused, by reason."""
    refused_by_bound: dict[str, int]
    """Of the full queue: how many met the room of their tenant, and how many that of the pool."""
    most_running: int
    most_waiting: int
    """Tasks never claimed, at most: what the bound bounds."""
    shares: dict[str, float]
    """The tenants' parts of the starts while all three had work waiting."""
    promised: dict[str, float]
    starts_compared: int
    turns_apart: float
    """How far two tenants were ever apart beyond a turn of each; 0 or less is fair."""
    retried: int
    pauses: tuple[float, ...]
    """Seconds from each failed attempt to the earliest start of the next."""
    completed: int
    gave_up: int
    ended_once: int
    books_agree: bool
    waits: Quantiles
    seconds: float


class ModelBusy(Exception):
    """The model behind the reviews did not answer."""


class Rush:
    """A pool, three producers that never let up, and a flaky model."""

    def __init__(self, seed: int) -> None:
        self.dice = dice_of(seed)
        self.mp = Millpond()
        self.mp.seed = seed
        self.pool = self.mp.pool(
            "reviews",
            max_concurrent=SLOTS,
            retry=RETRY,
            queue=fair_round_robin("tenant", WEIGHTS),
            backpressure=bounded(ROOM, on_full="fail_submitter", per_key=ROOM_EACH),
        )
        self.books = Books(self.mp, self.pool)
        self.offered: Counter[str] = Counter()
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        self.by_bound: Counter[str] = Counter()
        self.waits = Quantiles()
        self.depths: list[float] = []
        self.gaps: list[float] = []

        @self.pool.task(key="tenant")
        async def review(ctx: Context, seconds: float, failures: int, tenant: str) -> str:
            await asyncio.sleep(seconds)
            if ctx.attempt <= failures:
                raise ModelBusy("the model is busy")
            return tenant

        self.review = review

    async def press(self, tenant: str) -> None:
        """Offer a task every now and then, room or not, until the act is over."""
        loop = asyncio.get_running_loop()
        while loop.time() < STOP_AT:
            await self.offer(tenant)
            await asyncio.sleep(OFFERED_EVERY * self.dice.uniform(0.7, 1.3))

    async def offer(self, tenant: str) -> None:
        """Submit one task; a refusal is an answer."""
        self.offered[tenant] += 1
        failures = int(self.dice.random() < FAILING)
        if (tenant, self.offered[tenant]) == HOPELESS:
            failures = RETRY.attempts
        call = self.review.bind(self.dice.uniform(0.35, 0.65), failures, tenant)
        answer = await self.pool.try_submit(call)
        if answer:
            self.accepted += 1
            return
        self.refused[answer.reason] += 1
        if answer.bound is not None:
            self.by_bound["pool" if answer.lane is None else "tenant"] += 1

    async def look(self) -> None:
        """Read the audit and the snapshot."""
        await self.books.read()
        snapshot = await self.pool.snapshot()
        self.waits = snapshot.waits
        self.depths.append(snapshot.queued)
        shares = shares_of(self.contested)
        self.gaps.append(max(abs(shares[name] - PROMISED[name]) for name in WEIGHTS))

    @property
    def contested(self) -> list[Start]:
        """The starts while all three tenants had work waiting: there shares mean something."""
        return self.books.contested(frozenset(WEIGHTS))


async def play(camera: Camera, seed: int) -> Ending[Figures]:
    """Let three tenants push, close the pool, drain it."""
    rush = Rush(seed)
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        while True:
            await rush.look()
            camera.take(picture(rush))
            await asyncio.sleep(TICK)

    async def close() -> None:
        await asyncio.sleep(CLOSE_AT)
        await rush.pool.close()

    async with rush.mp:
        watching = asyncio.create_task(watch())
        async with asyncio.TaskGroup() as group:
            group.create_task(close())
            for tenant in WEIGHTS:
                group.create_task(rush.press(tenant))
        await rush.pool.drain()
        seconds = loop.time()
        watching.cancel()
        await rush.look()
        camera.take(picture(rush))
        figures = await measured(rush, seconds)
    return Ending(said=said(figures), promises=promises(figures), figures=figures)


async def measured(rush: Rush, seconds: float) -> Figures:
    """Return what the audit, the snapshot and the submitters have seen."""
    books, snapshot = rush.books, await rush.pool.snapshot()
    return Figures(
        offered=rush.offered.total(),
        accepted=rush.accepted,
        refused=dict(sorted(rush.refused.items())),
        refused_by_bound=dict(sorted(rush.by_bound.items())),
        most_running=books.most_running,
        most_waiting=books.most_fresh,
        shares={name: round(part, 4) for name, part in shares_of(rush.contested).items()},
        promised={name: round(part, 4) for name, part in PROMISED.items()},
        starts_compared=len(rush.contested),
        turns_apart=round(turns_apart(rush.contested), 4),
        retried=len(books.retries),
        pauses=tuple(round(one.due - one.at, 3) for one in books.retries),
        completed=books.ended[Status.COMPLETED],
        gave_up=books.ended[Status.FAILED],
        ended_once=books.once,
        books_agree=books.agree(snapshot),
        waits=rounded(snapshot.waits),
        seconds=round(seconds, 3),
    )


def rounded(waits: Quantiles) -> Quantiles:
    """Return quantiles to the millisecond."""
    p50, p90, p99 = (round(one, 3) for one in (waits.p50, waits.p90, waits.p99))
    return Quantiles(p50=p50, p90=p90, p99=p99, samples=waits.samples)


def shares_of(starts: list[Start]) -> dict[str, float]:
    """Return each tenant's part of some starts."""
    counts = Counter(start.key for start in starts)
    return {name: share(counts[name], len(starts)) for name in WEIGHTS}


def turns_apart(starts: list[Start]) -> float:
    """Return how far two tenants' weighted starts ever were apart, beyond a turn of each.

    A start costs a tenant 1 / weight turns. Two tenants that stay in the ring are never further
    apart than a start of each: 0 or less is fair.
    """
    spent = dict.fromkeys(WEIGHTS, 0.0)
    worst = float("-inf")
    for start in starts:
        spent[start.key] += 1 / WEIGHTS[start.key]
        for one, other in combinations(WEIGHTS, 2):
            allowed = 1 / WEIGHTS[one] + 1 / WEIGHTS[other]
            worst = max(worst, abs(spent[one] - spent[other]) - allowed)
    return worst


def picture(rush: Rush) -> list[Row]:
    """Draw the tenants and their shares, the queue, who is refused, what is retried."""
    books = rush.books
    shares = shares_of(rush.contested)
    stacks = (
        Stack(
            label=name,
            done=books.done[name],
            running=books.running(name),
            queued=books.queued(name),
            top=60,
            tone=tone,
        )
        for name, tone in TENANTS.items()
    )
    parts = (
        Bar(
            label=name,
            value=shares[name],
            top=0.7,
            limit=PROMISED[name],
            tail=f"{shares[name]:3.0%}  due {PROMISED[name]:.0%}",
            tone=tone,
        )
        for name, tone in TENANTS.items()
    )
    return [
        Columns((Legend(), *stacks), (Note(text="share of starts while all three wait"), *parts)),
        Spark(
            label="off by",
            values=tuple(rush.gaps),
            top=0.15,
            length=LENGTH,
            tail=f"{rush.gaps[-1] * 100:4.1f} points from the shares due",
        ),
        Spark(
            label="queued",
            values=tuple(rush.depths),
            top=ROOM,
            length=LENGTH,
            tail=f"{rush.depths[-1]:4.0f}  at most {books.most_fresh} not yet begun",
            tone=Tone.WAIT,
        ),
        *refusals(rush),
        *retries(books),
        Note(
            label="waits",
            text=f"half within {rush.waits.p50:.1f} s, 90 % within {rush.waits.p90:.1f} s, "
            f"99 % within {rush.waits.p99:.1f} s",
        ),
    ]


def refusals(rush: Rush) -> list[Row]:
    """Draw who was refused, and why."""
    rows = (
        (rush.by_bound["tenant"], f"queue_full, {ROOM_EACH} per tenant"),
        (rush.by_bound["pool"], f"queue_full, {ROOM} in all"),
        (rush.refused[Reason.CLOSED], "closed"),
    )
    return [
        Bar(
            label="refused" if number == 0 else "",
            value=many,
            top=100,
            tail=f"{many:>3}  {why}",
            tone=Tone.BAD,
        )
        for number, (many, why) in enumerate(rows)
    ]


def retries(books: Books) -> list[Row]:
    """Draw how many attempts failed, and what became of the latest."""
    many, gave_up = len(books.retries), books.ended[Status.FAILED]
    latest = books.retries[-1] if books.retries else None
    told = (
        f"{latest.key}: attempt {latest.attempt} failed at {latest.at:.1f} s, "
        f"the next one {latest.due - latest.at:.2f} s later"
        if latest is not None
        else ""
    )
    return [
        Bar(
            label="retried",
            value=many,
            top=100,
            tail=f"{many:>3}  {gave_up} given up at attempt {RETRY.attempts}",
            tone=Tone.WAIT,
        ),
        Note(text=told, tone=Tone.QUIET, inset=True),
    ]


def said(seen: Figures) -> str:
    """Say what to remember."""
    refused = sum(seen.refused.values())
    return (
        f"{seen.offered} offered, {refused} refused on the spot and told why, {seen.accepted} "
        f"accepted: {seen.completed} completed, {seen.gave_up} failed for good. None lost."
    )


def promises(seen: Figures) -> tuple[Promise, ...]:
    """Hold the figures against what a pool promises."""
    shares = " : ".join(f"{seen.shares[name] * 100:.0f}" for name in WEIGHTS)
    refused = ", ".join(f"{many} {reason}" for reason, many in seen.refused.items())
    pauses = seen.pauses
    return (
        Promise(
            promise="Starts are shared 3 : 2 : 1",
            seen=f"{shares} % of {seen.starts_compared} starts",
            kept=seen.starts_compared >= 30 and seen.turns_apart <= 1e-9,
        ),
        Promise(
            promise=f"Never more than {ROOM} wait, nor {SLOTS} run",
            seen=f"{seen.most_waiting} and {seen.most_running} at most",
            kept=seen.most_waiting <= ROOM and seen.most_running <= SLOTS,
        ),
        Promise(
            promise="Who is refused is told why",
            seen=refused,
            kept=seen.offered == seen.accepted + sum(seen.refused.values())
            and seen.refused.keys() == {Reason.QUEUE_FULL, Reason.CLOSED},
        ),
        Promise(
            promise="What failed is retried, ever later",
            seen=f"{seen.retried} after {min(pauses, default=0):.1f} to "
            f"{max(pauses, default=0):.1f} s, {seen.gave_up} given up",
            kept=seen.retried > 0 and max(pauses) > 1.5 * min(pauses) and seen.gave_up == 1,
        ),
        Promise(
            promise="Accepted is completed or failed, once",
            seen=f"{seen.completed} + {seen.gave_up} of {seen.accepted}",
            kept=seen.completed + seen.gave_up == seen.accepted == seen.ended_once
            and seen.books_agree,
        ),
    )


PIECE = Piece(BILL, play)
