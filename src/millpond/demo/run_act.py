"""Act 3: a run that grows while it is worked on, and is drained to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from millpond import Context, Millpond, Retry, Status
from millpond.demo.books import Books
from millpond.demo.story import (
    Bar,
    Bill,
    Camera,
    Ending,
    Note,
    Piece,
    Promise,
    Row,
    Spark,
    Tone,
    dice_of,
)

if TYPE_CHECKING:
    import random

SLOTS = 8
PAGES = 140
FAILING = 1 / 12
TICK = 0.1
LENGTH = 58
"""How many pictures are expected."""

BILL = Bill(
    title="A run that grows, drained",
    words="A crawl begins with one page, and each page submits the links it finds. drain() "
    "returns when nothing of the run is left, however far it grew.",
    code=(
        "await ctx.submit_many(fetch.bind(link) for link in links)  # inside fetch",
        'report = await crawl.drain([fetch.bind("/")])',
    ),
)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What act 3 measured."""

    pages: int
    """How many pages can be reached from the first."""
    links: int
    """How many links were followed, the same page often."""
    total: int
    """How many tasks the run had, says its report."""
    completed: int
    fetched_once: int
    """How many pages were fetched to the end exactly once."""
    retried: int
    deepest: int
    """How many tasks waited at most."""
    most_running: int
    left: int
    """How many tasks were queued or running when drain returned."""
    books_agree: bool
    seconds: float


Site = dict[str, tuple[str, ...]]


def site(dice: random.Random) -> Site:
    """Return a web site: each page but the first is linked from one before it, and some twice.

    It has no circles, so that a crawl that fetches pages again still comes to an end.
    """
    names = ["/", *(f"/{number}" for number in range(1, PAGES))]
    links: dict[str, list[str]] = {name: [] for name in names}
    for number in range(1, PAGES):
        # About three links a page, so that the crawl widens before it ends.
        parent = max(0, (number - 1) // 3 - dice.randrange(4))
        links[names[parent]].append(names[number])
    for number, name in enumerate(names[:-1]):
        if dice.random() < 0.4:
            links[name].append(dice.choice(names[number + 1 :]))
    return {name: tuple(found) for name, found in links.items()}


class Crawl:
    """A pool, a task that submits more of itself, and what was fetched."""

    def __init__(self, seed: int) -> None:
        dice = dice_of(seed)
        self.mp = Millpond()
        self.mp.seed = seed
        self.pool = self.mp.pool(
            "crawl", max_concurrent=SLOTS, retry=Retry(attempts=5, initial=0.3)
        )
        self.books = Books(self.mp, self.pool)
        self.site = site(dice)
        self.fetched: list[str] = []
        self.links = 0
        self.depths: list[float] = []
        self.over = False

        @self.pool.task
        async def fetch(ctx: Context, page: str) -> int:
            await asyncio.sleep(dice.uniform(0.15, 0.35))
            links = self.site[page]
            await ctx.submit_many(
                fetch.bind(link).options(idempotency_key=link, dedupe="run") for link in links
            )
            if dice.random() < FAILING:
                # It fails after it has submitted: an attempt that fails leaves nothing behind.
                raise ConnectionError("the connection was reset")
            self.fetched.append(page)
            self.links += len(links)
            return len(links)

        self.fetch = fetch


async def play(camera: Camera, seed: int) -> Ending[Figures]:
    """Crawl a site to its end."""
    crawl = Crawl(seed)

    async def look() -> None:
        await crawl.books.read()
        crawl.depths.append((await crawl.pool.snapshot()).queued)
        camera.take(picture(crawl))

    async def watch() -> None:
        while True:
            await look()
            await asyncio.sleep(TICK)

    async with crawl.mp:
        watching = asyncio.create_task(watch())
        first = crawl.fetch.bind("/").options(idempotency_key="/", dedupe="run")
        report = await crawl.pool.drain([first])
        seconds = asyncio.get_running_loop().time()
        snapshot = await crawl.pool.snapshot()
        watching.cancel()
        crawl.over = True
        await look()
        books = crawl.books
        figures = Figures(
            pages=len(crawl.site),
            links=crawl.links,
            total=report.total,
            completed=report.completed,
            fetched_once=sum(crawl.fetched.count(page) == 1 for page in crawl.site),
            retried=len(books.retries),
            deepest=int(max(crawl.depths)),
            most_running=books.most_running,
            left=snapshot.queued + snapshot.running,
            books_agree=books.agree(snapshot) and books.ended[Status.COMPLETED] == report.total,
            seconds=round(seconds, 3),
        )
    return Ending(said=said(figures), promises=promises(figures), figures=figures)


def picture(crawl: Crawl) -> list[Row]:
    """Draw how the run grows and drains."""
    books = crawl.books
    known, done = books.submitted, books.ended[Status.COMPLETED]
    running = books.running("")
    return [
        Spark(
            label=f"pages that wait for a slot: {crawl.depths[-1]:.0f}",
            values=tuple(crawl.depths),
            top=max(60.0, *crawl.depths),
            length=LENGTH,
            height=6,
            tone=Tone.WAIT,
        ),
        Bar(
            label="running",
            value=running,
            top=PAGES,
            limit=SLOTS,
            tail=f"{running:>3}  at most {books.most_running} of {SLOTS}",
        ),
        Bar(label="found", value=known, top=PAGES, tail=f"{known:>3}  pages so far", tone=Tone.ONE),
        Bar(label="fetched", value=done, top=PAGES, tail=f"{done:>3}", tone=Tone.GOOD),
        Bar(
            label="retried",
            value=len(books.retries),
            top=PAGES,
            tail=f"{len(books.retries):>3}  connections lost",
            tone=Tone.BAD,
        ),
        Note(label="drain()", text="has returned" if crawl.over else "waits"),
    ]


def said(seen: Figures) -> str:
    """Say what to remember."""
    return (
        f"One page grew into {seen.total}; {seen.links} links led to them, and each was fetched "
        f"once. Never more than {seen.most_running} at a time, nothing left at the end."
    )


def promises(seen: Figures) -> tuple[Promise, ...]:
    """Hold the figures against what a run promises."""
    return (
        Promise(
            promise="drain() returns when nothing is left",
            seen=f"{seen.left} left of {seen.total}, {seen.completed} completed",
            kept=seen.left == 0 and seen.completed == seen.total and seen.books_agree,
        ),
        Promise(
            promise="Each page once, however many links",
            seen=f"{seen.fetched_once} of {seen.pages} pages, {seen.links} links",
            kept=seen.fetched_once == seen.total == seen.pages,
        ),
        Promise(
            promise=f"A growing run still runs {SLOTS} at a time",
            seen=f"{seen.most_running} at most, {seen.deepest} waiting",
            kept=seen.most_running <= SLOTS,
        ),
    )


PIECE = Piece(BILL, play)
