"""Batch tasks: several leased tasks in one call, each settled on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.settle import Stopped
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.worker.job import BatchShape, CancelReason, Handler, Job, current_job
from millpond.runtime.worker.outcome import Unreadable, raised
from millpond.runtime.worker.slot import interrupted, succeeded, timed_out

if TYPE_CHECKING:
    import asyncio

    from millpond.runtime.worker.worker import Worker


class Failed:
    """One item of a batch that failed; the others go their own way."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | str) -> None:
        self.error = error if isinstance(error, BaseException) else RuntimeError(error)

    def __repr__(self) -> str:
        return f"Failed({self.error!r})"


class Batches:
    """Gathers the jobs of batch functions until a batch is full or its first has waited enough."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._gathering: dict[str, list[Job]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._calls: dict[Job, Job] = {}
        """Each job at work -> the job that leads its call."""

    def add(self, job: Job, shape: BatchShape) -> None:
        """Take a job into the batch that is being gathered."""
        name = job.leased.call.function
        waiting = self._gathering.setdefault(name, [])
        waiting.append(job)
        if len(waiting) >= shape.size:
            self._send(name, shape)
        elif len(waiting) == 1:
            self._timers[name] = self._worker.loop.call_later(shape.linger, self._send, name, shape)

    def stop(self, job: Job, *, interrupt: bool) -> None:
        """Take a job that is still being gathered out of its batch; interrupt one at work."""
        name = job.leased.call.function
        if job in self._gathering.get(name, ()):
            self._gathering[name].remove(job)
            if not self._gathering[name]:
                # The next to come is the first again, and waits its own time.
                self._timers.pop(name).cancel()
            self._end(job, None, interrupted(job, begun=False))
            return
        if not interrupt:
            return
        leader = self._calls.get(job)
        if leader is not None:
            leader.why = job.why
            leader.timed_out = leader.timed_out or job.timed_out
            if leader.slot is not None:
                leader.slot.interrupt(leader)
            else:
                leader.stopped_early = True

    def began(self, job: Job) -> bool:
        """Return whether the call that a job is part of was made."""
        leader = self._calls.get(job)
        return leader is not None and leader.began

    def _send(self, name: str, shape: BatchShape) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        jobs, items = self._read(self._gathering.pop(name, []), shape)
        if not jobs:
            return
        body = jobs[0].body
        assert isinstance(body, Handler)  # noqa: S101 - closures are never gathered
        leader = Job(
            jobs[0].leased,
            self._worker,
            BatchCall(self, jobs, items, shape, body),
            jobs[0].started_at,
        )
        for job in jobs:
            self._calls[job] = leader
            self._worker.time(job)
        context = leader.context = self._worker.runtime.context.copy()
        context.run(current_job.set, jobs[0])
        self._worker.ready.append(leader)
        self._worker.wake_slots()

    def _read(self, jobs: list[Job], shape: BatchShape) -> tuple[list[Job], list[Any]]:
        """Return the jobs that can be read, and their items; the others are set aside."""
        readable, items = [], []
        for job in jobs:
            try:
                items.append(shape.read(job))
                readable.append(job)
            except Unreadable as error:
                self._end(job, error, self._worker.unreadable(job, error))
            except BaseException as error:
                # A class of the user's that exits while it is read: its own task fails.
                if is_ctrl_c(error):
                    raise
                self._end(job, error, raised(error, job))
        return readable, items

    def settle(self, jobs: list[Job], given: Any) -> None:  # noqa: ANN401 - what the handler gave
        """Settle each job of a call by its own result."""
        results = given if isinstance(given, list) else None
        wrong = None
        if results is None or len(results) != len(jobs):
            count = "no list" if results is None else f"{len(results)} results"
            wrong = TypeError(f"a batch of {len(jobs)} gave {count}; give one result per item")
        for index, job in enumerate(jobs):
            result = wrong if results is None or wrong is not None else results[index]
            self._settle_one(job, result)

    def fail(self, jobs: list[Job], error: BaseException, leader: Job) -> None:
        """Settle every job of a call that raised, was stopped or ran for too long."""
        for job in jobs:
            match job.why:
                case _ if job.timed_out:
                    self._end(job, *timed_out(job, error.__cause__ or error))
                case CancelReason.CANCEL:
                    self._end(job, error, Stopped())
                case None if leader.why is None:
                    self._end(job, error, raised(error, job))
                case _:
                    # Stopped on another's account: given back, not charged.
                    self._end(job, error, interrupted(job, begun=leader.began))

    def _settle_one(self, job: Job, result: Any) -> None:  # noqa: ANN401
        if isinstance(result, Failed):
            self._end(job, result.error, raised(result.error, job))
        elif isinstance(result, BaseException):
            self._end(job, result, raised(result, job))
        else:
            self._end(job, result, succeeded(job, result))

    def _end(self, job: Job, value: Any, outcome: Any) -> None:  # noqa: ANN401
        self._calls.pop(job, None)
        self._worker.finished(job, value, outcome)
        self._worker.kick()


class BatchCall(Handler):
    """The one call made for a batch: it looks like a handler and settles each job itself."""

    __slots__ = ("_batches", "_items", "_shape", "jobs")

    def __init__(
        self,
        batches: Batches,
        jobs: list[Job],
        items: list[Any],
        shape: BatchShape,
        body: Handler,
    ) -> None:
        super().__init__(body.name, body.where, self._invoke, lambda _: b"", body.retry)
        self._batches = batches
        self.jobs = jobs
        self._items = items
        self._shape = shape

    def _invoke(self, _leader: Job) -> Any:  # noqa: ANN401
        return self._shape.call(self.jobs, self._items)

    def over(self, leader: Job, value: Any, *, failed: bool) -> None:  # noqa: ANN401
        """Settle the jobs of this call."""
        if failed:
            self._batches.fail(self.jobs, value, leader)
        else:
            self._batches.settle(self.jobs, value)
