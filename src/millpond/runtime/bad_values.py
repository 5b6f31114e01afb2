"""Bad values: whether a verb failed because of the store, or because of a value in it.

After a failure of the store the whole verb is tried again. With a bad value it would fail for ever,
so each change is tried alone: the task with the bad value fails, the others are stored.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from millpond.core.admit import Reason
from millpond.core.lifecycle import Transition
from millpond.core.log_fields import about
from millpond.core.settle import Settlement
from millpond.errors import MillpondError, StoreError, Unstorable
from millpond.runtime.error_info import describe

if TYPE_CHECKING:
    from millpond.runtime.jobs.job import Job

log = logging.getLogger("millpond.worker")

MOST_REFUSALS = 6
"""How often a change is tried alone before an unclear error counts as its own."""


class Blame(Enum):
    """The cause of an error of a verb."""

    STORE = "store"
    """The store cannot be used now."""
    VALUE = "value"
    """The store refuses the value, and always will."""
    UNSURE = "unsure"


def blamed(error: BaseException) -> Blame:
    """Return the cause of an error of a verb."""
    if isinstance(error, StoreError):
        if error.of_value:
            return Blame.VALUE
        # A subclass of its own names what is wrong with the store.
        return Blame.UNSURE if type(error) is StoreError else Blame.STORE
    if isinstance(error, (MillpondError, ValueError, TypeError, ArithmeticError)):
        return Blame.VALUE
    if not isinstance(error, Exception) or isinstance(error, (OSError, MemoryError)):
        return Blame.STORE
    return Blame.UNSURE


def is_store_failure(error: BaseException) -> bool:
    """Return whether the store itself failed, so that trying each change alone does not help."""
    return blamed(error) is Blame.STORE


def is_at_fault(job: Job, error: Exception) -> bool:
    """Note that the store refused a settlement alone; return whether its value is at fault."""
    job.refusals += 1
    return blamed(error) is Blame.VALUE or job.refusals >= MOST_REFUSALS


def ended_by(job: Job, decided: Settlement, error: Exception) -> tuple[Settlement, Unstorable]:
    """Return the settlement for a job whose own cannot be stored: failed, with the error."""
    pool = job.leased.pool
    unstorable = Unstorable(
        f"how task {job.id} of pool {pool!r} ended ({decided.event}) cannot be stored: {error}",
        pool=pool,
        task_id=job.id,
    )
    unstorable.__cause__ = error
    log.error(
        "task %d of pool %s ends as failed: its outcome (%s) cannot be stored (%s)",
        job.id,
        pool,
        decided.event,
        error,
        exc_info=error,
        extra=about("task.unstorable", pool=pool, task=job.id, reason=type(error).__name__),
    )
    failed = Settlement(
        fence=decided.fence,
        event=Transition.FAIL,
        error=describe(unstorable),
        reason=Reason.UNSTORABLE,
        successor=decided.successor,
    )
    return failed, unstorable


def without_successor(decided: Settlement) -> Settlement:
    """Return the same settlement without the prefetched task that started in its slot."""
    return msgspec.structs.replace(decided, successor=None)
