"""A webhook processor with a rate: bursts wait, senders take turns, an event is one task."""

import asyncio
import time
from dataclasses import dataclass

from millpond import Emission, Millpond, Rate, fair_round_robin

mp = Millpond()  # "sqlite:///hooks.db" or "postgresql://..." keeps what arrived
hooks = mp.pool(
    "hooks",
    max_concurrent=10,
    rate=Rate(20, per=1.0, burst=5),  # what the system behind it can take
    queue=fair_round_robin("source"),
)
handled: list[tuple[float, str]] = []


@dataclass
class Hook:
    source: str
    number: int
    urgency: int = 0


@hooks.task
async def handle(hook: Hook) -> None:
    handled.append((time.monotonic(), hook.source))


mp.trigger(
    "router",
    on="webhook.received",
    into=hooks,
    task=handle,
    key_from="payload.source",
    priority_from="payload.urgency",
)


async def receive(hook: Hook) -> Emission:
    """Accept a request, as an HTTP endpoint would; it is stored when this returns."""
    event = f"{hook.source}-{hook.number}"  # the id that the sender gave it
    return await mp.emit("webhook.received", hook, event_id=event)


async def main() -> None:
    async with mp:
        shop = [await receive(Hook("shop", number)) for number in range(12)]
        bank = [await receive(Hook("bank", number)) for number in range(3)]
        assert (await receive(Hook("bank", 0))).duplicate  # sent again: no second task
        for emission in shop + bank:
            (receipt,) = await emission.receipts(timeout=10)
            assert receipt.task_id is not None
        await hooks.drain()

    times = [at for at, _ in handled]
    sources = [source for _, source in handled]
    print(f"{len(handled)} events in {times[-1] - times[0]:.1f} s; the first six: {sources[:6]}")
    assert len(handled) == 15
    assert times[-1] - times[0] >= (15 - 5) / 20 - 0.05  # a burst of 5, then 20 per second


if __name__ == "__main__":
    asyncio.run(main())
