"""What many cost: a million queued tasks, and a thousand runs at once."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from typing import Any

from figures import Found, Plan, Stopwatch, Took, median, quantile, resident

from millpond import Context, Millpond, Pool, TaskFunction, fair_round_robin, fifo

KEYS = 10_000
FEW, MILLION = 1_000, 1_000_000
TURNS = 20
BATCH = 100


class Bench:
    """A pool over many keys whose handlers do nothing, with a limit."""

    def __init__(self, shape: str) -> None:
        self.mp = Millpond()
        self.pool: Pool = (
            self.mp.pool("bench", max_concurrent=100, queue=fifo())
            if shape == "fifo"
            else self.mp.pool(
                "bench", max_concurrent=100, queue=fair_round_robin("tenant"), max_per_key=2
            )
        )
        self.left = 0
        self.ran: asyncio.Future[Took] | None = None
        self.watch = Stopwatch()
        self.work: TaskFunction[[int, str], None, Any] = self.pool.task(key="tenant")(self.one)
        self._names = [f"tenant-{number}" for number in range(KEYS)]
        self._dice = random.Random(1)

    async def one(self, n: int, tenant: str) -> None:
        """Do nothing, and stop the pool when enough have."""
        self.left -= 1
        if self.left == 0 and self.ran is not None:
            # Here and not outside: nothing may be run that is not counted.
            self.ran.set_result(self.watch.stop(FEW))
            await self.pool.pause()

    async def submit(self, count: int, batch: int) -> Took:
        """Submit calls with a small argument and a key each; return what each cost."""
        names, dice, bind = self._names, self._dice, self.work.bind
        watch = Stopwatch.start()
        for at in range(0, count, batch):
            await self.pool.submit_many(
                [bind(n, names[dice.randrange(KEYS)]) for n in range(at, at + batch)]
            )
        return watch.stop(count)

    async def run(self) -> Took:
        """Let FEW of the waiting tasks run; return what each cost."""
        self.left = FEW
        self.ran = asyncio.get_running_loop().create_future()
        self.watch = Stopwatch.start()
        await self.pool.resume()
        took = await self.ran
        while (await self.pool.snapshot()).running:  # noqa: ASYNC110 - the last one ends now
            await asyncio.sleep(0)
        return took


async def with_queued(found: Found, shape: str, queued: int) -> tuple[Took, Took]:
    """Measure a submit and a run with so many tasks queued all the while."""
    bench = Bench(shape)
    before = resident()
    await bench.mp.__aenter__()
    await bench.pool.pause()
    filled = await bench.submit(queued, FEW)
    grown = resident() - before
    submitted, ran = [], []
    for _ in range(TURNS):
        submitted.append(await bench.submit(FEW, BATCH))
        ran.append(await bench.run())
    name = f"{shape}, {queued:,} queued"
    if queued > FEW:
        found.add(f"{name}: resident memory", resident() / 1e6, "MB")
        found.add(f"{name}: resident memory per task", grown / queued, "bytes")
        found.add(f"{name}: submit_many of {FEW:,}", filled.cpu * 1e6, "us", filled.wall * 1e6)
        found.must(f"memory {name}", resident() / 1e6, 1_000, "MB")
    watch = Stopwatch.start()
    await bench.mp.__aexit__(None, None, None)
    if queued > FEW:
        closed = watch.stop()
        found.add(f"{name}: to close", closed.cpu * 1e3, "ms", closed.wall * 1e3)
    one, other = median(submitted), median(ran)
    found.add(f"{name}: submit", one.cpu * 1e6, "us", one.wall * 1e6)
    found.add(f"{name}: run", other.cpu * 1e6, "us", other.wall * 1e6)
    return one, other


def measure_fifo(plan: Plan) -> Found:
    """Measure a fifo pool."""
    return asyncio.run(scale_figures("fifo", MILLION // 10 if plan.quick else MILLION))


def measure_fair(plan: Plan) -> Found:
    """Measure a pool that serves one key after another."""
    return asyncio.run(scale_figures("fair", MILLION // 10 if plan.quick else MILLION))


async def scale_figures(shape: str, many: int) -> Found:
    """See whether each of a million queued tasks costs what each of a thousand does."""
    found = Found()
    few = await with_queued(found, shape, FEW)
    gc.collect()
    lots = await with_queued(found, shape, many)
    for verb, with_few, with_many in zip(("submit", "run"), few, lots, strict=True):
        found.must(
            f"scale {shape}, {verb}",
            with_many.cpu / with_few.cpu,
            2.0,
            wall=with_many.wall / with_few.wall,
        )
    return found


# Runs

RUNS = 1_000
SEEDS, GROWN = 3, 2
"""Tasks that a run begins with, and that each of them submits."""


def measure_runs(plan: Plan) -> Found:
    """Measure how soon the end of a run is noticed, several times over."""
    found = Found()
    took = [asyncio.run(thousand_runs()) for _ in range(plan.rounds)]
    total = statistics.median(total for total, _ in took)
    worst = [max(lags) for _, lags in took]
    lags = [lag for _, taken in took for lag in taken]
    found.add(f"{RUNS:,} runs, {RUNS * SEEDS * (1 + GROWN):,} tasks: total", total, "s wall")
    found.add(f"{RUNS:,} runs: p50 lag", quantile(lags, 0.5) * 1e3, "ms wall")
    found.add(f"{RUNS:,} runs: p99 lag", quantile(lags, 0.99) * 1e3, "ms wall")
    found.add(f"{RUNS:,} runs: worst lag of {plan.rounds} rounds", max(worst) * 1e3, "ms wall")
    middle = statistics.median(worst) * 1e3
    found.must(f"{RUNS:,} runs: worst lag after the last handler, median", middle, 100.0, "ms")
    return found


async def thousand_runs() -> tuple[float, list[float]]:
    """Return how long it took, and how long after its last handler each run was over."""
    mp = Millpond()
    pool = mp.pool("bench", max_concurrent=200)
    last: dict[int, float] = {}
    dice = random.Random(1)

    @pool.task
    async def visit(ctx: Context, run: int, grow: int) -> None:
        await asyncio.sleep(dice.uniform(0.001, 0.005))
        if grow:
            await ctx.submit_many([visit.bind(run, 0) for _ in range(grow)])
        last[run] = time.perf_counter()

    async def drained(run: int) -> float:
        report = await pool.drain([visit.bind(run, GROWN) for _ in range(SEEDS)])
        lag = time.perf_counter() - last[run]
        assert report.completed == SEEDS * (1 + GROWN)
        return lag

    async with mp:
        start = time.perf_counter()
        lags = await asyncio.gather(*[drained(run) for run in range(RUNS)])
        return time.perf_counter() - start, lags
