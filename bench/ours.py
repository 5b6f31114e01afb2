"""Our own acts, on any store: the public API, all promises on, history kept."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from acting import (
    CHUNK,
    FEEDING,
    GAP,
    PATIENCE,
    Answer,
    Meter,
    Stage,
    Tally,
    begin,
    owed,
    streamed,
)

from millpond import (
    BoundCall,
    Context,
    Millpond,
    Pool,
    Rate,
    Retry,
    TaskFunction,
    fair_round_robin,
    fifo,
    priority,
)
from millpond.cli.gc_tuning import tune_garbage_collection
from millpond.cli.thread_switching import switch_threads_quickly
from millpond.core.spec import Order
from millpond.errors import StoreError
from millpond.pool.internals import internals_of
from millpond.pool.runs.opening import new_run, open_run

ORDERS: dict[str, Callable[[], Order]] = {
    "priority": priority,
    "fifo": fifo,
    "fair": lambda: fair_round_robin("tenant"),
}
PRIORITIES = 10
OF_A_RUN = 20
"""Tasks of each run, and of how many tasks one is retried, where a shape is mixed."""


class Bench:
    """A pool of one shape in one store, and a handler that notes its start.

    The shape: `pool` (its name), `order`, `max_concurrent`, `prefetch`, `max_per_key`, and `keys`,
    over which the tasks are spread evenly and at random; none = tasks without a key. `ranked` =
    ten priorities. `flows` = a budget with a rate by weight, and a rate per key; tasks weigh up to
    `heaviest`. `lanes` = so many lanes. `unique` = an idempotency key for each task.
    `mixed` = idempotency keys, labels, runs of 20 tasks, and one attempt in 20 that is retried.
    """

    def __init__(self, stage: Stage) -> None:
        shape = stage.get("shape", {})
        self.order: str = shape.get("order", "priority")
        self.keys: int = shape.get("keys", 0)
        self.ranked: bool = shape.get("ranked", False)
        self.heaviest: int = shape.get("heaviest", 1)
        self.unique: bool = shape.get("unique", False)
        self.mixed: bool = shape.get("mixed", False)
        if self.mixed:
            # Attempts fail on purpose: a line for each would be half of the work.
            logging.getLogger("millpond").setLevel(logging.ERROR)
        self._numbers = itertools.count()
        self.mp = millpond(stage)
        flows = flow_control(self.mp) if shape.get("flows") else {}
        self.pool: Pool = self.mp.pool(
            shape.get("pool", "bench"),
            max_concurrent=shape.get("max_concurrent", 100),
            queue=ORDERS[self.order](),
            lanes=shape.get("lanes"),
            prefetch=shape.get("prefetch", 0),
            max_per_key=shape.get("max_per_key"),
            **flows,
        )
        self.full = asyncio.Event()
        self.meter = Meter(stage.count, self.full.set)
        self.hit: Callable[[int], None] = self.meter.hit
        self.pause: float = stage.get("pause", 0.0)
        self.plain: TaskFunction[[int], None, Any] = self.pool.task(self.noop)
        self.keyed: TaskFunction[[int, str], None, Any] = self.pool.task(key="tenant")(self.of_key)
        self.trying: TaskFunction[[int, str, bool], None, Any] = self.pool.task(
            key="tenant", retry=Retry(attempts=3, initial=0.2)
        )(self.of_mix)
        self._dice = random.Random(1)

    async def noop(self, sent: int) -> None:
        """Note the start, and end at once or after a pause."""
        self.hit(sent)
        if self.pause:
            await asyncio.sleep(self.pause)

    async def of_key(self, sent: int, tenant: str) -> None:
        """Do the same for a task that has a key."""
        del tenant
        await self.noop(sent)

    async def of_mix(self, ctx: Context, sent: int, tenant: str, fails: bool) -> None:
        """Do the same, but fail first where that is asked for."""
        await self.of_key(sent, tenant)
        if fails and ctx.attempt == 1:
            raise RuntimeError("the first attempt fails")

    def call(self) -> BoundCall[None]:
        """Return a call as the shape wants it."""
        sent = time.monotonic_ns()
        if self.mixed:
            number = next(self._numbers)
            tenant = f"tenant-{self._dice.randrange(self.keys)}"
            return self.trying.bind(sent, tenant, number % OF_A_RUN == 0).options(
                idempotency_key=f"{os.getpid()}-{number}", labels={"region": f"r{number % 7}"}
            )
        if self.keys:
            call = self.keyed.bind(sent, f"tenant-{self._dice.randrange(self.keys)}")
            weight = self._dice.randint(1, self.heaviest)
            return call if weight == 1 else call.options(weight=weight)
        if self.unique:
            key = f"{os.getpid()}-{next(self._numbers)}"
            return self.plain.bind(sent).options(idempotency_key=key)
        if self.ranked:
            return self.plain.bind(sent).options(priority=self._dice.randrange(PRIORITIES))
        return self.plain.bind(sent)

    async def store(self, count: int) -> None:
        """Store tasks in chunks."""
        if self.mixed:
            await self._store_runs(count)
            return
        for at in range(0, count, CHUNK):
            await self.pool.submit_many([self.call() for _ in range(min(CHUNK, count - at))])

    async def _store_runs(self, count: int) -> None:
        """Store tasks in runs, several at a time."""
        pool = internals_of(self.pool)
        await pool.ready()
        left = iter(range(count // OF_A_RUN))

        async def submitter() -> None:
            for _ in left:
                seed = [self.call() for _ in range(OF_A_RUN)]
                await open_run(pool, new_run(pool, None, "skip", None), seed)

        await asyncio.gather(*(submitter() for _ in range(16)))

    def detours(self) -> dict[str, int]:
        """Return how many verbs of this process left the fast path, by verb and reason."""
        counts = internals_of(self.mp).runtime.env.shared_store.detour_counts
        return {} if counts is None else {" ".join(which): n for which, n in counts().items()}


def flow_control(mp: Millpond) -> dict[str, Any]:
    """Return options of a pool whose starts are counted in every way, and never wait for it."""
    wide = Rate(1_000_000, per=1.0, of="weight")
    budget = mp.budget("wide", 10_000, rate=wide)
    return {"rate": wide, "rate_per_key": Rate(100_000, per=1.0), "budgets": [budget]}


def millpond(stage: Stage) -> Millpond:
    """Return a Millpond on the file or server."""
    settings: dict[str, Any] = {"durability": stage.contender.durability}
    return Millpond(stage.url, **settings)


async def beginning() -> None:
    """Wait for the sign to begin; the loop goes on meanwhile."""
    await asyncio.to_thread(begin)


# Acts


async def fill(stage: Stage) -> Answer:
    """Store tasks that are not measured."""
    bench = Bench(stage)
    async with bench.mp:
        await beginning()
        await bench.store(stage.count)
        return {"stored": await bench.pool.size(), "detours": bench.detours()}


async def submit(stage: Stage) -> Answer:
    """Store tasks one after another."""
    bench = Bench(stage)
    async with bench.mp:
        await internals_of(bench.pool).ready()
        await beginning()
        lags, start = [], time.monotonic_ns()
        before = start
        for _ in range(stage.count):
            if bench.unique:
                await bench.pool.submit(bench.call())
            else:
                await bench.plain.submit(before)
            now = time.monotonic_ns()
            lags.append((now - before) / 1e9)
            before = now
        seconds = (before - start) / 1e9
        stored = await bench.pool.size()
    return {"seconds": seconds, "stored": stored, "lags": lags if stage.get("lags") else []}


async def stream(stage: Stage) -> Answer:
    """Store tasks one after another for some seconds."""
    bench = Bench(stage)
    async with bench.mp:
        await internals_of(bench.pool).ready()
        await beginning()
        return await streamed(stage.get("seconds"), submitting(bench, keyed=stage.get("keyed")))


def submitting(bench: Bench, *, keyed: bool) -> Callable[[int], Awaitable[object]]:
    """Return what submits one task, plain or with an idempotency key of its own."""
    if not keyed:
        return bench.plain.submit

    async def submit_with_key(sent: int) -> None:
        call = bench.plain.bind(sent).options(idempotency_key=f"{os.getpid()}-{sent}")
        # After a freeze the server has ended its transaction: it goes on with the next.
        with contextlib.suppress(StoreError):
            await bench.pool.submit(call)

    return submit_with_key


async def bulk(stage: Stage) -> Answer:
    """Store tasks in chunks, each one batch."""
    bench = Bench(stage)
    async with bench.mp:
        await internals_of(bench.pool).ready()
        await beginning()
        start = time.monotonic_ns()
        await bench.store(stage.count)
        seconds = (time.monotonic_ns() - start) / 1e9
        return {"seconds": seconds, "stored": await bench.pool.size()}


async def fan(stage: Stage) -> Answer:
    """Store tasks by many submitters of this process, each waiting for its own answer."""
    bench = Bench(stage)
    submitters = stage.get("submitters")

    async def submitter() -> None:
        for _ in range(stage.count // submitters):
            await bench.plain.submit(time.monotonic_ns())

    async with bench.mp:
        await internals_of(bench.pool).ready()
        await beginning()
        start = time.monotonic_ns()
        await asyncio.gather(*[submitter() for _ in range(submitters)])
        seconds = (time.monotonic_ns() - start) / 1e9
        return {"seconds": seconds, "stored": await bench.pool.size()}


async def beat(stage: Stage) -> Answer:
    """Store a task every now and then."""
    bench = Bench(stage)
    async with bench.mp:
        await internals_of(bench.pool).ready()
        await beginning()
        for _ in range(stage.count):
            await bench.plain.submit(time.monotonic_ns())
            await asyncio.sleep(random.uniform(*GAP))
    return {}


async def work(stage: Stage) -> Answer:
    """Be a worker; with `slice`, only until `count` have started, whatever is left."""
    bench = Bench(stage)
    tune_garbage_collection()  # as `millpond worker` does
    switch_threads_quickly()
    async with bench.mp:
        await internals_of(bench.pool).ready()
        await beginning()
        deadline = time.monotonic() + stage.get("seconds")
        async with bench.mp.worker(concurrency=stage.get("concurrency")):
            empty = await watch(bench, deadline, stage)
            answer = bench.meter.answer(empty, lags=stage.get("lags", False))
    return answer


async def watch(bench: Bench, deadline: float, stage: Stage) -> int | None:
    """Wait until enough have started or nothing is left; return when the pool was empty."""
    part, stay = stage.get("slice", False), stage.get("stay", False)
    seen, starts = -1, bench.meter.starts
    while not bench.full.is_set():
        try:
            await asyncio.wait_for(bench.full.wait(), PATIENCE)
        except TimeoutError:
            if time.monotonic() >= deadline:
                return None
            if not stay and seen == len(starts) and not await bench.pool.size():
                return time.monotonic_ns()
            seen = len(starts)
    while not part and await bench.pool.size():
        if time.monotonic() >= deadline:
            return None
        await asyncio.sleep(0.002)
    return None if part else time.monotonic_ns()


async def feed(stage: Stage) -> Answer:
    """Store tasks at a steady pace; what comes late is made up for."""
    bench, given = Bench(stage), 0
    async with bench.mp:
        await internals_of(bench.pool).ready()
        await beginning()
        since = time.monotonic()
        while time.monotonic() < since + stage.get("seconds"):
            count = owed(stage.get("load"), since, given)
            await bench.store(count)
            given += count
            await asyncio.sleep(FEEDING)
    return {"stored": given}


async def sustain(stage: Stage) -> Answer:
    """Be a worker for some seconds, and return the starts of each."""
    bench = Bench(stage)
    tune_garbage_collection()  # as `millpond worker` does
    switch_threads_quickly()
    async with bench.mp:
        await internals_of(bench.pool).ready()
        await beginning()
        tally = Tally(stage.get("seconds"))
        bench.hit = tally.hit
        async with bench.mp.worker(concurrency=stage.get("concurrency")):
            await asyncio.sleep(stage.get("seconds"))
            # Before it stops: then it gives back what it has.
            detours = bench.detours()
    return tally.answer() | {"detours": detours}


async def idle(stage: Stage) -> Answer:
    """Be a worker with nothing to do."""
    bench = Bench(stage)
    async with bench.mp, bench.mp.worker(concurrency=stage.get("concurrency")):
        await beginning()
        await asyncio.to_thread(sys.stdin.read)
    return {}


ACTS: dict[str, Callable[[Stage], Awaitable[Answer]]] = {
    one.__name__: one for one in (fill, submit, stream, bulk, fan, beat, work, feed, sustain, idle)
}


def play(stage: Stage, act: str) -> Answer:
    """Do an act on a loop of its own."""

    async def total() -> Answer:
        return await ACTS[act](stage)

    return asyncio.run(total())
