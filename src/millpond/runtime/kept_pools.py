"""Kept pools: of which pools ended tasks may be in the store, for retention to remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class KeptPools(Service):
    """The pools of which ended tasks may be kept."""

    _declared: Iterable[str]
    _nudge: Callable[[], None]
    pools: set[str] = set()
    any_pool: bool = False
    """Whether any pool of the store may keep something, also one that is not declared here."""

    def keep(self, pool: str | None) -> None:
        """Note that a task of a pool ended, or of an unknown pool; nudge maintenance if first."""
        first = not self.pools
        self.any_pool = self.any_pool or pool is None
        self.pools.update(self._declared if pool is None else (pool,))
        if first:
            self._nudge()

    def keeps(self, pool: str) -> bool:
        """Return whether it is known that ended tasks of a pool are kept."""
        return pool in self.pools
