"""Kept pools: of which pools ended tasks may be in the store, for retention to remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class KeptPools:
    """The pools of which ended tasks may be kept."""

    def __init__(self, declared: Iterable[str], nudge: Callable[[], None]) -> None:
        self._declared = declared
        self._nudge = nudge
        self.pools: set[str] = set()
        self.any_pool = False
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
