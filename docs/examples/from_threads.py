"""Threads and asyncio tasks at one bulkhead: they wait in one queue and share one limit."""

import asyncio
import time

from millpond import Bulkhead

database = Bulkhead("database", 2, max_queue=20)


def in_a_thread(n: int) -> int:
    with database.blocking(timeout=5):
        time.sleep(0.005)  # a driver that blocks
        return n


async def on_the_loop(n: int) -> int:
    async with database:
        await asyncio.sleep(0.005)  # a driver that does not block
        return n


async def main() -> None:
    threads = [asyncio.to_thread(in_a_thread, n) for n in range(4)]
    tasks = [on_the_loop(n) for n in range(4, 8)]
    assert sorted(await asyncio.gather(*threads, *tasks)) == list(range(8))

    stats = database.stats()
    print(f"admitted {stats.admitted}, in flight {stats.in_flight}, rejected {stats.rejected}")
    assert (stats.admitted, stats.in_flight, stats.rejected) == (8, 0, 0)


asyncio.run(main())
