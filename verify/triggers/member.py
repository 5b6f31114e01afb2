"""The program of one process: `python -m verify.triggers.member HOME ROLE NUMBER PARENT`.

A *worker* works until it is told to stop. An emitter (a *submitter*, for who hurts it) emits its
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
from verify.chaos.member import insist
from verify.torture.ledger import Born, Ledger, Left, Taken, read
from verify.torture.member import LEDGER, ORDERS, end_with_parent
from verify.torture.plan import Orders
from verify.triggers.fleet import ORDER, Fleet

LOOK_EVERY = 0.1
"""Seconds between two looks at whether the late pool is due."""

TWICE, REPLAY, REDRIVE = 0.1, 0.1, 0.05
"""How often an event is emitted twice, one is replayed, and dead letters are redriven."""


async def work(fleet: Fleet, over: asyncio.Event) -> None:
    """Work until told to stop; the late pool is declared on the way."""
    mp, ledger = fleet.mp, fleet.ledger
    async with contextlib.AsyncExitStack() as stack:
        slots = fleet.orders.concurrency
        await insist(ledger, lambda: stack.enter_async_context(mp.worker(concurrency=slots)))
        while not over.is_set():
            if fleet.late_is_due:
                await insist(ledger, fleet.open_late)
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
        orders = self._fleet.orders
        told = self._told_before()
        for n in range(self._number, orders.tasks, orders.submitters):
            if n >= orders.tasks // 2:
                self._fleet.allow_late()
            if n in told:
                continue
            moment = orders.began + orders.submitting * n / orders.tasks
            await asyncio.sleep(moment - time.monotonic())
            await self._emit(n)
            if self._dice.random() < TWICE:
                await self._emit(n)
            if self._dice.random() < REPLAY:
                await self._replay(n)
            if self._dice.random() < REDRIVE:
                await insist(self._ledger, self._fleet.redrive)

    def _told_before(self) -> set[int]:
        """Return what an earlier life of it was told to be stored."""
        lines, _ = read(self._fleet.home / LEDGER)
        mine = (line for line in lines if isinstance(line, Taken))
        return {line.item for line in mine if line.submitter == self._number}

    async def _replay(self, n: int) -> None:
        await insist(self._ledger, lambda: self._fleet.mp.replay(ORDER, str(n)))

    async def _emit(self, n: int) -> None:
        async def send() -> None:
            emission = await self._fleet.mp.emit(ORDER, {"number": n}, event_id=str(n))
            self._ledger.write(
                Taken,
                item=n,
                task=emission.task_id,
                duplicate=emission.duplicate,
                submitter=self._number,
            )

        await insist(self._ledger, send)


async def live(orders: Orders, role: str, number: int) -> None:
    """Open the store, do what the role says, and close in good order."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    ledger = Ledger(Path(orders.home) / LEDGER)
    fleet = Fleet(orders, ledger, changes=role == "worker")
    async with contextlib.AsyncExitStack() as stack:
        await insist(ledger, lambda: stack.enter_async_context(fleet.mp))
        ledger.write(Born, owner=internals_of(fleet.mp).runtime.owner, role=role, number=number)
        await (work(fleet, over) if role == "worker" else Emitter(fleet, number).emit())
    ledger.write(Left, stale=fleet.mp.counts.stale_settles)


def main() -> None:
    """Run one process."""
    home, role, number, parent = sys.argv[1:]
    end_with_parent(int(parent))
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(levelname)s %(name)s %(message)s"
    )
    orders = msgspec.json.decode((Path(home) / ORDERS).read_bytes(), type=Orders)
    asyncio.run(live(orders, role, int(number)))


if __name__ == "__main__":
    main()
