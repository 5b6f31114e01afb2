"""Caller transactions: a submit inside a transaction that the caller has open.

The transaction is on the store's database. All of this happens in the caller's thread and at once,
because its connection may not work in another. The loop only watches for the commit.
"""

from __future__ import annotations

from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.core.admit import Reason, Refusal, too_heavy
from millpond.core.lifecycle import Status
from millpond.errors import ConfigError, ForeignConnection, NotSupported
from millpond.pool.refusals import error_of
from millpond.pool.submitted_task import SubmittedTask
from millpond.runtime.waiting.joined_tasks import JoinedSubmit
from millpond.store.protocol import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.spec import PoolSpec
    from millpond.core.task import NewTask
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.runtime.jobs.job import Closure
    from millpond.runtime.observe.probe import Submission
    from millpond.store.protocol import BatchAnswer, SubmitAnswer

    Made: TypeAlias = tuple[NewTask, Closure | None, Callable[[bytes], Any] | None]


def submit_within(
    pool: DeclaredPool, made: Sequence[Made], connection: object, watched: Submission
) -> list[SubmittedTask]:
    """Submit calls inside the transaction that is open on a connection."""
    batch, tasks = _prepare(pool, made)
    if not tasks:
        return []
    answer_or_wait = _send(pool, batch, connection)
    if isawaitable(answer_or_wait):
        if iscoroutine(answer_or_wait):
            answer_or_wait.close()
        raise ForeignConnection(
            "an asynchronous connection is used on its event loop: submit there, with `await "
            "pool.submit(..., connection=...)`, or give a connection that is not asynchronous",
            path="",
            found=f"{type(connection).__module__}.{type(connection).__qualname__}",
        )
    return _applied(pool, batch, tasks, watched, *answer_or_wait)


async def submit_joined(
    pool: DeclaredPool, made: Sequence[Made], connection: object, watched: Submission
) -> list[SubmittedTask]:
    """Do the same on the loop, where the connection may be asynchronous."""
    batch, tasks = _prepare(pool, made)
    if not tasks:
        return []
    answer_or_wait = _send(pool, batch, connection)
    answer, inside = await answer_or_wait if isawaitable(answer_or_wait) else answer_or_wait
    return _applied(pool, batch, tasks, watched, answer, inside)


def _send(pool: DeclaredPool, batch: Batch, connection: object) -> Any:  # noqa: ANN401 - or awaitable
    submit = pool.runtime.shared_store.submit_within
    assert submit is not None  # noqa: S101 - checked before
    for new in batch.tasks:
        bound = too_heavy(pool.spec, new)
        if bound is not None:
            raise error_of(Refusal(reason=Reason.WEIGHT_LIMIT, pool=pool.name, bound=bound), 1)
    return submit(connection, (batch,), declare=_undeclared(pool))


def _undeclared(pool: DeclaredPool) -> tuple[PoolSpec, ...]:
    return () if pool.spec.name in pool.runtime.declarations.specs else (pool.spec,)


def _applied(
    pool: DeclaredPool,
    batch: Batch,
    tasks: list[SubmittedTask],
    watched: Submission,
    answer: SubmitAnswer,
    inside: Any,  # noqa: ANN401 - of any driver
) -> list[SubmittedTask]:
    """Apply the store's answer to the tasks, and let the loop watch for the commit."""
    runtime = pool.runtime
    taken = watched.answered(answer.batches[0])
    if taken.refusal is not None:
        raise error_of(taken.refusal, len(batch.tasks))
    now = runtime.clock()
    for task, admission in zip(tasks, taken.admissions, strict=True):
        task.admitted(admission, now)
    joined = JoinedSubmit(
        tasks=_stored(batch, taken),
        answer=answer,
        undeclared=_undeclared(pool),
        announced=getattr(inside, "announces", False),
        may_expire=any(new.expires_in is not None for new in batch.tasks),
    )
    runtime.loop.call_soon_threadsafe(runtime.caller_transactions.add, inside, joined)
    return tasks


def _prepare(pool: DeclaredPool, made: Sequence[Made]) -> tuple[Batch, list[SubmittedTask]]:
    """Return the batch and the tasks; refuse a store in memory, and closures."""
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
    return batch, [SubmittedTask(pool, new, decode) for new, _, decode in made]


def _stored(batch: Batch, answer: BatchAnswer) -> tuple[int, ...]:
    """Return the tasks that were stored: neither duplicates nor those dropped."""
    pairs = zip(batch.tasks, answer.admissions, strict=True)
    return tuple(
        new.id
        for new, admission in pairs
        if not admission.duplicate and admission.status is not Status.REJECTED
    )
