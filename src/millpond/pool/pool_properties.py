"""What a pool shows of itself, on the loop and for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.core.spec import PoolSpec
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.runtime.jobs.policy import Policy


class PoolProperties:
    """The attributes of a pool."""

    _internals: DeclaredPool

    @property
    def name(self) -> str:
        """Its name; pools of other scopes may have the same. The store has it as `spec.name`."""
        return self._internals.name

    @property
    def id(self) -> str:
        """Its id: scope, scope id and name; the same in every process."""
        return self._internals.id

    @property
    def spec(self) -> PoolSpec:
        """Its settings, as this process declared them."""
        return self._internals.spec

    @property
    def scope(self) -> str:
        """Its scope: as declared, else `session` in memory and `app` in a durable store."""
        return self._internals.scope

    @property
    def scope_id(self) -> str | None:
        """The id of its scope."""
        return self._internals.scope_id

    @property
    def retry(self) -> Policy | None:
        """The retry policy of tasks that have none of their own."""
        return self._internals.retry

    @property
    def created_at(self) -> float:
        """When this process declared it, in seconds since 1970."""
        return self._internals.created_at
