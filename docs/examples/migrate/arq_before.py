"""A shop's background jobs with arq. Needs a worker: arq arq_before.WorkerSettings"""

import asyncio
import os
from pathlib import Path
from typing import Any

from arq import Retry, create_pool, cron
from arq.connections import RedisSettings

REDIS = RedisSettings.from_dsn(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
SWEEPS = Path("sweeps.txt")


async def price(ctx: dict[str, Any], cents: int) -> int:
    return cents * ctx["percent"] // 100


async def send(ctx: dict[str, Any], to: str) -> str:
    if ctx["job_try"] < 3:
        raise Retry(defer=0.1)
    return f"sent to {to} at attempt {ctx['job_try']}"


async def charge(ctx: dict[str, Any], card: str) -> str:
    raise ValueError(f"no such card: {card}")


async def sweep(ctx: dict[str, Any]) -> None:
    with SWEEPS.open("a") as file:
        file.write("swept\n")


async def startup(ctx: dict[str, Any]) -> None:
    ctx["percent"] = 119


class WorkerSettings:
    redis_settings = REDIS
    functions = (price, send, charge)
    cron_jobs = (cron(sweep, second=set(range(60))),)
    on_startup = startup
    max_jobs = 8
    max_tries = 3


async def main() -> None:
    redis = await create_pool(REDIS)
    print("price:", await (await redis.enqueue_job("price", 1000)).result())
    print("mail:", await (await redis.enqueue_job("send", "ada@example.com")).result())
    try:
        await (await redis.enqueue_job("charge", "4711")).result()
    except ValueError as error:
        print("charge:", error)

    await redis.enqueue_job("price", 7, _job_id="order-7", _defer_by=3600)
    if await redis.enqueue_job("price", 7, _job_id="order-7") is None:
        print("order-7: known")

    basket = [await redis.enqueue_job("price", cents) for cents in (1000, 2000, 3000)]
    print("prices:", await asyncio.gather(*(job.result() for job in basket)))

    while not SWEEPS.exists() or len(SWEEPS.read_text().splitlines()) < 2:
        await asyncio.sleep(0.1)
    print("swept")
    await redis.aclose()


if __name__ == "__main__":
    asyncio.run(main())
