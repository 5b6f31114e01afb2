"""Millponds that share one store, as processes share a database, and can crash."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stores import fresh_store
from verify.servers.schemas import InlinePostgresStore, Schema
from verify.servers.sqlite_files import InlineStore

from millpond import Keep, Millpond
from millpond.core.control import DeclareDead
from millpond.pool.internals import internals_of
from millpond.runtime.environment import wall_clock
from millpond.store.protocol import Store


@dataclass(frozen=True)
class Trouble:
    """A fault at the next verb of a name, before or after the store carries it out."""

    verb: str
    error: Exception | None = None
    """The answer that the process gets; None = the process stops there for good."""
    stored: bool = False


class Cable:
    """The connection of one process to the shared store; once cut, no call gets through."""

    def __init__(self, store: Store, *, own: bool = False) -> None:
        self._store = store
        self._own = own
        self.cut = False
        self.troubles: list[Trouble] = []

    @property
    def view(self) -> Any:
        """The reading side."""
        return self._store.view

    def __getattr__(self, verb: str) -> Any:
        ability = getattr(self._store, verb)  # AttributeError if the store lacks it.
        if not inspect.iscoroutinefunction(ability):
            return ability  # not a call to the store

        async def send(*args: Any, **kwargs: Any) -> Any:
            trouble = self._next(verb)
            if self.cut or (trouble is not None and not trouble.stored):
                await self._fail(trouble)
            answer = await ability(*args, **kwargs)
            if trouble is not None:
                await self._fail(trouble)
            return answer

        return send

    def _next(self, verb: str) -> Trouble | None:
        found = next((one for one in self.troubles if one.verb == verb), None)
        if found is not None:
            self.troubles.remove(found)
        return found

    async def _fail(self, trouble: Trouble | None) -> None:
        if trouble is not None and trouble.error is not None:
            raise trouble.error
        self.cut = True
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Close an own connection; the other processes keep the store."""
        if self._own:
            await self._store.close()


class Fleet:
    """One shared store and the Millponds on it. Make it inside a running loop.

    With a place it is a file or tables on a server, and each Millpond opens its own connection.
    """

    def __init__(self, place: Path | Schema | None = None) -> None:
        self._place = place
        self._store = fresh_store() if place is None else None
        self.cables: dict[Millpond, Cable] = {}

    @property
    def store(self) -> Store:
        """The store that all share; with a place, each access opens it again."""
        return self._store or self._opened()

    def _opened(self) -> Store:
        clock = wall_clock(asyncio.get_running_loop())
        if isinstance(self._place, Schema):
            return InlinePostgresStore(self._place, clock)
        assert self._place is not None
        return InlineStore(self._place, clock)

    def millpond(
        self, *, work: bool | None = None, keep: Keep | None = None, lease: float = 30.0
    ) -> Millpond:
        """Return the Millpond of one more process."""
        mp = Millpond(work=work, keep=keep, lease=lease)
        internals_of(mp).owner.make_store = lambda: self._cable(mp)
        return mp

    def _cable(self, mp: Millpond) -> Store:
        cable: Any = Cable(self.store, own=self._place is not None)
        self.cables[mp] = cable
        return cable  # type: ignore[no-any-return]

    def fail(self, mp: Millpond, *troubles: Trouble) -> None:
        """Let something go wrong between one process, which is open, and the store."""
        self.cables[mp].troubles += troubles

    async def crash(self, mp: Millpond, *, found_dead: bool = True) -> None:
        """Kill a process in the middle of its work: it settles nothing and never deregisters.

        Its workers are known to be dead at once, or (found_dead=False) when their leases expire.
        """
        cable = self.cables[mp]
        cable.cut = True
        runtime = internals_of(mp).runtime
        workers = list(runtime.workers)
        # A crash stops tasks of the loop that nothing public can stop one by one.
        tasks = [runtime.maintenance._task, runtime.polling._task, *runtime.env.background]
        for worker in workers:
            worker.watchdog.stop()
            tasks += [worker.driver, *(slot.task for slot in worker.slots.all)]
        alive = [task for task in tasks if task is not None]
        for _ in range(5):
            # A slot takes a first cancellation for its handler's.
            for task in alive:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*alive, return_exceptions=True)
        internals_of(mp).owner.abandon()
        await cable.close()
        if found_dead:
            grave = self.store
            for worker in workers:
                await grave.control(DeclareDead(worker.name))
            if self._place is not None:
                await grave.close()


async def until(condition: Callable[[], Awaitable[bool]], *, within: float = 600.0) -> None:
    """Wait on the loop's clock until something is true; fail if it takes too long."""
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110 - the store gives no event
            await asyncio.sleep(0.25)
