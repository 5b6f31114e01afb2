"""Tasks and the application's own tables in one PostgreSQL database, named by DATABASE_URL."""

import asyncio
import os

import psycopg

from millpond import Context, Millpond

URL = os.environ.get("DATABASE_URL")
PAYMENTS = "CREATE TABLE IF NOT EXISTS payments (id bigint PRIMARY KEY, cents bigint)"

mp = Millpond(URL)
orders = mp.pool("orders", max_concurrent=4)


@orders.task
async def charge(ctx: Context, order: int, cents: int) -> int:
    async with ctx.transaction() as tx:
        tx.execute("INSERT INTO payments VALUES (%s, %s)", (order, cents))
        tx.complete(cents)
    return 0  # ignored: the task has completed


async def take_order(number: int, cents: int) -> int:
    """Commit the order and its task together: both exist, or neither does."""
    async with await psycopg.AsyncConnection.connect(URL or "") as connection:
        await connection.execute("INSERT INTO placed VALUES (%s)", (number,))
        handle = await orders.submit(charge.bind(number, cents), connection=connection)
    return await handle


async def main() -> None:
    if URL is None:
        print("set DATABASE_URL to run this example")
        return
    async with await psycopg.AsyncConnection.connect(URL) as own:
        await own.execute("CREATE TABLE IF NOT EXISTS placed (id bigint PRIMARY KEY)")
        await own.execute(PAYMENTS)
    async with mp, mp.worker():
        print("paid", await take_order(7, 1250))


if __name__ == "__main__":
    asyncio.run(main())
