"""An application as its author would write it: one pool, one task, a worker. For what it weighs."""

from __future__ import annotations

import asyncio
import os

from millpond import Millpond

mp = Millpond(os.environ.get("BENCH_URL"))
pool = mp.pool("bench", max_concurrent=10)


@pool.task
async def noop(sent: int) -> None:
    """Do nothing."""


async def main() -> None:
    """Work until killed."""
    async with mp, mp.worker(concurrency=10):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
