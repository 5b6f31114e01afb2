"""Declarations: the pools and budgets that this process has made known to the store."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.control import Declare, DeclareBudget
from millpond.core.log_fields import about
from millpond.core.retention import in_force
from millpond.core.service import Service
from millpond.core.task import CALLBACKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millpond.core.spec import BudgetSpec, PoolSpec
    from millpond.runtime.answers import Answers
    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import WorkerProtocol

log = logging.getLogger("millpond.runtime")

DECLARED_AT_ONCE = 100
"""How many pools are declared to a shared store at the same time, if there are many."""


class Declarations(Service):
    """Declares pools and budgets to the store, once each."""

    _env: Environment
    _workers: Sequence[WorkerProtocol]
    _answers: Answers
    specs: dict[str, PoolSpec]
    """The declared pools, by name."""
    budgets: Mapping[str, BudgetSpec] = {}
    """The budgets that pools of this process may share, by name."""
    _declared_budgets: set[str] = set()

    async def declare(self, spec: PoolSpec) -> None:
        """Declare a pool to the store and to the workers."""
        if self.specs.get(spec.name) == spec:
            return
        for name in spec.budgets:
            await self.declare_budget(name)
        self._answers.apply(await self._env.store.control(Declare(spec)))
        self.specs[spec.name] = spec
        if self._env.shared and spec.keep is not None and not spec.keep.given:
            await self._warn_of_other_retention(spec)
        for worker in self._workers:
            worker.watch(spec.name)

    async def _warn_of_other_retention(self, spec: PoolSpec) -> None:
        """Log where the stored retention of a pool differs from this Millpond's default."""
        view = await self._env.view.pool(spec.name, measured=False)
        stored = in_force(None if view is None else view.declared.keep)
        wanted = in_force(spec.keep)
        if str(stored) != str(wanted):
            log.warning(
                "pool %s is stored with keep=%s, which stays in force; Millpond(keep=%s) is only "
                "for new pools: give the pool a keep= of its own to change it",
                spec.name,
                stored,
                wanted,
                extra=about("pool.retention_differs", pool=spec.name),
            )

    async def declare_all(self, specs: Sequence[PoolSpec]) -> None:
        """Declare pools in order; many of them in batches, so that they share commits."""
        at_once = DECLARED_AT_ONCE if self._env.shared and len(specs) > DECLARED_AT_ONCE else 1
        for first in range(0, len(specs), at_once):
            batch = specs[first : first + at_once]
            if at_once == 1:
                await self.declare(batch[0])
                continue
            answers = await asyncio.gather(*map(self.declare, batch), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer

    async def declare_budget(self, name: str) -> None:
        """Declare a budget to the store, once."""
        if name not in self._declared_budgets:
            self._answers.apply(await self._env.store.control(DeclareBudget(self.budgets[name])))
            self._declared_budgets.add(name)


def limit_of(specs: Mapping[str, PoolSpec], pool: str) -> int:
    """Return how many tasks of a pool may run, as far as this process knows."""
    spec = specs.get(pool.removesuffix(CALLBACKS))
    if spec is None:
        return 1
    return spec.max_callbacks if pool.endswith(CALLBACKS) else spec.most_concurrent
