"""Maintenance: what time alone does. It sleeps until the store says that there is something.

Where several processes use a store, one of them does it for all.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core import bounds
from millpond.core.control import Prune
from millpond.core.event import EVENTS, TRIGGERS
from millpond.core.plan import sooner
from millpond.core.retention import DEFAULT, in_force
from millpond.core.task import CALLBACKS
from millpond.runtime.fleet.leader import Leadership
from millpond.runtime.fleet.renew import RENEWALS_PER_LEASE, SLOW

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millpond.core.retention import Retention
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.maintenance")

REPLAYED = (EVENTS, TRIGGERS)
"""What the names of pools begin with whose tasks can be replayed."""

PRUNE_EVERY = 60.0
GUARD_EVERY = 300.0
"""Seconds between two looks of a leader at the counts of its store, while it has things to do."""

LOOK_AT_ALL_EVERY = 600.0
"""Seconds after which every pool is asked again how long it keeps its records."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds to wait after the store failed, doubling."""

SHORTEST_SLEEP = 0.001

STEP = 5.0
"""Seconds by which the store's time must be moved for timers to be set anew."""

RECOVER_EVERY = 0.2
"""Seconds between two recoveries by a leader, whatever it is told meanwhile."""

NEVER = bounds.MAX_SECONDS
"""Seconds that no wait is as long as: the lease of a worker that nobody can outlive."""


class Maintenance:
    """Recovers lost work and forgets what is old; sees to it that leases are renewed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._pruned_at = runtime.clock()
        self._guarded_at = runtime.steady()
        self._due_at: float | None = 0.0
        """When there is something to do for whoever leads; None = not before it is told."""
        self._recover_after = 0.0
        """Before then nobody is given up, by the steady clock."""
        self._away_since: float | None = None
        """Since when others are given time, by the steady clock; None = they had all they need."""
        self._drift = self._seen_drift = runtime.clock() - runtime.steady()
        self._pause = 0.0
        self.leadership = Leadership(runtime)
        self._everything = False
        """Whether any pool of the store may keep something, also one that is not known here."""
        self._forgot_at = runtime.clock()
        self._kept: set[str] = set()
        """The pools of which ended tasks may be kept."""
        self._keys: dict[str, float] = {}
        """The pools of which only keys and runs are kept, and until when."""
        self._audit_of: tuple[float, set[str], float] | None = None
        """Until when, for which pools, and how long the audit is kept."""
        self._pruning: asyncio.Task[None] | None = None
        self._replayable: dict[str, float] = {}
        """Pools that triggers submit to, and for how long their events can be replayed."""
        self._audit_before: float | None = None
        """This turn prunes audit records from before this moment; None = it prunes none."""
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

    async def _guard(self) -> None:
        """Look now and then whether a count is impossible, and have everything counted anew."""
        runtime, can = self._runtime, self._runtime.abilities
        if can.miscounted is None or can.mend is None:
            return
        if runtime.steady() < self._guarded_at + GUARD_EVERY:
            return
        self._guarded_at = runtime.steady()
        wrong = await can.miscounted()
        if wrong:
            log.error("counts are impossible, and everything is counted anew: %s", wrong[:5])
            await self._mend(can.mend)

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
        self._look_after_a_step()
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
        runtime.failures.lost(answer.lost)
        if runtime.hooks.probes is not None:
            runtime.hooks.probes.recovered(answer.moved)
        if answer.more:
            return runtime.clock()
        if runtime.abilities.elects:
            self._recover_after = runtime.steady() + RECOVER_EVERY
        await self._guard()
        return sooner(sooner(answer.next_at, self._at_the_latest()), self._prune())

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

    def _look_after_a_step(self) -> None:
        """Notice that the store's time was moved: what is awaited until a moment is asked anew."""
        runtime = self._runtime
        now = runtime.clock()
        drift = now - runtime.steady()
        moved, self._seen_drift = abs(drift - self._seen_drift), drift
        if moved < STEP:
            return
        self._pruned_at, self._forgot_at = min(self._pruned_at, now), min(self._forgot_at, now)
        if self._due_at is not None:
            self._due_at = 0.0
        runtime.spawn(self.look())

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

    def _prune(self) -> float | None:
        """Have what is older than it is kept forgotten, now and then; return when to look again.

        That is done beside the rounds, which renew leases and recover what is lost: a store that is
        slow, or one with thousands of pools, must not cost a worker its lease.
        """
        runtime = self._runtime
        if runtime.shared and runtime.abilities.changed is None:
            self._kept.update(runtime.declared)
        now, due = runtime.clock(), self._pruned_at + PRUNE_EVERY
        if now < due:
            return self._prune_next(due)
        self._pruned_at = now
        if self._pruning is None and self._anything_old(now):
            self._pruning = runtime.spawn(self._prune_all())
        return self._prune_next(now + PRUNE_EVERY)

    def _anything_old(self, now: float) -> bool:
        """Return whether something may be older than it is kept."""
        first = sooner(min(self._keys.values(), default=None), self._records_until)
        return self._everything or bool(self._kept) or (first is not None and first < now)

    async def _prune_all(self) -> None:
        """Forget what is old of every pool, one after another."""
        try:
            for pool in await self._choose():
                if self.leadership.leads:
                    await self._prune_one(pool)
        except Exception as error:
            if not self._runtime.outages.failed(self._prune_all, error):
                log.exception("pruning failed; it is tried again in a minute")
        else:
            self._runtime.outages.worked(self._prune_all)
        finally:
            self._pruning = None

    async def _choose(self) -> list[str]:
        """Return the pools to prune in this turn."""
        runtime = self._runtime
        now = runtime.clock()
        over = {pool for pool, until in self._keys.items() if until < now}
        known = set(runtime.declared)
        if runtime.abilities.elects and (self._everything or self._kept or over):
            known |= await self._pools_of_all()
        chosen = self._kept | over
        to_prune = sorted(chosen & known)
        for pool in chosen - known:
            self._kept.discard(pool)
            self._keys.pop(pool, None)
        self._replayable = await self._replays() if to_prune else {}
        # Only the number of its audit records bounds a store that no other process shares.
        records = await self._longest_audit(known) if runtime.shared else None
        self._audit_before = None if records is None else now - records
        if chosen and records is not None:
            self._records_until = now + records
        elif self._records_until is not None and self._records_until < now:
            # Records are of no pool: whichever is asked forgets those of all.
            self._records_until = None
            to_prune = list(runtime.declared)[:1]
        return to_prune

    async def _prune_one(self, pool: str) -> None:
        """Forget what is old of one pool, page by page, and note whether anything is left."""
        runtime = self._runtime
        now = runtime.clock()
        keep = await self._keep_of(pool)
        keys = max(keep.keys, self._replayable.get(pool, 0.0))
        order = Prune(
            pool,
            now - (keep.events if pool.startswith(REPLAYED) else keep.completed),
            now - keep.failed,
            keys_before=now - keys,
            audit_before=self._audit_before,
        )
        more = True
        while more:
            more = (await runtime.store.control(order)).count >= order.limit
            await asyncio.sleep(0)
        self._keys.pop(pool, None)
        if pool in self._kept and not await self._anything_kept(pool):
            self._kept.discard(pool)
            self._keys[pool] = now + keys

    async def _replays(self) -> dict[str, float]:
        """Return how long events can be replayed into each pool that a trigger submits to.

        A replay finds what was made of its event by the key, so keys stay for as long.
        """
        view = self._runtime.view
        into = {}
        for name in await view.names(TRIGGERS):
            told = await view.pool(name, measured=False)
            if told is not None and told.declared.trigger is not None:
                into[told.declared.trigger.into] = 0.0
        return dict.fromkeys(into, (await self._keep_of(EVENTS)).events) if into else into

    async def _keep_of(self, pool: str) -> Retention:
        """Return how long a pool's records are kept: as is stored with it, whoever leads."""
        view = await self._runtime.view.pool(pool, measured=False)
        return in_force(None if view is None else view.declared.keep)

    async def _longest_audit(self, pools: set[str]) -> float:
        """Return how long audit records are kept: they are of all pools, so the longest counts.

        Declarations change seldom: what was found is asked for again after a while.
        """
        now = self._runtime.clock()
        if self._audit_of is None or self._audit_of[0] < now or not pools <= self._audit_of[1]:
            longest = [(await self._keep_of(pool)).audit for pool in sorted(pools)]
            self._audit_of = (now + LOOK_AT_ALL_EVERY, pools, max(longest, default=DEFAULT.audit))
        return self._audit_of[2]

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
        keeps = [in_force(spec.keep) for spec in runtime.declared.values()] or [DEFAULT]
        runtime.waiting.forget_values(now - max(keep.completed for keep in keeps))
        runtime.waiting.forget_causes(now - max(keep.failed for keep in keeps))

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
