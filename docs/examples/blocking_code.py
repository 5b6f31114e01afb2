"""Blocking code: in threads, in processes, in batches; and clients that a worker creates once."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millpond import Context, Failed, Millpond, Retry, SyncContext, TaskFailed


class Client:
    """A client that is expensive to create."""

    async def get(self, name: str) -> str:
        await asyncio.sleep(0.001)
        return f"got {name}"


@asynccontextmanager
async def lifespan() -> AsyncIterator[Client]:
    yield Client()  # created when the worker starts; code after this runs when it has stopped


mp = Millpond(resources=lifespan)
work = mp.pool("work", max_concurrent=4)
embeddings = mp.pool("embeddings", max_concurrent=64)


@work.task
def resize(ctx: SyncContext, name: str) -> str:  # a plain def runs in a thread
    time.sleep(0.005)
    ctx.progress(0.5, "half done")
    return f"{name} resized"


@work.task(executor="process", timeout=10)
def crunch(rounds: int) -> int:  # runs in a separate process, killed at its timeout
    total = 0
    while rounds:
        rounds -= 1
        total += rounds
    return total


@work.task
async def fetch(ctx: Context, name: str) -> str:
    client: Client = ctx.resources
    return await client.get(name)


@embeddings.batch_task(size=16, linger=0.02, retry=Retry.never())
async def embed(texts: list[str]) -> list[int | Failed]:
    calls.append(len(texts))
    return [len(text) if text else Failed("nothing to embed") for text in texts]


calls: list[int] = []


async def main() -> None:
    async with mp:
        print(await (await resize.submit("photo")))
        print(await (await work.submit(lambda: time.strftime("%Y") > "2000")))  # a thread too
        print(await (await fetch.submit("page")))

        assert await (await crunch.submit(1000)) == 499500
        try:
            await (await crunch.options(timeout=0.2, retry=Retry.never()).submit(-1))  # endless
        except TaskFailed as failed:
            print(failed.message)

        handles = await embeddings.submit_many(embed.each(["a", "bb", "", "dddd"]))
        await mp.wait(handles)
        print([handle.result for handle in handles], calls)


if __name__ == "__main__":  # the child process imports this file
    asyncio.run(main())
