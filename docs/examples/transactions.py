"""Tasks and the application's own tables in one SQLite file, committed together."""

import asyncio
import sqlite3

from millpond import Context, Millpond, SyncContext

FILE = "shop.db"
PLACED = "CREATE TABLE placed (id INTEGER PRIMARY KEY)"
PAYMENTS = "CREATE TABLE payments (id INTEGER PRIMARY KEY, cents INTEGER, receipt INTEGER)"
BOOK = "INSERT INTO payments VALUES (?, ?, ?)"

mp = Millpond(f"sqlite:///{FILE}")
orders = mp.pool("orders", max_concurrent=4)


@orders.task
async def confirm(order: int) -> str:
    return f"order {order} is confirmed"


@orders.task
async def charge(ctx: Context, order: int, cents: int) -> int:
    receipt = order * 1000  # what the payment service returned
    await ctx.submit(confirm.bind(order))

    row = (order, cents, receipt)
    await ctx.commit(lambda connection: connection.execute(BOOK, row), result=receipt)
    return receipt


@orders.task
async def refund(ctx: Context, order: int) -> int:
    async with ctx.transaction() as tx:
        row = tx.execute("SELECT cents FROM payments WHERE id = ?", (order,)).fetchone()
        tx.execute("UPDATE payments SET cents = 0 WHERE id = ?", (order,))
        tx.complete(row[0])
    return 0  # ignored: the task has completed


@orders.task
def archive(ctx: SyncContext, order: int) -> None:
    with ctx.transaction(hold=2.0) as tx:
        tx.execute("DELETE FROM payments WHERE id = ?", (order,))


@orders.task
async def ship(ctx: Context, order: int) -> str:
    async def buy_label() -> str:
        return f"label-{order}"  # a call that must not be made twice

    return await ctx.once("label", buy_label)


async def take_order(number: int, cents: int) -> int:
    """Commit the order and its task together: both exist, or neither does."""
    connection = sqlite3.connect(FILE)
    try:
        with connection:
            connection.execute("INSERT INTO placed VALUES (?)", (number,))
            handle = await orders.submit(charge.bind(number, cents), connection=connection)
    finally:
        connection.close()
    return await handle


async def main() -> None:
    with sqlite3.connect(FILE) as own:
        own.execute(PLACED)
        own.execute(PAYMENTS)
    own.close()
    async with mp, mp.worker():
        print("receipt", await take_order(7, 1250))
        print("refunded", await (await refund.submit(7)))
        print(await (await ship.submit(7)))
        await (await archive.submit(7))
        await orders.drain()


if __name__ == "__main__":
    asyncio.run(main())
