"""The second call: a settle that is sent while the answer to another one is on its way.

A worker with prefetched tasks goes on while the store settles what has ended. If it waited for the
answer before it sends what has ended since, the store would wait for the worker and the network. So
it sends a second call. That may end attempts whose start only the first one reports, so the store
refuses it whole if it did not accept the first; then it is sent again, alone, after the first.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from millpond.core.lease import LeaseRequest
from millpond.core.service import Service
from millpond.runtime.worker.state import mark_unsure

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from millpond.core.settle import Settlement
    from millpond.runtime.jobs.job import Job
    from millpond.runtime.worker.prefetch import Prefetch
    from millpond.runtime.worker.queues import Queues
    from millpond.runtime.worker.schedule import TurnSchedule
    from millpond.runtime.worker.settle_answers import SettleAnswers
    from millpond.runtime.worker.state import WorkerState
    from millpond.store.protocol import SettleAnswer

ENOUGH = 4
"""A second call carries at least this part of what may be prefetched: a call costs the store the
same whether it ends few or many."""


MOST_IN_A_ROW = 32
"""After so many calls, each behind another, one is sent alone. It asks for what they do not: for
a slot that has become free elsewhere."""


class Call(NamedTuple):
    """A settle that was sent, and its answer; None = the store refused it and wrote nothing."""

    ended: list[tuple[Settlement, Job, Any]]
    ask: LeaseRequest
    answer: Coroutine[Any, Any, SettleAnswer | None]
    recalls: int
    """How often prefetched tasks had been given back when it was sent."""


class SecondCall(Service):
    """Sends the second call of one worker."""

    _state: WorkerState
    _schedule: TurnSchedule
    _queues: Queues
    _prefetch: Prefetch
    _settle_answers: SettleAnswers
    _part: int = 0
    """How many make a second call."""
    _in_a_row: int = 0
    _pool: str = ""
    _coming: int = 0
    """How many tasks to prefetch the first call asks for."""
    _sent: Call | None = None

    def __post_init__(self) -> None:
        self._settle_behind = self._state.env.shared_store.settle_behind
        self._schedule.gathered = self.gathered

    def open(self, pool: str, first: LeaseRequest | None) -> None:
        """Allow a second call behind one that ends tasks of a pool and asks for this."""
        prefetch = self._prefetch.most(pool)
        if prefetch and self._settle_behind is not None and self._in_a_row < MOST_IN_A_ROW:
            self._pool, self._coming = pool, 0 if first is None else first.ahead
            self._part = self._schedule.enough = max(prefetch // ENOUGH, 1)

    def shut(self) -> None:
        """Allow none: the answer to the first is there."""
        self._schedule.enough = inf

    def gathered(self) -> bool:
        """Send what has ended, if that can be; return whether to look for an answer instead."""
        self._schedule.enough = len(self._state.ended) + self._part
        if self._sent is not None:
            return True
        self._send()
        return False

    def _send(self) -> None:
        state = self._state
        ask = self._next_ask()
        if ask is None or self._settle_behind is None:
            return
        ended = state.take_ended()
        answer = None
        if all(job.leased.pool == ask.pool for _, job, _ in ended):
            answer = self._settle_behind([one[0] for one in ended], then=ask)
        if answer is None:
            state.ended[:0] = ended
            return
        self._sent = Call(ended, ask, answer, self._prefetch.recalls)
        self._schedule.enough = self._part

    def _next_ask(self) -> LeaseRequest | None:
        """Return what a second call asks for: only for tasks to prefetch, as no slot is free.

        If a slot is free or another queue is due, the next call must ask for tasks to start: it
        waits for the answer to this one, which may bring some.
        """
        state, pool = self._state, self._pool
        if not state.may_lease or state.unsure or not self._queues.only_prefetches(pool):
            return None
        room = self._prefetch.room(pool) - self._coming
        return LeaseRequest(pool=pool, worker=state.name, want=0, ahead=room) if room > 0 else None

    def take(self) -> Call | None:
        """Return the call that was sent, now the first; None if there is none."""
        sent, self._sent = self._sent, None
        self._in_a_row = 0 if sent is None else self._in_a_row + 1
        return sent

    def apply(self, sent: Call, answer: SettleAnswer) -> None:
        """Apply its answer.

        An order may have been answered before it, where the first call took long. Then the tasks
        that it brings are given back, like those that were prefetched before.
        """
        prefetch = self._prefetch
        prefetch.is_recalled = sent.recalls != prefetch.recalls
        try:
            self._settle_answers.apply(sent.ended, sent.ask, answer)
        finally:
            prefetch.is_recalled = False

    async def land(self, *, abandon: bool = False) -> None:
        """Wait for its answer after the first call failed; keep what the store may not have got."""
        sent = self.take()
        if sent is None:
            return
        if abandon:
            sent.answer.close()
            self._put_back(sent, unsure=True)
            return
        try:
            answer = await sent.answer
            if answer is not None:
                self.apply(sent, answer)
                return
        except BaseException as error:
            self._put_back(sent, unsure=True)
            if not isinstance(error, Exception):
                raise
            return
        self._put_back(sent, unsure=False)

    def _put_back(self, sent: Call, *, unsure: bool) -> None:
        """Let the next call settle what this one may not have."""
        if unsure:
            mark_unsure(sent.ended)
            self._queues.ask_again(sent.ask.pool)
            self._state.unsure = True
        self._state.ended[:0] = sent.ended
