"""Plain tasks in bulk: start and complete many tasks at once.

Most tasks have no run and no callback, and their pool only counts them. A claim or its
settlements then change a sum and the tasks' own fields. Transitions, their order and their records
are the same as task by task.
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
    """Start the next tasks of a pool while they are plain; return them."""
    if (
        pool.backlog.grouped
        or pool.spec.has_flow_control
        or pool.fresh.listed
        or worker.closures_only
    ):
        return ()
    functions, unknown = worker.functions, worker.unknown
    in_bulk = tables.closures_in_bulk

    def fits(task: Task) -> bool:
        new = task.new
        function = new.call.function
        return (
            new.run is None
            and task.expires_at is None
            and task.reason is None
            and not task.misfits
            and (
                ((functions is None or function in functions) and function not in unknown)
                if new.owner is None
                else in_bulk
            )
            and function != UNREADABLE
        )

    taken = pool.backlog.take(worker.owner, most, fits)
    if taken:
        tables.start_all(pool, taken, worker, token, now)
    return taken


def settle_all(tables: Tables, settlements: Sequence[Settlement], now: float) -> list[Ended]:
    """Settle in order; plain completions that follow each other are applied in bulk."""
    ended: list[Ended] = []
    plain: list[Task] = []
    peek = tables.tasks.peek
    for one in settlements:
        task = peek(one.fence.task)
        if task is None or not _completes_plainly(tables, task, one):
            _end(tables, plain, now)
            ended.append(settle(tables, one, now))
            continue
        if plain and (task.worker != plain[0].worker or task.new.pool != plain[0].new.pool):
            _end(tables, plain, now)
        # Another settlement of the same task is stale from now on.
        task.status = _COMPLETED
        task.result = one.result
        task.error = None
        plain.append(task)
        ended.append(APPLIED_PLAINLY)
    _end(tables, plain, now)
    return ended


def _end(tables: Tables, plain: list[Task], now: float) -> None:
    """End the gathered tasks, and start with none."""
    if plain:
        pool = tables.pools.require(plain[0].new.pool)
        tables.complete_all(pool, tuple(plain), plain[0].worker, now)
        plain.clear()


def _completes_plainly(tables: Tables, task: Task, settlement: Settlement) -> bool:
    """Return whether a settlement completes a task and does nothing else."""
    new = task.new
    return (
        settlement.event is _COMPLETE
        and is_current(task, settlement.fence)
        and not settlement.follow_ups
        and settlement.successor is None
        and settlement.spend
        and settlement.weight is None
        and new.run is None
        and (new.owner is None or tables.closures_in_bulk)
        and new.on_complete is None
        and new.idempotency_key is None
        and task.lane is None
        and task.reason is None
        and task.started_at is not None
        and new.id not in tables.begun
        and _only_counts(tables.pools.require(new.pool))
    )


def _only_counts(pool: PoolTable) -> bool:
    """Return whether the end of a task changes nothing in its pool but counts."""
    spec = pool.spec
    return not pool.backlog.grouped and not spec.budgets and spec.adaptive is None
