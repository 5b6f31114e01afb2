"""Refusals: the error that explains why the store refused a submit."""

from __future__ import annotations

from millpond.core.admit import Reason, Refusal
from millpond.errors import (
    BatchTooLarge,
    ConfigError,
    IdempotencyConflict,
    MillpondError,
    NoCapacity,
    PoolClosed,
    PoolFull,
    RunOverBudget,
    RunStopped,
    UnknownPool,
)


def error_of(refusal: Refusal, size: int) -> MillpondError:
    """Return the error that explains a refusal."""
    pool = refusal.pool
    match refusal.reason:
        case Reason.QUEUE_FULL:
            part = "lane" if refusal.in_lane else "key"
            where = (
                f"{part} {refusal.lane!r} of pool {pool!r}" if refusal.lane else f"pool {pool!r}"
            )
            return PoolFull(
                f"{where} is full: {refusal.depth} of {refusal.bound} waiting; try again later, "
                "raise the bound, or choose another on_full",
                pool=pool,
                lane=refusal.lane,
                depth=refusal.depth,
                bound=refusal.bound,
            )
        case Reason.NO_CAPACITY:
            return NoCapacity(
                f"pool {pool!r} has no capacity now: {refusal.depth} of {refusal.bound} taken, or "
                "paused, or its key or rate does not allow a start",
                pool=pool,
                reason=str(refusal.reason),
            )
        case Reason.CLOSED:
            return PoolClosed(f"pool {pool!r} is closed and takes no more work", pool=pool)
        case Reason.BATCH_TOO_LARGE:
            return BatchTooLarge(
                f"a batch of {size} can never fit into pool {pool!r}, which holds "
                f"{refusal.bound}; submit it in parts",
                pool=pool,
                size=size,
                bound=refusal.bound,
            )
        case Reason.CONFLICT:
            return IdempotencyConflict(
                f"idempotency_key={refusal.key!r} of pool {pool!r} stands for task {refusal.task}, "
                "which has another function or other arguments",
                pool=pool,
                key=refusal.key,
                task_id=refusal.task,
            )
        case Reason.UNKNOWN_POOL:
            return UnknownPool(f"no pool named {pool!r} was declared", pool=pool)
        case Reason.OVER_BUDGET:
            return RunOverBudget(
                f"{size} task(s) more are beyond max_tasks of the run; none of them was stored",
                pool=pool,
                run=None,
                report=None,
                max_tasks=None,
            )
        case Reason.RUN_NOT_OPEN:
            return RunStopped(
                "the run has ended or was stopped, and takes no more tasks",
                pool=pool,
                run=None,
                report=None,
            )
        case Reason.CLOSURE_IN_LANES:
            return ConfigError(
                "work", "a closure", f"cannot go into pool {pool!r}, which has lanes: use a task"
            )
        case Reason.OWNER_GONE:
            return ConfigError(
                "work",
                "a closure",
                f"of pool {pool!r} runs in the process that submits it, and this one has no "
                "worker: open one with `async with mp.worker():`, or submit a task",
            )
        case Reason.WEIGHT_LIMIT:
            return ConfigError(
                "weight",
                "of this task",
                f"is too large: the limits of pool {pool!r} allow at most {refusal.bound}",
            )
        case _:
            return MillpondError(f"pool {pool!r} refused: {refusal.reason}")
