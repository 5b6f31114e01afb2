"""Stores for tests of the runtime: they count verbs, take their time, fail or freeze on demand."""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import pytest
from tests.pool.moments import rounds as rounds
from tests.stores import fresh_store

from millpond import Millpond
from millpond.core.control import Command
from millpond.core.lease import LeaseRequest
from millpond.core.settle import Settlement
from millpond.pool.internals import internals_of
from millpond.store.protocol import (
    Batch,
    ControlAnswer,
    LeaseAnswer,
    RecoverAnswer,
    RenewAnswer,
    SettleAnswer,
    Store,
    SubmitAnswer,
)
from millpond.store.view import View


def memory() -> Store:
    """A store that follows the clock of the loop."""
    return fresh_store()


class Watched:
    """A wrapper around a store; closing it does not close that store."""

    def __init__(self, inner: Store, *, pauses: int = 0) -> None:
        self.inner = inner
        self.verbs: Counter[str] = Counter()
        self.log: list[tuple[str, Any]] = []
        self.failures: deque[Exception] = deque()
        self.failures_after: deque[Exception] = deque()
        """A fault after the verb was carried out: its answer is lost."""
        self.open = asyncio.Event()
        self.open.set()
        self._pauses = pauses

    @property
    def view(self) -> View:
        return self.inner.view

    @property
    def total(self) -> int:
        """How many verbs there were."""
        return self.verbs.total()

    def freeze(self) -> None:
        """Let no verb through until `thaw`."""
        self.open.clear()

    def thaw(self) -> None:
        self.open.set()

    async def _begin(self, verb: str, what: Any) -> None:
        self.verbs[verb] += 1
        self.log.append((verb, what))
        await self.open.wait()
        for _ in range(self._pauses):
            await asyncio.sleep(0)
        if self.failures:
            raise self.failures.popleft()

    async def _end(self) -> None:
        for _ in range(self._pauses):
            await asyncio.sleep(0)
        if self.failures_after:
            raise self.failures_after.popleft()

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        await self._begin("submit", batches)
        answer = await self.inner.submit(batches, now=now, entropy=entropy)
        await self._end()
        return answer

    async def lease(
        self, ask: LeaseRequest, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        await self._begin("lease", ask)
        answer = await self.inner.lease(ask, now=now, entropy=entropy)
        await self._end()
        return answer

    async def renew(
        self, worker: str, lease: float, *, now: float | None = None, entropy: int | None = None
    ) -> RenewAnswer:
        await self._begin("renew", worker)
        answer = await self.inner.renew(worker, lease, now=now, entropy=entropy)
        await self._end()
        return answer

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseRequest | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        await self._begin("settle", (tuple(settlements), then))
        answer = await self.inner.settle(settlements, then=then, now=now, entropy=entropy)
        await self._end()
        return answer

    async def recover(
        self,
        *,
        limit: int = 1000,
        generation: int | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> RecoverAnswer:
        await self._begin("recover", limit)
        answer = await self.inner.recover(
            limit=limit, generation=generation, now=now, entropy=entropy
        )
        await self._end()
        return answer

    async def control(
        self, command: Command, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        await self._begin("control", command)
        answer = await self.inner.control(command, now=now, entropy=entropy)
        await self._end()
        return answer

    async def close(self) -> None:
        """Do nothing: other processes still use the store."""


class Opened:
    """The stores that Millponds opened during a test, in order."""

    def __init__(self, *, pauses: int) -> None:
        self._pauses = pauses
        self.stores: list[Watched] = []

    def __call__(self, **_: Any) -> Watched:
        store = Watched(memory(), pauses=self._pauses)
        self.stores.append(store)
        return store

    @property
    def last(self) -> Watched:
        return self.stores[-1]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Private stores that count their verbs."""
    made = Opened(pauses=0)
    monkeypatch.setattr("millpond.pool.store_opening.MemoryStore", made)
    return made


@pytest.fixture(params=["at once", "after a while"])
def any_pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Private stores that answer at once, or shared ones that take their time as disks do."""
    if request.param == "at once":
        made = Opened(pauses=0)
        monkeypatch.setattr("millpond.pool.store_opening.MemoryStore", made)
        return made
    made = Opened(pauses=2)
    enter = Millpond.__aenter__

    async def enter_shared(mp: Millpond) -> Millpond:
        internals_of(mp).owner.make_store = made
        return await enter(mp)

    monkeypatch.setattr(Millpond, "__aenter__", enter_shared)
    return made
