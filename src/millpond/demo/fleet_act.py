"""Act 3, across processes: three workers on one file, one killed with tasks in its hands."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import Any
from urllib.parse import quote

import msgspec

from millpond import Millpond, Pool, Status
from millpond.demo import fleet_app as depot
from millpond.demo.audit_reader import Books
from millpond.demo.fleet_app import LEASE, LIMIT, LIMIT_EACH
from millpond.demo.scenes import (
    BLANK,
    QUICK,
    Bar,
    Bill,
    Camera,
    Ending,
    Legend,
    Note,
    Piece,
    Promise,
    Row,
    Scene,
    Stack,
    Tone,
    dice_of,
)
from millpond.demo.worker_processes import Crew, Hand
from millpond.pool.internals import internals_of

TENANTS = {"acme": Tone.ONE, "bolt": Tone.TWO, "cara": Tone.THREE}
SUBMITTED = {"acme": 120, "bolt": 60, "cara": 60}
TASKS = sum(SUBMITTED.values())
WORKERS, EACH = 3, 5
"""Worker processes, and how many tasks one runs at a time: together more than the pool allows."""
SHORTEST, LONGEST = 0.10, 0.20
"""Seconds that a task takes, at normal speed."""
KILL_AFTER = 60
"""How many tasks are done, at least, when the kill comes."""
IN_HAND = 3
"""How many tasks the victim has in hand at least, as far as one can see from outside."""
SOON = 5.0
"""Seconds within which a killed worker must have been found; its lease is six times as long."""
OVER = 30.0
"""Seconds after which nobody waits any more: something was lost."""
TICK = 0.05

BILL = Bill(
    title="Across processes: kill -9",
    words=f"{WORKERS} worker processes share a SQLite file, {TASKS} tasks of three tenants and "
    f"the limits: {LIMIT} at a time, {LIMIT_EACH} of a tenant. One will be killed.",
    code=(
        f'parcels = mp.pool("parcels", max_concurrent={LIMIT}, max_per_key={LIMIT_EACH},',
        '                  queue=fair_round_robin("tenant"))',
        f"$ millpond worker depot:make --store sqlite:///work.db   # {WORKERS} times",
    ),
)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What act 3 measured: on a real machine, so not the same twice."""

    tasks: int
    submitted: int
    """How many the audit has seen come in."""
    completed: int
    ended_once: int
    left: int
    """How many were queued or running in the end."""
    books_agree: bool
    workers: int
    """How many processes took tasks."""
    in_hand: int
    """How many tasks the killed worker had begun and not ended."""
    found_after: float
    """Seconds from the kill until the last of them was back in the queue."""
    charged: int
    """How many of those were charged an attempt for it, and completed with a later one."""
    charged_others: int
    """How many tasks that it did not hold were charged more than one attempt."""
    effects: int
    """How many tasks are in the ledger: a table that the handlers wrote with ctx.commit."""
    effects_twice: int
    """How many of them more than once."""
    most_running: int
    most_of_a_tenant: int
    starts_compared: int
    turns_apart: int
    """How far two tenants' starts were ever apart while all three had work waiting."""
    seconds: float


class Yard:
    """The pool on its file, the workers, and what is known of the kill."""

    def __init__(self, scene: Scene, mp: Millpond, crew: Crew) -> None:
        self.mp = mp
        self.crew = crew
        self.file = scene.file
        self.pool: Pool = mp.get_pool("parcels")
        self.books = Books(mp, self.pool)
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.workers: frozenset[str] = frozenset()
        self.complete = asyncio.Event()
        """Set when every worker has joined."""
        self.victim: Hand | None = None
        self.killed_at = 0.0
        """By the clock of the store, which is the time of day."""
        self.diary: list[str] = []
        dice, speed = dice_of(scene.seed), scene.speed or QUICK
        pack = mp.tasks["pack"]
        self.calls = [
            pack.bind(round(dice.uniform(SHORTEST, LONGEST) / speed, 4), tenant)
            for tenant, many in SUBMITTED.items()
            for _ in range(many)
        ]

    async def work(self) -> None:
        """Submit everything, let it start once the workers are there, and wait for its end."""
        await self.pool.pause()
        handles = await self.pool.submit_many(self.calls)
        await self.complete.wait()
        self.began = self.loop.time()
        await self.pool.resume()
        await self.mp.wait(handles, timeout=OVER)

    async def look(self) -> None:
        """Read what is new, and write down what is worth it."""
        self.workers |= await internals_of(self.mp).runtime.view.workers()
        if None not in map(self.worker_of, self.crew.hands):
            self.complete.set()
        await self.books.read()
        victim = self.victim
        if victim is not None and len(self.diary) == 1 and not self.held(victim):
            many, after = len(self.lost), self.found_after
            self.note(f"its lock is free: {many} tasks back in the queue after {after:.2f} s")
        if len(self.diary) == 2 and self.lost <= self.books.attempts.keys():
            self.note("the last of them is done, by another worker")

    def note(self, words: str) -> None:
        """Write a line into the diary."""
        self.diary.append(f"{self.loop.time() - self.began:4.1f} s  {words}")

    def worker_of(self, hand: Hand) -> str | None:
        """Return the name under which a process works; its owner has the pid in it."""
        mark = f"-{hand.pid}-"
        return next((name for name in self.workers if mark in name), None)

    def held(self, hand: Hand) -> int:
        """Return how many tasks a worker has in hand."""
        name = self.worker_of(hand)
        return 0 if name is None else self.books.held(name)

    @property
    def lost(self) -> set[int]:
        """The tasks that were taken from the killed worker."""
        return {record.task for record, _ in self.books.lost if record.task is not None}

    @property
    def found_after(self) -> float:
        """Seconds from the kill until the last of its tasks was back in the queue."""
        return max((record.at for record, _ in self.books.lost), default=0.0) - self.killed_at

    def strike(self) -> bool:
        """Kill a worker if the moment has come; answer whether it has."""
        if sum(self.books.done.values()) < KILL_AFTER:
            return False
        victim = max(self.crew.hands, key=self.held)
        if self.held(victim) < IN_HAND:
            return False
        self.killed_at = time.time()
        victim.kill()
        self.victim = victim
        self.note(f"kill -9 {victim.pid}: worker {victim.number} is gone, and says nothing")
        return True


async def play(camera: Camera, scene: Scene) -> Ending[Figures]:
    """Let three processes work, kill one of them, and see what becomes of its tasks."""
    async with depot.make(url_of(scene)) as mp:
        depot.lay_out(scene.file)
        with Crew(url_of(scene), scene.file, WORKERS, EACH) as crew:
            yard = Yard(scene, mp, crew)
            watching = asyncio.create_task(watch(yard, camera))
            working = asyncio.create_task(yard.work())
            try:
                await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await called_off(working, TimeoutError)
                await called_off(watching)
        await yard.look()
        camera.take(picture(yard))
        figures = await measured(yard)
    return Ending(said=said(figures), promises=promises(figures), figures=figures)


async def called_off(task: asyncio.Task[Any], *expected: type[Exception]) -> None:
    """Let a task end, wherever it is; raise what it raised, if that is not what one expects."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, *expected):
        await task


async def watch(yard: Yard, camera: Camera) -> None:
    """Look again and again; when the moment has come, kill."""
    struck = False
    while True:
        yard.crew.check()
        await yard.look()
        struck = struck or yard.strike()
        camera.take(picture(yard))
        await asyncio.sleep(TICK)


def url_of(scene: Scene) -> str:
    """Return the address of the show's file."""
    return f"sqlite:///{quote(str(scene.file.absolute()))}"


async def measured(yard: Yard) -> Figures:
    """Return what the audit, the snapshot and the ledger say."""
    books, snapshot = yard.books, await yard.pool.snapshot()
    ledger = Counter(depot.entries(yard.file))
    later = {task for task, attempt in books.attempts.items() if attempt > 1}
    contested = books.contested(frozenset(TENANTS))
    return Figures(
        tasks=TASKS,
        submitted=books.submitted,
        completed=books.ended[Status.COMPLETED],
        ended_once=books.once,
        left=snapshot.queued + snapshot.running,
        books_agree=books.agree(snapshot),
        workers=len(books.workers),
        in_hand=len(yard.lost),
        found_after=round(yard.found_after, 3),
        charged=len(later & yard.lost),
        charged_others=len(later - yard.lost),
        effects=len(ledger),
        effects_twice=sum(times > 1 for times in ledger.values()),
        most_running=books.most_running,
        most_of_a_tenant=books.most_of_a_key,
        starts_compared=len(contested),
        turns_apart=turns_apart([start.key for start in contested]),
        seconds=round(yard.loop.time() - yard.began, 3),
    )


def turns_apart(starts: list[str]) -> int:
    """Return how far two tenants' numbers of starts ever were apart."""
    turns, worst = dict.fromkeys(TENANTS, 0), 0
    for tenant in starts:
        turns[tenant] += 1
        worst = max(worst, max(turns.values()) - min(turns.values()))
    return worst


def picture(yard: Yard) -> list[Row]:
    """Draw the tenants, the workers and the diary."""
    books = yard.books
    running = sum(map(books.running, TENANTS))
    return [
        Legend(),
        *(
            Stack(
                label=name,
                done=books.done[name],
                running=books.running(name),
                queued=books.queued(name),
                top=max(SUBMITTED.values()),
                tone=tone,
            )
            for name, tone in TENANTS.items()
        ),
        BLANK,
        *(worker_bar(yard, hand) for hand in yard.crew.hands),
        Bar(
            label="running",
            value=running,
            peak=books.most_running,
            top=LIMIT * 1.25,
            limit=LIMIT,
            tail=f"{running:>2}  at most {books.most_running} of {LIMIT}",
            tone=Tone.WAIT,
        ),
        BLANK,
        *(Note(text=line, tone=Tone.STRONG) for line in yard.diary),
        *([BLANK] * (3 - len(yard.diary))),
    ]


def worker_bar(yard: Yard, hand: Hand) -> Bar:
    """Draw a worker: what it has in hand, and what it has done."""
    name, held = yard.worker_of(hand), yard.held(hand)
    done = yard.books.done_by[name] if name is not None else 0
    if hand.killed:
        held = held or len(yard.lost)
        tail = f"killed, {held} in hand, {done} done"
    else:
        tail = f"{held:>2}  {done} done, pid {hand.pid}" if name else "starting"
    return Bar(
        label=f"worker {hand.number}",
        value=held,
        top=LIMIT * 1.25,
        tail=tail,
        tone=Tone.BAD if hand.killed else Tone.BUSY,
    )


def said(seen: Figures) -> str:
    """Say what to remember."""
    if seen.completed < seen.submitted:
        return f"{seen.completed} of {seen.submitted} completed: {seen.left} are left."
    return (
        f"Killed with {seen.in_hand} tasks in hand, which were back in the queue "
        f"{seen.found_after:.2f} s later. {seen.completed} of {seen.submitted} completed: nothing "
        "was lost."
    )


def headline(seen: Figures) -> str:
    """Say the number to remember."""
    return (
        f"A worker was killed with {seen.in_hand} tasks in hand: back in the queue after "
        f"{seen.found_after:.2f} s, {seen.completed} of {seen.submitted} completed."
    )


def promises(seen: Figures) -> tuple[Promise, ...]:
    """Hold the figures against what a durable pool promises."""
    twice = f", {seen.effects_twice} twice" if seen.effects_twice else ""
    return (
        Promise(
            promise="kill -9 loses nothing",
            seen=f"{seen.completed} of {seen.submitted} completed, {seen.left} left",
            kept=seen.submitted == seen.completed == seen.ended_once == seen.tasks
            and seen.left == 0
            and seen.books_agree,
        ),
        Promise(
            promise=f"It is found at once, not in {LEASE:.0f} s",
            seen=f"{seen.in_hand} tasks back after {seen.found_after:.2f} s",
            kept=seen.in_hand > 0 and 0 <= seen.found_after <= SOON,
        ),
        Promise(
            promise="What it held is charged an attempt",
            seen=f"{seen.charged} of {seen.in_hand}, and {seen.charged_others} others",
            kept=seen.charged == seen.in_hand and seen.charged_others == 0,
        ),
        Promise(
            promise="Each effect once, by ctx.commit",
            seen=f"{seen.effects} of {seen.tasks} in the ledger{twice}",
            kept=seen.effects == seen.tasks and seen.effects_twice == 0,
        ),
        Promise(
            promise=f"{LIMIT} at a time, {LIMIT_EACH} of a tenant, over all",
            seen=f"{seen.most_running} and {seen.most_of_a_tenant} at most, {seen.workers} workers",
            kept=seen.most_running <= LIMIT
            and seen.most_of_a_tenant <= LIMIT_EACH
            and seen.workers == WORKERS,
        ),
        Promise(
            promise="Turns hold over all processes",
            seen=f"{seen.turns_apart} apart at most in {seen.starts_compared} starts",
            kept=seen.turns_apart <= 2 and seen.starts_compared >= KILL_AFTER,
        ),
    )


PIECE = Piece(BILL, play, real=True)
