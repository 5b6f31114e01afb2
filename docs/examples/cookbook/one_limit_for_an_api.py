"""Two pools and many workers call one API that allows so many requests in a second."""

import asyncio
import time

from millpond import Millpond, Rate

mp = Millpond("sqlite:///api.db")
api = mp.budget("billing-api", 3, rate=Rate(20, per=1.0, burst=5))  # 3 at a time, 20 in a second
invoices = mp.pool("invoices", max_concurrent=50, budgets=[api])
refunds = mp.pool("refunds", max_concurrent=50, budgets=[api])

running = most = 0
starts: list[float] = []


@mp.task
async def call(path: str) -> str:
    global running, most  # noqa: PLW0603
    starts.append(time.monotonic())
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.1)
    running -= 1
    return path


async def main() -> None:
    async with mp:
        await invoices.submit_many(call.bind(f"/invoices/{n}") for n in range(10))
        await refunds.submit_many(call.bind(f"/refunds/{n}") for n in range(10))
        async with mp.worker(), mp.worker():  # in production: processes on several machines
            await invoices.drain()
            await refunds.drain()

    took = starts[-1] - starts[0]
    print(f"{len(starts)} calls in {took:.2f} s, at most {most} at a time")
    assert 1 < most <= 3
    assert len(starts) <= 5 + 20 * took + 1  # a burst of 5, then 20 per second


if __name__ == "__main__":
    asyncio.run(main())
