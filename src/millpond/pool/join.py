"""Joining: a submit as part of a transaction that the submitter has open on the store's database.

All of it happens in the submitter's thread and at once: its connection may be of no use anywhere
else. What is left for the loop is to hear of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.core.errors import ConfigError, NotSupported
from millpond.core.lifecycle import Status
from millpond.pool.handle import Handle
from millpond.pool.submit import refused
from millpond.runtime.joins import Joined
from millpond.store.protocol import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.task import NewTask
    from millpond.pool.pool import Pool
    from millpond.runtime.job import Closure
    from millpond.runtime.probe import Submission
    from millpond.store.protocol import BatchAnswer

    Made: TypeAlias = tuple[NewTask, Closure | None, Callable[[bytes], Any] | None]


def submit_within(
    pool: Pool, made: Sequence[Made], connection: object, watched: Submission
) -> list[Handle[Any]]:
    """Submit calls inside the transaction that is open on a connection; return their handles."""
    runtime = pool.runtime
    submit = runtime.abilities.submit_within
    if submit is None:
        where = "on a server, where that does not work yet" if runtime.shared else "in memory"
        raise NotSupported(
            f"connection= joins a transaction of the database that the pools are in, and pool "
            f"{pool.name!r} is {where}: use Millpond('sqlite:///...'), or submit without it",
            feature="connection",
        )
    if not made:
        return []
    batch, handles = _calls(pool, made)
    undeclared = () if pool.spec.name in runtime.declared else (pool.spec,)
    answer, inside = submit(connection, (batch,), declare=undeclared)
    told = watched.answered(answer.batches[0])
    if told.refusal is not None:
        raise refused(told.refusal, len(batch.tasks))
    now = runtime.clock()
    for handle, admission in zip(handles, told.admissions, strict=True):
        handle.admitted(admission, now)
    joined = Joined(
        tasks=_stored(batch, told),
        answer=answer,
        undeclared=undeclared,
        may_expire=any(new.expires_in is not None for new in batch.tasks),
    )
    runtime.loop.call_soon_threadsafe(runtime.joins.add, inside, joined)
    return handles


def _calls(pool: Pool, made: Sequence[Made]) -> tuple[Batch, list[Handle[Any]]]:
    """Return the batch and the handles, if all of it outlives the process."""
    if any(closure is not None for _, closure, _ in made):
        raise ConfigError(
            "work", "a closure", "cannot be submitted with connection=: use a registered task"
        )
    batch = Batch(tasks=tuple(new for new, _, _ in made))
    return batch, [Handle(pool, new, decode) for new, _, decode in made]


def _stored(batch: Batch, answer: BatchAnswer) -> tuple[int, ...]:
    """Return the tasks that were stored: not those that were known before, nor those dropped."""
    pairs = zip(batch.tasks, answer.admissions, strict=True)
    return tuple(
        new.id
        for new, admission in pairs
        if not admission.duplicate and admission.status is not Status.REJECTED
    )
