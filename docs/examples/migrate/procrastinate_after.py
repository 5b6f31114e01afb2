"""The same jobs with Millpond, on the same server or in a file."""

import asyncio
import os

from millpond import Context, Millpond, Retry

mp = Millpond(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
shop = mp.pool("shop", max_concurrent=10, retry=Retry.never())
parcels = mp.pool("parcels", max_concurrent=10, ordered=True)  # one lane for each key


@shop.task(retry=Retry.constant(0, attempts=3))
async def send(ctx: Context, to: str) -> None:
    if ctx.attempt < 3:
        raise ConnectionError("the mail server is busy")
    print(f"mail: sent to {to} at attempt {ctx.attempt}")


@parcels.task(key="customer")
async def ship(customer: str, number: int) -> None:
    await asyncio.sleep(0.05 if number == 1 else 0)  # the first one is slow
    print(f"{customer}: parcel {number}")


@shop.task
async def sync_stock() -> None:
    print("stock: synced")


@shop.task
async def remind(customer: str) -> None:
    print(f"reminder for {customer}")


async def main() -> None:
    async with mp:
        once = sync_stock.options(idempotency_key="stock", dedupe="inflight")
        await once.submit()
        if (await once.submit()).duplicate:
            print("stock: one sync waits already")

        async with mp.worker():
            await shop.drain()

            await send.submit("ada@example.com")
            await shop.drain()

            for number in (1, 2, 3):
                await ship.submit("acme", number)
            await parcels.drain()

            late = await remind.options(delay=3600).submit("acme")
            print("cancelled:", await late.cancel())


if __name__ == "__main__":
    asyncio.run(main())
