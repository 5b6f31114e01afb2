"""The memory store behind the store protocol: each verb is one uninterrupted step."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from millpond.errors import StoreClosed
from millpond.store.memory.view import MemoryView
from millpond.store.verbs import api as verbs
from millpond.store.verbs.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        SubmitAnswer,
    )
    from millpond.store.view import View

AUDIT_KEPT = 10_000


class MemoryStore:
    """Everything in this process, for as long as it lives.

    No verb awaits anything, so on one event loop each is atomic by construction.
    """

    def __init__(
        self, *, audit_limit: int | None = AUDIT_KEPT, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        entropy = random.SystemRandom().getrandbits(64)
        self._tables = Tables(audit_limit=audit_limit, entropy=entropy)
        self._view = MemoryView(self._tables, clock)
        self._closed = False

    @property
    def view(self) -> View:
        """The reading side."""
        return self._view

    def _moment(self, now: float | None) -> float:
        if self._closed:
            message = "the store is closed; open a new one"
            raise StoreClosed(message)
        return self._clock() if now is None else now

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        """Take in batches, each whole or not at all where its pool's policy says so."""
        return verbs.submit(self._tables, batches, self._moment(now), entropy)

    async def lease(
        self, ask: LeaseRequest, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        """Give a worker the next tasks of a pool, within every limit in force."""
        return verbs.lease(self._tables, ask, self._moment(now), entropy)

    async def renew(
        self, worker: str, lease: float, *, now: float | None = None, entropy: int | None = None
    ) -> RenewAnswer:
        """Keep everything a worker holds for `lease` seconds more."""
        return verbs.renew(self._tables, worker, lease, self._moment(now), entropy)

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseRequest | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        """End attempts, each only with its current fence, and lease the next if asked."""
        return verbs.settle(self._tables, settlements, self._moment(now), entropy, then=then)

    async def recover(
        self,
        *,
        limit: int = 1000,
        generation: int | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> RecoverAnswer:
        """Do what time alone does: lose expired leases, fail expired and forgotten tasks."""
        moment = self._moment(now)
        return verbs.recover(self._tables, limit, moment, entropy, generation=generation)

    async def control(
        self, command: Command, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        """Carry out an order."""
        return verbs.control(self._tables, command, self._moment(now), entropy)

    async def close(self) -> None:
        """Take no more verbs; safe twice."""
        self._closed = True
