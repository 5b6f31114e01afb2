"""Act 2, in a process: one tenant floods a pool that serves in order of arrival, and a fair one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from millpond import Millpond, Pool, Status, fair_round_robin, fifo
from millpond.demo.audit_reader import AuditReader
from millpond.demo.scenes import (
    BLANK,
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
    Scene,
    Stack,
    Strip,
    Tone,
    dice_of,
    median,
)
from millpond.pool.internals import internals_of
from millpond.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS = 4
FLOOD, TRICKLE = 48, 8
SHORTEST, LONGEST = 0.18, 0.25
"""Seconds that a task takes."""
FLOODS, QUIET = "acme", ("bolt", "cara")
TENANTS = {"acme": Tone.ONE, "bolt": Tone.TWO, "cara": Tone.THREE}
LETTERS = {name[0].upper(): tone for name, tone in TENANTS.items()}
TASKS = FLOOD + TRICKLE * len(QUIET)
SOONEST, LATEST = 0.12, 0.25
"""Seconds between two tasks of a quiet tenant."""
TICK = 0.05
KEY_MOMENT = 1.7
"""The moment at which the two pools differ most."""

BILL = Bill(
    title="In a process: one tenant floods",
    words=f"acme submits {FLOOD} tasks at once; bolt and cara send one now and then. Two pools "
    f"do the same work on {SLOTS} slots each: left in order of arrival, right in turns.",
    code=(
        f'left  = mp.pool("left",  max_concurrent={SLOTS}, queue=fifo())',
        f'right = mp.pool("right", max_concurrent={SLOTS}, queue=fair_round_robin("tenant"))',
    ),
)


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long tasks waited for their start, in seconds."""

    median: float
    worst: float


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """How one pool served three tenants."""

    starts: str
    """The tenants' initials in the order in which their tasks started."""
    quiet: Waits
    """The waits of the two quiet tenants."""
    flood: Waits
    passed: int
    """Most tasks of the flood that started while a task of a quiet tenant waited."""
    in_turns: bool
    """Whether no tenant had two turns while a quiet tenant waited for one."""
    most_running: int
    completed: int
    ended_once: int
    books_agree: bool
    """Whether the pool's counts equal those of its audit."""
    seconds: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What act 2 measured."""

    tasks: int
    slots: int
    fifo: Served
    fair: Served


class Contest:
    """Two pools of one Millpond, and the same tasks for both."""

    def __init__(self, scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        self.dice = dice_of(scene.seed)
        self.mp = Millpond()
        internals_of(self.mp).owner.seed = scene.seed
        # Virtual time does not advance while the store works, so only one process may use the file.
        internals_of(self.mp).owner.make_store = lambda: SqliteStore(
            scene.file, durability="normal", inline=True, clock=loop.time
        )
        internals_of(self.mp).owner.shared = False
        self.began = loop.time()
        self.line = self.mp.pool("left", max_concurrent=SLOTS, queue=fifo())
        self.fair = self.mp.pool("right", max_concurrent=SLOTS, queue=fair_round_robin("tenant"))
        self.audit = {pool.name: AuditReader(self.mp, pool) for pool in (self.line, self.fair)}
        self.finished: dict[str, float] = {}

        @self.mp.task(key="tenant")
        async def review(seconds: float, tenant: str) -> str:
            await asyncio.sleep(seconds)
            return tenant

        self.review = review

    async def submit(self, tenant: str, many: int = 1) -> None:
        """Submit the same tasks to both pools."""
        calls = [self.review.bind(self._length(), tenant) for _ in range(many)]
        for pool in (self.line, self.fair):
            await pool.submit_many(calls)

    def _length(self) -> float:
        return round(self.dice.uniform(SHORTEST, LONGEST), 3)

    async def trickle(self, tenant: str) -> None:
        """Send one task now and then."""
        gaps = [self.dice.uniform(SOONEST, LATEST) for _ in range(TRICKLE)]
        for gap in gaps:
            await asyncio.sleep(gap)
            await self.submit(tenant)

    async def drain(self, pool: Pool) -> None:
        """Wait until a pool is empty, and record the time."""
        await pool.drain()
        self.finished[pool.name] = asyncio.get_running_loop().time() - self.began


async def play(camera: Camera, scene: Scene) -> Ending[Figures]:
    """Run the tasks of three tenants in both pools."""
    contest = Contest(scene)

    async def watch() -> None:
        while True:
            await look()
            await asyncio.sleep(TICK)

    async def look() -> None:
        for audit in contest.audit.values():
            await audit.read()
        camera.take(picture(contest))

    async with contest.mp:
        await contest.submit(FLOODS, FLOOD)
        watching = asyncio.create_task(watch())
        async with asyncio.TaskGroup() as group:
            for tenant in QUIET:
                group.create_task(contest.trickle(tenant))
        async with asyncio.TaskGroup() as group:
            for pool in (contest.line, contest.fair):
                group.create_task(contest.drain(pool))
        watching.cancel()
        await look()
        figures = Figures(
            tasks=TASKS,
            slots=SLOTS,
            fifo=await served(contest, contest.line),
            fair=await served(contest, contest.fair),
        )
    return Ending(
        said=said(figures), promises=promises(figures), figures=figures, key_frame=KEY_MOMENT
    )


async def served(contest: Contest, pool: Pool) -> Served:
    """Return the figures of a pool from its audit and its snapshot."""
    audit, snapshot = contest.audit[pool.name], await pool.snapshot()
    quiet = [wait for tenant in QUIET for _, wait in audit.waits[tenant]]
    return Served(
        starts=letters(audit),
        quiet=waits_of(audit, QUIET),
        flood=waits_of(audit, (FLOODS,)),
        passed=max(wait.passed[FLOODS] for wait in quiet),
        in_turns=all(wait.fair for wait in quiet),
        most_running=audit.most_running,
        completed=audit.ended[Status.COMPLETED],
        ended_once=audit.once,
        books_agree=audit.agree(snapshot),
        seconds=round(contest.finished[pool.name], 3),
    )


def letters(audit: AuditReader) -> str:
    """Return the initials of the tenants in the order of their starts."""
    return "".join(start.key[0].upper() for start in audit.starts)


def waits_of(audit: AuditReader, tenants: Sequence[str]) -> Waits:
    """Return the waits of tasks of some tenants, waiting ones included."""
    waits = audit.waited(tenants, asyncio.get_running_loop().time())
    return Waits(median=round(median(waits), 3), worst=round(max(waits, default=0.0), 3))


def picture(contest: Contest) -> list[Row]:
    """Draw both pools side by side, and the key figure below."""
    left, right = (
        (Note(text=title, tone=Tone.STRONG), *panel(contest.audit[pool.name]))
        for title, pool in (
            ("In order of arrival", contest.line),
            ("In turns, tenant by tenant", contest.fair),
        )
    )
    waits = {
        word: waits_of(contest.audit[pool.name], QUIET)
        for word, pool in (("fifo", contest.line), ("fair", contest.fair))
    }
    top = FLOOD * LONGEST / SLOTS
    return [
        Legend(),
        BLANK,
        Columns(left, right),
        BLANK,
        Note(text="What bolt and cara have waited for a start: median, and worst in light"),
        *(
            Bar(
                label=word,
                value=waited.median,
                peak=waited.worst,
                top=top,
                tail=f"{waited.median:4.2f} s  worst {waited.worst:4.2f} s",
                tone=Tone.BAD if word == "fifo" else Tone.GOOD,
            )
            for word, waited in waits.items()
        ),
    ]


def panel(audit: AuditReader) -> tuple[Row, ...]:
    """Draw the tenants of one pool."""
    return (
        *(
            Stack(
                label=name,
                done=audit.done[name],
                running=audit.running(name),
                queued=audit.queued(name),
                top=FLOOD,
                tone=tone,
            )
            for name, tone in TENANTS.items()
        ),
        Strip(label="starts", letters=letters(audit), tones=LETTERS, length=TASKS),
    )


def said(seen: Figures) -> str:
    """Return the conclusion of the act."""
    fifo_wait, fair_wait = seen.fifo.quiet, seen.fair.quiet
    return (
        f"bolt and cara waited {fifo_wait.median:.2f} s behind the flood (worst "
        f"{fifo_wait.worst:.2f} s), and {fair_wait.median:.2f} s in turns (worst "
        f"{fair_wait.worst:.2f} s). Both pools were done after {seen.fair.seconds:.1f} s."
    )


def headline(seen: Figures) -> str:
    """Return the key figure in a sentence."""
    return (
        f"Beside the flood, the quiet tenants waited {seen.fifo.quiet.median:.2f} s with fifo, "
        f"{seen.fair.quiet.median:.2f} s with fair."
    )


def promises(seen: Figures) -> tuple[Promise, ...]:
    """Compare the figures with the promises of a pool."""
    fifo_seen, fair_seen = seen.fifo, seen.fair
    most = max(fifo_seen.most_running, fair_seen.most_running)
    ended = min(fifo_seen.ended_once, fair_seen.ended_once)
    apart = abs(fifo_seen.seconds - fair_seen.seconds)
    return (
        Promise(
            promise=f"Never more than {SLOTS} run",
            seen=f"{most} at most, in either pool",
            kept=most <= SLOTS,
        ),
        Promise(
            promise="The quiet do not wait for the flood",
            seen=f"median {fair_seen.quiet.median:.2f} s; {fifo_seen.quiet.median:.2f} s with fifo",
            kept=fair_seen.quiet.median < fifo_seen.quiet.median / 4,
        ),
        Promise(
            promise="One turn each while others wait",
            seen=f"passed by {fair_seen.passed} at most, {fifo_seen.passed} with fifo",
            kept=fair_seen.in_turns,
        ),
        Promise(
            promise="Fairness costs no throughput",
            seen=f"done after {fifo_seen.seconds:.1f} s and {fair_seen.seconds:.1f} s",
            kept=apart <= LONGEST,
        ),
        Promise(
            promise="Each task ends once, counts add up",
            seen=f"{ended} of {seen.tasks} in each pool",
            kept=all(
                one.ended_once == one.completed == seen.tasks and one.books_agree
                for one in (fifo_seen, fair_seen)
            ),
        ),
    )


PIECE = Piece(BILL, play)
