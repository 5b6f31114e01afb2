"""Order: one task at a time, in sequence, within a lane or a key."""

import asyncio

from millpond import Empty, Millpond, Retry, fifo

dry: list[Empty] = []
mp = Millpond()
webhooks = mp.pool("webhooks", lanes=8, on_empty=dry.append)  # eight lanes, one task at a time each
orders = mp.pool("orders", max_concurrent=100, ordered=True)  # one lane for each key
serial = mp.pool("serial", max_concurrent=1, queue=fifo())

delivered: list[tuple[str, int]] = []
failing = {("acme", 1)}


@mp.task(key="customer", retry=Retry(attempts=5, initial=0.01))
async def deliver(customer: str, number: int) -> None:
    await asyncio.sleep(0.001)
    if (customer, number) in failing:
        failing.discard((customer, number))
        raise ConnectionError("later")
    delivered.append((customer, number))


async def in_lanes() -> None:
    for number in range(3):
        for customer in ("acme", "bolt"):
            handle = await webhooks.submit(deliver.bind(customer, number))
    print(f"lane {handle.lane}, sequence {handle.sequence}, {handle.position} ahead")

    await webhooks.drain()
    # The retry of acme's second task delays acme's third task, and no other customer.
    assert [n for customer, n in delivered if customer == "acme"] == [0, 1, 2]
    assert delivered[-1] == ("acme", 2)

    for lane in await webhooks.lanes():
        if lane.processed:
            print(lane.lane, lane.state, lane.pending, lane.processed)
    assert sorted(empty.processed for empty in dry) == [3, 3]

    await webhooks.pause(lane=handle.lane)
    await webhooks.resume(lane=handle.lane)


async def per_key() -> None:
    handles = [await orders.submit(deliver.bind(f"customer-{n % 3}", n)) for n in range(9)]
    for handle in handles:
        await handle
    mine = [n for customer, n in delivered if customer == "customer-1"]
    assert mine == [1, 4, 7]


async def main() -> None:
    async with mp:
        await in_lanes()
        await per_key()


asyncio.run(main())
