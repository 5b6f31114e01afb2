"""Pruning: remove ended tasks, keys and audit records that are older than their pool keeps them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.control import Prune
from millpond.core.event import EVENTS, TRIGGERS
from millpond.core.log_fields import about
from millpond.core.plan import sooner
from millpond.core.retention import DEFAULT, in_force
from millpond.core.service import Service
from millpond.core.task import CALLBACKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.core.retention import Retention
    from millpond.core.spec import PoolSpec
    from millpond.runtime.environment import Environment
    from millpond.runtime.fleet.leader import Leadership
    from millpond.runtime.kept_pools import KeptPools
    from millpond.runtime.observe.outage import Outages
    from millpond.runtime.waiting.results import Waiting

log = logging.getLogger("millpond.maintenance")

REPLAYED = (EVENTS, TRIGGERS)
"""Prefixes of pools whose tasks can be replayed."""

PRUNE_EVERY = 60.0

READ_AUDIT_RETENTION_EVERY = 600.0
"""Seconds after which every pool is asked again how long it keeps audit records."""

SHORTEST_SLEEP = 0.001


class Pruner(Service):
    """Removes old records, one pool after another, beside the rounds of maintenance."""

    _env: Environment
    _outages: Outages
    _leadership: Leadership
    _waiting: Waiting
    _kept: KeptPools
    _specs: Mapping[str, PoolSpec]
    _keys: dict[str, float] = {}
    """The pools of which only keys and runs are kept, and until when."""
    _audit_retention: tuple[float, set[str], float] | None = None
    """Until when it counts, for which pools, and how long audit records are kept."""
    _pruning: asyncio.Task[None] | None = None
    _replayable: dict[str, float] = {}
    """Pools that triggers submit to, and for how long their events can be replayed."""
    _audit_before: float | None = None
    """This round removes audit records from before this moment; None = it removes none."""
    _audit_until: float | None = None
    """When the last audit records are too old, once nothing else is left to remove."""

    def __post_init__(self) -> None:
        self._pruned_at = self._env.clock()
        self._forgot_at = self._env.clock()

    def clock_was_set(self, now: float) -> None:
        """Prune no later than planned, though the clock was set back."""
        self._pruned_at, self._forgot_at = min(self._pruned_at, now), min(self._forgot_at, now)

    def prune(self) -> float | None:
        """Start pruning if it is time; return when to look again.

        It runs beside the rounds, which renew leases and recover lost tasks: a slow store, or one
        with thousands of pools, must not cost a worker its lease.
        """
        env = self._env
        if env.shared and env.shared_store.changed is None:
            self._kept.pools.update(self._specs)
        now, due = env.clock(), self._pruned_at + PRUNE_EVERY
        if now < due:
            return self._next(due)
        self._pruned_at = now
        if self._pruning is None and self._anything_old(now):
            self._pruning = env.spawn(self._prune_all())
        return self._next(now + PRUNE_EVERY)

    def _anything_old(self, now: float) -> bool:
        """Return whether something may be older than it is kept."""
        first = sooner(min(self._keys.values(), default=None), self._audit_until)
        return self._kept.any_pool or bool(self._kept.pools) or (first is not None and first < now)

    def _next(self, soonest: float) -> float | None:
        """Return when to prune again: soon while tasks are kept, else when keys grow old."""
        if self._kept.pools:
            return soonest
        last = sooner(min(self._keys.values(), default=None), self._audit_until)
        return None if last is None else max(last + SHORTEST_SLEEP, soonest)

    async def _prune_all(self) -> None:
        """Remove old records of every pool, one after another."""
        try:
            for pool in await self._choose():
                if self._leadership.leads:
                    await self._prune_one(pool)
        except Exception as error:
            if not self._outages.failed(self._prune_all, error):
                log.exception(
                    "pruning failed; trying again in a minute",
                    extra=about("prune.failed", reason=type(error).__name__),
                )
        else:
            self._outages.worked(self._prune_all)
        finally:
            self._pruning = None

    async def _choose(self) -> list[str]:
        """Return the pools to prune in this round."""
        env = self._env
        now = env.clock()
        over = {pool for pool, until in self._keys.items() if until < now}
        known = set(self._specs)
        if env.shared_store.elects and (self._kept.any_pool or self._kept.pools or over):
            known |= await self._all_pools()
        chosen = self._kept.pools | over
        to_prune = sorted(chosen & known)
        for pool in chosen - known:
            self._kept.pools.discard(pool)
            self._keys.pop(pool, None)
        self._replayable = await self._replays() if to_prune else {}
        # Only the number of its audit records bounds a store that no other process shares.
        audit = await self._longest_audit(known) if env.shared else None
        self._audit_before = None if audit is None else now - audit
        if chosen and audit is not None:
            self._audit_until = now + audit
        elif self._audit_until is not None and self._audit_until < now:
            # Audit records belong to no pool: an order for any pool removes those of all.
            self._audit_until = None
            to_prune = list(self._specs)[:1]
        return to_prune

    async def _prune_one(self, pool: str) -> None:
        """Remove old records of one pool, page by page, and note whether anything is left."""
        now = self._env.clock()
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
            more = (await self._env.store.control(order)).count >= order.limit
            await asyncio.sleep(0)
        self._keys.pop(pool, None)
        if pool in self._kept.pools and not await self._anything_kept(pool):
            self._kept.pools.discard(pool)
            self._keys[pool] = now + keys

    async def _replays(self) -> dict[str, float]:
        """Return how long events can be replayed into each pool that a trigger submits to.

        A replay finds the tasks of its event by their keys, so keys stay for as long.
        """
        view = self._env.view
        into = {}
        for name in await view.names(TRIGGERS):
            found = await view.pool(name, measured=False)
            if found is not None and found.declared.trigger is not None:
                into[found.declared.trigger.into] = 0.0
        return dict.fromkeys(into, (await self._keep_of(EVENTS)).events) if into else into

    async def _keep_of(self, pool: str) -> Retention:
        """Return the retention that is stored with a pool."""
        view = await self._env.view.pool(pool, measured=False)
        return in_force(None if view is None else view.declared.keep)

    async def _longest_audit(self, pools: set[str]) -> float:
        """Return how long audit records are kept: all pools share them, so the longest counts.

        Declarations change seldom: the result is read again after a while.
        """
        now, known = self._env.clock(), self._audit_retention
        if known is None or known[0] < now or not pools <= known[1]:
            longest = [(await self._keep_of(pool)).audit for pool in sorted(pools)]
            until = now + READ_AUDIT_RETENTION_EVERY
            known = self._audit_retention = (until, pools, max(longest, default=DEFAULT.audit))
        return known[2]

    async def _all_pools(self) -> set[str]:
        """Return every pool of the store: the leader prunes those of all processes."""
        pools = set(await self._env.view.names())
        if self._kept.any_pool:
            self._kept.pools |= pools
        self._kept.any_pool = False
        return pools

    async def _anything_kept(self, pool: str) -> bool:
        """Return whether the store has ended tasks of a pool; if not, its next end starts again."""
        for name in (pool, pool + CALLBACKS):
            view = await self._env.view.pool(name, measured=False)
            if view is not None and view.kept:
                return True
        return False

    def forget_here(self) -> None:
        """Drop the old results that only this process remembers."""
        now = self._env.clock()
        if now < self._forgot_at + PRUNE_EVERY:
            return
        self._forgot_at = now
        keeps = [in_force(spec.keep) for spec in self._specs.values()] or [DEFAULT]
        self._waiting.forget_values(now - max(keep.completed for keep in keeps))
        self._waiting.forget_causes(now - max(keep.failed for keep in keeps))
