"""One customer floods the queue, and the others do not notice."""

import asyncio

from millpond import Millpond, PoolFull, bounded, fair_round_robin

mp = Millpond()
exports = mp.pool(
    "exports",
    max_concurrent=4,
    max_per_key=2,  # no customer has more than half of the slots
    queue=fair_round_robin("customer", weights={"gold": 2}),  # gold gets two turns for one
    backpressure=bounded(1000, "fail_submitter", per_key=100),
)
order: list[str] = []


@exports.task(key="customer")
async def export(customer: str, number: int) -> None:
    order.append(customer)
    await asyncio.sleep(0.001)


async def main() -> None:
    async with mp:
        await exports.pause()
        for number in range(100):
            await export.submit("flood", number)
        try:
            await export.submit("flood", 100)
        except PoolFull as full:
            print(f"{full.lane} is full: {full.depth} of {full.bound} wait")
        for number in range(6):
            for customer in ("small", "gold"):
                await export.submit(customer, number)
        await exports.resume()
        await exports.drain()

    print(" ".join(order[:16]))
    last = max(at for at, customer in enumerate(order) if customer != "flood")
    print(f"the others were done after {last + 1} of {len(order)} starts")
    assert last < 25  # first come, first served would make it 112


if __name__ == "__main__":
    asyncio.run(main())
