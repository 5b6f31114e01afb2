"""The runs of one pool: drain, run and stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from millpond.core import validation as check
from millpond.core.validation import Seconds
from millpond.pool.runs.idle import drain_idle
from millpond.pool.runs.opening import encoded_callback, new_run, submit_run
from millpond.pool.runs.progress_bar import ProgressBar
from millpond.pool.runs.report import RunReport, report_of
from millpond.pool.runs.run import Run
from millpond.pool.runs.stream import Stream
from millpond.pool.runs.watch import drain_run
from millpond.pool.task import BoundCall
from millpond.pool.temporary_worker import serving
from millpond.pool.work import seed_of_run

if TYPE_CHECKING:
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.options import Callback
    from millpond.pool.outcome import DecoderOf
    from millpond.pool.submitted_task import SubmittedTask


class PoolRuns:
    """Drains one pool, and opens runs and streams in it."""

    __slots__ = ("_decoder_of", "_pool")

    def __init__(self, pool: DeclaredPool, decoder_of: DecoderOf) -> None:
        self._pool = pool
        self._decoder_of = decoder_of

    async def drain(
        self,
        seed: Iterable[BoundCall[Any]] | None = None,
        /,
        *,
        run: str | None = None,
        on_error: Literal["skip", "fail"] = "skip",
        max_tasks: int | None = None,
        progress: bool = False,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the drain's own limit
    ) -> RunReport:
        """Submit calls as one run, and wait until it has ended; without calls, for an idle pool.

        The run also has the tasks that its tasks submit. If no worker of this process serves the
        pool, one does until then.
        """
        pool = self._pool
        await pool.ready()
        limit = None if timeout is None else check.seconds("timeout", timeout)
        async with serving(pool):
            if seed is None:
                return await drain_idle(pool, limit, ProgressBar() if progress else None)
            return await drain_run(
                pool,
                seed_of_run(seed),
                name=run,
                on_error=on_error,
                max_tasks=max_tasks,
                progress=progress,
                timeout=limit,
            )

    def run(
        self,
        name: str | None = None,
        /,
        *,
        on_error: Literal["skip", "fail"] = "skip",
        max_tasks: int | None = None,
    ) -> Run:
        """Open a run: `async with pool.run("nightly") as run: await run.submit(...)`.

        A run with a name that a crash interrupted goes on when it is opened again. With
        `on_error="fail"` the first failure stops the run: tasks that wait are cancelled, running
        ones may finish, and leaving the block raises RunFailed.
        """
        return Run(self._pool, name, on_error=on_error, max_tasks=max_tasks)

    async def when_all(
        self,
        calls: Iterable[BoundCall[Any]],
        /,
        *,
        then: Callback,
        run: str | None = None,
        on_error: Literal["skip", "fail"] = "skip",
    ) -> list[SubmittedTask]:
        """Submit calls as a run with a callback; a run of a known name is not submitted again."""
        pool = self._pool
        await pool.ready()
        new = new_run(pool, run, on_error, None, on_complete=encoded_callback(then))
        return await submit_run(pool, new, seed_of_run(calls))

    async def report(self, run: str, /) -> RunReport | None:
        """Return how far the run of this name is, or how it ended; None if none is known.

        Any process of the store may ask. `finished` says whether it has ended.
        """
        pool = self._pool
        await pool.ready()
        view = await pool.runtime.view.run_named(pool.spec.name, check.text("run", run))
        return None if view is None else report_of(view)

    def stream(
        self,
        seed: Iterable[BoundCall[Any]],
        /,
        *,
        run: str | None = None,
        on_error: Literal["skip", "fail"] = "skip",
        max_tasks: int | None = None,
    ) -> Stream:
        """Submit calls as one run, and yield the outcomes of its tasks as they end.

        `async with pool.stream(calls) as outcomes:` opens it, and `async for outcome in outcomes:`
        reads it. The options are those of `run`.
        """
        return Stream(
            self._pool,
            self._decoder_of,
            seed_of_run(seed),
            name=run,
            on_error=on_error,
            max_tasks=max_tasks,
        )
