"""Admission: what happens to a submitted task.

The store counts, in the transaction that inserts (`store/verbs/refusals.py`); this module decides.
A bound counts tasks that were submitted from outside and never claimed. Tasks that come back (a
retry, a release, a lost lease, a redrive) and tasks that a handler submits through its context are
never refused, never evicted and not counted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.spec import OnFull
from millpond.core.task import NO_FINGERPRINT, Dedupe

if TYPE_CHECKING:
    from millpond.core.spec import PoolSpec
    from millpond.core.task import NewTask


class Reason(StrEnum):
    """Why a pool refused or dropped a task, or why it ended other than by its handler."""

    QUEUE_FULL = "queue_full"
    """As many tasks wait as the backpressure of the pool allows."""
    NO_CAPACITY = "no_capacity"
    """The pool is `fail_fast` and could not start the task at once."""
    CLOSED = "closed"
    """The pool is closed."""
    BATCH_TOO_LARGE = "batch_too_large"
    """The batch has more tasks than the pool may ever hold."""
    WEIGHT_LIMIT = "weight_limit"
    """The weight of the task is more than a rate of the pool ever allows."""
    CONFLICT = "idempotency_conflict"
    """The idempotency key belongs to a task with another function or other arguments."""
    UNKNOWN_POOL = "unknown_pool"
    """The store has no pool of this name."""
    OVER_BUDGET = "run_over_budget"
    """The run has as many tasks as its `max_tasks` allows."""
    RUN_NOT_OPEN = "run_not_open"
    """The run has ended or was stopped."""
    OWNER_GONE = "owner_gone"
    """A closure was submitted in a process that has no worker to run it."""
    CLOSURE_IN_LANES = "closure_in_lanes"
    """A closure was submitted to a pool with lanes, which takes only tasks."""
    DROP_OLDEST = "drop_oldest_queue_full"
    """The pool was full, and a new task took its place (`drop_oldest`)."""
    DROP_NEWEST = "drop_newest_queue_full"
    """The pool was full, and dropped the new task (`drop_newest`)."""
    RING_BUFFER = "ring_buffer_drop_oldest"
    """The pool was full, and a new task took its place (`ring_buffer`)."""
    CANCELLED = "cancelled"
    """A caller or an operator cancelled it."""
    PURGED = "purged"
    """An operator purged the pool while it waited."""
    RUN_FAILED = "run_failed"
    """Another task of its run failed, and the run has `on_error="fail"`."""
    EXPIRED = "expired"
    """It waited for longer than its `expires_in`."""
    STALE = "stale"
    """It is a closure, and the process that submitted it has ended."""
    CORRUPT = "corrupt"
    """Its stored arguments cannot be read."""
    UNKNOWN_FUNCTION = "unknown_function"
    """No worker knew its function for a day."""
    UNFIT_ARGUMENTS = "unfit_arguments"
    """For a day, no worker had a function that takes its stored arguments."""
    LEASE_LOST = "lease_lost"
    """Its worker died or lost the lease, and no attempts are left."""
    STOPPED = "stopped"
    """Its worker stopped while it ran, and no attempts are left."""
    BAD_RESULT = "bad_result"
    """Its handler returned a value that cannot be stored."""
    UNSTORABLE = "unstorable"
    """The store refused to store how it ended."""
    DUPLICATE = "duplicate"
    """Submitted in a caller's transaction; its idempotency key had a task by the commit."""


def reason_of(stored: str | None) -> Reason | None:
    """Return a stored reason. One that only a newer version knows stays plain text."""
    known = Reason.__members__.values()
    return stored if stored is None or stored not in known else Reason(stored)  # type: ignore[return-value]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A refused batch; none of its tasks were stored."""

    reason: Reason
    pool: str
    lane: str | None = None
    depth: int | None = None
    bound: int | None = None
    may_wait: bool = False
    """Whether the submitter may wait and submit again when there is room."""
    in_lane: bool = False
    """Whether the bound is that of a lane; otherwise `lane` names the bounded key, if any."""
    task: int | None = None
    key: str | None = None
    """The idempotency key in conflict; `task` is the task it belongs to."""


class Depth(msgspec.Struct, frozen=True):
    """What a bound counts: never-claimed outside tasks of the pool and of one key.

    For tasks without a key the count per key is 0.
    """

    pool: int
    key: int
    lane: int = 0
    """The count of the task's lane; 0 unless the pool bounds lanes."""


class Take(msgspec.Struct, frozen=True):
    """Queue it."""


class Evict(msgspec.Struct, frozen=True):
    """Queue it, and drop the oldest never-claimed task (of its key or lane, if so)."""

    of_key: bool
    reason: Reason
    of_lane: bool = False


class Drop(msgspec.Struct, frozen=True):
    """Reject it, and record that."""

    reason: Reason


class Full(msgspec.Struct, frozen=True):
    """No room: refuse the batch, or let its submitter wait."""

    of_key: bool
    of_lane: bool = False


def admit(spec: PoolSpec, depth: Depth) -> Take | Evict | Drop | Full:
    """Decide about one task from outside, given what waits already."""
    policy = spec.backpressure
    if policy is None or policy.depth is None:
        return Take()
    key_full = policy.per_key is not None and depth.key >= policy.per_key
    # An eviction from a key also makes room in its lane.
    lane_full = not key_full and policy.per_lane is not None and depth.lane >= policy.per_lane
    if not (key_full or lane_full) and depth.pool < policy.depth:
        return Take()
    match policy.on_full:
        case OnFull.DROP_OLDEST:
            return Evict(key_full, Reason.DROP_OLDEST, lane_full)
        case OnFull.RING_BUFFER:
            return Evict(key_full, Reason.RING_BUFFER, lane_full)
        case OnFull.DROP_NEWEST:
            return Drop(Reason.DROP_NEWEST)
        case _:
            return Full(key_full, lane_full)


def too_large(spec: PoolSpec, size: int, largest_key: int, largest_lane: int = 0) -> int | None:
    """Return the bound that makes a whole batch impossible, or None."""
    policy = spec.backpressure
    if policy is None or policy.on_full not in (OnFull.BLOCK_SUBMITTER, OnFull.FAIL_SUBMITTER):
        return None
    if policy.depth is not None and size > policy.depth:
        return policy.depth
    if policy.per_key is not None and largest_key > policy.per_key:
        return policy.per_key
    if policy.per_lane is not None and largest_lane > policy.per_lane:
        return policy.per_lane
    return None


def too_heavy(spec: PoolSpec, new: NewTask) -> int | None:
    """Return the burst that the weight of a task exceeds, so that it could never start."""
    depths = (rate.depth for rate in spec.rates if rate.cost(new.weight) > rate.depth)
    return next(depths, None)


class Known(msgspec.Struct):
    """The task that an idempotency key belongs to; kept longer than the task itself."""

    task: int
    status: Status
    function: str
    fingerprint: int


def known_by(new: NewTask, status: Status) -> Known:
    """Return the entry for the idempotency key of a task."""
    return Known(new.id, status, new.call.function, new.fingerprint)


def answers_for(dedupe: Dedupe, status: Status, *, held: bool = False) -> bool:
    """Return whether a task in this status still answers for its idempotency key.

    A key of a run is kept per run, so within its run it always answers. `held`: a worker holds the
    task, running or prefetched.
    """
    match dedupe:
        case Dedupe.FOREVER | Dedupe.RUN:
            return True
        case Dedupe.SUCCESS:
            return not status.terminal or status is Status.COMPLETED
        case Dedupe.INFLIGHT:
            return not status.terminal
        case Dedupe.WAITING | Dedupe.REPLACE:
            return status is Status.QUEUED and not held


def conflicts(known: Known, new: NewTask) -> bool:
    """Return whether a known key came back with another function or other arguments."""
    if (known.function, known.fingerprint) == (new.call.function, new.fingerprint):
        return False
    comparable = NO_FINGERPRINT not in (known.fingerprint, new.fingerprint)
    return comparable or known.function != new.call.function


def may_replace(old: NewTask, new: NewTask) -> bool:
    """Return whether a task may take over the call of another: its place must not change."""
    return old.owner is None and new.owner is None and _stands(old) == _stands(new)


def _stands(new: NewTask) -> tuple[str, str | None, str | None]:
    return new.call.function, new.key, new.share


def replacement(old: NewTask, new: NewTask) -> NewTask:
    """Return a waiting task with the call and options of another; it stays in its run."""
    return msgspec.structs.replace(
        new, id=old.id, run=old.run, revision=old.revision + 1, source=new.id
    )
