"""A declared pool: the internal object behind `Pool` and `SyncPool`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.pool.scope import check_scope, default_scope

if TYPE_CHECKING:
    import asyncio

    from millpond.core.spec import PoolSpec
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.runtime")

WAITING = 10
"""How many tasks wait when a pool warns that its default limit holds them up."""

UNLIMITED = 1_000_000
"""Attempts of a task whose own policy decides when to give up."""


def attempts_of(policy: object) -> int:
    """Return how many charged runs a retry policy allows."""
    attempts: int = getattr(policy, "attempts", UNLIMITED)
    return attempts


class DeclaredPool:
    """What this process knows of one pool, and its way to the runtime."""

    def __init__(
        self,
        owner: RuntimeOwner,
        spec: PoolSpec,
        *,
        name: str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        retry: Policy | None = None,
        created_at: float = 0.0,
        foreign: bool = False,
        serial_by_default: bool = False,
    ) -> None:
        self.owner = owner
        self.spec = spec
        self.name = spec.name if name is None else name
        """The name users gave it; pools of other scopes may have the same."""
        self._scope = scope
        self.scope_id = scope_id
        self.retry = retry
        self.attempts = spec.attempts if retry is None else attempts_of(retry)
        """How many charged runs a task has that has no policy of its own."""
        self.created_at = created_at
        self.foreign = foreign
        """Whether another process declared it: this one submits to it and does not declare it."""
        self.warns_at = WAITING if serial_by_default else None
        """How many tasks wait when it warns that it runs one at a time; None = it does not."""

    @property
    def scope(self) -> str:
        """Its scope: as declared, else `session` in memory and `app` in a durable store."""
        return self._scope or default_scope(durable=self.owner.durable)

    def check_scope(self) -> None:
        """Raise if the store cannot have pools of this scope."""
        check_scope(self._scope, self.scope_id, durable=self.owner.durable)

    @property
    def id(self) -> str:
        """Scope, scope id and name."""
        return f"{self.scope}:{self.scope_id or ''}:{self.name}"

    @property
    def runtime(self) -> Runtime:
        """The runtime of the open Millpond; NotOpen while it is closed."""
        return self.owner.runtime

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the open Millpond."""
        return self.owner.runtime.loop

    def waiting(self, depth: int) -> None:
        """Warn once that tasks wait because the limit was left at its default."""
        if self.warns_at is None or depth < self.warns_at:
            return
        self.warns_at = None
        log.warning(
            "pool %s runs one task at a time over all workers, and %d tasks wait: "
            "max_concurrent is not given; give a higher one, or max_concurrent=1 to keep it",
            self.name,
            depth,
            extra=about("pool.serial_by_default", pool=self.spec.name, depth=depth),
        )

    async def ready(self) -> None:
        """Declare the pool to the store if it does not know it; NotOpen while closed."""
        runtime = self.owner.runtime
        if self.spec.name not in runtime.declarations.specs and not self.foreign:
            await runtime.declarations.declare(self.spec)
