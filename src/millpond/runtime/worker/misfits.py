"""Misfits: tasks whose function or arguments this process does not know; each is logged once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.settle import Unfit
from millpond.core.task import CALLBACKS, tried
from millpond.errors import ArgumentsDoNotFit
from millpond.runtime.error_info import describe
from millpond.runtime.jobs.job import Handler
from millpond.runtime.jobs.outcome import Misfit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.runtime.jobs.job import Job
    from millpond.runtime.jobs.outcome import Unreadable
    from millpond.runtime.worker.state import WorkerState

log = logging.getLogger("millpond.worker")

MOST_REPORTED = 1000
"""How many functions, and arguments that do not fit them, are remembered as logged."""


class Misfits:
    """Decides what happens to tasks that cannot run here, and logs each kind once."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._counts = state.services.hooks.counts
        self._reported: set[tuple[str, str]] = set()
        """Pools, and what the log says about them."""

    def unreadable(self, job: Job, error: Unreadable) -> Unfit:
        """Return the outcome of a task that cannot be read here: parked, or failed as corrupt."""
        if not isinstance(error, Misfit):
            # Its failure is logged once it is settled.
            self._counts.corrupt += 1
            return Unfit(corrupt=True, error=describe(error))
        worker = self._state.name
        takes = job.body.takes.text if isinstance(job.body, Handler) and job.body.takes else ""
        call, pool = job.leased.call.function, job.leased.pool
        misfit = ArgumentsDoNotFit(
            f"the stored arguments of task {job.id} in pool {pool!r} do not fit function {call!r} "
            f"on worker {worker}: {error}. The worker has {takes or call}. Deploy a worker "
            "that takes these arguments, or redrive the task after a fix",
            task_id=job.id,
            pool=pool,
            function=call,
            field=error.field,
            worker=worker,
            reason=str(error),
        )
        served = pool.removesuffix(CALLBACKS)
        if self._is_new(served, f"{call}: {error.field or error}"):
            self._is_new(served, f"{call}: parked")
            self._counts.unfit_arguments += 1
            log.warning(
                "%s. Such tasks are parked for a worker that can read them, for a day at most",
                misfit,
                extra=about("task.parked", pool=pool, task=job.id, worker=worker, function=call),
            )
        return Unfit(corrupt=False, misfit=True, error=describe(misfit))

    def report_unknown(self, pool: str, needs: Sequence[str]) -> None:
        """Log once for each function that its tasks cannot run here."""
        pool = pool.removesuffix(CALLBACKS)
        for need in needs:
            function, misfits = tried(need)
            if misfits and self._state.services.functions.get(function) is not None:
                self._report_misfits(pool, function)
                continue
            if not self._is_new(pool, function):
                continue
            self._counts.unknown_functions += 1
            log.warning(
                "this process has no function named %r: its tasks in pool %s wait for a worker "
                "that has it, for a day at most",
                function,
                pool,
                extra=about("function.unknown", pool=pool, function=function),
            )

    def _report_misfits(self, pool: str, function: str) -> None:
        """Log once for a function that tasks are parked whose arguments do not fit it."""
        if self._is_new(pool, f"{function}: parked"):
            log.warning(
                "%s tasks of function %r in pool %s are parked: their arguments do not fit the "
                "function of this process; `millpond tasks %s --status parked` lists them",
                ArgumentsDoNotFit.code,
                function,
                pool,
                pool,
                extra=about("task.parked", pool=pool, function=function),
            )

    def _is_new(self, pool: str, what: str) -> bool:
        """Return whether this was not logged for a pool before."""
        if (pool, what) in self._reported:
            return False
        if len(self._reported) >= MOST_REPORTED:
            self._reported.clear()
        self._reported.add((pool, what))
        return True
