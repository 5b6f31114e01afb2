"""Budgets: a concurrency limit and rates that several pools share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.control import ResizeBudget
from millpond.core.rate import Rate
from millpond.pool.delegation import on_loop

if TYPE_CHECKING:
    from millpond.core.spec import BudgetSpec
    from millpond.pool.runtime_owner import RuntimeOwner


class BudgetSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A budget at one moment."""

    name: str
    """Its name."""
    max_concurrent: int
    """The limit in force: as declared, or as resized."""
    rates: tuple[Rate, ...]
    """How fast tasks of its pools may start, together."""
    running: int
    """How many tasks run in its pools."""
    pools: tuple[str, ...]
    """The pools that share it, whichever process declared them."""
    waiting: tuple[str, ...]
    """The pools that wait for it to start a task, the longest wait first."""


class Budget:
    """A limit and rates that pools share, over the whole fleet: `mp.budget("openai", 50)`."""

    def __init__(self, owner: RuntimeOwner, spec: BudgetSpec) -> None:
        self._owner = owner
        self.spec = spec
        """Its settings, as this process declared them."""

    def __repr__(self) -> str:
        return f"<budget {self.spec.name}: {self.spec.max_concurrent}>"

    @property
    def name(self) -> str:
        """Its name, one for all pools and processes of the store."""
        return self.spec.name

    @property
    def sync(self) -> SyncBudget:
        """The same for threads."""
        return SyncBudget(self._owner, self.spec)

    async def resize(self, max_concurrent: int | None = None) -> None:
        """Change the limit; a lower one is reached as work ends, None = as declared."""
        runtime = self._owner.runtime
        await runtime.declarations.declare_budget(self.name)
        runtime.answers.apply(await runtime.store.control(ResizeBudget(self.name, max_concurrent)))

    async def snapshot(self) -> BudgetSnapshot:
        """Return how much of it is taken, and which pools wait for it."""
        runtime = self._owner.runtime
        await runtime.declarations.declare_budget(self.name)
        view = await runtime.view.budget(self.name)
        assert view is not None  # noqa: S101 - it was declared just now
        return BudgetSnapshot(
            name=self.name,
            max_concurrent=view.spec.max_concurrent,
            rates=view.spec.rates,
            running=view.running,
            pools=view.pools,
            waiting=view.waiting,
        )


class SyncBudget:
    """A budget, for threads."""

    def __init__(self, owner: RuntimeOwner, spec: BudgetSpec) -> None:
        self._bridge = owner.bridge
        self._budget = Budget(owner, spec)

    @property
    def spec(self) -> BudgetSpec:
        """Its settings, as this process declared them."""
        return self._budget.spec

    @property
    def name(self) -> str:
        """Its name, one for all pools and processes of the store."""
        return self._budget.name

    resize = on_loop(Budget.resize, "_budget", writes=True)
    snapshot = on_loop(Budget.snapshot, "_budget")
