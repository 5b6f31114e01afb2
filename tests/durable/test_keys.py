"""Keys of a pool: limits and counts per key, whatever else the pool has."""

import asyncio
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.pool.fleet import Fleet, until
from verify.servers.schemas import Schema

from millpond import Context, Millpond, Pool, Rate, Retry, fair_round_robin, fifo, lifo, priority

ORDERS: dict[str, Any] = {
    "fifo": fifo(),
    "lifo": lifo(),
    "priority": priority(),
    "fair": fair_round_robin("key", {"k0": 3}),
}
PACES: dict[str, dict[str, Any]] = {
    "no rate": {},
    "a rate": {"rate": Rate(20, per=1.0)},
    "a rate per key": {"rate_per_key": Rate(10, per=1.0)},
    "both": {"rate": Rate(40, per=1.0, of="weight"), "rate_per_key": Rate(10, per=1.0)},
}
KEYS, EACH, LIMIT = 4, 6, 2


@pytest.mark.rows("TR-01")
@pytest.mark.parametrize(("order", "pace"), [*product(ORDERS, PACES)])
async def test_every_key_is_served_and_none_exceeds_its_limit(
    place: Path | Schema, order: str, pace: str
) -> None:
    """Two processes, tasks that fail once, and one that is cancelled: all keys come to an end."""
    fleet = Fleet(place)
    at_work: Counter[str | None] = Counter()
    most: Counter[str | None] = Counter()

    def process() -> Millpond:
        mp = fleet.millpond(work=True)
        pool = mp.pool(
            "calls",
            max_concurrent=5,
            max_per_key=LIMIT,
            queue=ORDERS[order],
            retry=Retry.constant(0.5, jitter=0),
            **PACES[pace],
        )

        @pool.task(key="key")
        async def call(ctx: Context, key: str, number: int) -> None:
            at_work[key] += 1
            most[key] = max(most[key], at_work[key])
            await asyncio.sleep(0.3)
            at_work[key] -= 1
            if number == 1 and not ctx.is_retry:
                raise OSError

        return mp

    one, two = process(), process()
    async with one, two:
        call, pool = one.tasks["call"], one.get_pool("calls")
        calls = [call.bind(f"k{key}", number) for number in range(EACH) for key in range(KEYS)]
        handles = await pool.submit_many(calls[:-4])
        await handles[-1].cancel()
        await two.get_pool("calls").submit_many(two.tasks["call"].bind(*one) for one in last())
        await until(lambda: is_idle(pool), within=60)
        snapshot = await pool.snapshot()
    assert (KEYS * EACH - 1, 1) == (snapshot.completed, snapshot.cancelled)
    assert {f"k{key}" for key in range(KEYS)} == set(most)
    assert LIMIT == max(most.values())


def last() -> list[tuple[str, int]]:
    """Return the last task of each key."""
    return [(f"k{key}", EACH - 1) for key in range(KEYS)]


async def is_idle(pool: Pool) -> bool:
    """Return whether nothing of a pool waits or runs."""
    return 0 == await pool.size()
