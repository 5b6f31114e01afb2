"""A store whose server takes steps by itself, where nothing but sums hangs on them."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from millpond.core.lifecycle import Event
from millpond.core.settle import Settlement
from millpond.store.postgres.connection import PostgresConnection
from millpond.store.postgres.lent import LentConnection
from millpond.store.postgres.step import Step, Taken, Taking, may_step, pool_to_take, told_by
from millpond.store.postgres.transact import PostgresTransactor
from millpond.store.postgres.values import sent
from millpond.store.postgres.wake import Wakes
from millpond.store.protocol import RenewAnswer
from millpond.store.rows.store import Renewer, RowsStore, hint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.lease import LeaseAsk
    from millpond.store.postgres.dialect import PostgresDialect
    from millpond.store.postgres.step import Stepped
    from millpond.store.postgres.values import Sent
    from millpond.store.protocol import Batch, LeaseAnswer, SettleAnswer, SubmitAnswer
    from millpond.store.rows.tables import SqlTables

T = TypeVar("T")
P = TypeVar("P")

_HEARD_WITHIN = 0.25
"""The part of a lease in which a renewal must be answered."""

_MOST_DETOURS = 62
"""How often in a row the server is not asked for a step of a pool that it keeps refusing."""


class SteppingStore(RowsStore[PostgresConnection, LentConnection]):
    """Asks the server first, and does by the verbs what it refuses."""

    _schema: PostgresDialect
    _lock: int
    """The number of the lock that whoever writes takes."""
    _told: Callable[[float], None] | None
    """Hears what time the server has; None = its clock does not count."""

    _detours: dict[str, int]
    """How often what the server was asked for will be left to the verbs at once."""
    _refusals: dict[str, int]
    _told_along: set[str]
    """Pools of which others were told in the very commit that gave them something to start."""

    async def lease(
        self, ask: LeaseAsk, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        """Give a worker the next tasks of a pool, within every limit in force."""
        if may_step((), ask):
            step = self._new_step((), ask, now, entropy)
            answer = await self._stepped(ask.pool, step, step.leased)
            if answer is not None:
                return answer
        return await super().lease(ask, now=now, entropy=entropy)

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseAsk | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        """End attempts, each only with its current fence, and lease the next if asked."""
        if settlements and may_step(settlements, then):
            step = self._new_step(settlements, then, now, entropy)
            pool = "" if then is None else then.pool
            answer = await self._stepped(pool, step, step.settled)
            if answer is not None:
                return answer
        return await super().settle(settlements, then=then, now=now, entropy=entropy)

    def _new_step(
        self,
        settlements: Sequence[Settlement],
        then: LeaseAsk | None,
        now: float | None,
        entropy: int | None,
    ) -> Step:
        chance = self._dice.getrandbits(64) if entropy is None else entropy
        return Step(settlements, then, self._step_moment(now), chance)

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        """Take in batches, each whole or not at all where its pool's policy says so."""
        pool = pool_to_take(batches)
        if pool is not None:
            told = _Submit(pool, batches, self._step_moment(now))
            answer = await self._apart(f"to {pool}", self._take_submits, told)
            if answer is not None:
                return answer
        return await super().submit(batches, now=now, entropy=entropy)

    def _step_moment(self, now: float | None) -> float | None:
        """Return the moment of a step; None = the server's clock tells."""
        return self._clock() if now is None and self._told is None else now

    async def _stepped(self, pool: str, step: Step, answer: Callable[[Stepped], T]) -> T | None:
        """Let the server take a step; None if it is one for the verbs."""
        given: T | None = await self._apart(pool, self._take_steps, (pool, step, answer))
        if step.unreadable:
            ends = [
                Settlement(fence=fence, event=Event.CORRUPT, spend=False)
                for fence in step.unreadable
            ]
            await super().settle(ends, now=step.now)
        return given

    async def _apart(
        self, which: str, work: Callable[[list[P]], list[T | None]], told: P
    ) -> T | None:
        """Have the server do something by itself, unless it has kept refusing it of late."""
        self._must_be_open()
        if self._detours.get(which, 0) > 0:
            self._detours[which] -= 1
            return None
        if self._writer is None:
            return work([told])[0]
        return await self._writer.do_alone(work, told)

    def renewer(self) -> PostgresRenewer:
        """Return what renews from a thread of its own."""
        transactor = self._transactor(self._new_unit)
        assert isinstance(transactor, PostgresTransactor)  # noqa: S101 - made above
        return PostgresRenewer(transactor, self._clock, self._schema.sql["renew"], self._renewal)

    def _renewal(self, worker: str, lease: float) -> list[Sent]:
        """Return the arguments of a renewal."""
        return [sent(self._lock), sent(self._step_moment(None)), sent(worker), sent(lease)]

    # What happens in the writer's thread

    def _committed(self, answers: Sequence[Any]) -> float | None:
        """Tell the others what was just stored, unless they were told with it."""
        told, self._told_along = self._told_along, set()
        if not told or self._wakes is None:
            return super()._committed(answers)
        hint = hint_of(answers)
        wakes = tuple([wake for wake in hint.wakes if wake.pool not in told])
        return self._wakes.send(msgspec.structs.replace(hint, wakes=wakes))

    def _take_steps(self, told: list[tuple[str, Step, Callable[[Stepped], Any]]]) -> list[Any]:
        return [self._take_step(*one) for one in told]

    def _take_step(self, pool: str, step: Step, answer: Callable[[Stepped], T]) -> T | None:
        """Let the server take a step."""
        row = self._call("step", pool, step.arguments)
        return None if row is None else answer(told_by(row))

    def _take_submits(self, told: list[_Submit]) -> list[SubmitAnswer | None]:
        """Let the server take in the tasks of several submits."""
        answers: list[SubmitAnswer | None] = []
        for (pool, now), some in groupby(told, key=lambda one: (one.pool, one.now)):
            submits = [one.batches for one in some]
            message = self._wakes.along(pool) if isinstance(self._wakes, Wakes) else None
            taking = Taking(pool, submits, now, message)
            row = self._call("take", f"to {pool}", taking.arguments)
            if row is not None and message is not None:
                self._told_along.add(pool)
            answers += [None] * len(submits) if row is None else taking.answers(Taken(*row))
        return answers

    def _call(
        self, name: str, which: str, arguments: Callable[[int], list[Sent]]
    ) -> tuple[Any, ...] | None:
        """Call a function of the server; None if it refuses."""
        transactor = self._writing
        assert isinstance(transactor, PostgresTransactor)  # noqa: S101 - made above
        row = transactor.call(self._schema.sql[name], partial(arguments, self._lock))
        if row is None or row[0] is not None:
            refusals = self._refusals[which] = self._refusals.get(which, 0) + 1
            self._detours[which] = min(2**refusals - 2, _MOST_DETOURS)
            return None
        self._refusals.pop(which, None)
        if self._told is not None:
            self._told(row[1])
        return row


class PostgresRenewer(Renewer):
    """Renews with one statement, unless claims ahead are to be looked at as well."""

    def __init__(
        self,
        transactor: PostgresTransactor[SqlTables],
        clock: Callable[[], float],
        statement: str,
        arguments: Callable[[str, float], list[Sent]],
    ) -> None:
        super().__init__(transactor, clock)
        self._calling = transactor
        self._statement = statement
        self._arguments = arguments

    def renew(self, worker: str, lease: float) -> RenewAnswer:
        """Keep everything a worker holds for `lease` seconds more.

        A connection that says nothing is given up while a new one may still be in time.
        """
        self._calling.hurry(lease * _HEARD_WITHIN)
        row = self._calling.call(self._statement, partial(self._arguments, worker, lease))
        if row is None or row[0] is not None:
            return super().renew(worker, lease)
        _, _, alive, cancelled, interrupted = row
        return RenewAnswer(
            alive=alive, cancelled=tuple(cancelled or ()), interrupted=tuple(interrupted or ())
        )


class _Submit(NamedTuple):
    """A submit that the server may do by itself."""

    pool: str
    batches: Sequence[Batch]
    now: float | None
