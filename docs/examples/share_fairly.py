"""Which task is next: by priority, age, turns or weighted turns; and limits per key."""

import asyncio

from millpond import Millpond, Pool, Rate, fair_round_robin, priority

mp = Millpond()

urgent = mp.pool("urgent", queue=priority())  # the default
aging = mp.pool("aging", queue=priority(aging=60.0))  # a minute of waiting adds one to the priority
fair = mp.pool("fair", queue=fair_round_robin("tenant"))
weighted = mp.pool("weighted", queue=fair_round_robin("tenant", weights={"acme": 2}))
limited = mp.pool("limited", max_concurrent=10, max_per_key=2)
paced = mp.pool("paced", max_concurrent=10, rate=Rate(100, per=60.0), rate_per_key=Rate(1, per=2.0))

order: list[str] = []


@mp.task(key="tenant")
async def call(tenant: str) -> None:
    order.append(tenant)
    await asyncio.sleep(0.002)


async def starts(pool: Pool, tenants: str) -> str:
    """Submit one task per letter while the pool is paused; return the order of starts."""
    order.clear()
    await pool.pause()
    for tenant in tenants:
        await pool.submit(call.bind(tenant))
    await pool.resume()
    await pool.drain()
    return "".join(order)


async def by_priority() -> None:
    await urgent.pause()
    await urgent.submit(call.bind("later"))
    await urgent.submit(call.bind("first"), priority=10)
    await urgent.submit(call.bind("second"), priority=10)
    await urgent.resume()
    await urgent.drain()
    print(*order)

    assert order == ["first", "second", "later"]


async def main() -> None:
    async with mp:
        await by_priority()

        assert await starts(fair, "AAAABBC") == "ABCABAA"
        order.clear()
        await weighted.pause()
        for tenant in ["acme"] * 4 + ["bolt"] * 4:
            await weighted.submit(call.bind(tenant))
        await weighted.resume()
        await weighted.drain()
        print(*order)
        assert order[:6] == ["acme", "bolt", "acme", "acme", "bolt", "acme"]

        await limited.submit_many(call.each(["acme"] * 9 + ["bolt"] * 9))
        snapshot = await limited.snapshot()
        print(f"{snapshot.running} run, {snapshot.queued} wait")
        assert snapshot.running == 4  # two of each tenant
        await limited.drain()

        first = await paced.submit(call.bind("acme"))
        second = await paced.submit(call.bind("acme"))
        await first
        print(await mp.why(second.id))
        await second.cancel()


asyncio.run(main())
