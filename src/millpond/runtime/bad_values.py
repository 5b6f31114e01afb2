"""Blame: whether a verb failed because of the store, or because of one value that it was given.

After the first everybody waits and tries again. After the second that would be for ever, so each
change is tried alone: the one at fault is ended, and the others go through.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from millpond.core.admit import Reason
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.errors import MillpondError, StoreError, Unstorable
from millpond.runtime.error_info import describe

if TYPE_CHECKING:
    from millpond.runtime.worker.job import Job

log = logging.getLogger("millpond.worker")

MOST_REFUSALS = 6
"""How often a change is tried alone before it is blamed for an error that does not say."""


class Blame(Enum):
    """What an error of a verb says about its cause."""

    STORE = "store"
    """It cannot be used now, for nobody."""
    VALUE = "value"
    """It refuses what it was given, and always will."""
    UNSURE = "unsure"


def blamed(error: BaseException) -> Blame:
    """Return what an error is to be blamed on."""
    if isinstance(error, StoreError):
        if error.of_value:
            return Blame.VALUE
        # One that has a name of its own says what is wrong with the store.
        return Blame.UNSURE if type(error) is StoreError else Blame.STORE
    if isinstance(error, (MillpondError, ValueError, TypeError, ArithmeticError)):
        return Blame.VALUE
    if not isinstance(error, Exception) or isinstance(error, (OSError, MemoryError)):
        return Blame.STORE
    return Blame.UNSURE


def is_the_stores(error: BaseException) -> bool:
    """Return whether an error is one of the store as a whole, and trying each alone is no use."""
    return blamed(error) is Blame.STORE


def is_at_fault(job: Job, error: Exception) -> bool:
    """Note that the end of a job was refused alone; return whether the job is the one to blame."""
    job.refusals += 1
    return blamed(error) is Blame.VALUE or job.refusals >= MOST_REFUSALS


def ended_by(job: Job, decided: Settlement, error: Exception) -> tuple[Settlement, Unstorable]:
    """Return the end of a job whose own cannot be stored: failed, with what the store said."""
    pool = job.leased.pool
    told = Unstorable(
        f"how task {job.id} of pool {pool!r} ended ({decided.event}) cannot be stored: {error}",
        pool=pool,
        task_id=job.id,
    )
    told.__cause__ = error
    log.error(
        "task %d of pool %s ends as failed: its outcome (%s) cannot be stored (%s)",
        job.id,
        pool,
        decided.event,
        error,
        exc_info=error,
        extra={"pool": pool, "task": job.id},
    )
    failed = Settlement(
        fence=decided.fence,
        event=Transition.FAIL,
        error=describe(told),
        reason=Reason.UNSTORABLE,
        successor=decided.successor,
    )
    return failed, told


def without_successor(decided: Settlement) -> Settlement:
    """Return the same end, without the claim that was started in its slot."""
    return msgspec.structs.replace(decided, successor=None)
