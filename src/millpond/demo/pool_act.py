"""Act 2, a fair pool: simulated workers drive the memory store through its six verbs.

A judge looks at every verb and holds it against every invariant of the library.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import msgspec

from millpond.core.admit import Reason
from millpond.core.lease import Leased
from millpond.core.lifecycle import Event, Status
from millpond.core.settle import Raised, Settled, Succeeded
from millpond.core.spec import OrderKind, PoolSpec, bounded, fair_round_robin, fifo
from millpond.demo.shop import RETRY, Running, Shop
from millpond.demo.story import Act, Bar, Frame, Promise, Scene, Strip, Tone, dice_of, mean
from millpond.testing.clock import run_virtual

TENANTS = {"A": 60, "B": 6, "C": 6}
TONES = {"A": Tone.ONE, "B": Tone.TWO, "C": Tone.THREE}
LIMIT, PER_TENANT = 4, 2
FIRST_TURNS = "ABCABC"
DEPTH, OFFERED = 6, 10
LONG = 600.0
"""Virtual seconds after which a store that lost a task, say, ends the show."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the tasks of one tenant waited for their start, in seconds."""

    mean: float
    worst: float


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """How one order served three tenants."""

    order: str
    starts: str
    """The tenants in the order in which their tasks started."""
    waits: dict[str, Waits]
    most_running: int
    most_running_per_tenant: dict[str, int]
    completed: int
    seconds: float


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that died and one that came back."""

    tasks: int
    completed_once: int
    recovered: tuple[str, ...]
    stale_settles: int
    zombie_settle: str
    zombie_while_rerunning: bool


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    """A full queue, and a task that fails twice."""

    offered: int
    taken: int
    refused: dict[str, int]
    depth: int
    bound: int
    attempts: int
    pauses: tuple[float, ...]
    outcome: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What act 2 measured."""

    fifo: Served
    fair: Served
    trouble: Trouble
    bounded: Bounded
    verbs_judged: int
    violations: tuple[str, ...]


def play(seed: int) -> Act[Figures]:
    """Run act 2 on virtual time."""
    return run_virtual(asyncio.wait_for(_play(seed), LONG))


async def _play(seed: int) -> Act[Figures]:
    dice = dice_of(seed)
    shops: list[Shop] = []

    def shop(spec: PoolSpec) -> Shop:
        shops.append(Shop(spec, dice))
        return shops[-1]

    reviews = PoolSpec(name="reviews", max_concurrent=LIMIT, order=fifo())
    fair = msgspec.structs.replace(reviews, order=fair_round_robin(), max_per_key=PER_TENANT)
    mail = PoolSpec(
        name="mail",
        max_concurrent=2,
        order=fifo(),
        backpressure=bounded(DEPTH, on_full="fail_submitter"),
    )
    fifo_scene, in_order = await tenants(shop(reviews))
    fair_scene, fairly = await tenants(shop(fair))
    trouble_scene, survived = await trouble(
        shop(PoolSpec(name="render", max_concurrent=3, order=fifo()))
    )
    bounded_scene, refused = await full_queue(shop(mail))
    figures = Figures(
        fifo=in_order,
        fair=fairly,
        trouble=survived,
        bounded=refused,
        verbs_judged=sum(len(one.stage.history) for one in shops),
        violations=tuple(what for one in shops for what in one.judge.violations),
    )
    return Act(
        title="A fair pool",
        scenes=(
            fifo_scene,
            fair_scene,
            side_by_side(in_order, fairly),
            trouble_scene,
            bounded_scene,
        ),
        promises=promises(figures),
        figures=figures,
    )


def promises(seen: Figures) -> tuple[Promise, ...]:
    """Hold the figures against what a pool promises."""
    fair, lost, full = seen.fair, seen.trouble, seen.bounded
    per_tenant = max(fair.most_running_per_tenant.values())
    small = [fair.waits[name].mean for name in "BC"]
    behind = [seen.fifo.waits[name].mean for name in "BC"]
    pauses = full.pauses
    return (
        Promise(
            promise=f"Never more than {LIMIT} run, {PER_TENANT} per tenant",
            seen=f"{fair.most_running} and {per_tenant} at most",
            kept=max(fair.most_running, seen.fifo.most_running) <= LIMIT
            and per_tenant <= PER_TENANT,
        ),
        Promise(
            promise="Fair: tenants take turns",
            seen=f"{' '.join(fair.starts[: len(FIRST_TURNS)])} ...",
            kept=fair.starts.startswith(FIRST_TURNS),
        ),
        Promise(
            promise="The small ones do not wait for the flood",
            seen=f"mean wait {mean(small):.1f} s; fifo: {mean(behind):.1f} s",
            kept=mean(small) < mean(behind) / 2,
        ),
        Promise(
            promise="A dead worker's tasks run again",
            seen=f"{len(lost.recovered)} recovered, "
            f"{lost.completed_once} of {lost.tasks} done once",
            kept=len(lost.recovered) == 2 and lost.completed_once == lost.tasks,
        ),
        Promise(
            promise="A zombie cannot settle its successor",
            seen=f"late settle: {lost.zombie_settle}",
            kept=lost.zombie_settle == Settled.STALE and lost.zombie_while_rerunning,
        ),
        Promise(
            promise="A failed task is retried, ever later",
            seen="".join(f"{pause:.2f} s, " for pause in pauses) + f"then {full.outcome}",
            kept=full.outcome == Status.COMPLETED and len(pauses) == 2 and pauses[0] < pauses[1],
        ),
        Promise(
            promise="A full queue refuses, with a reason",
            seen=", ".join(f"{many} {reason}" for reason, many in full.refused.items())
            + f" at {full.depth} of {full.bound}",
            kept=full.taken == full.bound
            and full.refused == {Reason.QUEUE_FULL: full.offered - full.bound},
        ),
        Promise(
            promise="Every invariant, at every verb",
            seen=seen.violations[0]
            if seen.violations
            else f"{seen.verbs_judged} verbs judged, none broken",
            kept=not seen.violations,
        ),
    )


# Scenes 1 to 3: three tenants, one of them floods


async def tenants(shop: Shop) -> tuple[Scene, Served]:
    """Let three tenants share a pool in one order."""
    fair = shop.spec.order.kind is OrderKind.FAIR
    total = sum(TENANTS.values())

    def take() -> None:
        shop.camera.take(
            Strip(
                label="starts",
                letters="".join(record.key or "" for _, record in shop.started),
                tones=TONES,
                length=total,
            ),
            *(waiting(name, many) for name, many in TENANTS.items()),
            Bar(
                label="running",
                value=len(shop.running),
                top=LIMIT,
                peak=shop.most,
                tail=f"{len(shop.running):>2}  peak {shop.most}, "
                f"per tenant {max(shop.most_of.values(), default=0)}",
            ),
        )

    def waiting(name: str, many: int) -> Bar:
        left = shop.waiting[name]
        last = max((at for at, record in shop.started if record.key == name), default=0.0)
        more = "" if left else f"  last start {last:.1f} s"
        return Bar(
            label=f"{name} waiting",
            value=left,
            top=max(TENANTS.values()),
            peak=many,
            tail=f"{left:>2}{more}",
            tone=TONES[name],
        )

    shop.work = lambda _: (shop.dice.uniform(0.9, 1.1), Succeeded())
    await shop.declare()
    for name, many in TENANTS.items():
        await shop.submit(name, many=many)
    shop.take = take
    take()
    for number in (1, 2, 3):
        shop.hire(f"w{number}", slots=2)
    await shop.until_idle()
    waits: defaultdict[str, list[float]] = defaultdict(list)
    for at, record in shop.started:
        waits[record.key or ""].append(at)
    figures = Served(
        order=str(shop.spec.order.kind),
        starts="".join(record.key or "" for _, record in shop.started),
        waits={
            name: Waits(mean=round(mean(waits[name]), 3), worst=round(max(waits[name]), 3))
            for name in TENANTS
        },
        most_running=shop.most,
        most_running_per_tenant=dict(shop.most_of),
        completed=sum(record.event is Event.COMPLETE for record in shop.ended),
        seconds=round(shop.now, 3),
    )
    a, b, c = TENANTS.values()
    slots = f"max_concurrent={LIMIT}"
    if fair:
        return Scene(
            title=f"The same tasks, in turns and at most {PER_TENANT} per tenant",
            code=f"queue=fair_round_robin(), {slots}, max_per_key={PER_TENANT}",
            frames=shop.camera.frames(),
            said="B and C are served in turn with A, from the first task on.",
            seconds=2.2,
        ), figures
    return Scene(
        title=f"Three tenants share a pool: A sends {a} tasks, B {b}, C {c}",
        code=f"queue=fifo(), {slots}",
        frames=shop.camera.frames(),
        said=f"B and C wait {figures.waits['B'].mean:.0f} s and more behind A's flood.",
        seconds=1.6,
    ), figures


def side_by_side(first: Served, second: Served) -> Scene:
    """Compare what the tenants waited under two orders."""
    top = max(waits.worst for served in (first, second) for waits in served.waits.values())
    rows = tuple(
        Bar(
            label=f"{name} {word}",
            value=served.waits[name].mean,
            top=top,
            peak=served.waits[name].worst,
            tail=f"{served.waits[name].mean:4.1f}  worst {served.waits[name].worst:4.1f}",
            tone=TONES[name],
        )
        for name in TENANTS
        for word, served in (("fifo", first), ("fair", second))
    )
    return Scene(
        title="What each tenant waited, in seconds: mean, and worst in light",
        code="",
        frames=(Frame(at=0.0, rows=rows),),
        said=f"A pays for its own flood: it never has more than {PER_TENANT} of {LIMIT} slots.",
        seconds=1.0,
    )


# Scene 4: a worker dies, another one comes back


async def trouble(shop: Shop) -> tuple[Scene, Trouble]:
    """Let one worker die and one freeze past its lease."""
    names = "abcdefgh"
    tones = {
        **dict.fromkeys(names, Tone.BUSY),
        "b": Tone.TWO,
        "c": Tone.THREE,
        "x": Tone.BAD,
        "!": Tone.BAD,
        "~": Tone.WAIT,
        "-": Tone.QUIET,
    }
    tick, crew = 0.125, ("w1", "w2", "w3", "w4")
    cells: dict[str, str] = dict.fromkeys(crew, "")

    def cell(name: str) -> str:
        worker = next((one for one in shop.workers if one.name == name), None)
        if worker is None:
            return " "
        if worker.dead or worker.retired:
            return " " if cells[name][-1:] in "x! " else "x" if worker.dead else "!"
        if not worker.awake.is_set():
            return "~"
        return next(iter(worker.carrying.values()), "-")

    async def watch() -> None:
        # Between the moments at which things happen, so that no cell shows a change half made.
        await asyncio.sleep(tick / 2)
        while True:
            for name in crew:
                cells[name] += cell(name)
            take()
            await asyncio.sleep(tick)

    def take() -> None:
        shop.camera.take(
            *(
                Strip(label=name, letters=cells[name], tones=tones, length=62, is_time=True)
                for name in crew
            )
        )

    shop.work = lambda _: (1.5, Succeeded())
    await shop.declare()
    for name in names:
        await shop.submit(name)
    first, second, third = (shop.hire(f"w{number}", slots=1) for number in (1, 2, 3))
    watching = asyncio.create_task(watch())
    idle = asyncio.create_task(shop.until_idle())
    await asyncio.sleep(1.1)
    held = {worker.name: dict(worker.carrying) for worker in (first, second, third)}
    second.die()
    third.freeze()
    shop.camera.note("w2 dies with b, w3 freezes with c; w1 goes on", Tone.BAD)
    await shop.lost.wait()
    shop.camera.note("their leases run out: b and c are back at the head of the queue")
    await asyncio.sleep(0.25)
    shop.hire("w4", slots=1)
    await asyncio.sleep(1.0)
    late = next(iter(held["w3"]), 0)
    rerunning = late in shop.running
    third.thaw()
    await third.settled.wait()
    answer = third.answers[late]
    shop.camera.note(f"w3 wakes up and settles c, which is w4's by now: {answer}", Tone.BAD)
    await idle
    watching.cancel()
    done = Counter(record.key for record in shop.ended if record.event is Event.COMPLETE)
    view = await shop.stage.store.view.pool(shop.spec.name)
    figures = Trouble(
        tasks=len(names),
        completed_once=sum(many == 1 for many in done.values()),
        recovered=tuple(
            sorted(record.key or "" for record in shop.ended if record.event is Event.LOSE)
        ),
        stale_settles=view.stale_settles if view is not None else 0,
        zombie_settle=answer,
        zombie_while_rerunning=rerunning,
    )
    scene = Scene(
        title="A worker dies, another comes back from the dead",
        code="A lease is lost 2 s after its last renewal.  x dead  ~ frozen  ! refused",
        frames=shop.camera.frames(),
        said=f"{figures.completed_once} of {len(names)} tasks completed, each exactly once.",
        seconds=2.4,
    )
    return scene, figures


# Scene 5: a full queue, and a task that fails


async def full_queue(shop: Shop) -> tuple[Scene, Bounded]:
    """Offer more than fits, and let the first task fail twice."""
    tick = 0.0625
    cells = ""
    refused: Counter[str] = Counter()
    depth = bound = taken = 0

    def take() -> None:
        shop.camera.take(
            Bar(
                label="queued",
                value=shop.waiting.total(),
                top=OFFERED,
                peak=taken,
                limit=DEPTH,
                tail=f"{shop.waiting.total():>2}  peak {taken} of {DEPTH}",
                tone=Tone.WAIT,
            ),
            Bar(
                label="refused",
                value=refused.total(),
                top=OFFERED,
                tail=f"{refused.total():>2}  {', '.join(refused)}",
                tone=Tone.BAD,
            ),
            Strip(
                label="task a",
                letters=cells,
                tones={"=": Tone.BUSY, "x": Tone.BAD, "-": Tone.QUIET, "+": Tone.GOOD},
                length=40,
                is_time=True,
            ),
        )

    async def watch() -> None:
        nonlocal cells
        while True:
            await asyncio.sleep(tick)
            ends = [record for record in shop.ended if record.key == "a"]
            marks = "".join("+" if one.event is Event.COMPLETE else "x" for one in ends)
            seen = sum(cells.count(mark) for mark in "x+")
            running = "a" in shop.running.values()
            if len(marks) > seen:
                cells += marks[seen]
            elif "+" not in cells:
                cells += "=" if running else "-"
            take()

    shop.take = take
    await shop.declare()
    for name in "abcdefghij"[:OFFERED]:
        answer = await shop.submit(name)
        if answer.refusal is None:
            taken += 1
        else:
            refused[answer.refusal.reason] += 1
            depth, bound = answer.refusal.depth or 0, answer.refusal.bound or 0
        take()
        await asyncio.sleep(0.02)

    def work(leased: Leased) -> Running:
        fails = leased.key == "a" and leased.fence.attempt < 3
        if fails:
            return 0.3, Raised(b"the mail server hung up")
        return (0.3 if leased.key == "a" else 0.1), Succeeded()

    shop.work = work
    shop.hire("w1", slots=2)
    watching = asyncio.create_task(watch())
    await shop.until_idle()
    await asyncio.sleep(2 * tick)
    watching.cancel()
    mine = [record for record in shop.ended if record.key == "a"]
    starts = [at for at, record in shop.started if record.key == "a"]
    pauses = tuple(
        round(start - failed.at, 3) for failed, start in zip(mine, starts[1:], strict=False)
    )
    figures = Bounded(
        offered=OFFERED,
        taken=taken,
        refused={str(reason): many for reason, many in refused.items()},
        depth=depth,
        bound=bound,
        attempts=len(starts),
        pauses=pauses,
        outcome=str(mine[-1].after),
    )
    scene = Scene(
        title=f"A queue with room for {DEPTH} is offered {OFFERED}; task a fails twice",
        code=f'backpressure=bounded({DEPTH}, on_full="fail_submitter"), Retry(initial=0.5)',
        frames=shop.camera.frames(),
        said=f"Refused is refused at once. A retry waits {RETRY.initial:g} s, then twice that, "
        f"within {RETRY.jitter:.0%}.",
        seconds=1.5,
    )
    return scene, figures
