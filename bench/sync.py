"""What a call from a thread costs: the async path, a bare hop, and `mp.sync`, in one run.

async   the method awaited on the loop itself
hop     `run_coroutine_threadsafe(empty(), loop).result()`: to the loop and back, doing nothing
sync    the same method through `mp.sync`, from another thread

submit  on a Millpond without a worker, so that the submit is all that happens
whole   submit and wait for the result, with a worker: two calls, so two hops

All three ways run interleaved, in a new order every round; figures are medians over the rounds, in
microseconds per call. The result is (sync - hop) / async: the median of the ratio within one
round, and the ratio of the best rounds, to which a busy machine adds least. `--check` wants the
latter to be at most 2.0.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from millpond import Millpond, Pool
from millpond.pool.internals import internals_of

COUNT = 400
MOST = 2.0

idle_mp, served_mp = Millpond(work=False), Millpond()
pool = idle_mp.pool("alone")
served = served_mp.pool("served", max_concurrent=4)


@pool.task
async def alone(n: int) -> int:
    """Never run."""
    return n


@served.task
async def work(n: int) -> int:
    """Do next to nothing."""
    return n


async def empty() -> None:
    """Do nothing."""


async def submit_async() -> None:
    """Submit a call."""
    await pool.submit(alone.bind(1))


def submit_sync() -> None:
    """Do the same from a thread."""
    pool.sync.submit(alone.bind(1))


async def whole_async() -> None:
    """Submit a call and wait for its result."""
    await (await served.submit(work.bind(1)))


def whole_sync() -> None:
    """Do the same from a thread."""
    served.sync.submit(work.bind(1)).get()


async def timed(fn: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Return the seconds for one call on the loop."""
    start = time.perf_counter()
    for _ in range(COUNT):
        await fn()
    return (time.perf_counter() - start) / COUNT


def on_the_loop(pool: Pool, fn: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Measure a coroutine function where it belongs."""
    return asyncio.run_coroutine_threadsafe(timed(fn), internals_of(pool).loop).result()


def in_a_thread(fn: Callable[[], object]) -> float:
    """Measure a plain function here."""
    start = time.perf_counter()
    for _ in range(COUNT):
        fn()
    return (time.perf_counter() - start) / COUNT


def hop(pool: Pool) -> None:
    """Go to the loop and back."""
    asyncio.run_coroutine_threadsafe(empty(), internals_of(pool).loop).result()


def measure(
    pool: Pool,
    there: Callable[[], Coroutine[Any, Any, None]],
    here: Callable[[], None],
    *,
    hops: int,
    rounds: int,
) -> float:
    """Measure one pair of twins, print the line, return the ratio."""
    found: dict[str, list[float]] = {"async": [], "hop": [], "sync": []}
    ways: dict[str, Callable[[], float]] = {
        "async": lambda: on_the_loop(pool, there),
        "hop": lambda: in_a_thread(partial(hop, pool)),
        "sync": lambda: in_a_thread(here),
    }
    names = list(ways)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            pool.sync.purge()
            gc.collect()
            found[name].append(ways[name]())
    ratios = [
        (sync - hops * hop) / plain
        for plain, hop, sync in zip(found["async"], found["hop"], found["sync"], strict=True)
    ]
    ratio = (min(found["sync"]) - hops * min(found["hop"])) / min(found["async"])
    figures = "  ".join(f"{statistics.median(found[n]) * 1e6:8.1f}" for n in found)
    print(
        f"{here.__name__:14}{figures}    {hops}    {statistics.median(ratios):6.2f}  {ratio:6.2f}"
    )
    return ratio


def main() -> int:
    """Measure and, if asked, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--check", action="store_true", help=f"fail above {MOST}")
    given = parser.parse_args()
    print("µs per call       async       hop      sync  hops  ratio: median, best")
    with idle_mp.sync:
        one = measure(pool, submit_async, submit_sync, hops=1, rounds=given.rounds)
    with served_mp.sync:
        total = measure(served, whole_async, whole_sync, hops=2, rounds=given.rounds)
    return int(given.check and max(one, total) > MOST)


if __name__ == "__main__":
    sys.exit(main())
