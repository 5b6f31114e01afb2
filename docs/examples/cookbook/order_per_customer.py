"""Strict order for each customer, also while a task is retried; customers run side by side."""

import asyncio

from millpond import Millpond, Retry

mp = Millpond()
updates = mp.pool("updates", max_concurrent=50, ordered=True)
applied: list[tuple[str, int]] = []
down = {("acme", 2)}


@updates.task(key="customer", retry=Retry(attempts=5, initial=0.05))
async def apply(customer: str, version: int) -> None:
    if (customer, version) in down:
        down.discard((customer, version))
        raise ConnectionError("the customer's server does not answer")
    applied.append((customer, version))


async def main() -> None:
    async with mp:
        for version in range(5):
            for customer in ("acme", "bolt"):
                await apply.submit(customer, version)
        await updates.drain()

    print(applied)
    for customer in ("acme", "bolt"):
        assert [v for name, v in applied if name == customer] == [0, 1, 2, 3, 4]
    assert applied.index(("bolt", 4)) < applied.index(("acme", 2))  # bolt did not wait for acme


if __name__ == "__main__":
    asyncio.run(main())
