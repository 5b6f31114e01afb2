"""A pool for several tenants: a limit, a bounded queue, retries, fair turns and a drain."""

import asyncio

from millpond import Millpond, PoolFull, Retry, bounded, fair_round_robin

mp = Millpond()

reviews = mp.pool(
    "reviews",
    max_concurrent=2,  # at most two tasks run at once
    queue=fair_round_robin("tenant"),  # one tenant after another, not first come, first served
    backpressure=bounded(10, on_full="fail_submitter"),  # ten may wait, the next one is refused
    retry=Retry(attempts=3, initial=0.01),
)

started: list[str] = []
failures = {13}


@reviews.task
async def review(number: int, tenant: str) -> str:
    started.append(tenant)
    await asyncio.sleep(0.01)  # the slow part
    if number in failures:
        failures.discard(number)
        raise ConnectionError("the model does not answer")
    return f"{tenant}/{number}: fine"


async def submit_and_await() -> None:
    handle = await review.submit(1984, "acme")
    print(handle.status, handle.pool, handle.attempt)
    report = await handle
    print(report)

    assert report == "acme/1984: fine"
    assert handle.status == "completed"


async def try_again() -> None:
    handle = await review.submit(13, "acme")
    print(await handle, "after", handle.attempt, "attempts")

    assert handle.attempt == 2


async def take_turns() -> None:
    started.clear()
    await reviews.pause()  # no task starts until all are submitted
    for number in range(6):
        await review.submit(number, "bolt")
    await review.submit(6, "cara")
    await review.submit(7, "dune")
    await reviews.resume()

    await reviews.drain()  # wait until no task of the pool is queued or running
    print(*started)

    assert started == ["bolt", "cara", "dune", "bolt", "bolt", "bolt", "bolt", "bolt"]


async def fill_it() -> None:
    try:
        while True:
            await review.submit(0, "acme")
    except PoolFull as full:
        print(f"refused: {full.depth} of {full.bound} wait")

    assert await reviews.size() == 12  # ten wait, two run

    report = await reviews.drain()
    print(f"{report.completed} completed, {report.failed} failed")

    assert (report.completed, report.failed) == (12, 0)


async def main() -> None:
    async with mp:
        await submit_and_await()
        await try_again()
        await take_turns()
        await fill_it()


asyncio.run(main())
