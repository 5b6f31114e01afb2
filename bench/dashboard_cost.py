"""What an open dashboard costs a busy pool.

    make bench-dashboard                       SQLite and PostgreSQL
    make bench-dashboard ARGS="--stores sqlite --pairs 10"

One process runs small tasks as fast as it can. Another serves the dashboard of the same store, and
a thread listens to its live events, of all pools and of the busy pool, as an open page does. Rounds
with and without the listener take turns, and each pair is compared by itself: a machine that is
slower for a while is slower for both.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import http.client
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verify.servers.postgres import serve as serve_postgres

from millpond import Millpond

TASKS = 20_000
"""Waiting tasks below which more are submitted."""

ROUND = 6.0
"""Seconds of one round."""


completed: collections.Counter[str] = collections.Counter()


def make(url: str) -> Millpond:
    """Return an application with one pool and one small task."""
    mp = Millpond(url, work=True)
    pool = mp.pool("busy", max_concurrent=200, prefetch=200)

    @pool.task
    async def nothing(number: int) -> int:
        completed["busy"] += 1
        return number

    return mp


async def rounds(url: str, pairs: int) -> list[tuple[float, float, float]]:
    """Return of each pair of rounds: tasks per second without and with an open dashboard.

    Also the part of a processor that the server of the dashboard takes meanwhile.
    """
    mp = make(url)
    found = []
    async with mp:
        feeding = asyncio.create_task(feed(mp))
        await asyncio.sleep(2.0)
        with serving(url) as (port, pid):
            for number in range(pairs):
                # Each of the two comes first in turn.
                order = (False, True) if number % 2 else (True, False)
                pair = {one: await measured(pid, port if one else None) for one in order}
                (alone, _), (watched, used) = pair[False], pair[True]
                found.append((alone, watched, used))
                print(
                    f"  {alone:8,.0f} /s alone  {watched:8,.0f} /s watched, "
                    f"{100 * used:.1f} % of a processor",
                    flush=True,
                )
        feeding.cancel()
    return found


async def feed(mp: Millpond) -> None:
    """Keep the queue from running empty."""
    pool, nothing = mp.get_pool("busy"), mp.tasks["nothing"]
    while True:
        if (await pool.snapshot()).queued < TASKS:
            await pool.submit_many([nothing.bind(number) for number in range(1000)])
        else:
            await asyncio.sleep(0.05)


def processor_time(pid: int) -> float:
    """Return the seconds that a process has used, on Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measured(pid: int, port: int | None) -> tuple[float, float]:
    """Return how many tasks complete in a second, and what a process uses of a processor."""
    stop = threading.Event()
    listener = None
    if port is not None:
        listener = asyncio.create_task(asyncio.to_thread(listen, port, stop))
        await asyncio.sleep(1.0)
    began, before, used = time.perf_counter(), completed["busy"], processor_time(pid)
    await asyncio.sleep(ROUND)
    took = time.perf_counter() - began
    rate = (completed["busy"] - before) / took
    used = (processor_time(pid) - used) / took
    stop.set()
    if listener is not None:
        await listener
    return rate, used


def listen(port: int, stop: threading.Event) -> None:
    """Read live events as the page of a pool does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/api/v1/live?pool=busy")
    answer = connection.getresponse()
    while not stop.is_set() and answer.readline():
        pass
    connection.close()


@contextmanager
def serving(url: str) -> Iterator[tuple[int, int]]:
    """Run `millpond serve` on a store; give its port and its process."""
    command = [sys.executable, "-m", "millpond", "serve", "--store", url, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait()


def report(store: str, url: str, pairs: int) -> None:
    """Measure, and print what the dashboard costs."""
    print(f"{store}: tasks per second")
    found = asyncio.run(rounds(url, pairs))
    costs = [100 * (1 - watched / alone) for alone, watched, _ in found]
    middle, spread = statistics.median(costs), statistics.stdev(costs) if pairs > 1 else 0.0
    used = 100 * statistics.median(one for _, _, one in found)
    print(
        f"  an open dashboard costs {middle:.1f} % (median of {pairs} pairs, spread {spread:.1f})"
    )
    print(f"  its server uses {used:.1f} % of one processor")


def main() -> None:
    """Measure the cost on each store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--pairs", type=int, default=8)
    asked = parser.parse_args()
    for store in asked.stores:
        if store == "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                report(store, f"sqlite:///{Path(folder) / 'work.db'}", asked.pairs)
        else:
            with serve_postgres() as server, server.database() as url:
                report(store, url, asked.pairs)


if __name__ == "__main__":
    main()
