"""Events: emitted once, one task per trigger, replayed, redriven."""

import asyncio
from dataclasses import dataclass

from millpond import BoundCall, Event, Millpond, fair_round_robin

mp = Millpond()
work = mp.pool("webhook-work", max_concurrent=10, queue=fair_round_robin("source"))


@dataclass
class Hook:
    source: str
    urgency: str = "0"


@work.task
async def handle_webhook(hook: Hook) -> str:
    return f"handled for {hook.source}"


@work.task
async def count(event: Event) -> str:
    return f"counted {event.id}"


mp.trigger(
    "router",
    on="webhook.received",
    into=work,
    task=handle_webhook,
    priority_from="payload.urgency",
    key_from="payload.source",
)


def only_urgent(event: Event) -> BoundCall[str] | None:
    return count.bind(event) if event.payload["urgency"] != "0" else None


mp.trigger("counter", on=["webhook.received", "mail.received"], into=work, make=only_urgent)
archive = mp.trigger("archive", on="webhook.received", into="archive", task=count)


async def main() -> None:
    async with mp:
        emission = await mp.emit("webhook.received", Hook("acme", "7"), event_id="evt_1")
        for receipt in await emission.receipts(timeout=10):
            print(receipt.trigger, receipt.outcome, receipt.task_id, receipt.reason)
        for handle in await emission.handles():
            print(handle.submitted_by, handle.priority, await handle)

        again = await mp.emit("webhook.received", Hook("acme", "7"), event_id="evt_1")
        assert again.duplicate  # emitted twice, handled once

        replayed = await mp.replay("webhook.received", "evt_1")
        before = {one.trigger: one.task_id for one in await emission.receipts()}
        after = {one.trigger: one.task_id for one in await replayed.receipts(timeout=10)}
        assert before == after

        for dead in await archive.dead_letters():
            print(dead.event_id, dead.reason)
        mp.pool("archive")  # the missing pool
        await archive.redrive()
        await archive.deliveries.drain()
        assert await archive.dead_letters() == []


asyncio.run(main())
