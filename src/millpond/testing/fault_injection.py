"""Inject faults: a store that fails on request, before a verb takes effect or after."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from millpond.core import validation as check
from millpond.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.control import Command
    from millpond.core.lease import LeaseRequest
    from millpond.core.settle import Settlement
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

T = TypeVar("T")

Verb: TypeAlias = Literal["submit", "lease", "renew", "settle", "recover", "control"]
When: TypeAlias = Literal["before", "after"]
Raised: TypeAlias = BaseException | type[BaseException]

VERBS = ("submit", "lease", "renew", "settle", "recover", "control")


class Fault:
    """A verb of the store that fails the next times; `left` is 0 once it has happened."""

    def __init__(self, verb: str, error: Raised | None, count: int, when: str) -> None:
        self.verb: str = check.one_of("verb", verb, VERBS)
        """The verb that fails."""
        self.when: str = check.one_of("when", when, ("before", "after"))
        """Whether it fails before it takes effect, or after."""
        self.left: int = check.integer("count", count, least=1)
        """How often it still will."""
        self._error = error

    def happen(self) -> None:
        """Raise, once less from now on."""
        self.left -= 1
        if self._error is None:
            lost = "its answer was lost" if self.when == "after" else "nothing was done"
            raise StoreError(f"the lab made {self.verb} fail: {lost}")
        raise self._error

    def __repr__(self) -> str:
        return f"<fault {self.when} {self.verb}, {self.left} left>"


class FaultyStore:
    """A store behind which another does the work: seeded, able to fail, and to be cut off.

    What is cut off belongs to a process that died: whatever it still says is not heard.
    """

    def __init__(
        self,
        store: Store,
        faults: list[Fault],
        dice: random.Random,
        on_fault: Callable[[], None],
    ) -> None:
        self._store = store
        self._faults = faults
        self._dice = dice
        self._on_fault = on_fault
        self.shared = True
        self.cut_off = False

    @property
    def view(self) -> View:
        """The reading side."""
        return self._store.view

    async def _do(self, verb: Verb, carry_out: Callable[[int], Coroutine[Any, Any, T]]) -> T:
        """Carry out a verb, unless it is to fail before or after."""
        if self.cut_off:
            raise StoreError("this process is dead: its calls do not reach the store")
        self._fail(verb, "before")
        answer = await carry_out(self._dice.getrandbits(64))
        self._fail(verb, "after")
        return answer

    def _fail(self, verb: Verb, when: When) -> None:
        for fault in self._faults:
            if fault.left and (fault.verb, fault.when) == (verb, when):
                self._on_fault()
                fault.happen()

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        """Take in batches."""
        return await self._do(
            "submit", lambda dice: self._store.submit(batches, now=now, entropy=entropy or dice)
        )

    async def lease(
        self, ask: LeaseRequest, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        """Give a worker the next tasks of a pool."""
        return await self._do(
            "lease", lambda dice: self._store.lease(ask, now=now, entropy=entropy or dice)
        )

    async def renew(
        self, worker: str, lease: float, *, now: float | None = None, entropy: int | None = None
    ) -> RenewAnswer:
        """Keep what a worker holds."""
        return await self._do(
            "renew",
            lambda dice: self._store.renew(worker, lease, now=now, entropy=entropy or dice),
        )

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseRequest | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        """End attempts, and lease the next if asked."""
        return await self._do(
            "settle",
            lambda dice: self._store.settle(
                settlements, then=then, now=now, entropy=entropy or dice
            ),
        )

    async def recover(
        self,
        *,
        limit: int = 1000,
        generation: int | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> RecoverAnswer:
        """Do what time alone does."""
        return await self._do(
            "recover",
            lambda dice: self._store.recover(
                limit=limit, generation=generation, now=now, entropy=entropy or dice
            ),
        )

    async def control(
        self, command: Command, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        """Carry out an order."""
        return await self._do(
            "control", lambda dice: self._store.control(command, now=now, entropy=entropy or dice)
        )

    async def close(self) -> None:
        """Do nothing: the lab closes what it made when it ends."""
