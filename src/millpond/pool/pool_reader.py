"""The pool reader: what can be read of one pool from the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.errors import ConfigError
from millpond.pool.snapshot import LaneStatus, Snapshot, TaskInfo, state_of
from millpond.runtime.retention import Keep

if TYPE_CHECKING:
    from millpond.pool.declared_pool import DeclaredPool


class PoolReader:
    """Reads one pool: its size, a snapshot, its tasks and lanes."""

    __slots__ = ("_pool",)

    def __init__(self, pool: DeclaredPool) -> None:
        self._pool = pool

    async def size(self) -> int:
        """Return how many tasks run or wait."""
        await self._pool.ready()
        view = await self._pool.runtime.view.pool(self._pool.spec.name, measured=False)
        return 0 if view is None else view.running + view.queued

    async def snapshot(self) -> Snapshot:
        """Return the pool at this moment: counts, limits, settings, ages."""
        pool = self._pool
        await pool.ready()
        runtime = pool.runtime
        view = await runtime.view.pool(pool.spec.name, now=runtime.clock())
        assert view is not None  # noqa: S101 - ready() declared it
        oldest = view.oldest_queued_at
        bound = view.spec.backpressure
        return Snapshot(
            id=pool.id,
            name=pool.name,
            scope=pool.scope,
            scope_id=pool.scope_id,
            running=view.running,
            queued=view.queued,
            scheduled=view.scheduled,
            parked=view.parked,
            claimed=view.claimed,
            completed=view.totals.get(Status.COMPLETED, 0),
            failed=view.totals.get(Status.FAILED, 0),
            cancelled=view.totals.get(Status.CANCELLED, 0),
            rejected=view.totals.get(Status.REJECTED, 0),
            kept=view.kept,
            dead=view.dead,
            held_until=view.held_until or None,
            held_for=max(view.held_until - runtime.clock(), 0.0) if view.held_until else None,
            held_units=dict(view.held_units),
            blocked_submitters=runtime.submitter.blocked(pool.spec.name),
            max_concurrent=view.spec.max_concurrent,
            max_per_key=view.spec.max_per_key,
            queue=str(view.spec.order.kind),
            backpressure=None if bound is None else str(bound.on_full),
            lanes=view.spec.lanes,
            ordered=view.spec.ordered,
            prefetch=view.spec.prefetch,
            lease=pool.owner.lease,
            paused=view.paused,
            paused_units=view.paused_units,
            closed=view.closed,
            state=state_of(view),
            oldest_queued_age=None if oldest is None else max(runtime.clock() - oldest, 0.0),
            waits=view.waits,
            run_times=view.run_times,
            stale_settles=view.stale_settles,
            keep=Keep.stored(view.declared.keep),
            revision=view.revision,
            created_at=view.created_at,
            config=pool.spec,
        )

    async def tasks(
        self,
        *,
        status: str | None = None,
        key: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[TaskInfo]:
        """Return a page of its tasks, oldest first; go on after the last one's `seq`."""
        await self._pool.ready()
        try:
            wanted = None if status is None else Status(status)
        except ValueError:
            known = ", ".join(Status)
            raise ConfigError("status", status, f"must be one of {known}") from None
        page = await self._pool.runtime.view.tasks(
            self._pool.spec.name, status=wanted, key=key, after=after, limit=limit
        )
        return [TaskInfo.of(task) for task in page.tasks]

    async def lanes(self) -> list[LaneStatus]:
        """Return each lane: its state, how many tasks wait, how many it has processed."""
        await self._pool.ready()
        found = await self._pool.runtime.view.lanes(self._pool.spec.name)
        return [LaneStatus.of(view) for view in found]
