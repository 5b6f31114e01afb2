"""The pools and budgets that one Millpond declares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from millpond.core import validation as check
from millpond.core.adaptive import Adaptive
from millpond.core.rate import Rate
from millpond.core.spec import Backpressure, BudgetSpec, PoolSpec, fifo, lifo, priority
from millpond.core.spec import Order as QueueOrder
from millpond.errors import ConfigError, DuplicateName, UnknownPool
from millpond.pool.budget import Budget, SyncBudget
from millpond.pool.declared_pool import DeclaredPool, attempts_of
from millpond.pool.functions import Functions
from millpond.pool.internals import internals_of
from millpond.pool.options import policy
from millpond.pool.place_in_code import name_from_code
from millpond.pool.pool import Pool
from millpond.pool.scope import check_scope, stored_name
from millpond.pool.sync_pool import SyncPool
from millpond.runtime.jobs.policy import DEFAULT_RETRY
from millpond.runtime.retention import Keep

if TYPE_CHECKING:
    from millpond.core.retention import Retention
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.observe.hooks import DeadLetter, Empty


QueueName: TypeAlias = Literal["fifo", "lifo", "priority"]
"""Orders that need no settings, by name."""


class Pools:
    """Pools and budgets, by name."""

    def __init__(self, owner: RuntimeOwner) -> None:
        self._owner = owner
        self.functions = Functions(owner, self._declared)
        self.by_name: dict[str, Pool] = {}
        """By their stored names."""

    def pool(
        self,
        name: str | None = None,
        *,
        max_concurrent: int | Adaptive | None = None,
        queue: QueueOrder | QueueName | None = None,
        backpressure: Backpressure | None = None,
        max_per_key: int | None = None,
        rate: Rate | Sequence[Rate] | None = None,
        rate_per_key: Rate | None = None,
        lanes: int | None = None,
        ordered: bool = False,
        prefetch: int = 0,
        budgets: Sequence[Budget | SyncBudget] = (),
        max_callbacks: int = 16,
        keep: Keep | None = None,
        retry: Policy | None = None,
        on_dead_letter: Callable[[DeadLetter], object] | None = None,
        on_empty: Callable[[Empty], object] | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
    ) -> Pool:
        """Declare a pool; the store gets to know it when the Millpond is open.

        max_concurrent is 1 by default, or the number of lanes in a pool with lanes. With
        `adaptive(1, 50)` latency and failures move it, for the whole fleet. Without a name, the
        pool is named by its place in the code: `mail = mp.pool()` in module `shop` is `shop.mail`.
        """
        if name is None:
            name = name_from_code()
        check_scope(scope, scope_id, durable=self._owner.durable)
        stored = stored_name(name, scope, scope_id)
        if stored in self.by_name:
            message = f"a pool named {stored!r} exists already; mp.get_pool({stored!r}) returns it"
            raise DuplicateName(message, kind="pool", name=stored)
        strict = ordered or lanes is not None
        adapts = max_concurrent if isinstance(max_concurrent, Adaptive) else None
        if isinstance(max_concurrent, Adaptive):
            max_concurrent = max_concurrent.initial
        retries = policy("retry", retry)
        spec = PoolSpec(
            name=stored,
            max_concurrent=(lanes or 1) if max_concurrent is None else max_concurrent,
            order=_order(queue, strict=strict),
            backpressure=backpressure,
            max_per_key=max_per_key,
            rates=_rates(rate),
            rate_per_key=rate_per_key,
            lanes=lanes,
            ordered=ordered,
            prefetch=prefetch,
            budgets=tuple(self._shared(one) for one in budgets),
            adaptive=adapts,
            max_callbacks=max_callbacks,
            keep=self._kept(keep),
            attempts=attempts_of(retries or DEFAULT_RETRY),
        )
        declared = DeclaredPool(
            self._owner,
            spec,
            name=name,
            scope=scope,
            scope_id=scope_id,
            retry=retries,
            created_at=time.time(),
            serial_by_default=max_concurrent is None and spec.max_concurrent == 1,
        )
        return self._add(declared, on_dead_letter, on_empty)

    def _kept(self, keep: Keep | None) -> Retention | None:
        """Return how long a pool keeps ended tasks: its own setting, else that of its Millpond."""
        if keep is None:
            return self._owner.keep.of_pool(given=False)
        check.instance("keep", keep, Keep, "a Keep, such as Keep(completed=3600)")
        return keep.of_pool(given=True)

    def _add(
        self,
        pool: DeclaredPool,
        on_dead_letter: Callable[[DeadLetter], object] | None,
        on_empty: Callable[[Empty], object] | None,
    ) -> Pool:
        stored = pool.spec.name
        if on_dead_letter is not None:
            check.function("on_dead_letter", on_dead_letter)
        if on_empty is not None:
            check.function("on_empty", on_empty)
        made = self.by_name[stored] = Pool(pool, self.functions)
        if pool.retry is not None:
            self._owner.retries[stored] = pool.retry
        if on_dead_letter is not None:
            self._owner.hooks.on_dead_letter[stored] = on_dead_letter
        if on_empty is not None:
            self._owner.hooks.on_empty[stored] = on_empty
        return made

    def get_pool(self, name: str) -> Pool:
        """Return the pool of a name (or id); UnknownPool if there is none, or more than one."""
        found = self.by_name.get(name)
        if found is not None:
            return found
        matches = [pool for pool in self.by_name.values() if name in (pool.id, pool.name)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            which = ", ".join(pool.id for pool in matches)
            raise UnknownPool(f"{name!r} may be any of {which}: name one by its id", pool=name)
        known = ", ".join(self.by_name) or "none"
        raise UnknownPool(f"no pool named {name!r} (there are: {known})", pool=name)

    def pools(self) -> list[Pool]:
        """Return every pool, in the order they were made."""
        return list(self.by_name.values())

    def check_scopes(self) -> None:
        """Raise if the store cannot have a pool of one of the declared scopes."""
        for pool in self.by_name.values():
            internals_of(pool).check_scope()

    def _declared(self, name: str) -> DeclaredPool:
        return internals_of(self.get_pool(name))

    # Pools that this process uses and users do not list

    def unlisted(
        self, spec: PoolSpec, retry: Policy | None = None, *, foreign: bool = False
    ) -> Pool:
        """Return a pool that `pools()` does not list: of ours, or of another process."""
        declared = DeclaredPool(
            self._owner, spec, retry=retry, created_at=time.time(), foreign=foreign
        )
        return Pool(declared, self.functions)

    async def in_store(self, pool: str | Pool | SyncPool) -> Pool:
        """Return a pool of this process, or as another has declared it; else UnknownPool."""
        if isinstance(pool, Pool):
            return pool
        if not isinstance(pool, str):
            pool = pool.spec.name
        try:
            return self.get_pool(pool)
        except UnknownPool:
            if not pool.isascii():
                # No pool has such a name, and a store may not even be able to look for it.
                raise
            found = await self._owner.runtime.view.pool(pool, measured=False)
            if found is None:
                raise
            return self.unlisted(found.declared, foreign=True)

    async def stored_name(self, pool: str | Pool | SyncPool) -> str:
        """Return the stored name of a pool of this process or of another."""
        if not isinstance(pool, str):
            return pool.spec.name
        try:
            return self.get_pool(pool).spec.name
        except UnknownPool:
            if pool in await self._owner.runtime.view.names(pool):
                return pool
            raise

    def stored_names(self, pools: Iterable[str | Pool | SyncPool] | str) -> frozenset[str]:
        """Return the stored names of pools of this process."""
        chosen = [pools] if isinstance(pools, str) else pools
        return frozenset(
            (self.get_pool(one) if isinstance(one, str) else one).spec.name for one in chosen
        )

    # Budgets

    def budget(
        self, name: str, max_concurrent: int, *, rate: Rate | Sequence[Rate] | None = None
    ) -> Budget:
        """Declare a budget that pools share: how many of their tasks run, and start how fast.

        `mp.pool(..., budgets=[openai])` shares it. It is one over the whole fleet.
        """
        if name in self._owner.budgets:
            message = f"a budget named {name!r} exists already; keep what mp.budget() returned"
            raise DuplicateName(message, kind="budget", name=name)
        spec = BudgetSpec(name=name, max_concurrent=max_concurrent, rates=_rates(rate))
        self._owner.budgets[name] = spec
        return Budget(self._owner, spec)

    def _shared(self, budget: Budget | SyncBudget) -> str:
        """Return the name of a budget of this Millpond."""
        if not isinstance(budget, (Budget, SyncBudget)):
            raise ConfigError("budgets", budget, "must be budgets: what mp.budget() returned")
        if self._owner.budgets.get(budget.name) is not budget.spec:
            raise ConfigError("budgets", budget.name, "is a budget of another Millpond")
        return budget.name


_ORDERS: dict[str, Callable[[], QueueOrder]] = {
    "fifo": fifo,
    "lifo": lifo,
    "priority": priority,
}


def _order(queue: QueueOrder | QueueName | None, *, strict: bool) -> QueueOrder:
    """Return an order: as given, by its name, or the default."""
    if queue is None:
        return fifo() if strict else priority()
    if isinstance(queue, str):
        if queue in ("fair", "fair_round_robin"):
            raise ConfigError("queue", queue, 'needs a key: fair_round_robin("tenant")')
        return _ORDERS[check.one_of("queue", queue, tuple(_ORDERS))]()
    return queue


def _rates(rate: Rate | Sequence[Rate] | None) -> tuple[Rate, ...]:
    if rate is None:
        return ()
    if isinstance(rate, Rate):
        return (rate,)
    check.instance("rate", rate, Sequence, "a Rate, such as Rate(100, per=60), or a list of them")
    return tuple(rate)
