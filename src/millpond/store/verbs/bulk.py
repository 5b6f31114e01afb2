"""Plain tasks, by the batch: the arrows of many tasks on which nothing else hangs.

Most tasks have no run, no callback and no owner, and wait in a pool that only counts them. What a
claim or its settlements change is then a sum, and each task needs no more than its own fields. The
arrows, their order and their records are those of one task at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status, Transition
from millpond.core.task import UNREADABLE
from millpond.store.verbs.settle import APPLIED_PLAINLY, is_current, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.lease import RegisteredWorker
    from millpond.core.settle import Settlement
    from millpond.core.task import Task
    from millpond.store.verbs.settle import Ended
    from millpond.store.verbs.tables import PoolTable, Tables

_COMPLETED, _COMPLETE = Status.COMPLETED, Transition.COMPLETE


def start(
    tables: Tables, pool: PoolTable, worker: RegisteredWorker, most: int, token: int, now: float
) -> Sequence[Task]:
    """Start the first tasks of a pool as long as they are plain; return which."""
    if (
        pool.backlog.grouped
        or pool.spec.has_flow_control
        or pool.fresh.listed
        or worker.closures_only
    ):
        return ()
    functions, unknown = worker.functions, worker.unknown

    def fits(task: Task) -> bool:
        new = task.new
        function = new.call.function
        return (
            new.run is None
            and task.expires_at is None
            and task.reason is None
            and not task.misfits
            and (functions is None or function in functions)
            and function not in unknown
            and function != UNREADABLE
        )

    taken = pool.backlog.take(worker.owner, most, fits)
    if taken:
        tables.start_all(pool, taken, worker, token, now)
    return taken


def settle_all(tables: Tables, settlements: Sequence[Settlement], now: float) -> list[Ended]:
    """Settle one after another; plain completions that follow each other are counted together."""
    ended: list[Ended] = []
    plain: list[Task] = []
    glance = tables.peek
    for one in settlements:
        task = glance(one.fence.task)
        if task is None or not _completes_plainly(tables, task, one):
            _end(tables, plain, now)
            ended.append(settle(tables, one, now))
            continue
        if plain and (task.worker != plain[0].worker or task.new.pool != plain[0].new.pool):
            _end(tables, plain, now)
        # From now on another settlement of the same task is stale.
        task.status = _COMPLETED
        task.result = one.result
        task.error = None
        plain.append(task)
        ended.append(APPLIED_PLAINLY)
    _end(tables, plain, now)
    return ended


def _end(tables: Tables, plain: list[Task], now: float) -> None:
    """End the tasks that were gathered, and begin to gather anew."""
    if plain:
        tables.complete_all(tables.pools[plain[0].new.pool], tuple(plain), plain[0].worker, now)
        plain.clear()


def _completes_plainly(tables: Tables, task: Task, settlement: Settlement) -> bool:
    """Return whether a settlement with the current fence completes a task, and that is all."""
    new = task.new
    return (
        settlement.event is _COMPLETE
        and is_current(task, settlement.fence)
        and not settlement.follow_ups
        and settlement.successor is None
        and settlement.spend
        and settlement.weight is None
        and new.run is None
        and new.owner is None
        and new.on_complete is None
        and new.idempotency_key is None
        and task.lane is None
        and task.reason is None
        and task.started_at is not None
        and new.id not in tables.begun
        and _only_counts(tables.pools[new.pool])
    )


def _only_counts(pool: PoolTable) -> bool:
    """Return whether an end in a pool tells nobody but its counts."""
    spec = pool.spec
    return not pool.backlog.grouped and not spec.budgets and spec.adaptive is None
