"""A process of bench/soak.py: the application, and its submitter or one of its workers.

    python bench/soak_load.py submit|work URL '{"seconds": 600, "rate": 200, "keep": 30}'

Every kind of task comes at a steady pace: plain ones in batches and alone, delayed ones of which
some are cancelled, ones that fail once or always, ones of many tenants, ones that submit another,
ones with a callback, and duplicates. Ended ones are kept for a short while only.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from millpond import (
    Context,
    Handle,
    Keep,
    Millpond,
    Outcome,
    Pool,
    Retry,
    TaskFunction,
    fair_round_robin,
)

TURN = 0.1
"""Seconds between two bursts of submits."""
DRAINED = 60.0
"""Seconds within which the workers must be through with the rest."""
TENANTS = 200


class Application:
    """The pools and tasks that all processes share."""

    def __init__(self, url: str | None, keep: float) -> None:
        short = Keep(completed=keep, failed=keep, keys=keep, audit=keep)
        self.mp = mp = Millpond(url, keep=short)
        self.plain = mp.pool("plain", max_concurrent=20, prefetch=20)
        self.fair = mp.pool(
            "fair", max_concurrent=20, queue=fair_round_robin("tenant"), max_per_key=2
        )
        self.flaky = mp.pool("flaky", max_concurrent=20, retry=Retry.constant(0.2, attempts=2))
        self.grow = mp.pool("grow", max_concurrent=20)
        self.after = mp.pool("after", max_concurrent=20)
        self.quick: TaskFunction[[int], int, Any] = self.plain.task(quick)
        self.of_tenant: TaskFunction[[int, str], None, Any] = self.fair.task(key="tenant")(tenant)
        self.stumble: TaskFunction[[int], None, Any] = self.flaky.task(stumble)
        self.sprout: TaskFunction[[int], None, Any] = self.grow.task(self.grown)
        self.follow: TaskFunction[[int], None, Any] = self.after.task(follow)
        self.noted: TaskFunction[[], None, Any] = mp.task(note)

    async def grown(self, ctx: Context, number: int) -> None:
        """Submit another task as part of the outcome."""
        await ctx.submit(self.follow.bind(number))

    def pools(self) -> tuple[Pool, ...]:
        """Return every pool."""
        return (self.plain, self.fair, self.flaky, self.grow, self.after)


async def quick(number: int) -> int:
    """Give way once."""
    await asyncio.sleep(0)
    return number


async def tenant(number: int, tenant: str) -> None:
    """Take a moment, so that the limit of a key is met."""
    del number, tenant
    await asyncio.sleep(0.002)


async def stumble(ctx: Context, number: int) -> None:
    """Fail once, or always."""
    if number % 10 == 0 or (number % 2 == 0 and not ctx.is_retry):
        raise RuntimeError(f"task {number} stumbles")


async def follow(number: int) -> None:
    """End at once."""
    del number


async def note(outcome: Outcome) -> None:
    """Take an outcome."""
    del outcome


class Submitter:
    """Submits at a steady pace, and counts accepted tasks."""

    def __init__(self, app: Application, rate: float) -> None:
        self.app = app
        self.each = max(int(rate * TURN / 8), 1)
        """Tasks of each kind in a turn; there are eight."""
        self.taken: Counter[str] = Counter()
        self.number = 0

    def numbers(self) -> range:
        """Return the next few numbers."""
        self.number += self.each
        return range(self.number - self.each, self.number)

    def count(self, handles: list[Handle[Any]]) -> None:
        """Count newly stored tasks."""
        self.taken.update(handle.pool for handle in handles if not handle.duplicate)

    async def turn(self) -> None:
        """Submit some of every kind."""
        app = self.app
        numbers = self.numbers()
        self.count(await app.plain.submit_many(app.quick.each(numbers)))
        for number in numbers:
            self.count([await app.quick.submit(number)])
        later = await app.plain.submit_many(app.quick.each(numbers), delay=0.5)
        self.count(later)
        await later[0].cancel()
        self.count(await app.flaky.submit_many(app.stumble.each(numbers)))
        tenants = [app.of_tenant.bind(n, f"tenant-{n % TENANTS}") for n in numbers]
        self.count(await app.fair.submit_many(tenants))
        self.count(await app.grow.submit_many(app.sprout.each(numbers)))
        answer = await app.plain.submit_many(app.quick.each(numbers), on_complete=app.noted.bind())
        self.count(answer)
        for number in numbers:
            call = app.quick.bind(number // 2).options(idempotency_key=f"key-{number // 2}")
            self.count([await app.plain.submit(call)])

    async def run(self, seconds: float) -> None:
        """Take a turn every TURN seconds; one that came too late is not made up for."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            await self.turn()
            await asyncio.sleep(max(now + TURN - time.monotonic(), 0.0))


async def left(app: Application) -> int:
    """Return how many tasks have not ended."""
    return sum([await pool.size() for pool in app.pools()])


async def submit(app: Application, given: dict[str, Any]) -> dict[str, Any]:
    """Submit for a while, wait for the workers, and return the results."""
    submitter = Submitter(app, given["rate"])
    async with app.mp:
        print("ready", flush=True)
        await submitter.run(given["seconds"])
        deadline = time.monotonic() + DRAINED
        while await left(app) and time.monotonic() < deadline:  # noqa: ASYNC110 - others work
            await asyncio.sleep(0.2)
        snapshots = [await pool.snapshot() for pool in app.pools()]
    return {
        "taken": dict(submitter.taken),
        "pools": {
            one.name: {
                "left": one.running + one.queued,
                "completed": one.completed,
                "failed": one.failed,
                "cancelled": one.cancelled,
            }
            for one in snapshots
        },
    }


async def work(app: Application, _given: dict[str, Any]) -> dict[str, Any]:
    """Be a worker until stdin ends."""
    async with app.mp, app.mp.worker(concurrency=50):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    return {}


ROLES: dict[str, Callable[[Application, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    "submit": submit,
    "work": work,
}


async def main() -> None:
    """Play the role that the arguments name."""
    role, url, text = sys.argv[1:4]
    given = json.loads(text)
    answer = await ROLES[role](Application(url or None, given["keep"]), given)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
