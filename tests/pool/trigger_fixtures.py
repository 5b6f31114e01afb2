"""A pool with a task for events, and triggers for it."""

import asyncio
from dataclasses import dataclass
from typing import Any

from millpond import Keep, Millpond, Pool, Receipt

NAME = "webhook.received"


@dataclass
class Hook:
    """The payload of a webhook."""

    source: str
    urgency: str = "0"


class House:
    """A pool whose task notes its arguments, and a trigger for it."""

    def __init__(self, *, keep: Keep | None = None, **settings: Any) -> None:
        self.mp = Millpond(keep=keep)
        self.pool: Pool = self.mp.pool("work", **{"max_concurrent": 3, **settings})
        self.got: list[Hook] = []
        self.running = self.peak = 0

        @self.pool.task
        async def handle(hook: Hook) -> str:
            self.got.append(hook)
            self.running += 1
            self.peak = max(self.peak, self.running)
            await asyncio.sleep(1)
            self.running -= 1
            return hook.source

        self.handle = handle

    def trigger(self, name: str = "router", **options: Any) -> Any:
        given = {"on": NAME, "into": self.pool, **options}
        if "make" not in given:
            given.setdefault("task", self.handle)
        return self.mp.trigger(name, **given)

    async def emit_and_wait(self, event_id: str | None = None, **hook: str) -> list[Receipt]:
        """Emit an event and wait for the receipts."""
        emitted = await self.mp.emit(NAME, Hook(**{"source": "acme", **hook}), event_id=event_id)
        return await emitted.receipts(timeout=60)
