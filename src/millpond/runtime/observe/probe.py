"""Probes: telemetry is told what happens while it happens, and keeps its own books.

An observer hears of ends; a probe sees both sides of a submit and of an attempt, so that it can
measure them and have a trace go on in them. Where there is none, nothing is called: the runtime
asks once whether `hooks.probes` is there. What a probe raises is counted and changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from millpond.core.lifecycle import Status, Transition
from millpond.core.settle import Ending, Settled
from millpond.core.spec import OnFull
from millpond.core.task import CALLBACKS
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.worker.batch import BatchCall
from millpond.runtime.worker.outcome import Carried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from millpond.core.lease import Leased
    from millpond.core.settle import Outcome, Settlement
    from millpond.core.task import NewTask
    from millpond.runtime.observe.hooks import Hooks
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.job import Job
    from millpond.runtime.worker.worker import Worker
    from millpond.store.protocol import Admission, Batch, BatchAnswer, SubmitAnswer

log = logging.getLogger("millpond.hooks")

P = ParamSpec("P")
T = TypeVar("T")


class Probe:
    """Somebody who is told. Each method does nothing, unless it is given something to do.

    They are called from the loop, and those about a submit or a handler from other threads, too.
    """

    def submitting(self, pool: str, count: int) -> object:
        """A submit begins, and makes its tasks next; what this returns is given back at its end."""

    def submitted(
        self,
        begun: Any,  # noqa: ANN401 - what `submitting` returned
        tasks: Sequence[NewTask],
        answer: BatchAnswer | None,
        error: BaseException | None,
    ) -> None:
        """A submit is over; it has no answer where its tasks are stored later, with an outcome."""

    def carrier(self) -> dict[str, str] | None:
        """Return what a task that is made now is to carry to whoever runs it."""

    def accepted(self, pool: str, count: int) -> None:
        """Tasks were stored."""

    def rejected(self, pool: str, reason: str, count: int) -> None:
        """Tasks were refused, or dropped by a full queue."""

    def began(self, job: Job, jobs: Sequence[Job], waited: Sequence[float]) -> None:
        """A handler is about to be called for these jobs, after so many seconds in the queue."""

    def over(
        self,
        job: Job,
        jobs: Sequence[Job],
        seconds: float,
        value: Any,  # noqa: ANN401 - what the handler returned or raised
        outcome: Outcome,
    ) -> None:
        """A handler has returned or raised; how its attempt ended comes with `settled`."""

    def settled(self, job: Job, ended: str) -> None:
        """The store has answered: completed, failed, cancelled, retry, released or stale."""

    def handed_on(self, job: Job) -> dict[str, str] | None:
        """Return what the process of a handler is to know of the trace it is part of."""

    def inside(self, carrier: dict[str, str]) -> AbstractContextManager[object] | None:
        """Return a block in which that trace goes on, in the process of a handler."""

    def lost(self, pool: str, count: int) -> None:
        """A worker of this process lost the leases of running tasks."""

    def recovered(self, count: int) -> None:
        """Tasks were moved on by this process that others had lost, or that were too late."""

    def closing(self) -> None:
        """The Millpond closes: what is under way now is never heard of again."""


class Probes:
    """All of them: each is told, whatever the others do."""

    def __init__(self, told: tuple[Probe, ...], hooks: Hooks) -> None:
        self.told = told
        self._hooks = hooks

    def _guarded(self, tell: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return tell(*args, **kwargs)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            self._hooks.counts.observer_errors += 1
            log.exception("telemetry failed; it is counted and otherwise ignored")
            return None

    # Submits

    def carrier(self) -> dict[str, str]:
        """Return what a task that is made now is to carry."""
        return _merged(self._guarded(probe.carrier) for probe in self.told)

    def submitting(self, pool: str, count: int) -> list[Any]:
        """Tell of the beginning of a submit."""
        return [self._guarded(probe.submitting, pool, count) for probe in self.told]

    def submitted(
        self,
        pool: str,
        begun: list[Any],
        tasks: Sequence[NewTask],
        answer: BatchAnswer | None,
        error: BaseException | None,
    ) -> None:
        """Tell of its end, last begun first: one stands inside the other."""
        for probe, token in zip(reversed(self.told), reversed(begun), strict=True):
            self._guarded(probe.submitted, token, tasks, answer, error)
        if answer is None:
            return
        if answer.refusal is not None:
            self.rejected(pool, str(answer.refusal.reason), len(tasks))
            return
        self.stored(pool, answer.admissions)

    def stored(self, pool: str, admissions: Sequence[Admission]) -> None:
        """Tell what became of tasks that the store has decided about; known ones are no news."""
        fates = Counter(
            one.reason if one.status is Status.REJECTED else None
            for one in admissions
            if not one.duplicate
        )
        for reason, count in fates.items():
            if reason is None:
                for probe in self.told:
                    self._guarded(probe.accepted, pool, count)
            else:
                self.rejected(pool, reason, count)

    def rejected(self, pool: str, reason: str, count: int) -> None:
        """Tell of tasks that were refused or dropped."""
        for probe in self.told:
            self._guarded(probe.rejected, pool, reason, count)

    def evicted(self, runtime: Runtime, batches: Sequence[Batch], answer: SubmitAnswer) -> None:
        """Tell of tasks that had to make room for others, if there were any."""
        # One that its own batch was told of as queued may have been evicted by the next.
        told = {
            one.task
            for batch in answer.batches
            for one in batch.admissions
            if one.status is Status.REJECTED
        }
        gone = [task for task in answer.ended if task not in told]
        reasons = {
            pool: reason
            for pool in {batch.tasks[0].pool for batch in batches if batch.tasks}
            if (reason := _reason_to_evict(runtime, pool)) is not None
        }
        if not gone or not reasons:
            return
        if len(reasons) == 1:
            ((pool, reason),) = reasons.items()
            self.rejected(pool, reason, len(gone))
        else:
            runtime.spawn(self._look_up_evicted(runtime, gone))

    async def _look_up_evicted(self, runtime: Runtime, tasks: list[int]) -> None:
        """Ask whose they were: submits to several such pools went to the store together."""
        for task in tasks:
            record = await runtime.view.task(task)
            if record is not None and record.status is Status.REJECTED:
                self.rejected(record.new.pool, record.reason or "", 1)

    # Attempts

    def began(self, job: Job) -> None:
        """Tell that a handler is about to be called."""
        job.began_at = job.runtime.steady()
        jobs = _jobs_of(job)
        waited = [_waited(one) for one in jobs]
        for probe in self.told:
            self._guarded(probe.began, job, jobs, waited)

    def over(self, job: Job, value: Any, outcome: Outcome) -> None:  # noqa: ANN401
        """Tell that a handler has returned or raised."""
        seconds = max(job.runtime.steady() - job.began_at, 0.0)
        jobs = _jobs_of(job)
        for probe in self.told:
            self._guarded(probe.over, job, jobs, seconds, value, outcome)

    def settled(
        self, job: Job, decided: Settlement, settled: Settled, after: Status | None
    ) -> None:
        """Tell how an attempt ended."""
        ended = _ended(decided, settled, after)
        for probe in self.told:
            self._guarded(probe.settled, job, ended)

    def handed_on(self, job: Job) -> dict[str, str]:
        """Return what the process of a handler is to know of its trace."""
        return _merged(self._guarded(probe.handed_on, job) for probe in self.told)

    @contextlib.contextmanager
    def inside(self, carrier: dict[str, str]) -> Iterator[None]:
        """Let the trace of an attempt go on in the process of its handler."""
        with contextlib.ExitStack() as stack:
            for probe in self.told:
                block = self._guarded(probe.inside, carrier)
                if block is not None:
                    stack.enter_context(block)
            yield

    # Trouble

    def lost(self, worker: Worker) -> None:
        """Tell of the leases that a worker has lost."""
        lost = Counter(pool_of(job.leased) for job in worker.jobs.values())
        for pool, count in lost.items():
            for probe in self.told:
                self._guarded(probe.lost, pool, count)

    def recovered(self, count: int) -> None:
        """Tell of tasks that were moved on."""
        if count:
            for probe in self.told:
                self._guarded(probe.recovered, count)

    def closing(self) -> None:
        """Tell of the end of everything."""
        for probe in self.told:
            self._guarded(probe.closing)


def _merged(carriers: Iterable[dict[str, str] | None]) -> dict[str, str]:
    return {name: value for carrier in carriers if carrier for name, value in carrier.items()}


def pool_of(leased: Leased) -> str:
    """Return the pool of a task; that of a callback is the one it was made in."""
    return leased.pool.removesuffix(CALLBACKS)


def carried_by(leased: Leased) -> dict[str, str]:
    """Return what a task carries for telemetry; a callback, what the task before it carried."""
    options = leased.options
    try:
        if options and leased.pool.endswith(CALLBACKS):
            options = msgspec.msgpack.decode(options, type=Ending).options
        return msgspec.msgpack.decode(options, type=Carried).trace if options else {}
    except msgspec.MsgspecError:
        # What cannot be read is as good as nothing.
        return {}


class Submission:
    """One submit, from before its tasks are made until it is answered."""

    __slots__ = ("_answer", "_begun", "_count", "_pool", "_probes", "_tasks")

    def __init__(self, probes: Probes, pool: str, count: int) -> None:
        self._probes = probes
        self._pool = pool
        self._count = count
        self._begun: list[Any] = []
        self._tasks: Sequence[NewTask] = ()
        self._answer: BatchAnswer | None = None

    def __enter__(self) -> Self:
        self._begun = self._probes.submitting(self._pool, self._count)
        return self

    def made(self, tasks: Sequence[NewTask]) -> None:
        """Note the tasks that were made."""
        self._tasks = tasks

    def answered(self, answer: BatchAnswer) -> BatchAnswer:
        """Note the answer of the store."""
        self._answer = answer
        return answer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        told = None if self._answer is not None else error
        self._probes.submitted(self._pool, self._begun, self._tasks, self._answer, told)


class _Unwatched(Submission):
    """A submit of which nobody is told."""

    __slots__ = ()

    def __init__(self) -> None:
        """Know nothing."""

    def __enter__(self) -> Self:
        return self

    def made(self, tasks: Sequence[NewTask]) -> None:
        pass

    def answered(self, answer: BatchAnswer) -> BatchAnswer:
        return answer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


_UNWATCHED = _Unwatched()


def submission(runtime: Runtime, pool: str, count: int) -> Submission:
    """Return the block around a submit; with no probe it does nothing."""
    probes = runtime.hooks.probes
    return _UNWATCHED if probes is None else Submission(probes, pool, count)


def _jobs_of(job: Job) -> Sequence[Job]:
    """Return the jobs that a call of a handler is for: those of a batch, or the one."""
    body = job.body
    return body.jobs if isinstance(body, BatchCall) else (job,)


def _waited(job: Job) -> float:
    """Return for how long a task waited since it might have started."""
    leased = job.leased
    due = leased.submitted_at if leased.due is None else leased.due
    return max(job.started_at - due, 0.0)


def _ended(decided: Settlement, settled: Settled, after: Status | None) -> str:
    if settled is Settled.STALE:
        return "stale"
    if after is not None and after is not Status.QUEUED:
        return str(after)
    return "retry" if decided.event is Transition.RETRY else "released"


def _reason_to_evict(runtime: Runtime, pool: str) -> str | None:
    spec = runtime.declared.get(pool)
    policy = None if spec is None or spec.backpressure is None else spec.backpressure.on_full
    return _EVICTS.get(policy) if policy is not None else None


_EVICTS = {
    OnFull.DROP_OLDEST: "drop_oldest_queue_full",
    OnFull.RING_BUFFER: "ring_buffer_drop_oldest",
}
