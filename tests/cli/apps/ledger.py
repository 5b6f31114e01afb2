"""An application on a SQLite file whose handlers write down each of their runs."""

import asyncio
import os
from pathlib import Path

from millpond import Context, Millpond


def make(folder: Path | None = None) -> Millpond:
    """Return the application as it is in every process; its files are in one folder."""
    place = folder or Path(os.environ["LEDGER"])
    mp = Millpond(f"sqlite:///{place}/work.db", lease=3.0)
    jobs = mp.pool("jobs", max_concurrent=4)

    def note(*words: object) -> None:
        """Append one line in one write, also while other processes write."""
        with (place / "ledger").open("ab", buffering=0) as ledger:
            ledger.write((" ".join(map(str, words)) + "\n").encode())

    @jobs.task
    async def job(ctx: Context, number: int) -> int:
        note("begun", number, ctx.attempt, os.getpid())
        await asyncio.sleep(0.01)  # so that a kill can come between the two lines
        note("done", number, ctx.attempt, os.getpid())
        return number * number

    @jobs.task
    async def held(ctx: Context, number: int) -> int:
        note("begun", number, ctx.attempt, os.getpid())
        print("held", number, flush=True)  # noqa: T201
        while not (place / "go").exists():  # noqa: ASYNC110 - a file sends no event
            await asyncio.sleep(0.02)
        note("done", number, ctx.attempt, os.getpid())
        return number * number

    return mp
