"""Three tenants send pull requests to one pool, which reviews two at a time, in turns."""

import asyncio

from millpond import Millpond, bounded, fair_round_robin

mp = Millpond()  # in memory

reviews = mp.pool(
    "reviews",
    max_concurrent=2,  # shared by all submitters
    queue=fair_round_robin("tenant"),  # one tenant cannot hold up the others
    backpressure=bounded(1000),  # when 1000 tasks wait, the next submitter waits for room
)


@reviews.task(timeout=300)
async def review(number: int, tenant: str) -> str:
    await asyncio.sleep(0.01)  # the slow part
    return f"{tenant}/{number}: fine"


async def main() -> None:
    async with mp:
        handles = [await review.submit(n, t) for n in range(3) for t in ("acme", "bolt", "cara")]
        for handle in handles:
            print(await handle)  # the result; failed attempts were retried before

        assert [handle.status for handle in handles] == ["completed"] * 9


asyncio.run(main())
