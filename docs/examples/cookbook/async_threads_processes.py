"""One pool, three kinds of handlers: a coroutine, a thread, a process that can be killed."""

import asyncio
import os
import threading
import time

from millpond import Millpond, Retry, TaskFailed

mp = Millpond()
media = mp.pool("media", max_concurrent=8)  # one limit for all of them


@media.task
async def download(url: str) -> str:
    await asyncio.sleep(0.01)  # hundreds of these run on one event loop
    return f"{url} in {threading.current_thread().name}"


@media.task
def tag(name: str) -> int:
    time.sleep(0.01)  # a blocking library: it has a thread and does not stop the loop
    return threading.get_ident()


@media.task(executor="process", timeout=5)
def encode(frames: int) -> tuple[int, int]:
    return os.getpid(), sum(n * n for n in range(frames))  # uses a core of its own


@media.task(executor="process", timeout=0.3, retry=Retry.never())
def hang() -> None:
    while True:
        pass  # no thread could be stopped here; the process is killed


async def main() -> None:
    async with mp:
        print(await (await download.submit("https://example.com/cat.mp4")))
        assert await (await tag.submit("cat")) != threading.get_ident()
        process, _ = await (await encode.submit(1000))
        assert process != os.getpid()
        try:
            await (await hang.submit())
        except TaskFailed as failed:
            print(failed.error_type, "after", failed.attempts, "attempt")


if __name__ == "__main__":  # the processes import this file
    asyncio.run(main())
