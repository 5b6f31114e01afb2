"""Maintenance: what time alone does. It sleeps until the store says that there is something.

Where several processes use a store, one of them does it for all.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.control import Prune
from millpond.core.event import EVENTS, TRIGGERS
from millpond.core.plan import sooner
from millpond.core.task import CALLBACKS
from millpond.runtime.lead import Leadership
from millpond.runtime.renew import RENEWALS_PER_LEASE, SLOW

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.maintenance")

REPLAYED = (EVENTS, TRIGGERS)
"""What the names of pools begin with whose tasks can be replayed."""

PRUNE_EVERY = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds to wait after the store failed, doubling."""

SHORTEST_SLEEP = 0.001

RECOVER_EVERY = 0.2
"""Seconds between two recoveries by a leader, whatever it is told meanwhile."""

NEVER = 1e9
"""Seconds that no wait is as long as: the lease of a worker that nobody can outlive."""


class Maintenance:
    """Recovers lost work and forgets what is old; sees to it that leases are renewed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._pruned_at = runtime.clock()
        self._due_at: float | None = 0.0
        """When there is something to do for whoever leads; None = not before it is told."""
        self._recover_after = 0.0
        """Before then nobody is given up, by the steady clock."""
        self._away_since: float | None = None
        """Since when others are given time, by the steady clock; None = they had all they need."""
        self._drift = runtime.clock() - runtime.steady()
        self._pause = 0.0
        self.leadership = Leadership(runtime)
        self._everything = False
        """Whether any pool of the store may keep something, also one that is not known here."""
        self._forgot_at = runtime.clock()
        self._kept: set[str] = set()
        """The pools of which ended tasks may be kept."""
        self._keys: dict[str, float] = {}
        """The pools of which only keys and runs are kept, and until when."""
        self._records_until: float | None = None
        """When the last records of the audit grow old, once nothing else is left to forget."""

    def start(self) -> None:
        """Begin, once there is a worker; of one more, keep the leases from now on."""
        if self._task is None:
            self._task = self._runtime.loop.create_task(self._main(), name="millpond maintenance")
            self._runtime.loop.call_soon(self._nudge.set)
        elif self._runtime.shared:
            # It may sleep for ever since the last worker left, or for longer than this lease.
            self._nudge.set()

    async def stop(self) -> None:
        """End; safe before start, and safe twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def nudge(self) -> None:
        """Something may be due earlier than was known."""
        self._nudge.set()

    def store_was_away(self, lease: float) -> None:
        """Others could not renew any more than we could: let them, before they are called dead.

        For a lease in all: where it is away again and again, or always slow, the dead stay dead.
        """
        now = self._runtime.steady()
        if self._away_since is None or now > self._recover_after + lease:
            self._away_since = now
        until = min(now + lease / RENEWALS_PER_LEASE, self._away_since + lease)
        self._recover_after = max(self._recover_after, until)

    def somebody_died(self) -> None:
        """A process was buried: perhaps it led."""
        self.leadership.ask_now()
        self._nudge.set()

    def others_wrote(self) -> None:
        """Something may expire earlier, or is kept, that nobody told us of."""
        if self._task is not None and self.leadership.leads and self._runtime.abilities.elects:
            self.keep(None)
            self._nudge.set()

    def took_over(self) -> None:
        """This process leads now: what was left lying about is for it."""
        self._due_at = 0.0
        self.keep(None)
        if self._runtime.abilities.mend is not None:
            self._runtime.spawn(self._mend(self._runtime.abilities.mend))

    async def _mend(self, mend: Callable[[], Awaitable[tuple[str, ...]]]) -> None:
        """See to it that what is stored fits together: nobody else looks."""
        wrong = await mend()
        if wrong:
            self._runtime.counts.mended += len(wrong)
            self._nudge.set()
            await self.look()

    def keep(self, pool: str | None) -> None:
        """A task of a pool (None = of any) ended: it is kept, and forgotten in its time."""
        first = not self._kept
        self._everything = self._everything or pool is None
        self._kept.update(self._runtime.declared if pool is None else (pool,))
        if first:
            self._nudge.set()

    def keeps(self, pool: str) -> bool:
        """Return whether it is known that ended tasks of a pool are kept."""
        return pool in self._kept

    async def _main(self) -> None:
        while True:
            # What comes up during a round is for the next one.
            if self._nudge.is_set():
                self._nudge.clear()
                self._due_at = 0.0
            try:
                moment = await self._round()
            except Exception as error:  # noqa: BLE001 - whatever it was, leases must be renewed
                moment = self._runtime.clock() + self._back_off(error)
            else:
                self._pause = 0.0
                self._runtime.outages.worked(self)
            delay = NEVER if moment is None else moment - self._runtime.clock()
            if delay >= NEVER / 2:
                await self._nudge.wait()
                continue
            delay = max(delay, SHORTEST_SLEEP)
            try:
                async with asyncio.timeout(delay):
                    await self._nudge.wait()
            except TimeoutError:
                pass

    def _back_off(self, error: Exception) -> float:
        """Return how long to wait after a failure: longer each time, and told once."""
        if not self._runtime.outages.failed(self, error) and not self._pause:
            log.error("maintenance failed (%s); it tries again", error, exc_info=error)
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        return self._pause

    async def _round(self) -> float | None:
        """Do what is due; return when to look again."""
        # Our own leases first: what keeps us alive must not wait behind what is lost.
        renewal = self._by_the_clock(await self._runtime.renewals.round())
        leads = await self.leadership.attend()
        moment = sooner(renewal, self._by_the_clock(self.leadership.ask_at))
        self._forget_here()
        if not leads:
            return moment
        if self._due_at is not None and self._due_at <= self._runtime.clock():
            self._due_at = await self._maintained()
        return sooner(moment, self._due_at)

    async def _maintained(self) -> float | None:
        """Do what time alone does, unless it is too early to say; return when to look again."""
        runtime, leadership = self._runtime, self.leadership
        self._look_at_the_clock()
        if runtime.steady() < self._recover_after:
            return self._by_the_clock(self._recover_after)
        self._away_since = None
        if leadership.generation is None:
            answer = await runtime.store.recover()
        else:
            answer = await runtime.store.recover(generation=leadership.generation)
        if answer.deposed:
            leadership.deposed()
            return runtime.clock()
        runtime.heed(answer)
        if runtime.hooks.probes is not None:
            runtime.hooks.probes.recovered(answer.moved)
        if answer.more:
            return runtime.clock()
        if runtime.abilities.elects:
            self._recover_after = runtime.steady() + RECOVER_EVERY
        return sooner(sooner(answer.next_at, self._at_the_latest()), await self._prune())

    def _at_the_latest(self) -> float | None:
        """Return when to recover where nothing tells what others submit that may expire."""
        runtime = self._runtime
        if not runtime.shared or runtime.abilities.changed is not None or not runtime.workers:
            return None
        shortest = min(worker.lease for worker in runtime.workers)
        return runtime.clock() + shortest / RENEWALS_PER_LEASE

    def _look_at_the_clock(self) -> None:
        """Notice that the clock was set: leases did not run out because of that."""
        runtime = self._runtime
        drift = runtime.clock() - runtime.steady()
        lease = min((worker.lease for worker in runtime.workers), default=NEVER)
        if abs(drift - self._drift) > SLOW * lease:
            self.store_was_away(lease)
        self._drift = drift

    def _by_the_clock(self, moment: float | None) -> float | None:
        """Return a moment of the steady clock as one of the clock that the store goes by."""
        if moment is None:
            return None
        return self._runtime.clock() + moment - self._runtime.steady()

    async def look(self) -> None:
        """Ask after work for everybody, and after the tasks somebody waits for."""
        for worker in self._runtime.workers:
            worker.look_everywhere()
        await self._runtime.waiting.look()

    async def _prune(self) -> float | None:
        """Forget what is older than it is kept, now and then, while there is anything to forget."""
        runtime = self._runtime
        now = runtime.clock()
        due = self._pruned_at + PRUNE_EVERY
        if runtime.shared and runtime.abilities.changed is None:
            self._kept.update(runtime.declared)
        if now < due:
            return self._prune_next(due)
        self._pruned_at = now
        keep = runtime.keep
        over = {pool for pool, until in self._keys.items() if until < now}
        known = set(runtime.declared)
        if runtime.abilities.elects and (self._everything or self._kept or over):
            known |= await self._pools_of_all()
        chosen = self._kept | over
        if chosen and runtime.shared:
            self._records_until = now + float(keep.audit)  # type: ignore[arg-type]
        elif self._records_until is not None and self._records_until < now:
            # Records are of no pool: whichever is asked forgets those of all.
            self._records_until = None
            chosen = set(list(runtime.declared)[:1])
        for pool in sorted(chosen & known):
            order = Prune(
                pool,
                now - float(keep.events if pool.startswith(REPLAYED) else keep.completed),  # type: ignore[arg-type]
                now - float(keep.failed),  # type: ignore[arg-type]
                keys_before=now - float(keep.keys),  # type: ignore[arg-type]
                audit_before=now - float(keep.audit),  # type: ignore[arg-type]
            )
            more = True
            while more:
                more = (await runtime.store.control(order)).count >= order.limit
                await asyncio.sleep(0)
        for pool in over:
            del self._keys[pool]
        for pool in sorted(self._kept):
            if not await self._anything_kept(pool):
                self._kept.discard(pool)
                self._keys[pool] = now + float(keep.keys)  # type: ignore[arg-type]
        return self._prune_next(now + PRUNE_EVERY)

    async def _pools_of_all(self) -> set[str]:
        """Return every pool of the store: whoever leads looks after those of all processes."""
        pools = set(await self._runtime.view.names())
        if self._everything:
            self._kept |= pools
        self._everything = False
        return pools

    def _forget_here(self) -> None:
        """Let go of what this process remembers beyond what is stored: nobody else can."""
        runtime = self._runtime
        now = runtime.clock()
        if now < self._forgot_at + PRUNE_EVERY:
            return
        self._forgot_at = now
        runtime.waiting.forget_values(now - float(runtime.keep.completed))  # type: ignore[arg-type]
        runtime.waiting.forget_causes(now - float(runtime.keep.failed))  # type: ignore[arg-type]

    def _prune_next(self, soonest: float) -> float | None:
        """Return when to forget again: soon while tasks are kept, else when keys grow old."""
        if self._kept:
            return soonest
        last = sooner(min(self._keys.values(), default=None), self._records_until)
        return None if last is None else max(last + SHORTEST_SLEEP, soonest)

    async def _anything_kept(self, pool: str) -> bool:
        """Return whether there is something of a pool to forget; if not, its next end will tell."""
        for name in (pool, pool + CALLBACKS):
            view = await self._runtime.view.pool(name, measured=False)
            if view is not None and view.kept:
                return True
        return False
