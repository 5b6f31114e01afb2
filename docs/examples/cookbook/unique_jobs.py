"""Unique jobs: one per key for ever, one at a time, one per day, and one for equal arguments."""

import asyncio
import hashlib
import json
from datetime import date

from millpond import BoundCall, IdempotencyConflict, Millpond

mp = Millpond()
jobs = mp.pool("jobs", max_concurrent=4)
ran: list[str] = []


@jobs.task
async def refresh(user: str, *, full: bool = False) -> str:
    await asyncio.sleep(0.005)
    ran.append(user)
    return f"refreshed {user}"


def by_arguments(user: str, *, full: bool = False) -> BoundCall[str]:
    """Make equal arguments one task while it waits or runs."""
    arguments = json.dumps([user, full], sort_keys=True)
    key = hashlib.sha256(arguments.encode()).hexdigest()
    return refresh.bind(user, full=full).options(idempotency_key=key, dedupe="inflight")


async def main() -> None:
    async with mp:
        once = refresh.options(idempotency_key="order-7")
        first, second = await once.submit("ada"), await once.submit("ada")
        assert (first.id, second.duplicate) == (second.id, True)  # the same task and its result
        assert await first == await second

        try:
            await once.submit("bob")  # the same key for something else is a mistake
        except IdempotencyConflict as conflict:
            print(conflict.message)

        daily = refresh.options(idempotency_key=f"ada:{date.today()}")  # noqa: DTZ011
        assert not (await daily.submit("ada")).duplicate
        assert (await daily.submit("ada")).duplicate

        racing = await asyncio.gather(*(jobs.submit(by_arguments("cara")) for _ in range(50)))
        assert len({handle.id for handle in racing}) == 1
        await racing[0]
        assert not (await jobs.submit(by_arguments("cara"))).duplicate  # it has ended: a new one
        await jobs.drain()
    print(ran)
    assert ran.count("cara") == 2


if __name__ == "__main__":
    asyncio.run(main())
