"""What killed workers cost on PostgreSQL (T27): the rate meanwhile, and the wait of their tasks.

Two worker processes run handlers of 50 ms in a pool of 64 slots, and 600 tasks are submitted per
second. Every 12 s one worker is killed (SIGKILL) and started again.

same host   the workers share a folder of lock files: a free lock shows that a worker is dead
other host  each has a folder of its own: only the end of its session shows it

rate        tasks per second that end while tasks are submitted
orphan      the longest time from a kill until a task of the killed worker starts again
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

from figures import Figure, Found, Target
from table import show
from verify.servers.postgres import OwnServer, find_programs

from millpond import Context, Millpond, Retry

RATE, HANDLER, LIMIT, KILL_EVERY = 600, 0.05, 64, 12.0
LEAST_RATE, GOAL_RATE = 570.0, 595.0
WAITS = {"same host": (2.0, 1.0), "other host": (8.0, 5.0)}
"""The longest wait of an orphan, in seconds: must and goal."""
TICK = 0.05


def application(url: str) -> tuple[Millpond, Any]:
    """Return a Millpond with the pool, and its task."""
    mp = Millpond(url)
    pool = mp.pool("orphans", max_concurrent=LIMIT, retry=Retry(initial=0.0, jitter=0.0))

    async def work(ctx: Context) -> tuple[int, float, float]:
        began = time.time()
        await asyncio.sleep(HANDLER)
        return ctx.attempt, began, time.time()

    return mp, pool.task(work)


async def serve(url: str) -> None:
    """Be a worker until the end."""
    # It would log each task of a killed worker.
    logging.disable(logging.WARNING)
    mp, _ = application(url)
    async with mp, mp.worker(concurrency=LIMIT):
        print("ready", flush=True)
        await asyncio.Event().wait()


class Workers:
    """Two worker processes, one of which is killed now and then."""

    def __init__(self, url: str, folder: Path, *, same_host: bool) -> None:
        self._url = url
        self._folder = folder
        self._same_host = same_host
        self._numbers = count()
        self._running = [self._start(), self._start()]
        self.kills: list[float] = []
        for process in self._running:
            assert process.stdout is not None
            process.stdout.readline()

    def _start(self) -> subprocess.Popen[bytes]:
        number = 0 if self._same_host else next(self._numbers)
        own = self._folder / f"host{number}"
        own.mkdir(mode=0o700, exist_ok=True)
        return subprocess.Popen(
            [sys.executable, __file__, "--serve", self._url],
            stdout=subprocess.PIPE,
            env={**os.environ, "XDG_RUNTIME_DIR": str(own), "TMPDIR": str(own)},
        )

    def kill_one(self) -> None:
        """Kill the older worker, and start another."""
        victim = self._running.pop(0)
        self.kills.append(time.time())
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self._running.append(self._start())

    def end(self) -> None:
        """End all."""
        for process in self._running:
            process.kill()
            process.wait()


async def submit(url: str, workers: Workers, seconds: float) -> list[tuple[int, float, float]]:
    """Submit at the rate, kill now and then, and return what all tasks returned."""
    mp, work = application(url)
    async with mp:
        handles: list[Any] = []
        begun, killed_at = time.monotonic(), time.monotonic()
        while (passed := time.monotonic() - begun) < seconds:
            due = int(passed * RATE) - len(handles)
            if due > 0:
                calls = [work.bind() for _ in range(due)]
                handles += await mp.get_pool("orphans").submit_many(calls)
            if time.monotonic() - killed_at > KILL_EVERY:
                killed_at = time.monotonic()
                await asyncio.to_thread(workers.kill_one)
            await asyncio.sleep(TICK)
        async with asyncio.timeout(120):
            return list(await asyncio.gather(*handles))


def measure(url: str, place: str, folder: Path, seconds: float) -> Found:
    """Measure with the workers on one host, or on two."""
    workers = Workers(url, folder, same_host=place == "same host")
    try:
        results = asyncio.run(submit(url, workers, seconds))
    finally:
        workers.end()
    first = min(began for _, began, _ in results)
    rate = sum(ended <= first + seconds for *_, ended in results) / seconds
    orphans = [
        began - max(kill for kill in workers.kills if kill <= began)
        for attempt, began, _ in results
        if attempt > 1
    ]
    must, goal = WAITS[place]
    found = Found(figures=[Figure("orphans", len(orphans), "", note=f"{len(workers.kills)} kills")])
    found.targets = [
        Target("T27 rate", rate, None, "/s", goal=GOAL_RATE, least=LEAST_RATE),
        Target("T27 longest wait of an orphan", max(orphans, default=0.0), must, "s", goal=goal),
    ]
    return found


def main() -> int:
    """Measure, print, and with --check fail on a missed must."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        asyncio.run(serve(given.serve))
        return 0
    programs = find_programs()
    if programs is None:
        raise SystemExit("no PostgreSQL on this machine")
    missed = False
    with tempfile.TemporaryDirectory() as folder, OwnServer(programs, {}) as server:
        for place in WAITS:
            with server.database() as database:
                found = measure(server.tcp(database), place, Path(folder), given.seconds)
            show(f"a worker killed every {KILL_EVERY:g} s, {place}", found)
            missed = missed or not all(target.holds for target in found.targets)
    return 1 if missed and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
