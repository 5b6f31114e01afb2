"""A crawl: a run that grows from one seed, drained to its end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from millpond import BoundCall, Context, Millpond, Retry, RunOverBudget

WEB = {
    "/": ["/docs", "/blog", "/about"],
    "/docs": ["/", "/docs/pools", "/docs/lost"],
    "/docs/pools": ["/docs"],
    "/blog": ["/", "/docs/pools"],
    "/about": ["/"],
}


@dataclass
class Link:
    url: str
    depth: int


mp = Millpond()
crawl = mp.pool("crawl", max_concurrent=4)
visited: list[str] = []


@crawl.task(retry=Retry.never())
async def fetch(ctx: Context, link: Link) -> int:
    await asyncio.sleep(0.001)
    links = WEB[link.url]  # a dead link raises
    visited.append(link.url)
    if link.depth < 3:
        await ctx.submit_many(visit(url, link.depth + 1) for url in links)
    return len(links)


def visit(url: str, depth: int = 0) -> BoundCall[int]:
    """Each address once in a run, however many pages link to it."""
    return fetch.bind(Link(url, depth)).options(idempotency_key=url, dedupe="run")


async def to_the_end() -> None:
    report = await crawl.drain([visit("/")], run="monday")
    print(f"{report.total} pages, {report.completed} fetched, {report.failed} failed")
    assert (report.completed, report.failed, report.ok) == (5, 1, False)

    again = await crawl.drain([visit("/")], run="monday")
    assert again.finished_before  # the stored report: no page was fetched again


async def how_far(name: str) -> None:
    report = await crawl.report(name)  # from any process of the store
    if report is not None:  # None: there is no run of this name
        print(f"{report.completed} of {report.total}, finished: {report.finished}")


async def with_a_budget() -> None:
    try:
        await crawl.drain([visit("/")], max_tasks=3)
    except RunOverBudget as over:
        print(over.message)


async def as_they_come() -> None:
    async with crawl.stream([visit("/")]) as outcomes:
        async for outcome in outcomes:
            print(outcome.status, outcome.result, outcome.error)
    assert outcomes.report is not None
    assert outcomes.report.completed == 5


async def by_hand() -> None:
    async with crawl.run("by hand", on_error="skip") as run:
        for url in ("/blog", "/about"):
            await run.submit(visit(url, 3))
    assert run.report is not None  # leaving the block waited for the end
    assert run.report.ok


async def one_result_per_item() -> None:
    async def length(url: str) -> int:
        await asyncio.sleep(0.001)
        return len(url)

    async def urls() -> AsyncIterator[str]:
        for url in WEB:
            yield url

    assert await crawl.map(length, WEB) == [1, 5, 11, 5, 6]  # in the order of the items
    async for size in crawl.map(length, urls()):  # takes items as there is room
        print(size, end=" ")
    print()


async def main() -> None:
    async with mp:
        await to_the_end()
        await how_far("monday")
        await with_a_budget()
        await as_they_come()
        await by_hand()
        await one_result_per_item()


asyncio.run(main())
