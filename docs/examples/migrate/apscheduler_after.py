"""The same jobs with Millpond: in this program, or in a file, or over a fleet."""

import asyncio

from millpond import Millpond

mp = Millpond()  # "sqlite:///jobs.db" or "postgresql://..." remembers and shares the schedules
jobs = mp.pool("jobs", max_concurrent=10)

fired = asyncio.Event()
ticks = 0


@jobs.task
async def report(kind: str) -> None:
    print("report:", kind)
    fired.set()


@jobs.task
async def count() -> None:
    global ticks  # noqa: PLW0603
    ticks += 1


daily = mp.cron(
    "daily",
    "0 9 * * mon-fri",
    tz="Europe/Berlin",
    task=report.bind("daily"),
    missed="once",
    grace=300,
)
tick = mp.cron("tick", every=1, task=count)


async def main() -> None:
    async with mp:
        await report.options(delay=0.1).submit("once")
        await fired.wait()

        fired.clear()
        await daily.fire()
        await fired.wait()

        while ticks < 2:
            await asyncio.sleep(0.1)
        await tick.pause()
        print("ticks: paused")
        await tick.remove()
        print("left:", [schedule.id for schedule in await mp.schedules()])


if __name__ == "__main__":
    asyncio.run(main())
