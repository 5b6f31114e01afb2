"""The reading side of the memory store: copies, and nothing that decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.moment import rounded
from millpond.core.run import RunView
from millpond.core.run import view as run_view
from millpond.store.memory.control import pool_named
from millpond.store.memory.lease import could_lease
from millpond.store.protocol import AuditPage, PoolView

if TYPE_CHECKING:
    from millpond.core.task import Task
    from millpond.store.memory.tables import Tables


def copied(task: Task) -> Task:
    """Return a copy of a task: whoever changes it changes nothing that is kept."""
    steps = None if task.steps is None else dict(task.steps)
    return msgspec.structs.replace(task, steps=steps)


class MemoryView:
    """Reads of the memory store: copies, so that nobody can change a task by reading it."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def task(self, task: int) -> Task | None:
        """Return a copy of a task, or None if it is unknown or forgotten."""
        found = self._tables.tasks.get(task)
        return None if found is None else copied(found)

    async def pool(self, name: str) -> PoolView | None:
        """Return a pool's counts and settings, or None if it was never declared."""
        pool = self._tables.pools.get(name)
        if pool is None:
            return None
        return PoolView(
            spec=pool.spec,
            revision=pool.revision,
            paused=pool.paused,
            closed=pool.closed,
            queued=pool.queued,
            fresh=len(pool.fresh),
            running=pool.running,
            parked=sum(map(len, pool.parked.values())),
            totals=dict(pool.totals),
            stale_settles=pool.stale_settles,
        )

    async def run(self, run: int) -> RunView | None:
        """Return a run, or None."""
        found = self._tables.runs.get(run)
        return None if found is None else run_view(found)

    async def workers(self) -> frozenset[str]:
        """Return the workers that may hold leases."""
        return frozenset(self._tables.workers)

    async def ready(self, pool: str, worker: str, *, now: float) -> bool:
        """Return whether a lease at `now` would give this worker something."""
        table, row = pool_named(self._tables, pool), self._tables.workers.get(worker)
        if row is None:
            return False
        return could_lease(self._tables, table, row, rounded(now))

    async def audit(self, *, after: int = 0, limit: int = 1000) -> AuditPage:
        """Return audit records from position `after` on, oldest first."""
        dropped = self._tables.records_dropped
        start = max(after - dropped, 0)
        records = tuple(self._tables.records[start : start + limit])
        return AuditPage(records, max(after, dropped) + len(records))
