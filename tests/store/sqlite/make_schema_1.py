"""Makes `schema-1.sql`: a store as the first schema left it, with something in every table.

    python -m tests.store.sqlite.make_schema_1 > tests/store/sqlite/schema-1.sql

It is made once, by the release that wrote the schema, and kept: every later release must open it.
"""

import asyncio
import sqlite3
import sys
import tempfile
from pathlib import Path

from verify.servers.sqlite_files import InlineStore

from millpond import Context, Millpond, Outcome, Retry
from millpond.pool.internals import internals_of
from millpond.testing.clock import run_virtual

CALLBACK = "tell"
"""The name of the callback in the stored tasks."""


def application(path: Path, notes: list[str]) -> Millpond:
    """Return the application that stores the tasks; in a later release its workers run them."""
    mp = Millpond(work=False)
    internals_of(mp).owner.make_store = lambda: InlineStore(path, asyncio.get_running_loop().time)
    internals_of(mp).owner.shared = True
    plain = mp.pool("plain", retry=Retry.constant(1.0, jitter=0.0))
    mp.pool("hooks", lanes=2)
    mp.pool("calls", max_concurrent=4, max_per_key=1)

    @mp.task(name=CALLBACK)
    async def callback(outcome: Outcome) -> None:
        notes.append(f"outcome {outcome.status}")

    @plain.task
    async def job(ctx: Context, word: str) -> str:
        notes.append(f"{word} {ctx.attempt}")
        if word == "bad" or (word == "flaky" and ctx.attempt == 1):
            raise ValueError(word)
        return word

    return mp


async def make(path: Path) -> None:
    """Store tasks of every kind, some of them done, one of them lost with its worker."""
    mp = application(path, [])
    job, callback = mp.tasks["job"], mp.tasks[CALLBACK]
    async with mp:
        plain, hooks, calls = (mp.get_pool(name) for name in ("plain", "hooks", "calls"))
        async with mp.worker(pools=[plain]):
            await job.options(idempotency_key="order-1", on_complete=callback.bind()).submit("done")
            await job.options(retry=Retry.never()).submit("bad")
            await job.submit("flaky")
            await asyncio.sleep(0.5)  # "flaky" is to be between two attempts
        await job.options(delay=3600.0).submit("later")
        await job.options(on_complete=callback.bind(), labels={"for": "me"}).submit("waiting")
        await hooks.submit_many(job.each(["one", "two", "three"]))
        await calls.submit_many(job.bind("call").options(key=key) for key in "aab")
        await calls.pause(key="b")
        await plain.resize(max_concurrent=3)


def main() -> None:
    """Print the file as SQL."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work.db"
        run_virtual(make(path))
        file = sqlite3.connect(path)
        lines = [*file.iterdump()]
        file.close()
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
