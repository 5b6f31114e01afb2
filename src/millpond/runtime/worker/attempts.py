"""Attempts: start leased tasks as jobs, and stop them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.core.settle import Unfit
from millpond.runtime.declarations import limit_of
from millpond.runtime.jobs.job import CancelReason, Closure, Handler, Job, current_job
from millpond.runtime.worker.batch import Batches
from millpond.runtime.worker.state import NO_CODE, STUCK_AFTER

if TYPE_CHECKING:
    from millpond.core.lease import Leased
    from millpond.core.task import Fence
    from millpond.runtime.jobs.job import WorkerProtocol
    from millpond.runtime.worker.misfits import Misfits
    from millpond.runtime.worker.prefetch import Prefetch
    from millpond.runtime.worker.slot import SlotOwner
    from millpond.runtime.worker.slots import Slots
    from millpond.runtime.worker.state import WorkerState

log = logging.getLogger("millpond.worker")


class Attempts(Service):
    """The running jobs of one worker."""

    _worker: WorkerProtocol
    _state: WorkerState
    _owner: SlotOwner
    _slots: Slots
    _prefetch: Prefetch
    _misfits: Misfits

    def __post_init__(self) -> None:
        self._env = self._state.env
        self.batches = Batches(self._worker, self._owner, self._slots, self._start_timeout)

    def start(self, leased: Leased) -> None:
        """Give a leased task to a slot, or give it back if its function is not known here."""
        if self._prefetch.gone and leased.fence in self._prefetch.gone:
            # A prefetched task that it started, or gave back, while the store started it, too.
            return
        body = self._body_of(leased)
        if body is None:
            self._misfits.report_unknown(leased.pool, (leased.call.function,))
            self._owner.finished(self.job_without_code(leased), None, Unfit(corrupt=False))
            return
        job = Job(leased, self._worker, body, self._env.clock())
        jobs = self._state.jobs
        jobs[leased.fence.task] = job
        if len(jobs) == 1:
            self._state.became_busy()
        if type(body) is Handler and body.batch is not None:
            self.batches.add(job, body.batch)
            return
        if leased.timeout is not None:
            self._start_timeout(job)
        base = body.context if type(body) is Closure else self._env.context
        context = job.context = base.copy()
        context.run(current_job.set, job)
        self._slots.ready.append(job)

    def _body_of(self, leased: Leased) -> Handler | Closure | None:
        """Return the code of a leased task, or None if this process does not have it."""
        services = self._state.services
        closure = services.closures.get(leased.fence.task)
        return closure if closure is not None else services.functions.get(leased.call.function)

    def job_without_code(self, leased: Leased) -> Job:
        """Return a job for a task that is given back without a run."""
        return Job(leased, self._worker, NO_CODE, self._env.clock())

    def _start_timeout(self, job: Job) -> None:
        """Start the timeout of an attempt, if it has one."""
        seconds = job.leased.timeout
        if seconds is not None:
            job.deadline = self._env.clock() + seconds
            job.timer = self._env.loop.call_later(seconds, self.stop, job, CancelReason.TIMEOUT)

    def stop(self, job: Job, why: CancelReason, *, interrupt: bool = True) -> None:
        """Ask a job to stop; one that does not keeps its task and its slot until it ends."""
        if job.settled:
            return
        job.cancel(why)
        job.interrupted = job.interrupted or (interrupt and why is CancelReason.CANCEL)
        if job.slot is not None:
            if interrupt:
                job.slot.interrupt(job)
        elif job in self._slots.ready:
            job.stopped_early = job.stopped_early or interrupt
        else:
            self.batches.stop(job, interrupt=interrupt)
        if not interrupt:
            return
        if why is CancelReason.TIMEOUT:
            job.timer = self._env.loop.call_later(STUCK_AFTER, self._overran, job)

    def stop_all(self, why: CancelReason) -> None:
        """Interrupt every job."""
        for job in list(self._state.jobs.values()):
            self.stop(job, why)

    def stop_lost(self, fence: Fence | None) -> None:
        """Stop the job of a prefetched task that the store had taken back before it started."""
        job = None if fence is None else self._state.jobs.get(fence.task)
        if job is not None and job.leased.fence == fence:
            self.stop(job, CancelReason.LEASE_LOST)

    def _overran(self, job: Job) -> None:
        """Log that a handler goes on after its timeout: its attempt is settled when it ends.

        Until then the task stays leased. So its next attempt never runs beside this one, here or in
        another process, and the limits count it.
        """
        if job.settled or job.committed:
            return
        pool = job.leased.pool
        self._state.stuck_since[job] = self._env.clock() - STUCK_AFTER
        self._state.services.hooks.counts.stuck += 1
        log.warning(
            "task %d of pool %s timed out and does not stop: it stays running and keeps its slot "
            "until its handler ends",
            job.id,
            pool,
            extra=about("task.stuck", pool=pool, task=job.id, worker=self._state.name),
        )

    def holders(self, pool: str, free: int) -> list[Job]:
        """Return the jobs that keep this worker from starting more of a pool; none if it could.

        Those that should have ended come first.
        """
        state = self._state
        jobs = sorted(state.jobs.values(), key=lambda job: job not in state.stuck_since)
        if free <= 0:
            return jobs
        here = [job for job in jobs if job.leased.pool == pool]
        full = len(here) >= limit_of(state.services.specs, pool)
        # If none of them is stuck, the store's own count says it all.
        return here if full and here and here[0] in state.stuck_since else []
