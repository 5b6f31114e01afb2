"""A pool on SQLite: `python orders_app.py` submits, `millpond worker orders_app:mp` runs tasks."""

import asyncio
import sys
from pathlib import Path

from millpond import Context, Millpond, Retry

mp = Millpond("sqlite:///orders.db")  # one file, no server

orders = mp.pool(
    "orders",
    max_concurrent=4,  # over all processes together
    retry=Retry(attempts=3, initial=1.0),
)


def in_stock(number: int) -> bool:
    return number != 13 or Path("stock.txt").exists()


@orders.task(key="number")
async def pack(ctx: Context, number: int) -> str:
    await asyncio.sleep(8)  # the slow part
    if not in_stock(number):
        raise LookupError("out of stock")
    return f"order {number} packed in attempt {ctx.attempt}"


async def submit() -> None:
    async with mp:
        handles = await orders.submit_many(
            pack.bind(number).options(idempotency_key=f"order {number}") for number in range(10, 18)
        )
    print(sum(not handle.duplicate for handle in handles), "stored")


async def look() -> None:
    async with mp:
        for task in await orders.tasks():
            print(task.key, task.status, task.attempt, task.error or "")


async def redrive() -> None:
    async with mp:
        letters = await orders.tasks(status="failed")
        await orders.redrive([letter.id for letter in letters])  # three new attempts each
        for letter in letters:
            handle = await mp.handle(letter.id, of=pack)
            print(await handle)  # a worker has run it


if __name__ == "__main__":  # a worker imports this file
    commands = {"submit": submit, "look": look, "redrive": redrive}
    asyncio.run(commands[sys.argv[1] if len(sys.argv) > 1 else "submit"]())
