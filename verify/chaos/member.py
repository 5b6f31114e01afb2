"""The program of one process: `python -m verify.chaos.member HOME ROLE PARENT`.

A *worker* works until SIGTERM. The *producer* submits at the rate it reads from its
input, come what may: what the store could not take it sends again, under the same keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millpond.errors import MillpondError
from millpond.pool.context import Context
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from verify.chaos.load import FUNCTION, Load
from verify.torture.fleet import at_work
from verify.torture.ledger import Ledger, ProcessClosed, StoreOpened, SubmitConfirmed, SubmitFailed
from verify.torture.member import exit_with_parent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOAD, LEDGER = "load.json", "ledger.jsonl"

TICK = 0.05
"""Seconds between two submits of the producer."""

TRY_AGAIN = 0.2
"""Seconds after which it tries again what the store could not take."""


def application(load: Load, ledger: Ledger) -> Millpond:
    """Return the application that all processes share."""
    mp = Millpond(load.url, lease=load.lease)
    load.declare(mp)

    @mp.task(name=FUNCTION)
    async def work(ctx: Context, n: int) -> int:  # noqa: ARG001
        fence, pool = at_work()
        with ledger.attempt(fence, pool, str(n)):
            await asyncio.sleep(load.seconds)
        return n

    return mp


async def work(load: Load, ledger: Ledger, stop_requested: asyncio.Event) -> None:
    """Work until a stop is requested; wait for a store that cannot be reached."""
    mp = application(load, ledger)
    async with contextlib.AsyncExitStack() as stack:
        await retry_until_stored(ledger, lambda: stack.enter_async_context(mp))
        await retry_until_stored(
            ledger, lambda: stack.enter_async_context(mp.worker(concurrency=load.slots))
        )
        ledger.write(StoreOpened, owner=internals_of(mp).runtime.owner, role="worker", number=0)
        await stop_requested.wait()
    ledger.write(ProcessClosed, stale=mp.counts.stale_settles)


async def retry_until_stored(ledger: Ledger, ask: Callable[[], Awaitable[object]]) -> object:
    """Ask until there is an answer."""
    while True:
        try:
            return await ask()
        except MillpondError as error:
            ledger.write(SubmitFailed, error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(TRY_AGAIN)


class Producer:
    """Submits at a rate that may be changed, each submit on its own."""

    def __init__(self, load: Load, ledger: Ledger, mp: Millpond) -> None:
        self.rate = 0.0
        self._load = load
        self._ledger = ledger
        self._pool = mp.get_pool("chaos")
        self._work = mp.tasks[FUNCTION]
        self._next = 0
        self._owed = 0.0

    async def produce(self, over: asyncio.Event) -> None:
        """Submit what is due, at every tick, until it is over and all is stored."""
        async with asyncio.TaskGroup() as submits:
            due = time.monotonic()
            while not over.is_set():
                self._owed += self.rate * TICK
                if self._owed >= 1.0:
                    submits.create_task(self.submit(int(self._owed)))
                    self._owed -= int(self._owed)
                due += TICK
                await asyncio.sleep(due - time.monotonic())

    async def submit(self, count: int) -> None:
        """Submit so many, until the store has them."""
        numbers = range(self._next, self._next + count)
        self._next += count
        calls = [
            self._work.bind(n).options(key=self._load.key_of(n), idempotency_key=str(n))
            for n in numbers
        ]
        handles: list[object] = []

        async def send() -> None:
            handles[:] = await self._pool.submit_many(calls)

        await retry_until_stored(self._ledger, send)
        for n, handle in zip(numbers, handles, strict=True):
            self._ledger.write(
                SubmitConfirmed,
                item=n,
                task=handle.id,  # type: ignore[attr-defined]
                duplicate=handle.duplicate,  # type: ignore[attr-defined]
                submitter=0,
            )


async def produce(load: Load, ledger: Ledger, over: asyncio.Event) -> None:
    """Submit as the input says: `rate 80`, `burst 500`, or its end."""
    mp = application(load, ledger)
    async with contextlib.AsyncExitStack() as stack:
        await retry_until_stored(ledger, lambda: stack.enter_async_context(mp))
        producer = Producer(load, ledger, mp)
        ledger.write(StoreOpened, owner=internals_of(mp).runtime.owner, role="producer", number=0)
        async with asyncio.TaskGroup() as together:
            together.create_task(producer.produce(over))
            loop = asyncio.get_running_loop()
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                order, _, number = line.partition(" ")
                if order == "rate":
                    producer.rate = float(number)
                else:
                    together.create_task(producer.submit(int(number)))
            over.set()
    ledger.write(ProcessClosed, stale=mp.counts.stale_settles)


def main() -> None:
    """Run one process."""
    home, role, parent = sys.argv[1:]
    exit_with_parent(int(parent))
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(levelname)s %(name)s %(message)s"
    )
    load = msgspec.json.decode((Path(home) / LOAD).read_bytes(), type=Load)
    ledger = Ledger(Path(home) / LEDGER)

    async def live() -> None:
        over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
        await (work if role == "worker" else produce)(load, ledger, over)

    asyncio.run(live())


if __name__ == "__main__":
    main()
