"""Read at once what a verb will need, instead of task by task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.store.sql.pool import SqlPool

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millpond.core.lease import LeaseRequest
    from millpond.core.task import NewTask, Task
    from millpond.store.sql.unit_of_work import SqlTables


def expect_submit(tables: SqlTables, new: Sequence[NewTask]) -> None:
    """Read at once what the submit of these tasks needs."""
    if not new:
        return
    tables.tasks.load_new([one.id for one in new])
    by_pool: dict[str, list[NewTask]] = {}
    for one in new:
        by_pool.setdefault(one.pool, []).append(one)
    for name, of_pool in by_pool.items():
        pool = tables.pools.get(name)
        if pool is None:
            continue
        keys = [one.idempotency_key for one in of_pool if one.idempotency_key is not None]
        if keys:
            pool.keys.load(keys)
        if pool.backlog.grouped and not pool.spec.strict:
            pool.backlog.read_units((one.key, one.share) for one in of_pool)


def expect_ends(tables: SqlTables, identifiers: Iterable[int]) -> None:
    """Read at once what the settlements of these tasks need."""
    tasks = tables.tasks
    tasks.load(identifiers)
    grouped = {pool.name for pool in tables.pools.by_id.values() if pool.backlog.grouped}
    if not grouped:
        return
    ending: dict[str, list[Task]] = {}
    for identifier in identifiers:
        task = tasks.peek(identifier)
        if task is not None and task.stored_live and task.new.pool in grouped:
            ending.setdefault(task.new.pool, []).append(task)
    for name, ends in ending.items():
        tables.pools.require(name).backlog.expect_ends(ends)


def expect_lease(tables: SqlTables, ask: LeaseRequest, *, leaving: int = 0) -> None:
    """Read as many tasks at once as this claim can take."""
    pool = tables.pools.get(ask.pool)
    if isinstance(pool, SqlPool):
        spec = pool.spec
        slots = max(spec.max_concurrent - pool.running + leaving, 0)
        pool.backlog.expect(min(ask.want, slots) + min(ask.ahead, spec.prefetch))
