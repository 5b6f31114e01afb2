"""What a task costs: maps beside aiometer, submits beside aiojobs, and how soon it begins."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from figures import (
    Contender,
    Found,
    Plan,
    Stopwatch,
    Times,
    Took,
    median,
    quantile,
    ratio,
    rounds_of,
)

from millpond import Millpond, Pool, TaskFunction

COUNT = 10_000
LIMIT = 100


async def noop(_item: object = None) -> None:
    """Do nothing, and never give way."""


async def one_turn(_item: object = None) -> None:
    """Give way to the loop once."""
    await asyncio.sleep(0)


BODIES: dict[str, Callable[..., Any]] = {"no-op": noop, "sleep(0)": one_turn}


@asynccontextmanager
async def opened() -> AsyncIterator[
    tuple[Millpond, Pool, dict[str, TaskFunction[[int], None, Any]]]
]:
    """Open a Millpond that has run nothing yet: opening and closing are not measured."""
    mp = Millpond()
    pool = mp.pool("bench", max_concurrent=LIMIT)

    @pool.task
    async def call(_n: int) -> None:
        pass

    @pool.task
    async def call_one_turn(_n: int) -> None:
        await asyncio.sleep(0)

    async with mp:
        yield mp, pool, {"no-op": call, "sleep(0)": call_one_turn}


# Maps


def maps(body: str) -> dict[str, Contender]:
    """Return every way to map a body over items, at most LIMIT at a time."""
    fn = BODIES[body]

    async def plain() -> Took:
        async with opened() as (_, pool, _tasks):
            watch = Stopwatch.start()
            results = await pool.map(fn, range(COUNT))
            took = watch.stop(COUNT)
        assert len(results) == COUNT
        return took

    async def registered() -> Took:
        async with opened() as (_, pool, tasks):
            watch = Stopwatch.start()
            results = await pool.map(tasks[body], range(COUNT))
            took = watch.stop(COUNT)
        assert len(results) == COUNT
        return took

    async def semaphore() -> Took:
        limiter = asyncio.Semaphore(LIMIT)

        async def one(item: int) -> None:
            async with limiter:
                await fn(item)

        watch = Stopwatch.start()
        await asyncio.gather(*[one(item) for item in range(COUNT)])
        return watch.stop(COUNT)

    ways: dict[str, Contender] = {
        MAP: plain,
        MAP_TASK: registered,
        "asyncio.Semaphore + gather": semaphore,
    }
    try:
        import aiometer
    except ImportError as error:
        absent(error)
        return ways

    async def on_each() -> Took:
        watch = Stopwatch.start()
        await aiometer.run_on_each(fn, range(COUNT), max_at_once=LIMIT)
        return watch.stop(COUNT)

    async def run_all() -> Took:
        watch = Stopwatch.start()
        await aiometer.run_all([partial(fn, item) for item in range(COUNT)], max_at_once=LIMIT)
        return watch.stop(COUNT)

    return ways | {ON_EACH: on_each, RUN_ALL: run_all}


MAP, MAP_TASK = "pool.map(function)", "pool.map(task), a task per item"
ON_EACH, RUN_ALL = "aiometer.run_on_each", "aiometer.run_all"


def absent(error: ImportError) -> None:
    """Name a peer that is not installed, so that absence is not taken for defeat."""
    print(f"absent: {error.name}", file=sys.stderr)


def table(found: Found, kind: str, times: Times) -> None:
    """Add the median of each contender, in microseconds."""
    for name, taken in times.items():
        middle = median(taken)
        found.add(f"{kind}: {name}", middle.cpu * 1e6, "us", middle.wall * 1e6)


def judge(
    found: Found, label: str, ours: str, theirs: str, times: Times, *, most: float, goal: float
) -> None:
    """Add the target that one contender costs at most so many times what another does."""
    if ours in times and theirs in times:
        measured = ratio(times[ours], times[theirs])
        found.must(label, measured.cpu, most, goal=goal, wall=measured.wall)


def measure_map(plan: Plan) -> Found:
    """T3: a map of a plain coroutine function costs a fraction of aiometer's."""
    return asyncio.run(map_figures(plan.rounds))


async def map_figures(rounds: int) -> Found:
    """T3: a map of a plain coroutine function costs a fraction of aiometer's."""
    found = Found()
    for body in BODIES:
        times = await rounds_of(maps(body), rounds)
        table(found, f"map, {body}", times)
        for peer in (ON_EACH, RUN_ALL):
            judge(found, f"T3 {body} / {peer}", MAP, peer, times, most=0.3, goal=0.1)
        if ON_EACH in times:
            cost = ratio(times[MAP_TASK], times[ON_EACH])
            found.add(f"map, {body}: a task per item / {ON_EACH}", cost.cpu, "x", cost.wall)
    return found


# Submits

SEQ, GATHER, IN_TURN, WAIT = "one at a time", "fan, gather", "fan, in turn", "fan, mp.wait"
AIOJOBS = "aiojobs"
OURS = ("closure", "call")


async def nothing() -> None:
    """Do nothing: what aiojobs is given to run."""


async def await_gathered(things: list[Any]) -> None:
    """Wait for all with one gather."""
    await asyncio.gather(*things)


async def await_in_turn(things: list[Any]) -> None:
    """Wait for one after the other."""
    for thing in things:
        await thing


def submits(way: str) -> dict[str, Contender]:
    """Return the contenders that can submit and wait that way."""
    ways: dict[str, Contender] = {kind: partial(submit_here, way, kind) for kind in OURS}
    if way != SEQ:
        ways["call, submit_many"] = partial(submit_here, way, "many")
    try:
        import aiojobs
    except ImportError as error:
        absent(error)
        return ways
    return ways | {AIOJOBS: partial(submit_aiojobs, aiojobs, way)}


async def submit_here(way: str, kind: str) -> Took:
    """Submit no-ops to a memory pool and wait for their results."""
    async with opened() as (mp, pool, tasks):
        call = tasks["no-op"]
        watch = Stopwatch.start()
        if way == SEQ:
            if kind == "closure":
                for _ in range(COUNT):
                    await (await pool.submit(noop))
            else:
                for n in range(COUNT):
                    await (await pool.submit(call.bind(n)))
            return watch.stop(COUNT)
        if kind == "closure":
            handles = [await pool.submit(noop) for _ in range(COUNT)]
        elif kind == "call":
            handles = [await pool.submit(call.bind(n)) for n in range(COUNT)]
        else:
            handles = await pool.submit_many(call.each(range(COUNT)))
        if way == WAIT:
            await mp.wait(handles)
        else:
            await (await_gathered if way == GATHER else await_in_turn)(handles)
        took = watch.stop(COUNT)
        assert all(handle.status == "completed" for handle in handles)
        return took


async def submit_aiojobs(aiojobs: Any, way: str) -> Took:
    """Do the same with a scheduler of aiojobs; it has no wait for many, so that is in turn."""
    async with aiojobs.Scheduler(limit=LIMIT, pending_limit=COUNT) as scheduler:
        watch = Stopwatch.start()
        if way == SEQ:
            for _ in range(COUNT):
                await (await scheduler.spawn(nothing())).wait()
        else:
            jobs = [await scheduler.spawn(nothing()) for _ in range(COUNT)]
            waits = await_gathered if way == GATHER else await_in_turn
            await waits([job.wait() for job in jobs])
        return watch.stop(COUNT)


def measure_submit(plan: Plan) -> Found:
    """T4: a submit and its wait cost less than aiojobs'."""
    return asyncio.run(submit_figures(plan.rounds))


async def submit_figures(rounds: int) -> Found:
    """T4: a submit and its wait cost less than aiojobs'."""
    found = Found()
    for way in (SEQ, GATHER, IN_TURN, WAIT):
        times = await rounds_of(submits(way), rounds)
        table(found, f"submit, {way}", times)
        for kind in OURS:
            judge(found, f"T4 {way}, {kind} / {AIOJOBS}", kind, AIOJOBS, times, most=0.8, goal=0.4)
    return found


# Latency

SAMPLES = 5_000


def measure_latency(plan: Plan) -> Found:
    """From submit to the first step of the handler, on an idle pool."""
    return asyncio.run(latency_figures(plan.rounds))


async def latency_figures(rounds: int) -> Found:
    """From submit to the first step of the handler, on an idle pool."""
    found = Found()
    mp = Millpond()
    pool = mp.pool("bench", max_concurrent=LIMIT)
    began = 0.0

    def note() -> None:
        nonlocal began
        began = time.perf_counter()

    async def closure() -> None:
        note()

    @pool.task
    async def call(_n: int) -> None:
        note()

    lags: dict[str, list[float]] = {"closure": [], "call": []}
    async with mp:
        for number in range(max(rounds, 1) * SAMPLES // 5):
            for kind, work in (("closure", closure), ("call", call.bind(number))):
                start = time.perf_counter()
                handle = await pool.submit(work)
                await handle
                lags[kind].append(began - start)
                await asyncio.sleep(0)
    for kind, taken in lags.items():
        found.add(f"latency, {kind}: p50", quantile(taken, 0.5) * 1e6, "us wall")
        found.add(f"latency, {kind}: p99", quantile(taken, 0.99) * 1e6, "us wall")
    return found
