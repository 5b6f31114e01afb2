"""A burst of readings of which only the newest matter: a bounded queue that drops the oldest."""

import asyncio
from collections import Counter

from millpond import Millpond, ring_buffer

mp = Millpond()
readings = mp.pool("readings", max_concurrent=2, queue="fifo", backpressure=ring_buffer(100))
stored: list[int] = []


@readings.task
async def store(reading: int) -> None:
    stored.append(reading)
    await asyncio.sleep(0.0005)


async def main() -> None:
    async with mp:
        handles = [
            await store.submit(number) for number in range(1000)
        ]  # never waits, never raises
        await readings.drain()

        for handle in handles:
            await handle.refresh()
        print(dict(Counter(handle.status for handle in handles)))
        dropped = [handle for handle in handles if handle.status == "rejected"]
        assert {handle.rejection_reason for handle in dropped} == {"ring_buffer_drop_oldest"}
        assert len(dropped) + len(stored) == 1000
        assert stored[-100:] == list(range(900, 1000))  # the newest hundred, in order

        drops = [record async for record in mp.audit(readings) if record.kind == "drop"]
        print(f"the audit has {len(drops)} drops")
        assert len(drops) == len(dropped)


if __name__ == "__main__":
    asyncio.run(main())
