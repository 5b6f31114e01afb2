"""Queues: which queue a worker asks for work next, and when.

A worker never polls a queue that has nothing for it, and never sleeps through work that is due.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.event import SYSTEM
from millpond.core.lease import LeaseRequest
from millpond.core.log_fields import about
from millpond.core.order.heap import LazyHeap
from millpond.core.plan import ClaimTimer, Wake, Work
from millpond.core.service import Service
from millpond.core.task import CALLBACKS
from millpond.runtime.declarations import limit_of
from millpond.runtime.worker.state import MOST_AT_ONCE

if TYPE_CHECKING:
    import asyncio

    from millpond.runtime.worker.prefetch import Prefetch
    from millpond.runtime.worker.schedule import TurnSchedule
    from millpond.runtime.worker.state import WorkerState
    from millpond.store.protocol import LeaseAnswer

log = logging.getLogger("millpond.worker")

FEW_QUEUES = 16
"""Up to so many queues are asked one by one; of more, one read first says which have work."""

FAR = 3e8
"""Seconds in which everything that waits is due: ten years."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds for which a queue rests of which nothing could be leased, doubling."""


class Queues(Service):
    """The queues of one worker: pools and their callbacks."""

    _state: WorkerState
    _schedule: TurnSchedule
    _prefetch: Prefetch
    _watches: dict[str, ClaimTimer] = {}
    _empty: set[str] = set()
    """Queues whose last answer said that nothing waits in them."""
    due: dict[str, None] = {}
    """Queues to ask in the next turn."""
    unseen: dict[str, None] = {}
    """Due queues of which nothing is known: one read says which have work."""
    _timer: asyncio.TimerHandle | None = None
    _pauses: dict[str, float] = {}
    """Seconds for which queues rest of which nothing could be leased."""

    def __post_init__(self) -> None:
        self._env = self._state.env
        self._moments: LazyHeap[str] = LazyHeap()

    def __contains__(self, queue: str) -> bool:
        return queue in self._watches

    def watch(self, pool: str) -> None:
        """Serve a pool and its callbacks from now on, if it is one of the worker's pools.

        Every worker serves the pools of events and triggers: their tasks are short, and there may
        be no worker without a list of pools.
        """
        state = self._state
        chosen = state.pools is None or pool in state.pools
        if not chosen and (state.own or not pool.startswith(SYSTEM)):
            return
        for name in (pool,) if state.own else (pool, pool + CALLBACKS):
            if name not in self._watches:
                self._watches[name] = ClaimTimer()
                self.unseen[name] = None
        self._schedule.kick()

    def look_everywhere(self) -> None:
        """Ask every queue again: what is known about them may be old."""
        for queue, watch in self._watches.items():
            watch.wake(Wake(queue, 0.0))
            self.unseen[queue] = None
        self._empty.clear()
        self._schedule.kick()

    def woken(self, wake: Wake) -> None:
        """Note that a queue may have something to start."""
        watch = self._watches.get(wake.pool)
        if watch is None or (self._state.own and not self._state.services.closures):
            return
        watch.wake(wake)
        self._empty.discard(wake.pool)
        self._prefetch.none_left.discard(wake.pool)
        self._look_at(wake.pool, watch)

    def _look_at(self, queue: str, watch: ClaimTimer) -> None:
        """Ask a queue at its moment, which may be sooner than the latest wake says."""
        moment = watch.moment
        if moment is None:
            return
        if moment <= self._env.clock():
            self.due[queue] = None
            self._schedule.kick()
        else:
            # The soonest of all wakes: a later one must not put off an earlier one.
            self._moments.set(queue, (self._watches[queue].moment or moment,))
            self._arm()

    # Timers

    def _arm(self) -> None:
        """Set the timer to the soonest moment at which a queue has something due."""
        soonest = self._moments.lowest()
        self.cancel_timer()
        if soonest is not None and not self._state.stopping:
            delay = max(soonest[0] - self._env.clock(), 0.0)
            self._timer = self._env.loop.call_later(delay, self._on_time)

    def cancel_timer(self) -> None:
        """Wake up at no moment any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        now = self._env.clock()
        while (soonest := self._moments.lowest()) is not None and soonest[0] <= now:
            queue = self._moments.peek() or ""
            self._moments.discard(queue)
            self.due[queue] = None
        if self.due:
            self._schedule.kick()
        self._arm()

    # What to ask

    async def look_up_unseen(self) -> None:
        """Mark those of the unseen queues as due that have something.

        Each ask takes the turn of a writer, so thousands of empty queues are not asked one by one.
        What is written meanwhile wakes its queue.
        """
        unseen, self.unseen = self.unseen, {}
        if len(unseen) <= FEW_QUEUES or not self._env.shared:
            self.due.update(unseen)
            return
        for queue in unseen:
            self._watches[queue].claim_sent()
        try:
            holding = set(await self._env.view.due(now=self._env.clock() + FAR))
        except BaseException:
            for queue in unseen:
                self._watches[queue].wake(Wake(queue, 0.0))
            self.unseen = unseen | self.unseen
            raise
        for queue in unseen:
            if queue in holding:
                self._watches[queue].wake(Wake(queue, 0.0))
                self.due[queue] = None

    def next_ask(self, *, settling: bool) -> LeaseRequest | None:
        """Return what to ask for next: of a due queue that has room here, as the plan says.

        A queue without a free slot here waits for one; the others need not wait for it.
        """
        state, prefetch, now = self._state, self._prefetch, self._env.clock()
        full = state.concurrency is not None and len(state.jobs) >= state.concurrency
        for queue in list(self.due):
            free = 0 if full and not _is_aside(queue) else self.free(queue)
            if free < 1:
                if prefetch.runs_low(queue, settling=settling):
                    # It stays due: this asks for nothing to start.
                    room = prefetch.room(queue)
                    return LeaseRequest(pool=queue, worker=state.name, want=0, ahead=room)
                continue
            del self.due[queue]
            watch = self._watches[queue]
            plan = watch.plan(free=free, now=now)
            if isinstance(plan, Work):
                watch.claim_sent()
                want = min(plan.want, MOST_AT_ONCE)
                room = prefetch.room(queue)
                return LeaseRequest(pool=queue, worker=state.name, want=want, ahead=room)
            if plan.moment is not None:
                self._moments.set(queue, (plan.moment,))
                self._arm()
        return None

    def only_prefetches(self, queue: str) -> bool:
        """Return whether all that may be asked for now is to prefetch more of a queue."""
        return (
            queue in self._prefetch.held
            and queue not in self._prefetch.none_left
            and queue in self.due
            and not self.unseen
            and (self.free(queue) < 1 or self._is_full(queue))
            and all(other == queue or self.free(other) < 1 for other in self.due)
        )

    def _is_full(self, queue: str) -> bool:
        """Return whether as many jobs of a queue run here as may run at all."""
        jobs, limit = self._state.jobs, limit_of(self._state.services.specs, queue)
        return len(jobs) >= limit == sum([job.leased.pool == queue for job in jobs.values()])

    def free(self, queue: str) -> int:
        """Return how many more jobs of a queue may run here."""
        concurrency = self._state.concurrency
        if concurrency is None or _is_aside(queue):
            # Callbacks and events have their own limit: a worker full of long jobs runs them too.
            return MOST_AT_ONCE
        return concurrency - len(self._state.jobs)

    # What the answers say

    def ask_again(self, queue: str) -> None:
        """Ask a queue in the next turn."""
        self._watches[queue].wake(Wake(queue, 0.0))
        self.due[queue] = None

    def slot_freed(self, queue: str) -> None:
        """Ask a queue again: a job left its slot, and no settlement reports it."""
        if queue in self._watches:
            self.ask_again(queue)
        self._schedule.kick()

    def job_ended(self, queue: str) -> None:
        """Ask a queue again with the settlement of a job, unless it is known to be empty."""
        if queue not in self.due and queue not in self._empty and queue in self._watches:
            self.ask_again(queue)

    def leased(self, queue: str) -> None:
        """Note that a lease of a queue was answered."""
        self._pauses.pop(queue, None)

    def answered(self, ask: LeaseRequest, answer: LeaseAnswer) -> None:
        """Note what an answer says about a queue, and when to ask it again."""
        queue, count = ask.pool, len(answer.leased)
        if answer.drained:
            self._empty.add(queue)
        elif self._empty:
            self._empty.discard(queue)
        if not ask.want:
            return
        watch = self._watches[queue]
        watch.claim_answered(want=ask.want, got=count, next_at=answer.next_at, now=0.0)
        if count >= ask.want:
            self.due[queue] = None
        elif answer.next_at is not None:
            self._look_at(queue, watch)

    def cannot_lease(self, ask: LeaseRequest, error: Exception) -> None:
        """Let a queue rest whose tasks cannot be leased; the others go on."""
        queue = ask.pool
        before = self._pauses.get(queue)
        pause = FIRST_PAUSE if before is None else min(before * 2, LONGEST_PAUSE)
        self._pauses[queue] = pause
        if before is None:
            log.error(
                "cannot lease tasks of pool %s (%s); trying again, other pools go on",
                queue,
                error,
                exc_info=error,
                extra=about("lease.failed", pool=queue, reason=type(error).__name__),
            )
        moment = self._env.clock() + pause
        self._watches[queue].wake(Wake(queue, moment))
        self._moments.set(queue, (moment,))
        self._state.unsure = True
        self._arm()


def _is_aside(queue: str) -> bool:
    """Return whether tasks of a queue run beyond the concurrency of a worker."""
    return queue.endswith(CALLBACKS) or queue.startswith(SYSTEM)
