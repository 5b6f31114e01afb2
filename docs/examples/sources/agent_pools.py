"""Agent pools: many submitters, one named budget, an order, an overflow policy, and a trigger."""

import asyncio
from dataclasses import dataclass

from millpond import Millpond, NoCapacity, PoolFull, bounded, fail_fast, fair_round_robin
from millpond import ring_buffer as keep_newest

FILE = "sqlite:///agents.db"
mp = Millpond(FILE, work=True)
reviews = mp.pool("pr-review", max_concurrent=5)
tenants = mp.pool("tenant-work", max_concurrent=4, queue=fair_round_robin("tenant_id"))
intake = mp.pool("webhook-intake", max_concurrent=1, backpressure=keep_newest(100))
strict = mp.pool("strict", max_concurrent=1, backpressure=fail_fast())
small = mp.pool("small", max_concurrent=1, backpressure=bounded(1, "fail_submitter"))
hooks = mp.pool("webhook-work", max_concurrent=10, queue=fair_round_robin("source"))
nightly = mp.pool("nightly", max_concurrent=2, scope="pipeline", scope_id="build-7")

order: list[str] = []
go = asyncio.Event()


@reviews.task(key="tenant_id")
async def review(pull_request: int, tenant_id: str) -> str:
    order.append(tenant_id)
    return f"reviewed {pull_request}"


@dataclass
class Webhook:
    source: str
    urgency: int


@hooks.task
async def handle_webhook(hook: Webhook) -> str:
    return f"handled for {hook.source}"


mp.trigger(
    "webhook-router",
    on="webhook.received",
    into=hooks,
    task=handle_webhook,
    priority_from="payload.urgency",
    key_from="payload.source",
)


async def submit_and_wait() -> None:
    call = review.options(priority=10, idempotency_key="review-pr-1984")
    first = await call.submit(1984, "acme")
    second = await call.submit(1984, "acme")
    assert first.id == second.id
    print(await first)

    handles = [await reviews.submit(lambda: "any function") for _ in range(3)]  # closures too
    outcomes = await mp.wait(handles)
    assert {outcome.status for outcome in outcomes} == {"completed"}


async def turns() -> None:
    order.clear()
    await tenants.pause()
    for tenant in "AAABBB":
        await tenants.submit(review.bind(1, tenant))
    await tenants.resume()
    await tenants.drain()
    assert "".join(order) == "ABABAB"


async def overflow() -> None:
    await intake.pause()
    handles = [await intake.submit(review.bind(n, "acme")) for n in range(101)]
    dropped = await handles[0].refresh()
    assert (dropped.status, dropped.rejection_policy) == ("rejected", "ring_buffer")
    await intake.purge()

    busy = await strict.submit(go.wait)
    try:
        await strict.submit(go.wait)  # it could not start now
    except NoCapacity as refused:
        print(refused.code)
    go.set()
    await busy

    await small.pause()
    await small.submit(review.bind(1, "acme"))
    try:
        await small.submit(review.bind(2, "acme"))
    except PoolFull as full:
        print(full.code)
    await small.resume()
    await small.drain()


async def from_events() -> None:
    emission = await mp.emit("webhook.received", Webhook("github", 7), event_id="evt_1")
    (receipt,) = await emission.receipts(timeout=10)
    (handle,) = await emission.handles()
    assert (handle.id, handle.priority, handle.key) == (receipt.task_id, 7, "github")
    print(await handle)


async def after_a_restart() -> None:
    """A call of a durable pool survives its process; its key still finds it."""
    async with mp:
        first = await nightly.submit(review.bind(7, "acme"), idempotency_key="review-pr-7")
        await first
    async with mp:
        again = await nightly.submit(review.bind(7, "acme"), idempotency_key="review-pr-7")
        assert (again.id, again.duplicate, again.status) == (first.id, True, "completed")


async def main() -> None:
    async with mp:
        await submit_and_wait()
        await turns()
        await overflow()
        await from_events()
        snapshot = await reviews.snapshot()
        print(snapshot.completed, await reviews.size(), [pool.name for pool in mp.pools()][:2])
        assert await mp.unsettled() == []
    await after_a_restart()


if __name__ == "__main__":
    asyncio.run(main())
