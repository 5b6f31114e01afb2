"""A shop's background jobs with Procrastinate, on PostgreSQL."""

import asyncio
import os
from contextlib import suppress

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy
from procrastinate.exceptions import AlreadyEnqueued

URL = os.environ.get("DATABASE_URL", "postgresql:///shop")
app = App(connector=PsycopgConnector(conninfo=URL))


@app.task(queue="shop", pass_context=True, retry=RetryStrategy(max_attempts=3, wait=0))
async def send(context: JobContext, to: str) -> None:
    if context.job.attempts < 2:
        raise ConnectionError("the mail server is busy")
    print(f"mail: sent to {to} at attempt {context.job.attempts + 1}")


@app.task(queue="shop")
async def ship(customer: str, number: int) -> None:
    await asyncio.sleep(0.05 if number == 1 else 0)  # the first one is slow
    print(f"{customer}: parcel {number}")


@app.task(queue="shop")
async def sync_stock() -> None:
    print("stock: synced")


@app.task(queue="shop")
async def remind(customer: str) -> None:
    print(f"reminder for {customer}")


async def until_idle() -> None:
    while any(job.status in ("todo", "doing") for job in await app.job_manager.list_jobs_async()):
        await asyncio.sleep(0.05)


async def main() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()

        once = sync_stock.configure(queueing_lock="stock")
        await once.defer_async()
        try:
            await once.defer_async()
        except AlreadyEnqueued:
            print("stock: one sync waits already")

        worker = asyncio.create_task(
            app.run_worker_async(concurrency=10, fetch_job_polling_interval=0.1)
        )
        await until_idle()

        await send.defer_async(to="ada@example.com")
        await until_idle()

        in_order = ship.configure(lock="acme")
        for number in (1, 2, 3):
            await in_order.defer_async(customer="acme", number=number)
        await until_idle()

        late = await remind.configure(schedule_in={"hours": 1}).defer_async(customer="acme")
        print("cancelled:", await app.job_manager.cancel_job_by_id_async(late))

        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker


if __name__ == "__main__":
    asyncio.run(main())
