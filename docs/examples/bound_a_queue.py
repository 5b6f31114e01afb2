"""A full queue: what each policy does."""

import asyncio

from millpond import (
    Handle,
    Millpond,
    NoCapacity,
    Pool,
    PoolFull,
    SubmitRejection,
    bounded,
    fail_fast,
    ring_buffer,
)

mp = Millpond()

block = mp.pool("block", backpressure=bounded(2))
fail = mp.pool("fail", backpressure=bounded(2, on_full="fail_submitter"))
newest = mp.pool("newest", backpressure=bounded(2, on_full="drop_newest"))
oldest = mp.pool("oldest", backpressure=bounded(2, on_full="drop_oldest"))
ring = mp.pool("ring", backpressure=ring_buffer(2))
at_once = mp.pool("at_once", max_concurrent=3, backpressure=fail_fast())
per_key = mp.pool("per_key", backpressure=bounded(100, "fail_submitter", per_key=2))


@mp.task
async def work(number: int) -> int:
    await asyncio.sleep(0.005)
    return number


async def fill(pool: Pool) -> list[Handle[int]]:
    """One task runs and two wait: the queue is full."""
    return [await pool.submit(work.bind(n)) for n in range(3)]


async def wait_for_room() -> None:
    await fill(block)
    handle = await block.submit(work.bind(3))  # returns when there is room
    assert await handle == 3

    await fill(block)
    try:
        await block.submit(work.bind(3), wait=0.001)
    except PoolFull as full:
        print(f"gave up waiting: {full.depth} of {full.bound}")


async def refuse() -> None:
    await fill(fail)
    try:
        await fail.submit(work.bind(3))
    except PoolFull as full:
        print(f"{full.code}: {full.depth} of {full.bound} wait in {full.pool}")

    match await fail.try_submit(work.bind(3)):
        case SubmitRejection(reason=reason):
            print(f"not now: {reason}")
        case handle:
            print(await handle)


async def drop() -> None:
    await fill(newest)
    handle = await newest.submit(work.bind(3))  # no exception: the handle says it
    assert (handle.status, handle.rejection_reason) == ("rejected", "drop_newest_queue_full")

    first, second, third = await fill(oldest)
    await oldest.submit(work.bind(3))  # drops the oldest task that never started
    await second.refresh()
    assert (second.status, second.rejection_reason) == ("rejected", "drop_oldest_queue_full")
    assert (await first, await third) == (0, 2)

    _, second, _ = await fill(ring)
    await ring.submit(work.bind(3))
    assert (await second.refresh()).rejection_reason == "ring_buffer_drop_oldest"


async def start_at_once_or_not_at_all() -> None:
    await fill(at_once)
    try:
        await at_once.submit(work.bind(3))
    except NoCapacity as refused:
        print(refused.message)


async def bound_each_key() -> None:
    await per_key.pause()
    await per_key.submit_many([work.bind(1), work.bind(2)], key="acme")
    try:
        await per_key.submit(work.bind(3), key="acme")
    except PoolFull as full:
        print(f"{full.lane} is full: {full.depth} of {full.bound}")
    await per_key.submit(work.bind(4), key="bolt")
    await per_key.resume()


async def main() -> None:
    async with mp:
        await wait_for_room()
        await refuse()
        await drop()
        await start_at_once_or_not_at_all()
        await bound_each_key()
        for pool in mp.pools():
            await pool.drain()


asyncio.run(main())
