"""T22: how long others wait while a process is frozen in the middle of its writes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from functools import partial
from typing import Any

from actors import ActFailed
from figures import Found
from fleet_stage import FleetStage
from postgres_contenders import OURS
from postgres_stage import Actor

from millpond import Millpond, TaskFunction

TIMES = 50
LONGEST = 600.0
POOLS = ("bench", "other")


async def _waits(url: str, victim: int, times: int) -> list[float]:
    """Freeze a process at random moments; return the wait of each submit into either pool."""
    mp = Millpond(url, work=False)

    async def noop(sent: int) -> None:
        """Do nothing."""

    tasks: list[TaskFunction[[int], None, Any]] = [
        mp.pool(name, max_concurrent=100).task(name=f"noop-{name}")(noop) for name in POOLS
    ]
    dice, waits = random.Random(1), []
    async with mp:
        for task in tasks:
            await task.submit(0)
        for _ in range(times):
            await asyncio.sleep(dice.uniform(0.01, 0.05))
            os.kill(victim, signal.SIGSTOP)
            try:
                for task in tasks:
                    begun = time.monotonic()
                    await task.submit(0)
                    waits.append(time.monotonic() - begun)
            finally:
                os.kill(victim, signal.SIGCONT)
    return waits


def worst(stage: FleetStage, *, keyed: bool) -> float:
    """Return the longest wait, in ms, while a process that submits all the time is frozen."""
    times = stage.size(TIMES, 10)
    given = {"seconds": LONGEST, "keyed": keyed, "shape": {"pool": POOLS[0]}}
    with stage.fresh(OURS) as url, Actor(OURS, "stream", url, **given) as actor:
        actor.ready().go()
        waits = asyncio.run(_waits(url, actor.process.pid, times))
        if actor.process.poll() is not None:
            raise ActFailed("the process that was frozen has ended")
    return max(waits) * 1e3


def measure(stage: FleetStage) -> Found:
    """Freeze one that submits plain tasks, and one that gives each an idempotency key."""
    found = Found()
    ways = {
        "frozen: plain submits": partial(worst, stage, keyed=False),
        "frozen: submits with idempotency keys": partial(worst, stage, keyed=True),
    }
    rounds = stage.interleaved(ways)
    for name, taken in rounds.done().items():
        found.must(f"T22 {name}, worst wait of others", max(taken), 100.0, unit="ms", goal=20.0)
    found.absent |= rounds.failed
    return found
