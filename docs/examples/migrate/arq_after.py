"""The same jobs with Millpond. Needs a worker: millpond worker arq_after:mp"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millpond import Context, Millpond, Retry, RetryLater, TaskFailed

SWEEPS = Path("sweeps.txt")


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, int]]:
    yield {"percent": 119}  # code after this line runs when the worker has stopped


mp = Millpond("sqlite:///shop.db", resources=lifespan)  # or postgresql://...
shop = mp.pool("shop", max_concurrent=8, retry=Retry(attempts=3, on=RetryLater))


@shop.task
async def price(ctx: Context, cents: int) -> int:
    percent: int = ctx.resources["percent"]
    return cents * percent // 100


@shop.task
async def send(ctx: Context, to: str) -> str:
    if ctx.attempt < 3:
        raise RetryLater(0.1)
    return f"sent to {to} at attempt {ctx.attempt}"


@shop.task
async def charge(card: str) -> str:
    raise ValueError(f"no such card: {card}")


@shop.task(ignore_result=True)
async def sweep() -> None:
    with SWEEPS.open("a") as file:
        file.write("swept\n")


mp.cron("sweep", every=1, task=sweep)


async def main() -> None:
    async with mp:
        print("price:", await (await price.submit(1000)))
        print("mail:", await (await send.submit("ada@example.com")))
        try:
            await (await charge.submit("4711"))
        except TaskFailed as failed:
            print("charge:", failed.error_message)

        once = price.options(idempotency_key="order-7", delay=3600)
        await once.submit(7)
        if (await once.submit(7)).duplicate:
            print("order-7: known")

        basket = await shop.submit_many(price.each([1000, 2000, 3000]))
        print("prices:", [await handle for handle in basket])

        while not SWEEPS.exists() or len(SWEEPS.read_text().splitlines()) < 2:
            await asyncio.sleep(0.1)
        print("swept")


if __name__ == "__main__":
    asyncio.run(main())
