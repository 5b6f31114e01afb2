"""Joining: a submit as part of a transaction that the submitter has open on the store's database.

All of it happens in the submitter's thread and at once: its connection may be of no use anywhere
else. What is left for the loop is to hear of it.
"""

from __future__ import annotations

from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.core.admit import Reason, Refusal, too_heavy
from millpond.core.lifecycle import Status
from millpond.errors import ConfigError, ForeignConnection, NotSupported
from millpond.pool.handle import Handle
from millpond.pool.submit import refused
from millpond.runtime.caller_transactions import JoinedSubmit
from millpond.store.protocol import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.spec import PoolSpec
    from millpond.core.task import NewTask
    from millpond.pool.pool import Pool
    from millpond.runtime.jobs.job import Closure
    from millpond.runtime.observe.probe import Submission
    from millpond.store.protocol import BatchAnswer, SubmitAnswer

    Made: TypeAlias = tuple[NewTask, Closure | None, Callable[[bytes], Any] | None]


def submit_within(
    pool: Pool, made: Sequence[Made], connection: object, watched: Submission
) -> list[Handle[Any]]:
    """Submit calls inside the transaction that is open on a connection; return their handles."""
    batch, handles = _calls(pool, made)
    if not handles:
        return []
    answered = _submitted(pool, batch, connection)
    if isawaitable(answered):
        if iscoroutine(answered):
            answered.close()
        raise ForeignConnection(
            "an asynchronous connection is used on its event loop: submit there, with `await "
            "pool.submit(..., connection=...)`, or give a connection that is not asynchronous",
            path="",
            found=f"{type(connection).__module__}.{type(connection).__qualname__}",
        )
    return _taken_in(pool, batch, handles, watched, *answered)


async def submit_joined(
    pool: Pool, made: Sequence[Made], connection: object, watched: Submission
) -> list[Handle[Any]]:
    """Do the same on the loop, where the connection may have to be waited for."""
    batch, handles = _calls(pool, made)
    if not handles:
        return []
    answered = _submitted(pool, batch, connection)
    answer, inside = await answered if isawaitable(answered) else answered
    return _taken_in(pool, batch, handles, watched, answer, inside)


def _submitted(pool: Pool, batch: Batch, connection: object) -> Any:  # noqa: ANN401 - or awaitable
    submit = pool.runtime.shared_store.submit_within
    assert submit is not None  # noqa: S101 - asked before
    for new in batch.tasks:
        bound = too_heavy(pool.spec, new)
        if bound is not None:
            raise refused(Refusal(reason=Reason.WEIGHT_LIMIT, pool=pool.name, bound=bound), 1)
    return submit(connection, (batch,), declare=_undeclared(pool))


def _undeclared(pool: Pool) -> tuple[PoolSpec, ...]:
    return () if pool.spec.name in pool.runtime.declarations.specs else (pool.spec,)


def _taken_in(
    pool: Pool,
    batch: Batch,
    handles: list[Handle[Any]],
    watched: Submission,
    answer: SubmitAnswer,
    inside: Any,  # noqa: ANN401 - of any driver
) -> list[Handle[Any]]:
    """Tell the handles what became of their tasks, and the loop to wait for the commit."""
    runtime = pool.runtime
    told = watched.answered(answer.batches[0])
    if told.refusal is not None:
        raise refused(told.refusal, len(batch.tasks))
    now = runtime.clock()
    for handle, admission in zip(handles, told.admissions, strict=True):
        handle.admitted(admission, now)
    joined = JoinedSubmit(
        tasks=_stored(batch, told),
        answer=answer,
        undeclared=_undeclared(pool),
        announced=getattr(inside, "announces", False),
        may_expire=any(new.expires_in is not None for new in batch.tasks),
    )
    runtime.loop.call_soon_threadsafe(runtime.caller_transactions.add, inside, joined)
    return handles


def _calls(pool: Pool, made: Sequence[Made]) -> tuple[Batch, list[Handle[Any]]]:
    """Return the batch and the handles, if all of it outlives the process."""
    if pool.runtime.shared_store.submit_within is None:
        raise NotSupported(
            f"connection= joins a transaction of the database that the pools are in, and pool "
            f"{pool.name!r} is in memory: use Millpond('sqlite:///...') or "
            "Millpond('postgresql://...'), or submit without it",
            feature="connection",
        )
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
