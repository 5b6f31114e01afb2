"""Cancel and time out: a waiting task, a running one, a late one, and many at once."""

import asyncio

from millpond import Cancelled, Context, Handle, Millpond, Retry, TaskCancelled, TaskFailed

mp = Millpond()
jobs = mp.pool("jobs", max_concurrent=2)
USERS = {"ada"}


@jobs.task(timeout=60)
async def export(ctx: Context, rows: int) -> int:
    for row in range(rows):
        if ctx.cancelled.is_set():
            return row  # the handler chooses where it stops; this result counts
        await asyncio.sleep(0.001)
    return rows


@jobs.task
async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@jobs.task(timeout=0.01, retry=Retry.never())
async def too_slow() -> None:
    await asyncio.sleep(60)


@jobs.task
async def greet(user: str) -> None:
    if user not in USERS:
        raise Cancelled(f"{user} has left")  # not a failure, and no attempt would help


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
    await handle.cancel()  # sets ctx.cancelled, does not interrupt
    print(f"stopped after {await handle} rows")
    assert handle.status == "completed"

    stubborn = await wait_for_ever.submit()
    await until_running(stubborn)
    await stubborn.cancel(mode="interrupt")  # cancels its coroutine
    assert (await stubborn.wait()).status == "cancelled"


async def one_that_is_late() -> None:
    try:
        await (await too_slow.submit())
    except TaskFailed as failed:
        print(failed.error_type, failed.error_message)

    handle = await export.options(expires_in=0.01, delay=60).submit(1)
    assert (await handle.wait()).reason == "expired"  # it did not start in time


async def stop_waiting() -> None:
    handle = await export.submit(20)
    try:
        await handle.wait(timeout=0.001)
    except TimeoutError:
        print("not done yet; the task goes on")
    assert await handle == 20


async def many() -> None:
    await jobs.pause()
    await jobs.submit_many(export.each([1, 2, 3]), key="acme")
    await jobs.submit_many(export.each([4, 5]), key="bolt")
    print(await jobs.purge(key="acme"), "waiting tasks cancelled")
    print(await jobs.cancel_all(), "waiting or running tasks cancelled")
    await jobs.resume()
    assert await jobs.size() == 0


async def main() -> None:
    async with mp:
        await one_that_waits()
        await one_that_runs()
        await one_that_is_late()
        await stop_waiting()
        await many()
        assert (await (await greet.submit("bob")).wait()).status == "cancelled"


asyncio.run(main())
