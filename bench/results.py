"""What waiting for results costs (T23): `asyncio.gather`, `mp.wait` and `mp.as_completed`.

here        worker and waiter in one process: 4,000 handles awaited, against the same drain
            without a waiter, until the pool is empty; both begin when a full pool is resumed
elsewhere   the worker in another process: from the first submit to the last result, per second

Ways are interleaved, in a new order every round. Figures are medians, and ratios medians of
the ratio within one round.
`asyncio.gather` makes a task per handle, some 5 us each: that part is asyncio's own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from figures import Figure, Found, Target
from table import show
from verify.servers.postgres import OwnServer, find_programs

from millpond import Handle, Millpond

HERE, ELSEWHERE, SLOTS = 4_000, 2_000, 100
MOST, MOST_GOAL = 1.3, 1.1
LEAST, LEAST_GOAL = 5_000.0, 15_000.0


async def as_completed(mp: Millpond, handles: Sequence[Handle[Any]]) -> None:
    """Take the handles in the order in which they end."""
    async for _ in mp.as_completed(handles):
        pass


async def gather(_: Millpond, handles: Sequence[Handle[Any]]) -> None:
    """Await all handles as asyncio does."""
    await asyncio.gather(*handles)


async def wait(mp: Millpond, handles: Sequence[Handle[Any]]) -> None:
    """Await all handles together."""
    await mp.wait(handles)


async def drain(mp: Millpond, handles: Sequence[Handle[Any]]) -> None:
    """Await no handle, only the end of the backlog."""
    del handles
    await mp.get_pool("results").drain()


WAYS: dict[str, Callable[[Millpond, Sequence[Handle[Any]]], Awaitable[None]]] = {
    "asyncio.gather": gather,
    "mp.wait": wait,
    "mp.as_completed": as_completed,
}


def application(url: str) -> tuple[Millpond, Any]:
    """Return a Millpond with one pool, and its task."""
    mp = Millpond(url)
    pool = mp.pool("results", max_concurrent=SLOTS)

    async def give(n: int) -> int:
        return n

    return mp, pool.task(give)


async def one_here(url: str, way: Callable[..., Awaitable[None]]) -> float:
    """Return the seconds from the start of a backlog to the end of a wait for it."""
    mp, give = application(url)
    pool = mp.get_pool("results")
    async with mp, mp.worker(concurrency=SLOTS):
        await gather(mp, await pool.submit_many(give.each(range(SLOTS))))
        await pool.pause()
        handles = await pool.submit_many(give.each(range(HERE)))
        begun = time.perf_counter()
        await pool.resume()
        await way(mp, handles)
        return time.perf_counter() - begun


async def one_elsewhere(url: str, way: Callable[..., Awaitable[None]]) -> float:
    """Return how many results of another process's worker arrive per second."""
    mp, give = application(url)
    async with mp:
        with worker(url):
            await gather(mp, await mp.get_pool("results").submit_many(give.each(range(SLOTS))))
            begun = time.perf_counter()
            handles = await mp.get_pool("results").submit_many(give.each(range(ELSEWHERE)))
            await way(mp, handles)
            return ELSEWHERE / (time.perf_counter() - begun)


@contextmanager
def worker(url: str) -> Iterator[None]:
    """Have a worker in a process of its own."""
    with subprocess.Popen(
        [sys.executable, __file__, "--work", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


async def work(url: str) -> None:
    """Serve until the parent has enough."""
    mp, _ = application(url)
    async with mp, mp.worker(concurrency=SLOTS):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def measure_here(url: str, rounds: int) -> Found:
    """Compare each way to wait with the bare drain."""
    taken: dict[str, list[float]] = {name: [] for name in ("drain", *WAYS)}
    for _ in range(rounds):
        for name in random.sample(list(taken), len(taken)):
            taken[name].append(asyncio.run(one_here(url, WAYS.get(name, drain))))
    found = Found()
    for name, seconds in taken.items():
        found.figures.append(Figure(name, statistics.median(seconds) * 1e3, "ms"))
    for name in WAYS:
        ratios = [one / bare for one, bare in zip(taken[name], taken["drain"], strict=True)]
        ratio = statistics.median(ratios)
        found.targets.append(Target(f"T23 {name} / drain", ratio, MOST, goal=MOST_GOAL))
    return found


def measure_elsewhere(url: str, rounds: int) -> Found:
    """Count the results that arrive from another process."""
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name in random.sample(list(taken), len(taken)):
            taken[name].append(asyncio.run(one_elsewhere(url, WAYS[name])))
    return Found(
        figures=[Figure(name, statistics.median(rates), "/s") for name, rates in taken.items()],
        targets=[
            Target(
                *(f"T23 {name}, other process", statistics.median(rates), None, "/s"),
                goal=LEAST_GOAL,
                least=LEAST,
            )
            for name, rates in taken.items()
        ],
    )


def main() -> int:
    """Measure, print, and with --check fail on a missed must."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        asyncio.run(work(given.work))
        return 0
    missed = False
    programs = find_programs()
    if programs is None:
        raise SystemExit("no PostgreSQL on this machine")
    with (
        tempfile.TemporaryDirectory() as folder,
        OwnServer(programs, {}) as server,
        server.database() as database,
    ):
        urls = {"SQLite": f"sqlite:///{folder}/work.db", "PostgreSQL": server.tcp(database)}
        for store, url in urls.items():
            for name, measure in (("here", measure_here), ("elsewhere", measure_elsewhere)):
                found = measure(url, given.rounds)
                show(f"{store}, {name}", found)
                missed = missed or not all(target.holds for target in found.targets)
    return 1 if missed and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
