"""What admission costs: the bulkhead beside asyncio.Semaphore and the peers that are installed.

seq   one task, 10,000 admissions one after another, never blocked; the body is a no-op coroutine
fan   10,000 tasks at limit 100, each one turn of the loop inside, so that the limit is really hit

Contenders run interleaved, in a new order every round; figures are medians in nanoseconds per
admission. The ratios are the result. `--check` judges the median, over all rounds, of the ratio
within one round, so that a machine that is busy for a while is busy for both sides:

T1        acquire + release            <= 1.0 x `async with semaphore`, seq
T2        acquire + release            <= 0.9 x `async with semaphore`, fan
context   async with bulkhead          <= 1.3 x acquire + release, seq
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
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from millpond import Bulkhead

COUNT = 10_000
LIMIT = 100

Body = Callable[[], Awaitable[None]]
One = Callable[[Body], Awaitable[None]]
Loop = Callable[[Any], Awaitable[None]]


async def noop() -> None:
    """Do nothing, and never give way."""


async def one_turn() -> None:
    """Give way to the loop once."""
    await asyncio.sleep(0)


class Contender:
    """One way in: `seq` is written out for each, so that no wrapper is measured with it."""

    def __init__(self, name: str, make: Callable[[], Any], seq: Loop | None, one: Any) -> None:
        self.name = name
        self.make = make
        self.seq = seq
        self.one = one

    async def measure_seq(self) -> float | None:
        if self.seq is None:
            return None
        limiter = self.make()
        start = time.perf_counter()
        await self.seq(limiter)
        return time.perf_counter() - start

    async def measure_fan(self) -> float | None:
        if self.one is None:
            return None
        limiter, one = self.make(), self.one
        start = time.perf_counter()
        await asyncio.gather(*[asyncio.create_task(one(limiter)) for _ in range(COUNT)])
        return time.perf_counter() - start


async def context_seq(limiter: Any) -> None:
    for _ in range(COUNT):
        async with limiter:
            await noop()


async def context_one(limiter: Any) -> None:
    async with limiter:
        await one_turn()


async def semaphore_seq(limiter: asyncio.Semaphore) -> None:
    for _ in range(COUNT):
        await limiter.acquire()
        await noop()
        limiter.release()


async def semaphore_one(limiter: asyncio.Semaphore) -> None:
    await limiter.acquire()
    await one_turn()
    limiter.release()


async def acquire_seq(limiter: Bulkhead) -> None:
    for _ in range(COUNT):
        permit = await limiter.acquire()
        await noop()
        permit.release()  # type: ignore[union-attr]


async def acquire_one(limiter: Bulkhead) -> None:
    permit = await limiter.acquire()
    await one_turn()
    permit.release()  # type: ignore[union-attr]


async def try_seq(limiter: Bulkhead) -> None:
    for _ in range(COUNT):
        permit = limiter.try_acquire()
        await noop()
        permit.release()  # type: ignore[union-attr]


async def run_seq(limiter: Bulkhead) -> None:
    for _ in range(COUNT):
        await limiter.run(noop)


async def run_one(limiter: Bulkhead) -> None:
    await limiter.run(one_turn)


async def permit_seq(limiter: Bulkhead) -> None:
    for _ in range(COUNT):
        async with limiter.permit():
            await noop()


async def permit_one(limiter: Bulkhead) -> None:
    async with limiter.permit():
        await one_turn()


async def floor_seq(_limiter: None) -> None:
    for _ in range(COUNT):
        await noop()


async def floor_one(_limiter: None) -> None:
    await one_turn()


SEMAPHORE = "asyncio.Semaphore: async with"
ACQUIRE = "Bulkhead: acquire + release"
CONTEXT = "Bulkhead: async with"


def semaphore() -> asyncio.Semaphore:
    return asyncio.Semaphore(LIMIT)


def bulkhead() -> Bulkhead:
    return Bulkhead("bench", LIMIT, max_queue=COUNT)


def ours() -> list[Contender]:
    return [
        Contender("floor: no admission", lambda: None, floor_seq, floor_one),
        Contender(SEMAPHORE, semaphore, context_seq, context_one),
        Contender("asyncio.Semaphore: acquire + release", semaphore, semaphore_seq, semaphore_one),
        Contender(ACQUIRE, bulkhead, acquire_seq, acquire_one),
        Contender("Bulkhead: try_acquire + release", bulkhead, try_seq, None),
        Contender(CONTEXT, bulkhead, context_seq, context_one),
        Contender("Bulkhead: run(fn)", bulkhead, run_seq, run_one),
        Contender("Bulkhead: permit()", bulkhead, permit_seq, permit_one),
    ]


def anyio_peers() -> list[Contender]:
    import anyio

    def capacity_limiter() -> Any:
        return anyio.CapacityLimiter(LIMIT)

    def fast_semaphore() -> Any:
        return anyio.Semaphore(LIMIT, fast_acquire=True)

    return [
        Contender("anyio.CapacityLimiter", capacity_limiter, context_seq, context_one),
        Contender("anyio.Semaphore, fast_acquire", fast_semaphore, context_seq, context_one),
    ]


def hyx_peers() -> list[Contender]:
    from hyx.bulkhead import bulkhead as hyx_bulkhead

    def make() -> Any:
        return hyx_bulkhead(max_concurrency=LIMIT, max_capacity=2 * COUNT)

    return [Contender("hyx bulkhead", make, context_seq, context_one)]


class Aiometer(Contender):
    async def measure_fan(self) -> float:
        import aiometer

        start = time.perf_counter()
        await aiometer.run_all([one_turn] * COUNT, max_at_once=LIMIT)
        return time.perf_counter() - start


def aiometer_peers() -> list[Contender]:
    import aiometer

    assert aiometer.run_all is not None
    return [Aiometer("aiometer.run_all", lambda: None, None, None)]


class Aiojobs(Contender):
    async def measure_fan(self) -> float:
        import aiojobs

        async with aiojobs.Scheduler(limit=LIMIT, pending_limit=COUNT) as scheduler:
            start = time.perf_counter()
            jobs = [await scheduler.spawn(one_turn()) for _ in range(COUNT)]
            await asyncio.gather(*[job.wait() for job in jobs])
            return time.perf_counter() - start


def aiojobs_peers() -> list[Contender]:
    import aiojobs

    assert aiojobs.Scheduler is not None
    return [Aiojobs("aiojobs.Scheduler", lambda: None, None, None)]


def peers() -> list[Contender]:
    """Those that can be imported; the others are named, so that absence is not taken for defeat."""
    found = []
    for load in (anyio_peers, hyx_peers, aiometer_peers, aiojobs_peers):
        try:
            found += load()
        except ImportError as error:
            print(f"absent: {error.name}", file=sys.stderr)
    return found


Medians = dict[str, dict[str, float]]
Times = dict[tuple[str, str], list[float]]


async def measure(rounds: int) -> Times:
    """Run every contender in every round, in a new order each time; the first round warms up."""
    contenders = ours() + peers()
    times: Times = defaultdict(list)
    for number in range(rounds + 1):
        for contender in random.sample(contenders, len(contenders)):
            for kind, run in (("seq", contender.measure_seq), ("fan", contender.measure_fan)):
                gc.collect()
                took = await run()
                if took is not None and number > 0:
                    times[contender.name, kind].append(took / COUNT * 1e9)
    return {
        (contender.name, kind): times[contender.name, kind]
        for contender in contenders
        for kind in ("seq", "fan")
        if (contender.name, kind) in times
    }


def medians_of(times: Times) -> Medians:
    medians: Medians = defaultdict(dict)
    for (name, kind), taken in times.items():
        medians[name][kind] = statistics.median(taken)
    return dict(medians)


def verdicts(times: Times) -> dict[str, tuple[float, float, bool]]:
    """Each target with the ratio measured, the ratio allowed, and whether it holds."""

    def ratio(ours: str, theirs: str, kind: str) -> float:
        pairs = zip(times[ours, kind], times[theirs, kind], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    measured = {
        "T1": (ratio(ACQUIRE, SEMAPHORE, "seq"), 1.0),
        "T2": (ratio(ACQUIRE, SEMAPHORE, "fan"), 0.9),
        "context": (ratio(CONTEXT, ACQUIRE, "seq"), 1.3),
    }
    return {name: (ratio, most, ratio <= most) for name, (ratio, most) in measured.items()}


def table(medians: Medians) -> str:
    lines = [f"{'':38} {'seq ns':>8} {'ratio':>6} {'fan ns':>8} {'ratio':>6}"]
    for name, figures in medians.items():
        line = f"{name:38}"
        for kind in ("seq", "fan"):
            if kind in figures:
                ratio = figures[kind] / medians[SEMAPHORE][kind]
                line += f" {figures[kind]:8,.0f} {ratio:6.2f}"
            else:
                line += f" {'-':>8} {'-':>6}"
        lines.append(line)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    times = asyncio.run(measure(options.rounds))
    medians, judged = medians_of(times), verdicts(times)
    if options.json:
        verdict = {
            name: dict(zip(("ratio", "most", "holds"), v, strict=True))
            for name, v in judged.items()
        }
        print(json.dumps({"python": platform.python_version(), "ns": medians, "targets": verdict}))
    else:
        print(table(medians))
        for name, (ratio, most, holds) in judged.items():
            print(f"{name:8} {ratio:.2f} x (at most {most}) {'holds' if holds else 'MISSED'}")
    return 1 if options.check and not all(holds for *_, holds in judged.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
