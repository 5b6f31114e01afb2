"""Commits by handlers: an attempt stores its own completion, with what it writes.

The store checks the fence of the completion like that of any settlement. Once it is stored the
attempt is over: nothing the handler does afterwards changes its task.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millpond.core.settle import Settlement, Succeeded, settle
from millpond.errors import AlreadySettled, ConfigError, LeaseLost, NotSupported
from millpond.runtime.fork_safety import must_not_be_child
from millpond.runtime.jobs.job import Closure
from millpond.runtime.jobs.policy import DEFAULT_RETRY
from millpond.runtime.run_to_completion import run_to_completion

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.jobs.job import Job
    from millpond.store.protocol import SettleAnswer
    from millpond.store.shared import HandlerTransaction

T = TypeVar("T")


def may_commit(job: Job, feature: str) -> None:
    """Raise if an attempt has ended, or cannot store its own completion."""
    if job.worker.env.shared_store.settle_with is None:
        raise NotSupported(
            f"ctx.{feature}() needs pools in a database, where the handler's own tables can be; "
            "in memory there is nothing to commit",
            feature=feature,
        )
    if getattr(job.body, "batch", None) is not None:
        raise NotSupported(
            f"ctx.{feature}() would complete one task, and a batch task runs many in one call",
            feature=feature,
        )
    if job.committed:
        raise _committed_before(job)
    if job.settled:
        raise lost(job)


def _committed_before(job: Job) -> AlreadySettled:
    """Return the error for an attempt that wants to complete twice."""
    return AlreadySettled(
        f"task {job.id} of pool {job.leased.pool!r} has committed its completion before: an "
        "attempt does so once, and is over then",
        **attempt_fields(job),
    )


def lost(job: Job) -> LeaseLost:
    """Return the error for an attempt that is no longer the one that may write."""
    leased = job.leased
    return LeaseLost(
        f"attempt {leased.fence.attempt} of task {job.id} in pool {leased.pool!r} has lost its "
        "lease, and another attempt may be running: nothing of this one was written; stop",
        **attempt_fields(job),
    )


def attempt_fields(job: Job) -> dict[str, Any]:
    """Return the fields by which errors say which attempt they are about."""
    leased = job.leased
    return {"pool": leased.pool, "task_id": job.id, "attempt": leased.fence.attempt}


def completion(job: Job, result: Any) -> Settlement:  # noqa: ANN401 - what the task returns
    """Return the settlement of an attempt that completed with a result."""
    assert not isinstance(job.body, Closure)  # noqa: S101 - a closure has no context
    follow_ups = tuple(job.follow_ups) if job.follow_ups else ()
    outcome = Succeeded(job.body.encode_result(result), follow_ups)
    decided = settle(job.leased, outcome, DEFAULT_RETRY, jitter=0.0)
    return decided if job.weight is None else msgspec.structs.replace(decided, weight=job.weight)


async def commit_with(job: Job, write: Callable[[Any], T], result: Any) -> T:  # noqa: ANN401
    """Complete an attempt in one transaction with what `write` does; return what that returned."""
    may_commit(job, "commit")
    if inspect.iscoroutinefunction(write):
        raise ConfigError("fn", write, "must be a plain function: it runs in a writing thread")
    settle_with = job.worker.env.shared_store.settle_with
    assert settle_with is not None  # noqa: S101 - asked just now
    decided = completion(job, result)

    async def store() -> T:
        stored: tuple[SettleAnswer, T] = await settle_with(
            decided, partial(_written, write, job.worker.env.process)
        )
        _apply(job, decided, result, stored[0])
        return stored[1]

    # A caller that is cancelled meanwhile must know whether it was stored: its slot asks next.
    storing = job.worker.env.loop.create_task(store())
    await run_to_completion(storing)
    return storing.result()


def _written(write: Callable[[Any], T], process: int, connection: Any) -> T:  # noqa: ANN401
    """Call a handler's write function; one that raises SystemExit fails its attempt.

    SystemExit would end the loop, and with it the worker. A child process that it forked ends here:
    the connection belongs to the parent.
    """
    try:
        return write(connection)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"the function given to ctx.commit raised {error!r}") from error
    finally:
        must_not_be_child(process)


async def commit_held(job: Job, held: HandlerTransaction, result: Any) -> None:  # noqa: ANN401
    """Complete an attempt and commit the transaction that its handler holds."""
    decided = completion(job, result)

    async def store() -> None:
        answer = await job.worker.in_thread(lambda: held.settle(decided))
        announce = job.worker.env.shared_store.announce
        if announce is not None:
            job.worker.env.spawn(announce(answer))
        _apply(job, decided, result, answer)

    await run_to_completion(job.worker.env.loop.create_task(store()))


def _apply(job: Job, decided: Settlement, result: Any, answer: SettleAnswer) -> None:  # noqa: ANN401
    """Report a completion that was stored; LeaseLost if it came too late."""
    before = job.committed
    if not job.worker.committed(job, decided, result, answer):
        raise _committed_before(job) if before else lost(job)
