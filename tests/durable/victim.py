"""A process that is killed: it does one thing on a store, says how far it is, and never stops."""

import asyncio
import sys

from tests.waiting import never_ends

from millpond import Context, Millpond, Outcome, RunOutcome


def make(url: str, notes: list[str]) -> Millpond:
    """Return the application that each process has; its handlers append to `notes`."""
    mp = Millpond(url, lease=2.0, work=True)
    jobs = mp.pool("jobs", max_concurrent=2)
    mp.pool("lines", lanes=2, max_concurrent=2)

    claimed = mp.pool("claimed", max_concurrent=4, prefetch=16)

    @claimed.task
    async def half_a_second(number: int) -> None:
        notes.append(f"half {number}")
        if notes is SPOKEN:
            # Longer than a store takes for a call.
            await asyncio.sleep(0.5)
            say("ended", number)

    @mp.task
    async def report(outcome: Outcome) -> None:
        notes.append(f"callback {outcome.status}")
        await stay("callback")

    @mp.task
    async def sum_up(outcome: RunOutcome) -> None:
        notes.append(f"sum {sum(outcome.results)} of {outcome.completed}")
        await stay("sum")

    @jobs.task
    async def job(ctx: Context, number: int) -> int:
        notes.append(f"job {number} {ctx.attempt}")
        if number >= 2:
            await stay(f"job {number}")
        return number * number

    @jobs.task
    async def quick() -> None: ...

    async def stay(word: str) -> None:
        if notes is SPOKEN:
            say(word)
            await never_ends()

    return mp


SPOKEN: list[str] = []
"""What the victim itself keeps: with any other list handlers come to an end."""


def say(*words: object) -> None:
    """Say it to the process that kills."""
    print(*words, flush=True)  # noqa: T201


async def run(mp: Millpond) -> None:
    """Drain a named run, half of whose tasks stay."""
    await mp.get_pool("jobs").drain(mp.tasks["job"].each(range(4)), run="nightly")


async def closures(mp: Millpond) -> None:
    """Submit closures: two run, one waits."""
    running = asyncio.Semaphore(0)

    async def closure() -> None:
        running.release()
        await never_ends()

    for _ in range(3):
        handle = await mp.get_pool("jobs").submit(closure)
        say("closure", handle.id)
    for _ in range(2):
        await running.acquire()
    say("both run")


async def callback(mp: Millpond) -> None:
    """End a task whose callback stays."""
    await mp.tasks["job"].options(on_complete=mp.tasks["report"].bind()).submit(0)


async def when_all(mp: Millpond) -> None:
    """Submit tasks that end, and a call for when they have, which stays."""
    jobs, job = mp.get_pool("jobs"), mp.tasks["job"]
    await jobs.when_all(job.each([0, 1]), then=mp.tasks["sum_up"].bind(), run="squares")


async def held_run(mp: Millpond) -> None:
    """Hold a run with a callback open, one of whose tasks stays."""
    async with mp.get_pool("jobs").run("squares") as run:
        await run.on_complete(mp.tasks["sum_up"].bind())
        await run.submit_many(mp.tasks["job"].each([1, 3]))


async def submits(mp: Millpond) -> None:
    """Store tasks as fast as it can, and say each that was acknowledged."""
    lines = mp.get_pool("lines")

    async def submitter() -> None:
        while True:
            handle = await lines.submit(mp.tasks["quick"].bind())
            say("stored", handle.id, handle.lane, handle.sequence)

    await asyncio.gather(*(submitter() for _ in range(8)))


async def ahead(mp: Millpond) -> None:
    """Run tasks of which more are claimed than run."""
    await mp.get_pool("claimed").submit_many(mp.tasks["half_a_second"].each(range(60)))


async def main(url: str, what: str) -> None:
    """Do one of them, and stay."""
    async with make(url, SPOKEN) as mp:
        await globals()[what](mp)
        await never_ends()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
