"""Settling: decide what happens to a task when its attempt ends; the next turn stores it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.lifecycle import Transition
from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.core.settle import Interrupted, Outcome, Raised, Settlement, Succeeded, settle
from millpond.errors import MillpondError
from millpond.runtime.bad_values import ended_by
from millpond.runtime.jobs.batch_call import BatchCall
from millpond.runtime.jobs.job import Closure
from millpond.runtime.jobs.outcome import formula_of
from millpond.runtime.jobs.policy import DEFAULT_RETRY
from millpond.runtime.worker.run_outcome import interrupted, timed_out
from millpond.runtime.worker.state import NO_CODE

if TYPE_CHECKING:
    from millpond.core.lease import Leased
    from millpond.core.task import Fence
    from millpond.runtime.jobs.job import Job
    from millpond.runtime.worker.attempts import Attempts
    from millpond.runtime.worker.prefetch import Prefetch
    from millpond.runtime.worker.queues import Queues
    from millpond.runtime.worker.schedule import TurnSchedule
    from millpond.runtime.worker.slots import Slots
    from millpond.runtime.worker.state import WorkerState

log = logging.getLogger("millpond.worker")


class Settling(Service):
    """Turns the outcomes of jobs into settlements."""

    _state: WorkerState
    _schedule: TurnSchedule
    _queues: Queues
    _prefetch: Prefetch
    _slots: Slots
    _attempts: Attempts

    def __post_init__(self) -> None:
        self._env = self._state.env

    def finished(self, job: Job, value: Any, outcome: Outcome) -> None:  # noqa: ANN401
        """Note how a job ended; the next turn settles it."""
        if isinstance(job.body, BatchCall):
            job.body.ended(job, value, failed=not isinstance(outcome, Succeeded))
            return
        if job.timer is not None:
            job.timer.cancel()
        if job.committed:
            self._ended_after_commit(job, value, outcome)
        elif not job.settled:
            self._settle(job, value, outcome)

    def _settle(
        self,
        job: Job,
        value: Any,  # noqa: ANN401 - what the handler returned or raised
        outcome: Outcome,
        *,
        left_slot: bool = True,
    ) -> None:
        """Decide what an outcome means; `left_slot` says whether the job has left its slot."""
        state = self._state
        successor = None
        if left_slot and state.may_lease and job.body is not NO_CODE:
            if self._prefetch.held:
                successor = self._start_prefetched(job)
            job.left_slot = True
        try:
            decided = self._decided(job, outcome, successor)
        except MillpondError as error:
            # A policy or a weight that the handler made invalid: fail the task, free the slot.
            end = Settlement(fence=job.leased.fence, event=Transition.FAIL, successor=successor)
            decided, value = ended_by(job, end, error)
        job.settled = True
        state.stuck_since.pop(job, None)
        self._remove(job)
        state.ended.append((decided, job, value))
        if self._env.shared and (type(job.body) is Closure or isinstance(value, BaseException)):
            # A poll may find the end before the answer to its settlement arrives.
            state.services.waiting.expect(job, decided, value)
        self._queues.job_ended(job.leased.pool)

    def _remove(self, job: Job) -> None:
        """Remove a job, unless the same task runs here again after a lost lease."""
        jobs, task = self._state.jobs, job.leased.fence.task
        if jobs.get(task) is job:
            del jobs[task]

    def _decided(self, job: Job, outcome: Outcome, successor: Fence | None) -> Settlement:
        """Return the settlement for an outcome; only a failure needs the policy and chance."""
        if type(outcome) is Raised:
            decided = settle(
                job.leased,
                outcome,
                formula_of(job),
                jitter=self._env.random(),
                now=self._env.clock(),
                started_at=job.started_at,
                successor=successor,
            )
        else:
            decided = settle(job.leased, outcome, DEFAULT_RETRY, jitter=0.0, successor=successor)
        if job.weight is not None:
            decided = msgspec.structs.replace(decided, weight=job.weight)
        return decided

    def settle_running(self, job: Job) -> None:
        """Settle a job whose handler does not stop, for a worker that leaves."""
        if job.settled or job.committed:
            return
        state, pool, error = self._state, job.leased.pool, None
        outcome: Outcome = interrupted(job, begun=job.began or self._attempts.batches.began(job))
        if job.timed_out:
            error, outcome = timed_out(job)
        if job not in state.stuck_since:
            state.services.hooks.counts.stuck += 1
        log.warning(
            "worker %s leaves while the handler of task %d of pool %s does not stop: the task is "
            "settled without it, and others may run it while the handler goes on in this process",
            state.name,
            job.id,
            pool,
            extra=about("task.abandoned", pool=pool, task=job.id, worker=state.name),
        )
        self._settle(job, error, outcome, left_slot=False)
        self._schedule.kick()

    def _ended_after_commit(self, job: Job, value: Any, outcome: Outcome) -> None:  # noqa: ANN401
        """Note the end of a handler that had committed its own completion."""
        pool = job.leased.pool
        self._remove(job)
        if isinstance(outcome, Raised):
            log.warning(
                "task %d of pool %s raised after it had committed its completion, which stands",
                job.id,
                pool,
                exc_info=value if isinstance(value, BaseException) else None,
                extra=about("task.raised_after_commit", pool=pool, task=job.id),
            )
        self._state.stuck_since.pop(job, None)
        self._queues.slot_freed(pool)

    # Giving back, and starting prefetched tasks

    def give_back(self, leased: Leased) -> None:
        """Give back a task that must not start here any more: not charged."""
        self._settle(self._attempts.job_without_code(leased), None, Interrupted(begun=False))

    def give_back_prefetched(self, pool: str | None = None) -> None:
        """Give back the prefetched tasks of a pool, or all: not charged, to their own place."""
        claims = self._prefetch.clear(pool)
        for claim in claims:
            self._prefetch.gone.add(claim.fence)
            self.give_back(claim)
        if claims:
            self._schedule.kick()

    def _start_prefetched(self, job: Job) -> Fence | None:
        """Start a prefetched task in the slot that a job left; its settlement reports it."""
        claim = self._prefetch.next(job.leased.pool)
        if claim is None:
            return None
        self._attempts.start(claim)
        self._prefetch.gone.add(claim.fence)
        if job.slot is None:
            # A slot that the job left takes another job at once.
            self._slots.wake()
        return claim.fence

    def start_late(self, pool: str) -> None:
        """Start prefetched tasks in the slots of jobs that ended while none was prefetched.

        The store does not know those ends yet. So the slots are busy while it gets them.
        """
        ended = self._state.ended
        for at, (decided, job, value) in enumerate(ended):
            if pool not in self._prefetch.held:
                break
            if decided.successor is None and job.left_slot and job.leased.pool == pool:
                started = self._start_prefetched(job)
                ended[at] = (msgspec.structs.replace(decided, successor=started), job, value)
        self._slots.wake()
