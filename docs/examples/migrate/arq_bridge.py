"""Both side by side: callers still use arq, and the work runs in Millpond."""

import asyncio
from typing import Any

from arq import create_pool
from arq.constants import result_key_prefix
from arq_after import mp, shop
from arq_after import send as send_mail
from arq_before import REDIS


async def send(ctx: dict[str, Any], to: str) -> int:
    handle = await shop.submit(send_mail.bind(to), idempotency_key=f"arq:{ctx['job_id']}")
    return handle.id


async def startup(ctx: dict[str, Any]) -> None:
    await mp.open()


async def shutdown(ctx: dict[str, Any]) -> None:
    await mp.close()


class WorkerSettings:
    redis_settings = REDIS
    functions = (send,)
    on_startup = startup
    on_shutdown = shutdown


async def main() -> None:
    redis = await create_pool(REDIS)
    first = await (await redis.enqueue_job("send", "ada@example.com", _job_id="mail-1")).result()
    await redis.delete(result_key_prefix + "mail-1")  # arq has forgotten the job: it comes again
    await (await redis.enqueue_job("send", "ada@example.com", _job_id="mail-1")).result()
    last = await (await redis.enqueue_job("send", "bob@example.com")).result()
    await redis.aclose()

    async with mp:
        for task in (first, last):
            print("mail:", await (await mp.handle(task, of=send_mail)))
        tasks = [task for task in await shop.tasks() if task.function == "send"]
        print("jobs: 3, tasks:", len(tasks))


if __name__ == "__main__":
    asyncio.run(main())
