"""Stopping: a task that waits, one that runs, one that is late, and everything at once."""

import asyncio

from millpond import Context, Handle, Millpond, Retry, TaskCancelled, TaskFailed

mp = Millpond()
jobs = mp.pool("jobs", max_concurrent=2)


@jobs.task(timeout=60)
async def export(ctx: Context, rows: int) -> int:
    for row in range(rows):
        if ctx.cancelled.is_set():
            return row  # it stops where it likes, and what it returns counts
        await asyncio.sleep(0.001)
    return rows


@jobs.task
async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@jobs.task(timeout=0.01, retry=Retry.never())
async def too_slow() -> None:
    await asyncio.sleep(60)


async def until_running(handle: Handle[object]) -> None:
    while (await handle.refresh()).status != "running":
        await asyncio.sleep(0.001)


async def one_that_waits() -> None:
    handle = await export.options(delay=3600).submit(10)
    assert await handle.cancel()
    try:
        await handle
    except TaskCancelled as cancelled:
        print(cancelled.message)


async def one_that_runs() -> None:
    handle = await export.submit(1_000_000)
    await until_running(handle)
    await handle.cancel()  # told, and not interrupted
    print(f"stopped after {await handle} rows")
    assert handle.status == "completed"

    stubborn = await wait_for_ever.submit()
    await until_running(stubborn)
    await stubborn.cancel(mode="interrupt")  # its coroutine is cancelled
    assert (await stubborn.wait()).status == "cancelled"


async def one_that_is_late() -> None:
    try:
        await (await too_slow.submit())
    except TaskFailed as failed:
        print(failed.error_type, failed.error_message)

    handle = await export.options(expires_in=0.01, delay=60).submit(1)
    assert (await handle.wait()).reason == "expired"  # never started, and now it will not


async def stop_waiting() -> None:
    handle = await export.submit(20)
    try:
        await handle.wait(timeout=0.001)
    except TimeoutError:
        print("not done yet; it goes on")
    assert await handle == 20


async def many() -> None:
    await jobs.pause()
    await jobs.submit_many(export.each([1, 2, 3]), key="acme")
    await jobs.submit_many(export.each([4, 5]), key="bolt")
    print(await jobs.purge(key="acme"), "that waited")
    print(await jobs.cancel_all(), "that waited or ran")
    await jobs.resume()
    assert await jobs.size() == 0


async def main() -> None:
    async with mp:
        await one_that_waits()
        await one_that_runs()
        await one_that_is_late()
        await stop_waiting()
        await many()


asyncio.run(main())
