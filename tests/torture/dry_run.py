"""A fleet in one process, on one store in memory: evidence to judge, and to doctor.

No process is killed here. One worker loses its connection to the store and is declared dead, and
comes back: its leases are lost, its handlers go on, and their settles come too late.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.waiting import eventually
from verify.torture.evidence import Evidence, gather
from verify.torture.member import LEDGER, Member
from verify.torture.plan import Settings
from verify.torture.run import is_idle

from millpond import Millpond
from millpond.core.control import DeclareDead
from millpond.pool.internals import internals_of
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Store

VERBS = ("submit", "lease", "renew", "settle", "recover", "control")


class Cable:
    """The way of one member to the store; cut, it keeps what is sent until it is mended."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.all_opened = asyncio.Event()
        self.all_opened.set()

    @property
    def view(self) -> Any:
        """The reading side."""
        return self._store.view

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        if verb not in VERBS:
            raise AttributeError(verb)

        async def send(*args: Any, **kwargs: Any) -> Any:
            await self.all_opened.wait()
            return await getattr(self._store, verb)(*args, **kwargs)

        return send

    async def close(self) -> None:
        """Leave the store to the others."""


class DryFleet:
    """Members of a fleet on one loop. Make it inside a running loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = MemoryStore(audit_limit=None)
        self.cables: list[Cable] = []

    def member(self, role: str, number: int) -> Member:
        """Return one more member."""
        mp = Millpond(work=False, lease=self.settings.lease)
        cable = Cable(self.store)
        self.cables.append(cable)
        internals_of(mp).owner.make_store = lambda: as_store(cable)
        return Member(self.settings, role, number, mp=mp)

    async def live(self) -> Evidence:
        """Run all members to their end; return the evidence."""
        workers = [self.member("worker", number) for number in range(self.settings.workers)]
        submitters = [
            self.member("submitter", number) for number in range(self.settings.submitters)
        ]
        pulse = self.member("pulse", 0)
        staying = [asyncio.create_task(member.live()) for member in (*workers, pulse)]
        async with asyncio.TaskGroup() as group:
            for member in (*submitters, self.member("canceller", 0)):
                group.create_task(member.live())
            group.create_task(self._cut_off(workers[0], self.cables[0]))
        mp = pulse.fleet.mp
        await eventually(partial(is_idle, mp))
        evidence = await gather(mp, self.settings, Path(self.settings.home) / LEDGER)
        for member in (*workers, pulse):
            member.stop_requested.set()
        await asyncio.gather(*staying)
        return evidence

    async def _cut_off(self, member: Member, cable: Cable) -> None:
        """Cut a worker off while it holds something, let its leases be lost, and let it return."""
        await eventually(lambda: member.fleet.mp.is_open and _held(member))
        cable.all_opened.clear()
        for worker in internals_of(member.fleet.mp).runtime.workers:
            await self.store.control(DeclareDead(worker.name))
        await asyncio.sleep(0.6)  # others run meanwhile what it held
        cable.all_opened.set()


def _held(member: Member) -> bool:
    workers = internals_of(member.fleet.mp).runtime.workers
    return sum(len(worker.jobs) for worker in workers) >= 4


def dry_run(home: Path) -> Evidence:
    """Return the evidence of a small fleet on memory."""

    async def live() -> Evidence:
        settings = Settings(
            url="memory",
            home=str(home),
            seed=4,
            tasks=400,
            seconds=2.0,
            workers=2,
            submitters=2,
            lease=2.4,
            poisoned=0,
            cancels=9,
            began=time.monotonic(),
        )
        return await DryFleet(settings).live()

    return asyncio.run(live())


def as_store(cable: Cable) -> Store:
    """Return a cable as what it stands for."""
    store: Any = cable
    return store  # type: ignore[no-any-return]
