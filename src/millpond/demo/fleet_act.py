"""Act 3, across processes: three workers on one file, one killed while it holds tasks."""

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
from millpond.demo.audit_reader import AuditReader
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
from millpond.demo.worker_processes import Hand, WorkerProcesses
from millpond.pool.internals import internals_of

TENANTS = {"acme": Tone.ONE, "bolt": Tone.TWO, "cara": Tone.THREE}
SUBMITTED = {"acme": 120, "bolt": 60, "cara": 60}
TASKS = sum(SUBMITTED.values())
WORKERS, EACH = 3, 5
"""Worker processes, and how many tasks one runs at a time: together more than the pool allows."""
SHORTEST, LONGEST = 0.10, 0.20
"""Seconds that a task takes, at normal speed."""
KILL_AFTER = 60
"""Least number of tasks done before the kill."""
IN_HAND = 3
"""Least number of tasks that the victim holds, by the audit."""
SOON = 5.0
"""Seconds within which a killed worker must be found; its lease is six times as long."""
OVER = 30.0
"""Seconds after which the act gives up: a task was lost."""
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
    """The figures of act 3. They are measured in real time, so they vary."""

    tasks: int
    submitted: int
    """How many submits the audit has."""
    completed: int
    ended_once: int
    left: int
    """How many were queued or running at the end."""
    books_agree: bool
    workers: int
    """How many processes leased tasks."""
    in_hand: int
    """How many tasks the killed worker held."""
    found_after: float
    """Seconds from the kill until the last of them was queued again."""
    charged: int
    """How many of those were charged an attempt, and completed with a later one."""
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
    """Largest difference of two tenants' starts while all three had waiting tasks."""
    seconds: float


class Yard:
    """The pool, the workers, and the record of the kill."""

    def __init__(self, scene: Scene, mp: Millpond, crew: WorkerProcesses) -> None:
        self.mp = mp
        self.crew = crew
        self.file = scene.file
        self.pool: Pool = mp.get_pool("parcels")
        self.audit = AuditReader(mp, self.pool)
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.workers: frozenset[str] = frozenset()
        self.complete = asyncio.Event()
        """Set when every worker has joined."""
        self.victim: Hand | None = None
        self.killed_at = 0.0
        """By the clock of the store."""
        self.diary: list[str] = []
        dice, speed = dice_of(scene.seed), scene.speed or QUICK
        pack = mp.tasks["pack"]
        self.calls = [
            pack.bind(round(dice.uniform(SHORTEST, LONGEST) / speed, 4), tenant)
            for tenant, many in SUBMITTED.items()
            for _ in range(many)
        ]

    async def work(self) -> None:
        """Submit all tasks, start them once the workers are registered, and wait for the end."""
        await self.pool.pause()
        handles = await self.pool.submit_many(self.calls)
        await self.complete.wait()
        self.began = self.loop.time()
        await self.pool.resume()
        await self.mp.wait(handles, timeout=OVER)

    async def look(self) -> None:
        """Read new audit records, and log the events of the act."""
        self.workers |= await internals_of(self.mp).runtime.view.workers()
        if None not in map(self.worker_of, self.crew.hands):
            self.complete.set()
        await self.audit.read()
        victim = self.victim
        if victim is not None and len(self.diary) == 1 and not self.held(victim):
            many, after = len(self.lost), self.found_after
            self.note(f"its lock is free: {many} tasks back in the queue after {after:.2f} s")
        if len(self.diary) == 2 and self.lost <= self.audit.attempts.keys():
            self.note("the last of them is done, by another worker")

    def note(self, words: str) -> None:
        """Add a line to the event list."""
        self.diary.append(f"{self.loop.time() - self.began:4.1f} s  {words}")

    def worker_of(self, hand: Hand) -> str | None:
        """Return the worker name of a process: it contains the pid."""
        mark = f"-{hand.pid}-"
        return next((name for name in self.workers if mark in name), None)

    def held(self, hand: Hand) -> int:
        """Return how many tasks a worker holds."""
        name = self.worker_of(hand)
        return 0 if name is None else self.audit.held(name)

    @property
    def lost(self) -> set[int]:
        """The tasks recovered from the killed worker."""
        return {record.task for record, _ in self.audit.lost if record.task is not None}

    @property
    def found_after(self) -> float:
        """Seconds from the kill until the last of its tasks was queued again."""
        return max((record.at for record, _ in self.audit.lost), default=0.0) - self.killed_at

    def strike(self) -> bool:
        """Kill a worker if the conditions hold; return whether it did."""
        if sum(self.audit.done.values()) < KILL_AFTER:
            return False
        victim = max(self.crew.hands, key=self.held)
        if self.held(victim) < IN_HAND:
            return False
        self.killed_at = time.time()
        victim.kill()
        self.victim = victim
        self.note(f"kill -9 {victim.pid}: worker {victim.number} is gone without deregistering")
        return True


async def play(camera: Camera, scene: Scene) -> Ending[Figures]:
    """Run three worker processes, kill one, and follow its tasks."""
    async with depot.make(url_of(scene)) as mp:
        depot.lay_out(scene.file)
        with WorkerProcesses(url_of(scene), scene.file, WORKERS, EACH) as crew:
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
    """Cancel an asyncio task and wait; raise unexpected exceptions."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, *expected):
        await task


async def watch(yard: Yard, camera: Camera) -> None:
    """Poll until the conditions for the kill hold, then kill."""
    struck = False
    while True:
        yard.crew.check()
        await yard.look()
        struck = struck or yard.strike()
        camera.take(picture(yard))
        await asyncio.sleep(TICK)


def url_of(scene: Scene) -> str:
    """Return the URL of the store file."""
    return f"sqlite:///{quote(str(scene.file.absolute()))}"


async def measured(yard: Yard) -> Figures:
    """Return the figures of the audit, the snapshot and the ledger."""
    audit, snapshot = yard.audit, await yard.pool.snapshot()
    ledger = Counter(depot.entries(yard.file))
    later = {task for task, attempt in audit.attempts.items() if attempt > 1}
    contested = audit.contested(frozenset(TENANTS))
    return Figures(
        tasks=TASKS,
        submitted=audit.submitted,
        completed=audit.ended[Status.COMPLETED],
        ended_once=audit.once,
        left=snapshot.queued + snapshot.running,
        books_agree=audit.agree(snapshot),
        workers=len(audit.workers),
        in_hand=len(yard.lost),
        found_after=round(yard.found_after, 3),
        charged=len(later & yard.lost),
        charged_others=len(later - yard.lost),
        effects=len(ledger),
        effects_twice=sum(times > 1 for times in ledger.values()),
        most_running=audit.most_running,
        most_of_a_tenant=audit.most_of_a_key,
        starts_compared=len(contested),
        turns_apart=turns_apart([start.key for start in contested]),
        seconds=round(yard.loop.time() - yard.began, 3),
    )


def turns_apart(starts: list[str]) -> int:
    """Return the largest difference of two tenants' numbers of starts."""
    turns, worst = dict.fromkeys(TENANTS, 0), 0
    for tenant in starts:
        turns[tenant] += 1
        worst = max(worst, max(turns.values()) - min(turns.values()))
    return worst


def picture(yard: Yard) -> list[Row]:
    """Draw the tenants, the workers and the event list."""
    audit = yard.audit
    running = sum(map(audit.running, TENANTS))
    return [
        Legend(),
        *(
            Stack(
                label=name,
                done=audit.done[name],
                running=audit.running(name),
                queued=audit.queued(name),
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
            peak=audit.most_running,
            top=LIMIT * 1.25,
            limit=LIMIT,
            tail=f"{running:>2}  at most {audit.most_running} of {LIMIT}",
            tone=Tone.WAIT,
        ),
        BLANK,
        *(Note(text=line, tone=Tone.STRONG) for line in yard.diary),
        *([BLANK] * (3 - len(yard.diary))),
    ]


def worker_bar(yard: Yard, hand: Hand) -> Bar:
    """Draw a worker: tasks held and tasks done."""
    name, held = yard.worker_of(hand), yard.held(hand)
    done = yard.audit.done_by[name] if name is not None else 0
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
    """Return the conclusion of the act."""
    if seen.completed < seen.submitted:
        return f"{seen.completed} of {seen.submitted} completed: {seen.left} are left."
    return (
        f"Killed with {seen.in_hand} tasks in hand, which were back in the queue "
        f"{seen.found_after:.2f} s later. {seen.completed} of {seen.submitted} completed: nothing "
        "was lost."
    )


def headline(seen: Figures) -> str:
    """Return the key figure in a sentence."""
    return (
        f"A worker was killed with {seen.in_hand} tasks in hand: back in the queue after "
        f"{seen.found_after:.2f} s, {seen.completed} of {seen.submitted} completed."
    )


def promises(seen: Figures) -> tuple[Promise, ...]:
    """Compare the figures with the promises of a durable pool."""
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
