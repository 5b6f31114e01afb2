"""A periodic job that takes longer than its period: it neither overlaps nor piles up."""

import asyncio

from millpond import Millpond

mp = Millpond()
jobs = mp.pool("jobs", max_concurrent=4)
running = most = started = 0
enough = asyncio.Event()


@jobs.task
async def sync() -> None:
    global running, most, started  # noqa: PLW0603
    running += 1
    started += 1
    most = max(most, running)
    await asyncio.sleep(1.5)  # the period is one second
    running -= 1
    if started == 2:
        enough.set()


mp.cron(
    "sync",
    every=1,
    task=sync.bind().options(idempotency_key="sync", dedupe="inflight"),
    on_start=True,
)


async def main() -> None:
    async with mp:
        await enough.wait()
        print(f"{started} runs, at most {most} at a time, {await jobs.size()} left")
        assert most == 1
        assert await jobs.size() <= 1


if __name__ == "__main__":
    asyncio.run(main())
