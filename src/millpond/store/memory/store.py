"""The memory store behind the store protocol: each verb is one uninterrupted step."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import msgspec

from millpond.core import check
from millpond.core.errors import StoreClosed
from millpond.core.moment import rounded
from millpond.core.run import view as run_view
from millpond.store.memory.ahead import wanted_pools
from millpond.store.memory.control import control, pool_named
from millpond.store.memory.lease import lease
from millpond.store.memory.recover import more, next_recovery, recover
from millpond.store.memory.settle import settle
from millpond.store.memory.submit import Taken, admission, submit
from millpond.store.memory.tables import Tables
from millpond.store.memory.view import MemoryView
from millpond.store.protocol import (
    Admission,
    BatchAnswer,
    ControlAnswer,
    LeaseAnswer,
    RecoverAnswer,
    RenewAnswer,
    SettleAnswer,
    SubmitAnswer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.control import Order
    from millpond.core.lease import LeaseAsk
    from millpond.core.settle import Settlement
    from millpond.store.protocol import Batch, View

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

    def _begin(self, now: float | None, entropy: int | None) -> float:
        if self._closed:
            message = "the store is closed; open a new one"
            raise StoreClosed(message)
        tables = self._tables
        tables.begin(entropy)
        moment = rounded(self._clock() if now is None else now)
        # Time does not go back here, whatever a clock does: what was due stays due.
        if moment > tables.latest:  # noqa: PLR1730 - max costs a call
            tables.latest = moment
        return tables.latest

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        """Take in batches, each whole or not at all where its pool's policy says so."""
        now = self._begin(now, entropy)
        answers = [submit(self._tables, batch, now) for batch in batches]
        self._tables.end(now)
        return SubmitAnswer(
            batches=tuple([a if a.run is None else self._with_run(a) for a in answers]),
            finished_runs=self._tables.finished_runs(),
            wakes=self._tables.wakes(),
            ended=self._tables.endings.ended(),
            emptied=self._tables.endings.emptied(),
        )

    def _with_run(self, answer: BatchAnswer) -> BatchAnswer:
        """Tell of a run as it is after the verb: an empty seed is over already."""
        if answer.run is None:
            return answer
        run = run_view(self._tables.runs[answer.run.id], resumed=answer.run.resumed)
        return msgspec.structs.replace(answer, run=run)

    async def lease(
        self, ask: LeaseAsk, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        """Give a worker the next tasks of a pool, within every limit in force."""
        now = self._begin(now, entropy)
        pool_named(self._tables, ask.pool)
        answer = lease(self._tables, ask, now)
        self._tables.end(now)
        if not self._tables.has_news:
            return answer
        return msgspec.structs.replace(
            answer,
            finished_runs=self._tables.finished_runs(),
            wakes=self._tables.wakes(),
            ended=self._tables.endings.ended(),
            emptied=self._tables.endings.emptied(),
        )

    async def renew(
        self, worker: str, lease: float, *, now: float | None = None, entropy: int | None = None
    ) -> RenewAnswer:
        """Keep everything a worker holds for `lease` seconds more."""
        check.number("lease", lease, above=0.0)
        now = self._begin(now, entropy)
        row = self._tables.workers.get(worker)
        if row is None:
            return RenewAnswer(alive=False)
        self._tables.renew(row, lease, now)
        held = (*row.holding, *row.ahead)
        return RenewAnswer(
            alive=True,
            cancelled=tuple(t for t in held if self._tables.tasks[t].cancel_requested),
            give_back=wanted_pools(self._tables, row, now) if row.ahead else (),
        )

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseAsk | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        """End attempts, each only with its current fence, and lease the next if asked."""
        now = self._begin(now, entropy)
        # Before anything is changed: a verb happens wholly or not at all.
        for one in settlements:
            for new in one.follow_ups:
                pool_named(self._tables, new.pool)
        if then is not None:
            pool_named(self._tables, then.pool)
        settled, after, taken, started = [], [], [], []
        for one in settlements:
            outcome, status, follow_ups, begun = settle(self._tables, one, now)
            settled.append(outcome)
            after.append(status)
            taken.append(follow_ups)
            started.append(begun)
        leased = lease(self._tables, then, now) if then is not None else None
        self._tables.end(now)
        return SettleAnswer(
            settled=tuple(settled),
            after=tuple(after),
            started=tuple(started),
            follow_ups=self._told(taken) if any(taken) else ((),) * len(settled),
            lease=leased,
            finished_runs=self._tables.finished_runs(),
            wakes=self._tables.wakes(),
            ended=self._tables.endings.ended(),
            emptied=self._tables.endings.emptied(),
        )

    def _told(self, taken: list[tuple[Taken, ...]]) -> tuple[tuple[Admission, ...], ...]:
        """Tell of follow-ups as they are after the verb."""
        return tuple(tuple(admission(self._tables, one) for one in each) for each in taken)

    async def recover(
        self, *, limit: int = 1000, now: float | None = None, entropy: int | None = None
    ) -> RecoverAnswer:
        """Do what time alone does: lose expired leases, fail expired and forgotten tasks."""
        now = self._begin(now, entropy)
        moved = recover(self._tables, limit, now)
        self._tables.end(now)
        return RecoverAnswer(
            moved=moved,
            more=more(self._tables, now),
            next_at=next_recovery(self._tables, now),
            finished_runs=self._tables.finished_runs(),
            wakes=self._tables.wakes(),
            ended=self._tables.endings.ended(),
            emptied=self._tables.endings.emptied(),
        )

    async def control(
        self, order: Order, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        """Carry out an order."""
        now = self._begin(now, entropy)
        count, revision = control(self._tables, order, now)
        self._tables.end(now)
        return ControlAnswer(
            count=count,
            revision=revision,
            finished_runs=self._tables.finished_runs(),
            wakes=self._tables.wakes(),
            ended=self._tables.endings.ended(),
            emptied=self._tables.endings.emptied(),
        )

    async def close(self) -> None:
        """Take no more verbs; safe twice."""
        self._closed = True
