"""The program of one process of the fleet: `python -m verify.torture.member`.

A *worker* runs tasks until SIGTERM. A *submitter* submits its part of the plan, spread
over time, and goes on where it was when it is started again. The *pulse* changes something in the
store five times a second and is never hurt: a gap in its records shows that no process could write.
Nor is the *canceller*, which cancels tasks that others run. An *idler* is a worker with the lease
that workers have by default, and nothing to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.errors import MillpondError, TaskCancelled, TaskFailed, TaskRejected
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from verify.torture.fleet import WAYS, Fleet
from verify.torture.ledger import (
    AttemptBegan,
    CancelRequested,
    LeadershipTaken,
    Ledger,
    ProcessClosed,
    ResultReceived,
    RunDrained,
    StoreOpened,
    SubmitConfirmed,
    SubmitFailed,
    Tail,
    read,
)
from verify.torture.plan import Settings, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from millpond.pool.handle import CancelMode, Handle
    from verify.torture.plan import Item, Web

SETTINGS, LEDGER = "settings.json", "ledger.jsonl"

PULSE = 0.2
"""Seconds between two beats."""

LOOK_EVERY = 0.01
"""Seconds between two looks at what others wrote down."""

TRY_AGAIN = 0.25
"""Seconds after which a submitter tries again what the store could not take."""


class Member:
    """One process of the fleet."""

    def __init__(
        self, settings: Settings, role: str, number: int, *, mp: Millpond | None = None
    ) -> None:
        self.settings = settings
        self.role = role
        self.number = number
        self.ledger = Ledger(Path(settings.home) / LEDGER)
        if role == "idler":
            mp = Millpond(settings.url)
        self.fleet = Fleet(settings, self.ledger, mp)
        self.stop_requested = asyncio.Event()
        self._awaiting: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        """Open the store, do what the role says, and close in good order."""
        roles: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "worker": self._work,
            "submitter": self._submit,
            "pulse": self._beat,
            "canceller": self._cancel,
            "idler": self._work,
        }
        mp = self.fleet.mp
        async with contextlib.AsyncExitStack() as stack:
            await self._insist(lambda: stack.enter_async_context(mp))
            owner = internals_of(mp).runtime.owner
            self.ledger.write(StoreOpened, owner=owner, role=self.role, number=self.number)
            await roles[self.role]()
        self.ledger.write(ProcessClosed, stale=mp.counts.stale_settles)

    async def _work(self) -> None:
        mp, concurrency = self.fleet.mp, self.settings.concurrency
        async with contextlib.AsyncExitStack() as stack:
            await self._insist(
                lambda: stack.enter_async_context(mp.worker(concurrency=concurrency))
            )
            watching = asyncio.create_task(self._record_leadership())
            await self.stop_requested.wait()
            watching.cancel()

    async def _record_leadership(self) -> None:
        """Write down whenever this process takes the lead."""
        leadership, last = internals_of(self.fleet.mp).runtime.maintenance.leadership, None
        while True:
            if leadership.leads and leadership.generation not in (None, last):
                last = leadership.generation
                self.ledger.write(LeadershipTaken, generation=last)
            await asyncio.sleep(LOOK_EVERY)

    async def _beat(self) -> None:
        pool = self.fleet.pools["pulse"]
        while not self.stop_requested.is_set():
            await self._insist(pool.pause)
            await asyncio.sleep(PULSE)
            await self._insist(pool.resume)
            await asyncio.sleep(PULSE)

    # Cancelling

    async def _cancel(self) -> None:
        dice = random.Random(f"{self.settings.seed}/cancels")
        begun: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        looking = asyncio.create_task(self._look_who_began(begun))
        try:
            async with asyncio.TaskGroup() as strands:
                for n in range(self.settings.cancels):
                    pause = dice.uniform(0.0, 0.3)
                    strands.create_task(self._call_off(n, WAYS[n % len(WAYS)], begun, pause))
        finally:
            looking.cancel()

    async def _look_who_began(self, begun: dict[int, asyncio.Event]) -> None:
        tail = Tail(Path(self.settings.home) / LEDGER)
        while True:
            for line in tail.read():
                if isinstance(line, AttemptBegan) and line.pool == "off":
                    begun[line.task].set()
            await asyncio.sleep(LOOK_EVERY)

    async def _call_off(
        self, n: int, way: str, begun: dict[int, asyncio.Event], pause: float
    ) -> None:
        """Submit a task that never ends, and cancel it a moment after its handler has begun."""
        moment = self.settings.submitting * n / self.settings.cancels
        await asyncio.sleep(self.settings.began + moment - time.monotonic())
        pool = self.fleet.pools["off"]
        handle = await self._insist(lambda: pool.submit(self.fleet.endless(n, way)))
        await begun[handle.id].wait()
        await asyncio.sleep(pause)
        self.ledger.write(CancelRequested, task=handle.id, way=way)
        mode: CancelMode = "interrupt" if way == "interrupt" else "cooperative"
        await self._insist(lambda: self.fleet.mp.cancel(handle.id, mode=mode))

    # Submitting

    async def _submit(self) -> None:
        taken = self._taken_before()
        plan = self.fleet.plan
        async with asyncio.TaskGroup() as strands:
            for pool, items in plan.of(self.number).items():
                left = [item for item in items if item.n not in taken]
                strands.create_task(self._strand(pool, items, left))
            strands.create_task(self._drain(plan.webs_of(self.number)))
        await asyncio.gather(*self._awaiting)

    def _taken_before(self) -> set[int]:
        """Return the items that an earlier process of this submitter has had confirmed."""
        lines, _ = read(Path(self.settings.home) / LEDGER)
        return {
            line.item
            for line in lines
            if isinstance(line, SubmitConfirmed) and line.submitter == self.number
        }

    async def _strand(self, pool: str, items: list[Item], left: list[Item]) -> None:
        """Submit what is left of the items for one pool, in bursts, each at its time."""
        dice = random.Random(f"{self.settings.seed}/{self.number}/{pool}")
        wanted = {item.n for item in left}
        for moment, burst in spread(items, self.settings.submitting, dice):
            await asyncio.sleep(self.settings.began + moment - time.monotonic())
            waiting = [item for item in burst if item.n in wanted]
            while waiting:
                size = dice.choice((1, 1, 2, 5, 10))
                await self._send(pool, waiting[:size])
                waiting = waiting[size:]

    async def _send(self, pool: str, items: list[Item]) -> None:
        """Submit some items together, until the store says that it has them."""
        calls = [self.fleet.call(item) for item in items]
        handles = await self._insist(lambda: self.fleet.pools[pool].submit_many(calls))
        for item, handle in zip(items, handles, strict=True):
            self.ledger.write(
                SubmitConfirmed,
                item=item.n,
                task=handle.id,
                duplicate=handle.duplicate,
                submitter=self.number,
            )
            if item.awaited:
                waiting = asyncio.create_task(self._await(handle))
                self._awaiting.add(waiting)

    async def _insist(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401
        """Ask until there is an answer: a store that cannot be written to now can be later."""
        while True:
            try:
                return await ask()
            except (TaskFailed, TaskCancelled, TaskRejected):
                raise
            except MillpondError as error:
                self.ledger.write(SubmitFailed, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(TRY_AGAIN)

    async def _await(self, handle: Handle[str]) -> None:
        result = None
        try:
            result = await self._insist(lambda: _result_of(handle))
            status = "completed"
        except (TaskFailed, TaskCancelled, TaskRejected):
            status = str(handle.status)
        self.ledger.write(ResultReceived, task=handle.id, status=status, result=result)

    async def _drain(self, webs: list[Web]) -> None:
        """Drain runs one after another; one that an earlier life began is taken up again."""
        crawl = self.fleet.pools["crawl"]
        for place, web in enumerate(webs):
            moment = self.settings.submitting * place / len(webs)
            await asyncio.sleep(self.settings.began + moment - time.monotonic())
            seed = self.fleet.seed_of(web)
            report = await self._insist(lambda: crawl.drain(seed, run=web.name))  # noqa: B023
            self.ledger.write(
                RunDrained,
                run=web.name,
                total=report.total,
                completed=report.completed,
                resumed=report.resumed or report.finished_before,
            )


async def _result_of(handle: Handle[str]) -> str:
    return await handle


def exit_with_parent(parent: int) -> None:
    """End this process when its supervisor has exited."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(70)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run one process: the home of the torture, the role, its number, and the supervisor's pid."""
    home, role, number, parent = sys.argv[1:]
    exit_with_parent(int(parent))
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(levelname)s %(name)s %(message)s"
    )
    settings = msgspec.json.decode((Path(home) / SETTINGS).read_bytes(), type=Settings)

    async def live() -> None:
        member = Member(settings, role, int(number))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, member.stop_requested.set)
        await member.live()

    asyncio.run(live())


if __name__ == "__main__":
    main()
