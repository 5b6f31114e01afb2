"""Maintenance: renew leases, recover lost tasks, prune old ones; it sleeps until something is due.

Where several processes use a store, one of them recovers and prunes for all.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core import bounds
from millpond.core.log_fields import about
from millpond.core.plan import sooner
from millpond.core.service import Service
from millpond.runtime.fleet.lease_times import RENEWALS_PER_LEASE, SLOW
from millpond.runtime.fleet.prune import SHORTEST_SLEEP

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from millpond.runtime.answers import Answers
    from millpond.runtime.environment import Environment
    from millpond.runtime.fleet.compact import Compactor
    from millpond.runtime.fleet.leader import Leadership
    from millpond.runtime.fleet.prune import Pruner
    from millpond.runtime.fleet.recovery_delay import RecoveryDelay
    from millpond.runtime.fleet.renew import Renewals
    from millpond.runtime.jobs.job import WorkerProtocol
    from millpond.runtime.kept_pools import KeptPools
    from millpond.runtime.observe.failure_log import Failures
    from millpond.runtime.observe.hooks import Hooks
    from millpond.runtime.observe.outage import Outages
    from millpond.runtime.waiting.results import Waiting

log = logging.getLogger("millpond.maintenance")

CHECK_COUNTS_EVERY = 300.0
"""Seconds between two checks of the counts of a store by its leader, while it is active."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds to wait after the store failed, doubling."""

STEP = 5.0
"""Seconds by which the clock must be set for timers to be set again."""

RECOVER_EVERY = 0.2
"""Seconds between two recoveries by a leader, however often it is nudged."""

NEVER = bounds.MAX_SECONDS
"""Seconds that no wait is as long as: the lease of a worker that no other can replace."""


class Maintenance(Service):
    """Renews leases, and recovers and prunes if this process leads."""

    _env: Environment
    _outages: Outages
    _workers: Sequence[WorkerProtocol]
    _answers: Answers
    _failures: Failures
    _hooks: Hooks
    _waiting: Waiting
    _kept: KeptPools
    leadership: Leadership
    delay: RecoveryDelay
    _renewals: Renewals
    _pruner: Pruner
    _compactor: Compactor
    _nudged: asyncio.Event
    _task: asyncio.Task[None] | None = None
    _due_at: float | None = 0.0
    """When there is something for the leader to do; None = not before a nudge."""
    _pause: float = 0.0

    def __post_init__(self) -> None:
        self._counts_checked_at = self._env.steady()
        self._drift = self._seen_drift = self._env.clock() - self._env.steady()

    def start(self) -> None:
        """Begin, once there is a worker; with one more worker, renew its lease too."""
        if self._task is None:
            loop = self._env.loop
            self._task = loop.create_task(self._main(), name="millpond maintenance")
            loop.call_soon(self._nudged.set)
        elif self._env.shared:
            # It may sleep for ever since the last worker left, or for longer than this lease.
            self._nudged.set()

    async def stop(self) -> None:
        """End; safe before start, and safe twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def nudge(self) -> None:
        """Look again soon: something may be due earlier than known."""
        self._nudged.set()

    def others_wrote(self) -> None:
        """Look again if this process leads: another process wrote what may expire or be kept."""
        store = self._env.shared_store
        if self._task is not None and self.leadership.leads and store.elects:
            self._kept.keep(None)
            self._nudged.set()

    def took_over(self) -> None:
        """Recover and prune everything, and repair the store: this process leads now."""
        self._due_at = 0.0
        self._kept.keep(None)
        if self._env.shared_store.repair is not None:
            self._env.spawn(self._repair(self._env.shared_store.repair))

    async def _repair(self, repair: Callable[[], Awaitable[tuple[str, ...]]]) -> None:
        """Repair inconsistent rows, if there are any."""
        wrong = await repair()
        if wrong:
            self._hooks.counts.mended += len(wrong)
            self._nudged.set()
            await self.look()

    async def _check_counts(self) -> None:
        """Check now and then whether a count is impossible, and repair the store if so."""
        env, store = self._env, self._env.shared_store
        if store.impossible_counts is None or store.repair is None:
            return
        if env.steady() < self._counts_checked_at + CHECK_COUNTS_EVERY:
            return
        self._counts_checked_at = env.steady()
        wrong = await store.impossible_counts()
        if wrong:
            log.error(
                "counts are impossible; recounting all tasks: %s",
                wrong[:5],
                extra=about("store.impossible_counts"),
            )
            await self._repair(store.repair)

    async def _main(self) -> None:
        while True:
            # A nudge during a round is for the next one.
            if self._nudged.is_set():
                self._nudged.clear()
                self._due_at = 0.0
            try:
                moment = await self._round()
            except Exception as error:  # noqa: BLE001 - whatever it was, leases must be renewed
                moment = self._env.clock() + self._back_off(error)
            else:
                self._pause = 0.0
                self._outages.worked(self)
            delay = NEVER if moment is None else moment - self._env.clock()
            if delay >= NEVER / 2:
                await self._nudged.wait()
                continue
            delay = max(delay, SHORTEST_SLEEP)
            try:
                async with asyncio.timeout(delay):
                    await self._nudged.wait()
            except TimeoutError:
                pass

    def _back_off(self, error: Exception) -> float:
        """Return how long to wait after a failure, longer each time; log the first."""
        if not self._outages.failed(self, error) and not self._pause:
            log.error(
                "maintenance failed (%s); trying again",
                error,
                exc_info=error,
                extra=about("maintenance.failed", reason=type(error).__name__),
            )
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        return self._pause

    async def _round(self) -> float | None:
        """Do what is due; return when to look again."""
        self._look_after_a_step()
        # Our own leases first: they must not wait for the recovery of others.
        renewal = self._by_the_clock(await self._renewals.round())
        if await self.leadership.renew():
            self.took_over()
        moment = sooner(renewal, self._by_the_clock(self.leadership.ask_at))
        self._pruner.forget_here()
        if not self.leadership.leads:
            return moment
        if self._due_at is not None and self._due_at <= self._env.clock():
            self._due_at = await self._recover()
        return sooner(moment, self._due_at)

    async def _recover(self) -> float | None:
        """Recover and prune, unless others still have time to renew; return when to look again."""
        env, leadership = self._env, self.leadership
        self._look_at_the_clock()
        if not self.delay.is_over:
            return self._by_the_clock(self.delay.until)
        self.delay.ended()
        if leadership.generation is None:
            answer = await env.store.recover()
        else:
            answer = await env.store.recover(generation=leadership.generation)
        if answer.deposed:
            leadership.lost()
            return env.clock()
        self._answers.apply(answer)
        self._failures.lost(answer.lost)
        if self._hooks.probes is not None:
            self._hooks.probes.recovered(answer.moved)
        if answer.more:
            return env.clock()
        if env.shared_store.elects:
            self.delay.wait_at_least(RECOVER_EVERY)
        await self._check_counts()
        self._compactor.compact()
        return sooner(sooner(answer.next_at, self._at_the_latest()), self._pruner.prune())

    def _at_the_latest(self) -> float | None:
        """Return when to recover where no change report says what others submit that may expire."""
        env = self._env
        if not env.shared or env.shared_store.changed is not None or not self._workers:
            return None
        shortest = min(worker.lease for worker in self._workers)
        return env.clock() + shortest / RENEWALS_PER_LEASE

    def _look_at_the_clock(self) -> None:
        """Give others time to renew if the clock was set: their leases did not really expire."""
        drift = self._env.clock() - self._env.steady()
        lease = min((worker.lease for worker in self._workers), default=NEVER)
        if abs(drift - self._drift) > SLOW * lease:
            self.delay.store_was_away(lease)
        self._drift = drift

    def _look_after_a_step(self) -> None:
        """Set timers again if the clock was set."""
        env = self._env
        now = env.clock()
        drift = now - env.steady()
        moved, self._seen_drift = abs(drift - self._seen_drift), drift
        if moved < STEP:
            return
        self._pruner.clock_was_set(now)
        if self._due_at is not None:
            self._due_at = 0.0
        env.spawn(self.look())

    def _by_the_clock(self, moment: float | None) -> float | None:
        """Return a moment of the monotonic clock as one of the store's clock."""
        if moment is None:
            return None
        return self._env.clock() + moment - self._env.steady()

    async def look(self) -> None:
        """Make every worker ask for work, and find the ends of awaited tasks."""
        for worker in self._workers:
            worker.look_everywhere()
        await self._waiting.look()
