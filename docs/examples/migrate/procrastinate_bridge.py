"""Both side by side in one database: jobs of Procrastinate become tasks of Millpond."""

import asyncio

from procrastinate import JobContext
from procrastinate_after import mp, shop
from procrastinate_after import send as send_mail
from procrastinate_before import app

runs: list[int] = []


@app.task(name="forward", queue="shop", pass_context=True, retry=True)
async def forward(context: JobContext, to: str) -> None:
    runs.append(context.job.attempts)
    key = f"procrastinate:{context.job.id}"
    await shop.submit(send_mail.bind(to), idempotency_key=key)
    if context.job.attempts == 0:
        raise ConnectionError("after the submit, so Procrastinate runs this job again")


async def main() -> None:
    async with mp, app.open_async():
        await app.schema_manager.apply_schema_async()
        await forward.defer_async(to="ada@example.com")
        await app.run_worker_async(wait=False, install_signal_handlers=False)
        await shop.drain()
        print(f"runs of the job: {len(runs)}, tasks:", len(await shop.tasks()))


if __name__ == "__main__":
    asyncio.run(main())
