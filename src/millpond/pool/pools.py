"""The pools and budgets that one Millpond declares."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from millpond.core import validation as check
from millpond.core.adaptive import Adaptive
from millpond.core.rate import Rate
from millpond.core.spec import Backpressure, BudgetSpec, PoolSpec, fifo, priority
from millpond.core.spec import Order as QueueOrder
from millpond.errors import ConfigError, DuplicateName, UnknownPool
from millpond.pool.budget import Budget
from millpond.pool.delegation import on_loop
from millpond.pool.options import policy
from millpond.pool.pool import Pool
from millpond.pool.scope import check_scope, stored_name
from millpond.runtime.retention import Keep

if TYPE_CHECKING:
    from millpond.core.retention import Retention
    from millpond.pool.budget import SyncBudget
    from millpond.pool.millpond import Millpond
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.observe.hooks import DeadLetter, Empty, Hooks


class Pools:
    """Pools and budgets, by name."""

    def __init__(self, mp: Millpond, retries: dict[str, Policy], hooks: Hooks) -> None:
        self._mp = mp
        self._retries = retries
        self._hooks = hooks
        self.by_name: dict[str, Pool] = {}
        """As the store calls them."""
        self.budgets: dict[str, BudgetSpec] = {}

    def pool(
        self,
        name: str,
        *,
        max_concurrent: int | Adaptive | None = None,
        queue: QueueOrder | None = None,
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
        """Declare a pool; it is made known to the store when the Millpond is open.

        max_concurrent is 1 unless said otherwise (with lanes: as many as there are lanes). With
        `adaptive(1, 50)` latency and failures move it, for the whole fleet.
        """
        check_scope(scope, scope_id, durable=self._mp.durable)
        stored = stored_name(name, scope, scope_id)
        if stored in self.by_name:
            message = f"a pool named {stored!r} exists already; mp.get_pool({stored!r}) returns it"
            raise DuplicateName(message, kind="pool", name=stored)
        strict = ordered or lanes is not None
        adapts = max_concurrent if isinstance(max_concurrent, Adaptive) else None
        if isinstance(max_concurrent, Adaptive):
            max_concurrent = max_concurrent.initial
        spec = PoolSpec(
            name=stored,
            max_concurrent=(lanes or 1) if max_concurrent is None else max_concurrent,
            order=queue if queue is not None else (fifo() if strict else priority()),
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
        )
        made = Pool(
            self._mp,
            spec,
            name=name,
            scope=scope,
            scope_id=scope_id,
            retry=policy("retry", retry),
            created_at=time.time(),
        )
        return self._added(made, on_dead_letter, on_empty)

    def _kept(self, keep: Keep | None) -> Retention | None:
        """Return how long a pool keeps what has ended: as it says, else as its Millpond does."""
        if keep is None:
            return self._mp.keep.of_pool(given=False)
        check.instance("keep", keep, Keep, "a Keep, such as Keep(completed=3600)")
        return keep.of_pool(given=True)

    def _added(
        self,
        pool: Pool,
        on_dead_letter: Callable[[DeadLetter], object] | None,
        on_empty: Callable[[Empty], object] | None,
    ) -> Pool:
        stored = pool.spec.name
        if on_dead_letter is not None:
            check.function("on_dead_letter", on_dead_letter)
        if on_empty is not None:
            check.function("on_empty", on_empty)
        self.by_name[stored] = pool
        if pool.retry is not None:
            self._retries[stored] = pool.retry
        if on_dead_letter is not None:
            self._hooks.on_dead_letter[stored] = on_dead_letter
        if on_empty is not None:
            self._hooks.on_empty[stored] = on_empty
        return pool

    def get_pool(self, name: str) -> Pool:
        """Return the pool of a name (or id); UnknownPool if there is none, or more than one."""
        found = self.by_name.get(name)
        if found is not None:
            return found
        meant = [pool for pool in self.by_name.values() if name in (pool.id, pool.name)]
        if len(meant) == 1:
            return meant[0]
        if meant:
            which = ", ".join(pool.id for pool in meant)
            raise UnknownPool(f"{name!r} may be any of {which}: say which, by its id", pool=name)
        known = ", ".join(self.by_name) or "none"
        raise UnknownPool(f"no pool named {name!r} (there are: {known})", pool=name)

    def pools(self) -> list[Pool]:
        """Return every pool, in the order they were made."""
        return list(self.by_name.values())

    # Budgets

    def budget(
        self, name: str, max_concurrent: int, *, rate: Rate | Sequence[Rate] | None = None
    ) -> Budget:
        """Declare a budget for pools to share: how many run, and start how fast, of all of them.

        `mp.pool(..., budgets=[openai])` shares it. It is one over the whole fleet.
        """
        if name in self.budgets:
            message = f"a budget named {name!r} exists already; keep what mp.budget() returned"
            raise DuplicateName(message, kind="budget", name=name)
        spec = BudgetSpec(name=name, max_concurrent=max_concurrent, rates=_rates(rate))
        self.budgets[name] = spec
        return Budget(self._mp, spec)

    def _shared(self, given: Any) -> str:  # noqa: ANN401 - a budget, if it is well
        """Return the name of a budget of this very Millpond."""
        budget = on_loop(given)
        if not isinstance(budget, Budget):
            raise ConfigError("budgets", budget, "must be budgets: what mp.budget() returned")
        if self.budgets.get(budget.name) is not budget.spec:
            raise ConfigError("budgets", budget.name, "is a budget of another Millpond")
        return budget.name


def _rates(rate: Rate | Sequence[Rate] | None) -> tuple[Rate, ...]:
    if rate is None:
        return ()
    if isinstance(rate, Rate):
        return (rate,)
    check.instance("rate", rate, Sequence, "a Rate, such as Rate(100, per=60), or a list of them")
    return tuple(rate)
