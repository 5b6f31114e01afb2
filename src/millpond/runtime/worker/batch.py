"""Batch tasks: several leased tasks in one call, each settled on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.service import Service
from millpond.core.settle import Stopped
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.jobs.batch_call import BatchCall, Failed
from millpond.runtime.jobs.job import BatchShape, CancelReason, Handler, Job, current_job
from millpond.runtime.jobs.outcome import Unreadable, raised
from millpond.runtime.worker.run_outcome import interrupted, succeeded, timed_out

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from millpond.core.settle import Outcome
    from millpond.runtime.jobs.job import WorkerProtocol
    from millpond.runtime.worker.slot import SlotOwner
    from millpond.runtime.worker.slots import Slots


class Batches(Service):
    """Collects the jobs of batch functions until a batch is full or its first has waited enough."""

    _worker: WorkerProtocol
    _owner: SlotOwner
    _slots: Slots
    _start_timeout: Callable[[Job], None]
    _collecting: dict[str, list[Job]] = {}
    _timers: dict[str, asyncio.TimerHandle] = {}
    calls: dict[Job, Job] = {}
    """Each running job -> the job that leads its call."""

    def add(self, job: Job, shape: BatchShape) -> None:
        """Add a job to the batch that is being collected."""
        name = job.leased.call.function
        waiting = self._collecting.setdefault(name, [])
        waiting.append(job)
        if len(waiting) >= shape.size:
            self._send(name, shape)
        elif len(waiting) == 1:
            loop = self._worker.env.loop
            self._timers[name] = loop.call_later(shape.linger, self._send, name, shape)

    def stop(self, job: Job, *, interrupt: bool) -> None:
        """Take a job out of the batch that is being collected; interrupt one that runs."""
        name = job.leased.call.function
        if job in self._collecting.get(name, ()):
            self._collecting[name].remove(job)
            if not self._collecting[name]:
                # The next job is the first again, and waits its own time.
                self._timers.pop(name).cancel()
            self._end(job, None, interrupted(job, begun=False))
            return
        if not interrupt:
            return
        leader = self.calls.get(job)
        if leader is not None:
            leader.why = job.why
            leader.timed_out = leader.timed_out or job.timed_out
            if leader.slot is not None:
                leader.slot.interrupt(leader)
            else:
                leader.stopped_early = True

    def began(self, job: Job) -> bool:
        """Return whether the call that a job is part of was made."""
        leader = self.calls.get(job)
        return leader is not None and leader.began

    def _send(self, name: str, shape: BatchShape) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        jobs, items = self._read(self._collecting.pop(name, []), shape)
        if not jobs:
            return
        body = jobs[0].body
        assert isinstance(body, Handler)  # noqa: S101 - closures are never collected
        call = BatchCall(
            body.name,
            body.where,
            lambda _: shape.call(jobs, items),
            lambda _: b"",
            body.retry,
            owner=self,
            jobs=jobs,
        )
        leader = Job(jobs[0].leased, self._worker, call, jobs[0].started_at)
        for job in jobs:
            self.calls[job] = leader
            self._start_timeout(job)
        context = leader.context = self._worker.env.context.copy()
        context.run(current_job.set, jobs[0])
        self._slots.ready.append(leader)
        self._slots.wake()

    def _read(self, jobs: list[Job], shape: BatchShape) -> tuple[list[Job], list[Any]]:
        """Return the readable jobs and their items; settle the others."""
        readable, items = [], []
        for job in jobs:
            try:
                items.append(shape.read(job))
                readable.append(job)
            except Unreadable as error:
                self._end(job, error, self._owner.unreadable(job, error))
            except BaseException as error:
                # A class of the user may exit while it is read: its own task fails.
                if is_ctrl_c(error):
                    raise
                self._end(job, error, raised(error, job))
        return readable, items

    def settle(self, jobs: list[Job], returned: Any) -> None:  # noqa: ANN401 - by the handler
        """Settle each job of a call by its own result."""
        results = returned if isinstance(returned, list) else None
        wrong = None
        if results is None or len(results) != len(jobs):
            count = "no list" if results is None else f"{len(results)} results"
            wrong = TypeError(f"a batch of {len(jobs)} gave {count}; give one result per item")
        for index, job in enumerate(jobs):
            result = wrong if results is None or wrong is not None else results[index]
            self._settle_one(job, result)

    def fail(self, jobs: list[Job], error: BaseException, leader: Job) -> None:
        """Settle every job of a call that raised, was stopped or timed out."""
        for job in jobs:
            match job.why:
                case _ if job.timed_out:
                    self._end(job, *timed_out(job, error.__cause__ or error))
                case CancelReason.CANCEL:
                    self._end(job, error, Stopped())
                case None if leader.why is None:
                    self._end(job, error, raised(error, job))
                case _:
                    # Another job of the call was stopped: given back, not charged.
                    self._end(job, error, interrupted(job, begun=leader.began))

    def _settle_one(self, job: Job, result: Any) -> None:  # noqa: ANN401
        if isinstance(result, Failed):
            self._end(job, result.error, raised(result.error, job))
        elif isinstance(result, BaseException):
            self._end(job, result, raised(result, job))
        else:
            self._end(job, result, succeeded(job, result))

    def _end(self, job: Job, value: Any, outcome: Outcome) -> None:  # noqa: ANN401
        self.calls.pop(job, None)
        self._owner.finished(job, value, outcome)
        self._owner.schedule.kick()
