"""What the memory store costs: each verb per task, how that grows with the queue, and its memory.

plain    fifo, no keys: nothing but the order decides
keyed    fifo over 10,000 keys, none of them limited
fair     fair_round_robin over 10,000 keys, at most 2 of each at once

Times are CPU time in microseconds per task, medians over rounds that take the cases in a new order
each time: `submit` with batches of the given size (the tasks made beforehand), `lease+settle` with
`settle(then=)`, as a worker does it. The ratios are the result. `--check` judges them:

batch    a batch of 1 costs           <= 3.0 x a batch of 100 per task, plain
fair     a fair pool costs            <= 2.0 x plain, batches of 100
scale    1,000,000 queued cost        <= 2.0 x what 1,000 queued cost, keyed and fair
task     a queued task keeps          <= 700 bytes, plain, without payload
pool     an idle pool keeps           <= 5,000 bytes, its queue of callbacks included

`--quick` takes a fifth of the rounds, and 100,000 for a million.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import random
import statistics
import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from typing import Any

from millpond.core.control import Declare, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, fair_round_robin, fifo
from millpond.core.task import Call, NewTask
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Batch

KEYS = 10_000
TASKS = 20_000
MILLION = 1_000_000
FEW = 1_000
FIRST_ID = 1 << 60
"""Ids as real ones are: too large for a small integer."""

SHAPES = {
    "plain": PoolSpec(name="p", order=fifo(), max_concurrent=100),
    "keyed": PoolSpec(name="p", order=fifo(), max_concurrent=100),
    "fair": PoolSpec(name="p", order=fair_round_robin(), max_concurrent=100, max_per_key=2),
}


def tasks(shape: str, count: int, first: int = 0) -> Iterator[NewTask]:
    """Make up tasks: small calls, over all the keys unless the shape is plain."""
    dice = random.Random(first)
    names = [f"key-{number}" for number in range(KEYS)]
    for number in range(FIRST_ID + first, FIRST_ID + first + count):
        key = None if shape == "plain" else names[dice.randrange(KEYS)]
        call = Call("work", b"%040d" % number)
        yield NewTask(id=number, pool="p", call=call, key=key, share=key)


async def opened(shape: str) -> MemoryStore:
    """Return a store with one pool and one worker."""
    store = MemoryStore()
    await store.control(Declare(SHAPES[shape]))
    await store.control(Register("w", 1e6))
    return store


async def submit(store: MemoryStore, made: list[NewTask], batch: int) -> float:
    """Submit tasks in batches; return the seconds each took."""
    start = time.process_time()
    for at in range(0, len(made), batch):
        await store.submit([Batch(tasks=tuple(made[at : at + batch]))])
    return (time.process_time() - start) / len(made)


async def work(store: MemoryStore, count: int, batch: int) -> float:
    """Run up to `count` tasks in batches; return the seconds each took."""
    ask = LeaseRequest(pool="p", worker="w", want=batch)
    done, start = 0, time.process_time()
    leased = (await store.lease(ask)).leased
    while leased:
        done += len(leased)
        ended = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased]
        answer = await store.settle(ended, then=ask if done < count else None)
        leased = () if answer.lease is None else answer.lease.leased
    return (time.process_time() - start) / done


async def fill(store: MemoryStore, shape: str, count: int) -> None:
    """Queue tasks that are not measured, made a few at a time so that nothing else keeps them."""
    rest = tasks(shape, count, first=1 << 40)
    while batch := tuple(new for new, _ in zip(rest, range(1_000), strict=False)):
        await store.submit([Batch(tasks=batch)])


Times = dict[str, list[float]]


async def verbs(times: Times, shape: str, batch: int) -> None:
    """Measure both halves of a task's life with an otherwise empty store."""
    store = await opened(shape)
    made = list(tasks(shape, TASKS))
    gc.collect()
    times[f"{shape}, batches of {batch}: submit"].append(await submit(store, made, batch))
    del made
    took = await work(store, TASKS, batch)
    times[f"{shape}, batches of {batch}: lease+settle"].append(took)


async def scale(times: Times, shape: str, queued: int) -> None:
    """Measure them with many tasks queued; the same number are run as are submitted."""
    store = await opened(shape)
    await fill(store, shape, queued)
    submitted, worked = [], []
    for turn in range(20):
        made = list(tasks(shape, FEW, first=turn * FEW))
        submitted.append(await submit(store, made, 100))
        del made
        worked.append(await work(store, FEW, 100))
    times[f"{shape}, {queued:,} queued: submit"].append(statistics.median(submitted))
    times[f"{shape}, {queued:,} queued: lease+settle"].append(statistics.median(worked))


async def bytes_per_task(count: int = 100_000) -> float:
    """Return what one queued task without payload or key keeps, all its traces included."""
    store = await opened("plain")
    call = Call("work")
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for at in range(FIRST_ID, FIRST_ID + count, 100):
        made = tuple(NewTask(id=at + n, pool="p", call=call) for n in range(100))
        await store.submit([Batch(tasks=made)])
    del made
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / count


async def bytes_per_pool(count: int = 1_000) -> float:
    """Return the memory of an unused pool."""
    store = MemoryStore(audit_limit=0)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(count):
        await store.control(Declare(PoolSpec(name=f"pool-{number}")))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / count


async def measure(rounds: int, many: int) -> Times:
    """Run every case in every round, in a new order each time; the first round warms up."""
    times: Times = defaultdict(list)
    for number in range(rounds + 1):
        warm: Times = defaultdict(list)
        into = times if number else warm
        cases: list[Coroutine[Any, Any, None]] = [
            verbs(into, shape, batch) for shape in ("plain", "fair") for batch in (1, 10, 100)
        ]
        for case in random.sample(cases, len(cases)):
            await case
    for _ in range(max(1, rounds // 5)):
        for shape in ("keyed", "fair"):
            for queued in (FEW, many):
                gc.collect()
                await scale(times, shape, queued)
    return {name: times[name] for name in sorted(times)}


def verdicts(
    medians: dict[str, float], memory: dict[str, float], many: int
) -> dict[str, tuple[float, float, bool]]:
    """Each target with its value, its limit, and whether it holds."""

    def worst(ours: str, theirs: str) -> float:
        return max(
            medians[f"{ours}: {half}"] / medians[f"{theirs}: {half}"]
            for half in ("submit", "lease+settle")
        )

    measured = {
        "batch": (worst("plain, batches of 1", "plain, batches of 100"), 3.0),
        "fair": (worst("fair, batches of 100", "plain, batches of 100"), 2.0),
        "scale": (
            max(worst(f"{s}, {many:,} queued", f"{s}, {FEW:,} queued") for s in ("keyed", "fair")),
            2.0,
        ),
        "task": (memory["task"], 700.0),
        "pool": (memory["pool"], 5_000.0),
    }
    return {name: (value, most, value <= most) for name, (value, most) in measured.items()}


async def everything(rounds: int, many: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure memory first, while nothing else is there, then time."""
    memory = {"task": await bytes_per_task(), "pool": await bytes_per_pool()}
    times = await measure(rounds, many)
    return {name: statistics.median(taken) * 1e6 for name, taken in times.items()}, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round, 100,000 for a million")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    rounds, many = (1, MILLION // 10) if options.quick else (options.rounds, MILLION)
    medians, memory = asyncio.run(everything(rounds, many))
    judged = verdicts(medians, memory, many)
    if options.json:
        verdict = {
            name: dict(zip(("measured", "most", "holds"), v, strict=True))
            for name, v in judged.items()
        }
        print(json.dumps({"python": platform.python_version(), "us": medians, "targets": verdict}))
    else:
        for name, took in medians.items():
            print(f"{name:44} {took:8.2f} us")
        for name, (value, most, holds) in judged.items():
            print(f"{name:8} {value:8,.2f} (at most {most:,g}) {'holds' if holds else 'MISSED'}")
    return 1 if options.check and not all(holds for *_, holds in judged.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
