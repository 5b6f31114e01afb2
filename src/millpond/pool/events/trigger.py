"""Triggers: one task in a pool for each event of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from millpond.core.control import Declare
from millpond.core.lifecycle import Status
from millpond.pool.events.receipt import Receipt, receipt_of, sent_of
from millpond.pool.internals import internals_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.event import TriggerSpec
    from millpond.pool.events.delivery import TriggerDelivery
    from millpond.pool.pool import Pool
    from millpond.pool.runtime_owner import RuntimeOwner

PAGE = 100
"""How many dead letters are redriven in one step."""


class Trigger:
    """One submit per event: `mp.trigger("router", on="webhook.received", into=pool, task=fn)`."""

    def __init__(self, owner: RuntimeOwner, deliveries: Pool, delivery: TriggerDelivery) -> None:
        self._owner = owner
        self._internals = delivery
        self.id: str = delivery.trigger
        """Its id, one for all processes of the store."""
        self.deliveries = deliveries
        """Its own pool: one task for each event, whose result is the receipt."""

    @property
    def spec(self) -> TriggerSpec:
        """Its settings, as this process declared them."""
        return self._internals.spec

    def __repr__(self) -> str:
        return f"<trigger {self.id}: {', '.join(self.spec.on)} into {self.spec.into}>"

    # Control

    async def pause(self) -> None:
        """Submit no more tasks; events wait, and are kept."""
        await self.deliveries.pause()

    async def resume(self) -> None:
        """Submit tasks again, waiting events first."""
        await self.deliveries.resume()

    async def remove(self) -> None:
        """Take no more events, in any process; events that it has are still submitted.

        A process that declares it brings it back when it opens the store.
        """
        await internals_of(self.deliveries).ready()
        runtime = self._owner.runtime
        gone = replace(self.spec, on=())
        spec = replace(self.deliveries.spec, trigger=gone)
        runtime.answers.apply(await runtime.store.control(Declare(spec)))

    async def dead_letters(self, after: int = 0, limit: int = 100) -> list[Receipt]:
        """Return events that it could not submit, oldest first."""
        await internals_of(self.deliveries).ready()
        page = await self._owner.runtime.view.tasks(
            self.deliveries.spec.name, status=Status.FAILED, after=after, limit=limit
        )
        return [receipt_of(self.id, sent_of(task).event, task.new.id, task) for task in page.tasks]

    async def redrive(self, tasks: Iterable[int] | None = None) -> int:
        """Try dead letters again, all or those deliveries that are named; return how many."""
        if tasks is not None:
            return await self.deliveries.redrive(tasks)
        await internals_of(self.deliveries).ready()
        count, after = 0, 0
        while True:
            page = await self._owner.runtime.view.tasks(
                self.deliveries.spec.name, status=Status.FAILED, after=after, limit=PAGE
            )
            count += await self.deliveries.redrive([task.new.id for task in page.tasks])
            if page.next is None:
                return count
            after = page.next
