"""Opening a run: new, or taken up again under its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.admit import Reason
from millpond.core.run import NewRun, OnError, RunView
from millpond.errors import RunOverBudget
from millpond.pool.options import must_be_callback
from millpond.pool.pool_submitter import PoolSubmitter, looked_up
from millpond.pool.refusals import error_of
from millpond.runtime.observe.probe import submission

if TYPE_CHECKING:
    from millpond.core.task import Call
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.options import Callback
    from millpond.pool.pool_submitter import Prepared
    from millpond.pool.submitted_task import SubmittedTask
    from millpond.pool.task import BoundCall
    from millpond.store.protocol import BatchAnswer


def new_run(
    pool: DeclaredPool,
    name: str | None,
    on_error: str,
    max_tasks: int | None,
    *,
    holder: str | None = None,
    on_complete: Call | None = None,
) -> NewRun:
    """Return a run to open."""
    if name is not None:
        check.storable("run", name, bounds.MAX_RUN_NAME)
    if max_tasks is not None:
        check.integer("max_tasks", max_tasks, least=1)
    return NewRun(
        id=pool.runtime.new_id(),
        pool=pool.spec.name,
        name=name,
        on_error=OnError(check.one_of("on_error", on_error, ("skip", "fail"))),
        max_tasks=max_tasks,
        holder=holder,
        on_complete=on_complete,
    )


def encoded_callback(given: Callback) -> Call:
    """Return a callback as data; ConfigError if it is no call."""
    must_be_callback("on_complete", given)
    return given._as_callback()  # noqa: SLF001 - of a Callback


async def open_run(pool: DeclaredPool, new: NewRun, seed: Sequence[BoundCall[Any]]) -> RunView:
    """Open a run with its seed, or take up the run of that name."""
    run, _, _ = await _open(pool, new, seed)
    return run


async def submit_run(
    pool: DeclaredPool, new: NewRun, seed: Sequence[BoundCall[Any]]
) -> list[SubmittedTask]:
    """Open a run with its seed and return its tasks; none if the run of that name was known."""
    run, made, answer = await _open(pool, new, seed)
    if run.resumed:
        return []
    PoolSubmitter(pool).admitted(made, answer)
    return await looked_up(made)


async def _open(
    pool: DeclaredPool, new: NewRun, seed: Sequence[BoundCall[Any]]
) -> tuple[RunView, Prepared, BatchAnswer]:
    submitter = PoolSubmitter(pool)
    with submission(pool.runtime.hooks.probes, pool.spec.name, len(seed)) as watched:
        made = await submitter.prepare(list(seed), {}, new.id, new)
        watched.made(made.batch.tasks)
        answer = watched.answered(await submitter.send(made, None))
    if answer.refusal is not None:
        if answer.refusal.reason is Reason.OVER_BUDGET:
            raise RunOverBudget(
                f"the seed of {len(seed)} tasks is above max_tasks={new.max_tasks}; nothing ran",
                pool=pool.spec.name,
                run=new.name,
                report=None,
                max_tasks=new.max_tasks,
            )
        raise error_of(answer.refusal, len(seed))
    assert answer.run is not None  # noqa: S101 - the answer to a batch that opens a run has it
    return answer.run, made, answer
