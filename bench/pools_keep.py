"""What a pool keeps: memory while idle, per queued task and after retention, and idle CPU time."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from figures import Found, Plan, resident

from millpond import Keep, Millpond
from millpond.pool.internals import internals_of
from millpond.testing.clock import run_virtual

POOLS = 2_000
CLOSURES = 100_000
ENDED, CYCLES, FULL = 50_000, 6, 4
"""After so many cycles, what is remembered of tasks long gone (their ids) is at its most."""


async def nothing(_number: int = 0) -> None:
    """Do nothing."""


Case = Callable[[Callable[[], int]], Coroutine[Any, Any, float]]


def traced() -> int:
    """Return the bytes that Python objects made since tracing began have now."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def per(count: int, before: int, after: int) -> float:
    """Return what each of `count` has added."""
    return (after - before) / count


async def idle_pools(size: Callable[[], int]) -> float:
    """Return what a pool keeps that was declared on an open Millpond and is not used."""
    async with Millpond() as mp:
        before = size()
        for number in range(POOLS):
            await internals_of(mp.pool(f"pool-{number}", max_concurrent=10)).ready()
        await asyncio.sleep(0.05)
        return per(POOLS, before, size())


async def queued_closures(size: Callable[[], int], *, own: bool = False) -> float:
    """Return what a queued closure keeps: its context and its books, perhaps its own object."""
    mp = Millpond()
    pool = mp.pool("bench", max_concurrent=10)
    async with mp:
        await pool.pause()
        for _ in range(100):
            await pool.submit(nothing)
        before = size()
        for number in range(CLOSURES):
            await pool.submit(partial(nothing, number) if own else nothing)
        return per(CLOSURES, before, size())


async def queued_calls(size: Callable[[], int]) -> float:
    """Return what a queued call with a small argument keeps."""
    mp = Millpond()
    pool = mp.pool("bench", max_concurrent=10)
    call = pool.task(nothing)
    async with mp:
        await pool.pause()
        for _ in range(100):
            await pool.submit(call.bind(1))
        before = size()
        for at in range(0, CLOSURES, 100):
            await pool.submit_many(call.each(range(at, at + 100)))
        return per(CLOSURES, before, size())


async def ended(found: Found) -> None:
    """See ended tasks go: on virtual time, so that a minute takes no minute."""
    mp = Millpond(keep=Keep(completed=1.0))
    pool = mp.pool("bench", max_concurrent=100)
    call = pool.task(nothing)
    async with mp:
        before, left, peaks = traced(), [], []
        for _ in range(CYCLES):
            for at in range(0, ENDED, 1_000):
                await mp.wait(await pool.submit_many(call.each(range(at, at + 1_000))))
            assert (await pool.snapshot()).kept >= ENDED
            peaks.append(traced() - before)
            await asyncio.sleep(180)
            left.append(traced() - before)
        kept = (await pool.snapshot()).kept
    found.add(f"{ENDED:,} ended tasks: kept before retention", max(peaks) / 1e6, "MB traced")
    found.add(f"{ENDED:,} ended tasks: left after retention", left[0] / 1e6, "MB traced")
    count = ENDED * CYCLES
    found.add(f"{count:,} ended tasks: left after retention", left[-1] / 1e6, "MB traced")
    found.must(f"retention: tasks left of {count:,}", kept, 0, "tasks")
    grown = max(left[FULL:]) / left[FULL - 1]
    found.must(f"retention: memory, {count:,} ended / {FULL * ENDED:,}", grown, 1.1)


def grown_by(case: Case) -> float:
    """Return by how much this process grew for each."""
    return asyncio.run(case(resident))


def measure_memory(_plan: Plan) -> Found:
    """Measure each by what Python has allocated, and by what the process has resident."""
    found = Found()
    cases: dict[str, tuple[Case, float | None]] = {
        "idle pool": (idle_pools, 10_000.0),
        "queued closure": (queued_closures, 1_000.0),
        "queued closure and its partial": (partial(queued_closures, own=True), None),
        "queued call": (queued_calls, None),
    }
    for name, (case, most) in cases.items():
        # Each in a process that has not had any memory yet to use again.
        with multiprocessing.get_context("spawn").Pool(1) as fresh:
            grown = fresh.apply(grown_by, (case,))
        tracemalloc.start()
        exact = asyncio.run(case(traced))
        tracemalloc.stop()
        found.add(f"{name}: resident", grown, "bytes")
        found.add(f"{name}: traced", exact, "bytes")
        if most is not None:
            found.must(f"memory {name}", max(exact, grown), most, "bytes")
    tracemalloc.start()
    run_virtual(ended(found))
    tracemalloc.stop()
    return found


# Idle

IDLE_POOLS = 100
VERBS = ("submit", "lease", "renew", "settle", "recover", "control")


def counted(store: Any) -> Counter[str]:
    """Count the verbs that a store is asked from now on."""
    counts: Counter[str] = Counter()

    def counting(name: str, verb: Any) -> Any:
        def count_call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return verb(*args, **kwargs)

        return count_call

    for name in VERBS:
        setattr(store, name, counting(name, getattr(store, name)))
    return counts


async def idle(found: Found, seconds: float, *, used: bool) -> None:
    """Open a hundred pools, fresh or after some work, and do nothing for a while."""
    mp = Millpond()
    pools = [mp.pool(f"pool-{number}", max_concurrent=10) for number in range(IDLE_POOLS)]
    async with mp:
        if used:
            for pool in pools:
                await mp.wait([await pool.submit(nothing) for _ in range(20)])
        await asyncio.sleep(0.5)
        gc.collect()
        verbs, start = counted(internals_of(mp).runtime.store), time.process_time()
        await asyncio.sleep(seconds)
        took, verb_count = time.process_time() - start, verbs.total()
    what = f"{IDLE_POOLS} pools idle for {seconds:g} s, {'used before' if used else 'fresh'}"
    found.add(f"{what}: CPU time", took * 1e3, "ms")
    found.must(f"{what}: CPU time", took * 1e3, 5.0, "ms")
    found.must(f"{what}: store verbs", verb_count, 0, "verbs")


def measure_idle(plan: Plan) -> Found:
    """See that with nothing to do, nothing is done."""
    found = Found()
    for used in (False, True):
        asyncio.run(idle(found, 1.0 if plan.quick else 5.0, used=used))
    return found
