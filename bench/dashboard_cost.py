"""What an open dashboard costs a busy pool.

    make bench-dashboard                       SQLite and PostgreSQL, fifteen minutes
    make bench-dashboard ARGS="--stores sqlite --pairs 10"

One process submits and runs a fixed number of small tasks, round after round, as fast as it can. A
process beside it has the page of that pool open, or not, in turn: it listens to live events and
reads the plots as the page does. `served` stands for `millpond serve`, a process of its own;
`mounted` for a dashboard in the process that works.

Tasks per second differ by 20 % from round to round on a machine that does other things as well.
Processor time hardly does, so the cost is counted in it, as two parts:

- What the dashboard uses, its process and its connections to the server, of one processor. However
  many want the processors, a pool that keeps one of them busy loses no more than that.
- What the pool, its process and its connections, uses more for each task while a page is open.

Many short rounds alternate, so that a slow drift of the machine is in both kinds alike. The
interval of a figure comes from drawing as many pairs of rounds again, 2000 times (bootstrap).
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import math
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from processes import processor_time
from verify.servers.postgres import serve as serve_postgres

from millpond import Millpond, Pool
from millpond.server import app
from millpond.server.serving import serve

TASKS = 15_000
"""Tasks of one round."""

BATCH = 1000
DRAWS = 2000
dice = random.Random(1)


class Round(NamedTuple):
    """What a round used, in seconds."""

    took: float
    pool: float
    """Processor time of the working process and of its connections to the server."""
    dashboard: float
    """Processor time of the dashboard's process and of its connections."""


class Run:
    """How far a round is."""

    def __init__(self) -> None:
        self.count = 0
        self.over: asyncio.Event


run = Run()


def make(url: str) -> tuple[Millpond, Pool]:
    """Return an application with one pool and one small task."""
    mp = Millpond(url, work=True)
    pool = mp.pool("busy", max_concurrent=200, prefetch=200)

    @pool.task
    async def nothing(number: int) -> int:
        run.count += 1
        if run.count % TASKS == 0:
            run.over.set()
        return number

    return mp, pool


# Processor time


class Meter:
    """Reads what the pool and the dashboard have used so far."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._of_pool = self.connections()
        self.dashboard: int | None = None

    def connections(self) -> set[int]:
        """Return the processes of the server that serve connections, but for this one."""
        if not self._url.startswith("postgres"):
            return set()
        import psycopg

        statement = (
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND datname = current_database() AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(self._url) as connection:
            return {pid for (pid,) in connection.execute(statement)}

    def read(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return the seconds of every process of the pool, and of the dashboard."""
        now = self.connections()
        pool = {pid: processor_time(pid) for pid in (os.getpid(), *(now & self._of_pool))}
        if self.dashboard is None:
            return {pid: processor_time(pid) for pid in (os.getpid(), *now)}, {}
        others = (self.dashboard, *(now - self._of_pool))
        return pool, {pid: processor_time(pid) for pid in others}


def since(before: dict[int, float], after: dict[int, float]) -> float:
    """Return what processes have used between two readings."""
    return sum(used - before.get(pid, 0.0) for pid, used in after.items())


# Rounds


async def rounds(url: str, pairs: int, *, mounted: bool) -> list[tuple[Round, Round]]:
    """Return pairs of rounds: without and with an open page."""
    run.over = asyncio.Event()
    mp, pool = make(url)
    found = []
    async with mp:
        await one_round(mp, pool, Meter(url))
        meter = Meter(url)
        async with serving(mp, url, meter, mounted=mounted) as port, watcher(port) as page:
            for number in range(pairs):
                # Each of the two comes first in turn.
                order = (False, True) if number % 2 else (True, False)
                pair = {}
                for one in order:
                    if one:
                        await page.order("open")
                    pair[one] = await one_round(mp, pool, meter)
                    if one:
                        await page.order("close")
                found.append((pair[False], pair[True]))
                print(f"  {_line(pair[False])}   watched {_line(pair[True])}", flush=True)
    return found


def _line(one: Round) -> str:
    return (
        f"{TASKS / one.took:6,.0f} tasks/s, {one.pool:5.2f} s of processor time, "
        f"dashboard {one.dashboard:5.3f} s"
    )


async def one_round(mp: Millpond, pool: Pool, meter: Meter) -> Round:
    """Submit and run the tasks of a round."""
    nothing = mp.tasks["nothing"]
    run.over.clear()
    began, (pool_before, before) = time.perf_counter(), meter.read()
    for first in range(0, TASKS, BATCH):
        await pool.submit_many([nothing.bind(first + number) for number in range(BATCH)])
    await run.over.wait()
    pool_after, after = meter.read()
    took = time.perf_counter() - began
    return Round(took, since(pool_before, pool_after), since(before, after))


# The dashboard, and who watches it


@asynccontextmanager
async def serving(mp: Millpond, url: str, meter: Meter, *, mounted: bool) -> AsyncIterator[int]:
    """Serve the dashboard of a store from a process of its own, or from this one; give its port."""
    if mounted:
        async with in_this_process(mp) as port:
            yield port
        return
    command = [sys.executable, "-m", "millpond", "serve", "--store", url, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", await asyncio.to_thread(process.stdout.readline))
        assert found is not None
        meter.dashboard = process.pid
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def in_this_process(mp: Millpond) -> AsyncIterator[int]:
    """Serve the dashboard on this loop."""
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    dashboard = app(mp)

    def announce(url: str) -> None:
        started.set_result(int(url.rstrip("/").rpartition(":")[2]))

    running = asyncio.create_task(serve(dashboard, "127.0.0.1", 0, announce))
    try:
        yield await started
    finally:
        await dashboard.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Watcher(NamedTuple):
    """The process that stands for a browser."""

    process: subprocess.Popen[str]

    async def order(self, order: str) -> None:
        """Have the page opened or closed, and wait until it is."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        await asyncio.to_thread(self.process.stdout.readline)


@asynccontextmanager
async def watcher(port: int) -> AsyncIterator[Watcher]:
    """Start the process that stands for a browser."""
    command = [sys.executable, __file__, "--watch", str(port)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)  # noqa: ASYNC220
    try:
        yield Watcher(process)
    finally:
        process.terminate()
        process.wait()


def watch(port: int) -> None:
    """Open and close the page of the pool as standard input says."""
    page: Page | None = None
    for order in sys.stdin:
        if order == "open\n":
            page = Page(port)
        elif page is not None:
            page.close()
        print("done", flush=True)


class Page:
    """Listens to live events, and reads the plots with each of them, as the page of a pool does."""

    def __init__(self, port: int) -> None:
        self._stream, self._plots = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=30) for _ in range(2)
        )
        self._stream.request("GET", "/api/v1/live?pool=busy")
        self._socket = self._stream.sock
        self._answer = self._stream.getresponse()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while line := self._answer.readline():
            if line.startswith(b"event: pools"):
                self._plots.request("GET", "/api/v1/pools/busy/history?seconds=2")
                self._plots.getresponse().read()

    def close(self) -> None:
        """Leave, and wait until nothing is read any more."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._stream.close()
        self._plots.close()


Pair = tuple[Round, Round]
"""A round without an open page, and one with it."""


def report(url: str, pairs: int, *, mounted: bool) -> None:
    """Measure, and print what the dashboard costs."""
    found = asyncio.run(rounds(url, pairs, mounted=mounted))
    print(f"  in per cent, of {pairs} pairs of rounds, and 95 % intervals:")
    if not mounted:
        print(f"  of a processor, for the dashboard, unwatched   {_interval(_unwatched, found)}")
        print(f"  of a processor, for the dashboard, watched     {_interval(_watched, found)}")
    print(f"  more of a processor for each task of the pool  {_interval(_of_pool, found)}")
    print(f"  these two, watched                             {_interval(_in_all, found)}")
    print(f"  fewer tasks per second                         {_interval(_slower, found)}")


def _unwatched(pairs: Sequence[Pair]) -> float:
    return sum(one.dashboard for one, _ in pairs) / sum(one.took for one, _ in pairs)


def _watched(pairs: Sequence[Pair]) -> float:
    return sum(one.dashboard for _, one in pairs) / sum(one.took for _, one in pairs)


def _of_pool(pairs: Sequence[Pair]) -> float:
    return _mean_ratio([watched.pool / alone.pool for alone, watched in pairs]) - 1


def _in_all(pairs: Sequence[Pair]) -> float:
    return _watched(pairs) + _of_pool(pairs)


def _slower(pairs: Sequence[Pair]) -> float:
    return 1 - _mean_ratio([alone.took / watched.took for alone, watched in pairs])


def _mean_ratio(ratios: Sequence[float]) -> float:
    """Return the mean of ratios within pairs: whatever slows both rounds of a pair cancels out."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _interval(cost: Callable[[Sequence[Pair]], float], pairs: Sequence[Pair]) -> str:
    drawn = sorted(cost(dice.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    low, high = drawn[DRAWS // 40], drawn[-DRAWS // 40]
    return f"{100 * cost(pairs):6.2f}  ({100 * low:.2f} to {100 * high:.2f})"


def main() -> None:
    """Measure the cost on each store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--ways", nargs="+", default=["served", "mounted"])
    parser.add_argument("--pairs", type=int, default=40, help="two at least")
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        watch(options.watch)
        return
    for store in options.stores:
        for way in options.ways:
            print(f"{store}, {way}", flush=True)
            if store == "sqlite":
                with tempfile.TemporaryDirectory() as folder:
                    url = f"sqlite:///{Path(folder) / 'work.db'}"
                    report(url, options.pairs, mounted=way == "mounted")
            else:
                with serve_postgres() as server, server.database() as url:
                    report(url, options.pairs, mounted=way == "mounted")


if __name__ == "__main__":
    main()
