"""A task queue in a file: `python newsletter.py` submits, `millpond worker newsletter:mp` runs."""

import asyncio

from millpond import Millpond, Rate, Retry

mp = Millpond("sqlite:///newsletter.db")  # a file; or "postgresql://user@host/db"

mail = mp.pool(
    "mail",
    max_concurrent=8,  # over all workers together; 1 if you leave it out
    rate=Rate(100, per=60),  # 100 starts per minute over all workers, after a burst of 100
    retry=Retry(attempts=5),  # exponential backoff; then it is kept as a dead letter
)


@mail.task
async def send(to: str) -> str:  # a plain `def` runs in a thread
    await asyncio.sleep(0.01)  # the slow part
    return f"sent to {to}"


mp.cron("weekly", "0 9 * * mon", tz="Europe/Berlin", task=send.bind("staff@example.com"))


async def main() -> None:
    async with mp:
        handle = await send.submit("ada@example.com")  # on disk when this returns
        print(handle.status)


if __name__ == "__main__":  # a worker imports this file
    asyncio.run(main())
