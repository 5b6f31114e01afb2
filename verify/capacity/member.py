"""One process of a measured fleet: it submits or works, and prints what it did as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from millpond import Millpond
from millpond.cli.gc_tuning import tune_garbage_collection
from millpond.cli.thread_switching import switch_threads_quickly
from millpond.pool.internals import internals_of

WARM = 1.0
"""Seconds before anything is counted."""


def declared(url: str, pool: str, limit: int, pause: float) -> tuple[Millpond, Any, list[int]]:
    """Return a Millpond with one pool, its task, and a list that holds the count of starts."""
    mp, starts = Millpond(url), [0]
    queue = mp.pool(pool, max_concurrent=limit)

    @queue.task
    async def job(number: int) -> None:
        del number
        starts[0] += 1
        if pause:
            await asyncio.sleep(pause)

    return mp, job, starts


async def fill(given: dict[str, Any]) -> None:
    """Store the tasks that workers will find."""
    mp, job, _ = declared(given["url"], given["pool"], given["limit"], given["pause"])
    async with mp:
        for first in range(0, given["tasks"], 1000):
            await mp.get_pool(given["pool"]).submit_many(job.each(range(first, first + 1000)))
        answer({})


async def submit(given: dict[str, Any]) -> None:
    """Submit one task after another."""
    mp, job, _ = declared(given["url"], given["pool"], given["limit"], 0.0)
    async with mp:
        for number in range(50):
            await job.submit(number)
        begin()
        count, cpu, start = 0, time.process_time(), time.monotonic()
        while time.monotonic() < start + given["seconds"]:
            await job.submit(count)
            count += 1
        passed = time.monotonic() - start
        used = time.process_time() - cpu
        answer({"rate": count / passed, "calls": count, "tasks": count, "cpu": used})


async def work(given: dict[str, Any]) -> None:
    """Work with some slots."""
    mp, _, starts = declared(given["url"], given["pool"], given["limit"], given["pause"])
    tune_garbage_collection()
    switch_threads_quickly()
    async with mp, mp.worker(concurrency=given["slots"]):
        (worker,) = internals_of(mp).runtime.workers
        begin()
        await asyncio.sleep(WARM)
        before, calls = starts[0], worker.turns
        cpu, start = time.process_time(), time.monotonic()
        await asyncio.sleep(given["seconds"])
        tasks, passed = starts[0] - before, time.monotonic() - start
        used, calls = time.process_time() - cpu, worker.turns - calls
        answer({"rate": tasks / passed, "calls": calls, "tasks": tasks, "cpu": used})


def begin() -> None:
    """Say that all is ready, and wait for the sign to begin."""
    print("ready", flush=True)
    sys.stdin.readline()


def answer(found: dict[str, float]) -> None:
    """Print the figures, and wait: the CPU time of a session is gone when it closes."""
    print(json.dumps(found), flush=True)
    sys.stdin.readline()


def main() -> None:
    """Do what the first argument says, with the second as JSON."""
    act = {"fill": fill, "submit": submit, "work": work}[sys.argv[1]]
    asyncio.run(act(json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
