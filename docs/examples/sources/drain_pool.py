"""The drain pool: N workers empty a queue to which they add; the caller waits for the end."""

import asyncio
from dataclasses import dataclass

from millpond import Context, Millpond, Retry, RunFailed, fifo

mp = Millpond("sqlite:///work.db")
jobs = mp.pool("jobs", max_concurrent=8)
crawl = mp.pool("crawl", max_concurrent=4)
serial = mp.pool("serial", max_concurrent=1, queue=fifo())

ran: list[str] = []
effects: list[str] = []


@jobs.task(retry=Retry.never())
async def run_job(job: str, payload: str) -> None:
    if payload == "bad":
        raise ValueError(payload)
    ran.append(job)


@dataclass
class Link:
    url: str
    depth: int = 0


@crawl.task
async def fetch(ctx: Context, link: Link) -> None:
    found = [f"{link.url}{letter}/" for letter in "ab"]
    if link.depth < 3:
        await ctx.submit_many(fetch.bind(Link(url, link.depth + 1)) for url in found)


async def pay(order: str) -> str:
    effects.append(order)
    return f"receipt of {order}"


@jobs.task(retry=Retry(attempts=2, initial=0.01))
async def charge(ctx: Context, order: str) -> str:
    receipt = await ctx.once("pay", lambda: pay(order))  # a later attempt gets the stored result
    if not ctx.is_retry:
        raise ConnectionError("after the payment")
    return receipt


async def main() -> None:
    async with mp:
        report = await jobs.drain([run_job.bind("a", "first"), run_job.bind("b", "second")])
        assert (report.completed, ran) == (2, ["a", "b"])

        grown = await crawl.drain([fetch.bind(Link("https://example.com/"))], run="monday")
        print(f"{grown.total} pages")
        assert grown.total == 1 + 2 + 4 + 8
        again = await crawl.drain([fetch.bind(Link("https://example.com/"))], run="monday")
        assert again.finished_before  # after a crash the same call goes on, or returns the report

        skipped = await jobs.drain([run_job.bind("c", "bad"), run_job.bind("d", "good")])
        assert (skipped.completed, skipped.failed) == (1, 1)
        try:
            await jobs.drain([run_job.bind("e", "bad")], on_error="fail")
        except RunFailed as failed:
            print(failed.code)

        assert (await jobs.drain([charge.bind("order 7")])).ok
        assert effects == ["order 7"]  # two attempts, one payment

        assert await jobs.map(len, ["a", "bb"]) == [1, 2]  # a fixed list, in order
        await jobs.submit_many(run_job.bind(job, "later") for job in "xyz")  # without waiting
        await serial.drain([run_job.bind("f", "one"), run_job.bind("g", "two")])


if __name__ == "__main__":
    asyncio.run(main())
