"""Orders and their tasks in one PostgreSQL database, named by DATABASE_URL: tutorial 4."""

import asyncio
import os
import sys

import psycopg

from millpond import Millpond, Retry, fair_round_robin

URL = os.environ.get("DATABASE_URL")

mp = Millpond(URL)

invoices = mp.pool(
    "invoices",
    max_concurrent=4,  # over all workers on all machines
    queue=fair_round_robin("customer"),  # one customer's orders do not hold up the others'
    retry=Retry(attempts=3, initial=1.0),
)


@invoices.task(key="customer")
async def bill(order: int, customer: str) -> str:
    await asyncio.sleep(2)  # the slow part
    return f"order {order} of {customer}: billed"


async def prepare() -> None:
    async with await psycopg.AsyncConnection.connect(URL or "") as connection:
        await connection.execute(
            "CREATE TABLE orders (number serial PRIMARY KEY, customer text NOT NULL)"
        )
    async with mp:  # creates the schema `millpond` and its tables
        print("ready")


async def buy(customer: str, *, fail: bool = False) -> None:
    async with mp, await psycopg.AsyncConnection.connect(URL or "") as connection:
        row = await connection.execute(
            "INSERT INTO orders (customer) VALUES (%s) RETURNING number", (customer,)
        )
        (number,) = await row.fetchone() or (0,)
        await invoices.submit(bill.bind(number, customer), connection=connection)
        if fail:
            raise SystemExit("no money: neither the order nor its task exists")
    print(f"order {number} and its task are stored")


async def main(command: str, customer: str = "") -> None:
    if command == "prepare":
        await prepare()
    else:
        await buy(customer, fail=command == "fail")


if __name__ == "__main__":  # a worker imports this file
    if URL is None:
        print("set DATABASE_URL to run this example")
    else:
        asyncio.run(main(*sys.argv[1:]))
