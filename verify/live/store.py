"""A shared store as one process sees it: far away, slow, and now and then not there.

Every verb is recorded and judged where it is carried out. On its way there and back it may be
late, fail before it is carried out, or lose its answer. A sent call is carried out even if its
sender has died in the meantime.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from millpond.core.ticks import rounded
from millpond.errors import StoreClosed
from millpond.testing.simulation.history import Raised, Stage, Verb

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from millpond.core.control import Command
    from millpond.core.lease import LeaseRequest
    from millpond.core.settle import Settlement
    from millpond.store.protocol import Batch
    from millpond.store.view import View
    from verify.live.process import Process
    from verify.live.world import LiveWorld


class LiveStage(Stage):
    """The store itself: every verb of every process comes by here and is judged."""

    def __init__(self, world: LiveWorld, store: Any, dice: random.Random) -> None:  # noqa: ANN401
        super().__init__(store)
        self._world = world
        self._dice = dice
        self._moment = 0.0
        self._at_once = 0

    async def carry_out(self, name: str, arguments: Any) -> Any:  # noqa: ANN401 - any verb's answer
        """Carry out a verb now, and let the observers check it."""
        world = self._world
        if world.broken.done():
            raise ConnectionError("the history is over: a promise was broken")
        verb = Verb(name, arguments, rounded(world.now), self._dice.getrandbits(64))
        try:
            self._count()
            answer = await self.do(verb)
            world.watch.see(self.steps[-1])
        except Exception as error:
            world.broke(error)
            raise
        if isinstance(answer, Raised):
            assert self.error is not None
            raise self.error
        return answer

    def _count(self) -> None:
        """Object to a fleet that asks and asks while no time passes."""
        world = self._world
        if world.now > self._moment:
            self._moment, self._at_once = world.now, 0
        self._at_once += 1
        world.watch.not_spinning(self._at_once)


class FaultyStore:
    """The store protocol for one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._view = FaultyView(process)
        self.closed = False

    @property
    def view(self) -> View:
        """The reading side."""
        return self._view  # type: ignore[return-value] # it has every method, by name

    async def _do(self, name: str, arguments: Any) -> Any:  # noqa: ANN401 - any verb's answer
        if self.closed:
            raise StoreClosed("the store is closed; open a new one")
        process = self._process
        process.verbs += 1
        stage = process.world.stage
        return await process.line.ask(lambda: stage.carry_out(name, arguments))

    async def submit(self, batches: Sequence[Batch], **_: Any) -> Any:  # noqa: ANN401
        """Take in batches."""
        return await self._do("submit", tuple(batches))

    async def lease(self, ask: LeaseRequest, **_: Any) -> Any:  # noqa: ANN401
        """Give a worker the next tasks of a pool."""
        return await self._do("lease", ask)

    async def renew(self, worker: str, lease: float, **_: Any) -> Any:  # noqa: ANN401
        """Keep everything a worker holds."""
        return await self._do("renew", (worker, lease))

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseRequest | None = None,
        **_: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """End attempts."""
        return await self._do("settle", (tuple(settlements), then))

    async def recover(self, *, limit: int = 1000, **_: Any) -> Any:  # noqa: ANN401
        """Do what time alone does, in some worlds little at a time, and slowly."""
        world = self._process.world
        answer = await self._do("recover", min(limit, world.recovers))
        if world.recovers < limit and answer.more and not world.solo:
            await asyncio.sleep(1.0)
        return answer

    async def control(self, command: Command, **_: Any) -> Any:  # noqa: ANN401
        """Carry out an order."""
        return await self._do("control", command)

    async def close(self) -> None:
        """Take no more verbs of this process; the store itself goes on."""
        self.closed = True


class FaultyView:
    """The reading side for one process: as far away, and as unsure, as the writing side."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        process = self._process
        read = getattr(process.world.stage.store.view, name)

        async def ask(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            process.views += 1
            if name == "pool":
                kwargs.setdefault("now", process.world.now)
            return await process.line.ask(lambda: read(*args, **kwargs))

        return ask


class Line:
    """The line between a process and the store, with everything that can happen on it."""

    def __init__(self, world: LiveWorld, dice: random.Random, *, instant: bool) -> None:
        self._world = world
        self._dice = dice
        self._instant = instant
        self.slow = 0.0 if instant else dice.choice((0.0, 0.0, 0.01, 0.05, 0.3))
        self.bad = 0.0
        self.cut = False
        self.over = False
        self.troubled_at = -1.0
        self.slowest = self.slow
        self._mended = asyncio.Event()
        self._under_way: dict[asyncio.Task[None], None] = {}

    def mend(self) -> None:
        """Let everything through again."""
        self.cut = False
        self.bad = 0.0
        self.troubled_at = self._world.now
        self._mended.set()

    async def ask(self, do: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - any answer
        """Send, wait for the answer, return it; a sent call cannot be taken back."""
        if self.over:
            raise ConnectionError("the world is over")
        if self._instant:
            return await do()
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        # On its way it belongs to no process: it arrives even if the sender dies.
        way = loop.create_task(self._travel(do, answered), context=self._world.context.copy())
        self._under_way[way] = None
        way.add_done_callback(self._under_way.pop)
        return await answered

    async def _travel(
        self, do: Callable[[], Awaitable[Any]], answered: asyncio.Future[Any]
    ) -> None:
        try:
            await self._way()
            self._perhaps("failed verb")
            answer = await do()
            self._perhaps("lost answer")
            await self._way()
        except Exception as error:  # noqa: BLE001 - it is the sender's to deal with
            if not answered.done():
                answered.set_exception(error)
                answered.exception()  # Its sender may be dead: mark the exception as retrieved.
        else:
            if not answered.done():
                answered.set_result(answer)

    def _perhaps(self, fault: str) -> None:
        """Break the connection, as often as the line is bad."""
        if self._dice.random() < self.bad / 2:
            self._world.fault(fault)
            raise ConnectionError(f"the connection broke ({fault})")

    async def _way(self) -> None:
        self.slowest = max(self.slow, self.slowest)
        if self.slow:
            self._world.fault("slow verb")
            await asyncio.sleep(self._dice.random() * self.slow)
        if not self.cut:
            return
        if self._dice.random() < 0.5:
            await asyncio.sleep(0.2)
            raise ConnectionError("the store cannot be reached")
        self._mended.clear()
        await self._mended.wait()
