"""The program of one process: `python -m verify.triggers.member HOME ROLE NUMBER PARENT`.

A *worker* works until SIGTERM. An emitter (a *submitter*, for who hurts it) emits its
part of the events, spread over time, now and then one twice, replays others, redrives dead letters,
and goes on where it was when it is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import time
from pathlib import Path

import msgspec

from millpond.pool.internals import internals_of
from verify.chaos.member import retry_until_stored
from verify.torture.ledger import Ledger, ProcessClosed, StoreOpened, SubmitConfirmed, read
from verify.torture.member import LEDGER, SETTINGS, exit_with_parent
from verify.torture.plan import Settings
from verify.triggers.fleet import ORDER, Fleet

LOOK_EVERY = 0.1
"""Seconds between two looks at whether the late pool is due."""

TWICE, REPLAY, REDRIVE = 0.1, 0.1, 0.05
"""How often an event is emitted twice, one is replayed, and dead letters are redriven."""


async def work(fleet: Fleet, over: asyncio.Event) -> None:
    """Work until `over` is set; declare the late pool on the way."""
    mp, ledger = fleet.mp, fleet.ledger
    async with contextlib.AsyncExitStack() as stack:
        slots = fleet.settings.concurrency
        await retry_until_stored(
            ledger, lambda: stack.enter_async_context(mp.worker(concurrency=slots))
        )
        while not over.is_set():
            if fleet.late_is_due:
                await retry_until_stored(ledger, fleet.open_late)
                await over.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_EVERY)


class Emitter:
    """Emits its part of the events."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self._ledger = fleet.ledger
        self._number = number
        self._dice = random.Random()

    async def emit(self) -> None:
        """Emit what is left, each at its time."""
        settings = self._fleet.settings
        confirmed = self._confirmed_before()
        for n in range(self._number, settings.tasks, settings.submitters):
            if n >= settings.tasks // 2:
                self._fleet.allow_late()
            if n in confirmed:
                continue
            moment = settings.began + settings.submitting * n / settings.tasks
            await asyncio.sleep(moment - time.monotonic())
            await self._emit(n)
            if self._dice.random() < TWICE:
                await self._emit(n)
            if self._dice.random() < REPLAY:
                await self._replay(n)
            if self._dice.random() < REDRIVE:
                await retry_until_stored(self._ledger, self._fleet.redrive)

    def _confirmed_before(self) -> set[int]:
        """Return the events that an earlier process of this emitter has had confirmed."""
        lines, _ = read(self._fleet.home / LEDGER)
        mine = (line for line in lines if isinstance(line, SubmitConfirmed))
        return {line.item for line in mine if line.submitter == self._number}

    async def _replay(self, n: int) -> None:
        await retry_until_stored(self._ledger, lambda: self._fleet.mp.replay(ORDER, str(n)))

    async def _emit(self, n: int) -> None:
        async def send() -> None:
            emission = await self._fleet.mp.emit(ORDER, {"number": n}, event_id=str(n))
            self._ledger.write(
                SubmitConfirmed,
                item=n,
                task=emission.task_id,
                duplicate=emission.duplicate,
                submitter=self._number,
            )

        await retry_until_stored(self._ledger, send)


async def live(settings: Settings, role: str, number: int) -> None:
    """Open the store, do what the role says, and close in good order."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    ledger = Ledger(Path(settings.home) / LEDGER)
    fleet = Fleet(settings, ledger, changes=role == "worker")
    async with contextlib.AsyncExitStack() as stack:
        await retry_until_stored(ledger, lambda: stack.enter_async_context(fleet.mp))
        ledger.write(
            StoreOpened, owner=internals_of(fleet.mp).runtime.owner, role=role, number=number
        )
        await (work(fleet, over) if role == "worker" else Emitter(fleet, number).emit())
    ledger.write(ProcessClosed, stale=fleet.mp.counts.stale_settles)


def main() -> None:
    """Run one process."""
    home, role, number, parent = sys.argv[1:]
    exit_with_parent(int(parent))
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(levelname)s %(name)s %(message)s"
    )
    settings = msgspec.json.decode((Path(home) / SETTINGS).read_bytes(), type=Settings)
    asyncio.run(live(settings, role, int(number)))


if __name__ == "__main__":
    main()
