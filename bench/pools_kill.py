"""How soon a handler in a process is gone when its time is up, and whether the pool is whole."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path

from figures import Found, Plan, quantile

from millpond import Millpond, Retry, SyncContext, TaskFailed

KILLS = 30
AT_ONCE = 4
TIMEOUT = 1.0

mp = Millpond()
pool = mp.pool("killed", max_concurrent=AT_ONCE, retry=Retry.never())


@pool.task(executor="process", timeout=TIMEOUT)
def hang(ctx: SyncContext, path: str, manner: str) -> None:
    """Outstay the time: asleep, deaf to SIGTERM, or busy."""
    if manner == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    there = Path(path)
    there.with_suffix(".new").write_text(f"{os.getpid()} {ctx.deadline}")
    there.with_suffix(".new").rename(there)
    while True:
        if manner != "busy":
            time.sleep(60)


@pool.task(executor="process", timeout=30)
def pid() -> int:
    """Say which process this is."""
    return os.getpid()


def is_there(process: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def read(path: Path) -> list[str]:
    """Return what a handler has written: its process and its deadline; nothing before that."""
    return path.read_text().split() if path.exists() else []


async def killed(path: Path, manner: str) -> float:
    """Run a handler that will not end; return the seconds from its deadline to its end."""
    handle = await pool.submit(hang.bind(str(path), manner))
    while not (answer := read(path)):
        await asyncio.sleep(0.005)
        if (await handle.refresh()).status.terminal:
            # Killed before its child had even started: that says nothing about the kill.
            return await killed(path, manner)
    process, deadline = answer
    while is_there(int(process)):  # noqa: ASYNC110 - no event for it
        await asyncio.sleep(0.002)
    lag = time.time() - float(deadline)
    try:
        await handle
    except TaskFailed:
        return lag
    raise AssertionError("a handler that never ends has ended")


def measure_kills(plan: Plan) -> Found:
    """Measure how long a child lives on."""
    return asyncio.run(kill_figures(9 if plan.quick else KILLS))


async def kill_figures(kills: int) -> Found:
    """Kill handlers, a few at a time, and then see the pool work as before."""
    found = Found()
    manners = ("asleep", "deaf", "busy")
    lags: dict[str, list[float]] = {manner: [] for manner in manners}
    with tempfile.TemporaryDirectory() as folder:
        async with mp:
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(number: int) -> None:
                manner = manners[number % len(manners)]
                async with gate:
                    lags[manner].append(await killed(Path(folder) / str(number), manner))

            await asyncio.gather(*[one(number) for number in range(kills)])
            handles = [await pool.submit(pid) for _ in range(4 * AT_ONCE)]
            children = {await handle for handle in handles}
            total = (await pool.snapshot()).running == 0 and len(children) <= AT_ONCE
    for manner, taken in lags.items():
        found.add(f"{manner}: p50 from deadline to gone", quantile(taken, 0.5) * 1e3, "ms wall")
        found.add(f"{manner}: worst", max(taken) * 1e3, "ms wall")
    worst = max(max(taken) for taken in lags.values())
    found.must(f"process: worst of {kills} kills", worst * 1e3, 1_000, "ms")
    found.must("process: pool not whole afterwards", 0 if total else 1, 0, "")
    return found
