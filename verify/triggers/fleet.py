"""The fleet's program: schedules, and triggers that deliver, fail, wait, and are redriven."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.core.backoff import Retry
from millpond.core.event import Event
from millpond.core.spec import bounded, fifo
from millpond.pool.context import Context
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from verify.torture.fleet import HandlerError, at_work

if TYPE_CHECKING:
    from millpond.pool.events.trigger import Trigger
    from millpond.pool.task import BoundCall
    from verify.torture.ledger import Ledger
    from verify.torture.plan import Settings

ORDER, PULSE = "order", "cron.pulse"
"""The events: those that emitters emit, and those of a schedule."""

PATIENT = Retry(attempts=60, initial=0.05, factor=1.5, max_delay=1.0, jitter=0.5)
"""So many attempts that innocent tasks outlive every kill they are caught in."""

HASTY = Retry(attempts=2, initial=0.05)
"""So few that what fails is soon a dead letter."""

LATE = "late"
"""A pool, and its task, that no process declares before half of the events were emitted."""

COMPLETE = {"all-1": 1.0, "all-2": 2.0, "once-1": 1.0, "skip-3": 3.0, "pulse": 1.0}
"""Schedules that fire at each of their moments, and how many seconds are between them."""

MOST = 10_000
"""How many missed firings are made up for: all."""

LOSSY = "lossy"
"""A schedule that leaves out what it has missed."""

CHANGING = "changing"
"""A schedule that processes declare in two ways."""

DOOMED_EVERY, FLAKY_EVERY = 7, 5
"""Of so many events one is a dead letter of the trigger `doomed`; of so many, one task fails."""


class Fleet:
    """The pools, tasks, triggers and schedules that one process declares."""

    def __init__(self, settings: Settings, ledger: Ledger, *, changes: bool = False) -> None:
        self.settings = settings
        self.ledger = ledger
        self.home = Path(settings.home)
        self.mp = Millpond(settings.url, lease=settings.lease)
        self.work = self.mp.pool("work", max_concurrent=40, retry=PATIENT)
        self.narrow = self.mp.pool(
            "narrow", max_concurrent=6, queue=fifo(), backpressure=bounded(10), retry=PATIENT
        )
        self._late: Any = None
        self._register()
        self._declare_triggers()
        self._declare_schedules()
        if changes:
            pace = 2.0 + os.getpid() % 2
            self.mp.cron(CHANGING, every=pace, task=self._tick, missed="all")

    def _register(self) -> None:
        @self.mp.task
        async def handle(ctx: Context, event: Event) -> str:
            return await self._do(ctx, event)

        @self.work.task
        async def tick(ctx: Context) -> None:  # noqa: ARG001
            fence, pool = at_work()
            with self.ledger.attempt(fence, pool, "tick"):
                await asyncio.sleep(0.005)

        self._handle: Any = handle
        self._tick: Any = tick

    async def _do(self, ctx: Context, event: Event) -> str:
        """Do what an event means; some fail at first."""
        fence, pool = at_work()
        with self.ledger.attempt(fence, pool, event.key):
            await asyncio.sleep(0.01)
            if number_of(event) % FLAKY_EVERY == 0 and ctx.attempt < 3:
                raise HandlerError(event.key)
            return event.key

    def _declare_triggers(self) -> None:
        mp, work = self.mp, self.work
        mp.trigger("plain", on=ORDER, into=work, task=self._handle)
        mp.trigger("narrow", on=ORDER, into=self.narrow, task=self._handle)
        mp.trigger("flaky", on=ORDER, into=work, make=self._sometimes, delivery_retry=PATIENT)
        mp.trigger("doomed", on=ORDER, into=work, make=self._once_mended, delivery_retry=HASTY)
        mp.trigger(LATE, on=ORDER, into=LATE, make=self._once_late, delivery_retry=HASTY)
        mp.trigger("pulse", on=PULSE, into=work, task=self._handle)

    def _declare_schedules(self) -> None:
        mp, tick = self.mp, self._tick
        mp.cron("all-1", every=1.0, task=tick, missed="all", most_missed=MOST, grace=1.0)
        mp.cron("all-2", every=2.0, task=tick, missed="all", most_missed=MOST)
        mp.cron("once-1", every=1.0, task=tick, missed="once", grace=86_400)
        mp.cron("skip-3", every=3.0, task=tick, missed="skip", grace=86_400)
        mp.cron("pulse", every=1.0, emits=PULSE, missed="all", most_missed=MOST, grace=1.0)
        mp.cron(LOSSY, every=1.0, task=tick, missed="skip", grace=1.0)

    # How triggers make their calls

    def _sometimes(self, event: Event) -> BoundCall[str]:
        if random.random() < 0.3:
            raise HandlerError(event.key)
        return self._called(self._handle, event)

    def _once_mended(self, event: Event) -> BoundCall[str]:
        if number_of(event) % DOOMED_EVERY == 0 and not self._mended(event.id).exists():
            raise HandlerError(event.key)
        return self._called(self._handle, event)

    def _once_late(self, event: Event) -> BoundCall[str]:
        if self._late is None:
            raise HandlerError(event.key)
        return self._called(self._late, event)

    def _called(self, task: Any, event: Event) -> BoundCall[str]:  # noqa: ANN401 - of any kind
        call: BoundCall[str] = task.bind(event)
        return call

    def _mended(self, event_id: str) -> Path:
        return self.home / f"mended-{event_id}"

    # What is done while it is open

    @property
    def late_is_due(self) -> bool:
        """Whether the late pool is to be declared."""
        return (self.home / LATE).exists()

    def allow_late(self) -> None:
        """Let all processes declare the late pool."""
        (self.home / LATE).touch()

    async def open_late(self) -> None:
        """Declare the late pool, and register its task, while all the rest is at work."""
        if self._late is not None:
            return
        pool = self.mp.pool(LATE, max_concurrent=12, retry=PATIENT)

        @pool.task
        async def handle_late(ctx: Context, event: Event) -> str:
            return await self._do(ctx, event)

        self._late = handle_late
        await internals_of(pool).ready()

    async def redrive(self) -> int:
        """Mend what made dead letters, and redrive them; return how many there were."""
        count = 0
        for trigger in self.mp.triggers():
            count += await self._redriven(trigger)
        return count

    async def _redriven(self, trigger: Trigger) -> int:
        dead = await trigger.dead_letters()
        for receipt in dead:
            self._mended(receipt.event_id).touch()
        return await trigger.redrive([one.delivery_id for one in dead]) if dead else 0


def number_of(event: Event) -> int:
    """Return the number of an event; those of schedules have none that fails."""
    return int(event.id) if event.name == ORDER else 1
