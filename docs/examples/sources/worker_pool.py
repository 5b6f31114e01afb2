"""The worker pool: N lanes, each strictly in order with its own retries, dead letters and pause."""

import asyncio

from millpond import DeadLetter, Empty, Millpond, PoolFull, Retry, bounded

dead: list[DeadLetter] = []
empty: list[Empty] = []
mp = Millpond("sqlite:///webhooks.db")
webhooks = mp.pool(
    "webhooks",
    lanes=3,  # three instances, one event at a time in each
    retry=Retry(attempts=3, initial=0.01, factor=2.0),
    backpressure=bounded(1000, "fail_submitter", per_lane=5),
    on_dead_letter=dead.append,
    on_empty=empty.append,
)
processed: list[tuple[str, int]] = []


@webhooks.task(key="customer")
async def process(customer: str, event: int) -> None:
    if event < 0:
        raise ConnectionError("no answer")
    processed.append((customer, event))


@webhooks.task
async def ping(number: int) -> None:
    processed.append(("ping", number))


async def routing() -> None:
    """A key always goes to its own lane; events without one go round."""
    keyed = [await process.submit("acme", n) for n in range(3)]
    assert len({handle.lane for handle in keyed}) == 1
    assert [handle.position for handle in keyed] == [0, 1, 2]  # in the lane, at submit
    spread = [await ping.submit(n) for n in range(3)]
    assert len({handle.lane for handle in spread}) == 3


async def failure() -> None:
    """The lane goes on after an event that failed for good."""
    await process.submit("bolt", 1)
    await process.submit("bolt", -1)
    await process.submit("bolt", 2)
    async with mp.worker():
        await webhooks.drain()
    assert [n for name, n in processed if name == "bolt"] == [1, 2]
    (letter,) = dead
    print("dead letter:", letter.task_id, letter.attempts, letter.error)


async def control() -> None:
    """Pause one lane or all; ask for its status; fill it to its bound; empty it."""
    handle = await process.submit("acme", 10)
    await webhooks.pause(lane=handle.lane)
    for event in range(11, 15):
        await process.submit("acme", event)  # accepted while paused
    try:
        await process.submit("acme", 15)
    except PoolFull as full:
        print(f"lane {full.lane}: {full.depth} of {full.bound}")
    (status,) = [lane for lane in await webhooks.lanes() if lane.lane == handle.lane]
    print(status.state, status.pending, status.processed, status.current_sequence)
    assert (status.state, status.pending) == ("paused", 5)
    assert await webhooks.purge(lane=handle.lane) == 5
    await webhooks.resume(lane=handle.lane)


async def main() -> None:
    async with mp:
        await routing()
        await failure()
        await control()
    assert [n for name, n in processed if name == "acme"] == [0, 1, 2]
    assert len({each.lane for each in empty}) == 3


if __name__ == "__main__":
    asyncio.run(main())
