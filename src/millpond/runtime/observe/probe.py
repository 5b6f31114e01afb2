"""Probes: telemetry is called while things happen.

An observer gets ends; a probe gets the begin and the end of each submit and attempt, so that it can
measure them and continue a trace in them. Without probes nothing is called: the runtime checks once
whether `hooks.probes` is set. The error of a probe is counted and changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from millpond.core.lifecycle import Status, Transition
from millpond.core.log_fields import about
from millpond.core.settle import Ending, RunEnding, Settled
from millpond.core.task import CALLBACKS
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.jobs.batch_call import BatchCall
from millpond.runtime.jobs.policy import Carried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from millpond.core.lease import Leased
    from millpond.core.settle import Outcome, Settlement
    from millpond.core.task import NewTask
    from millpond.runtime.jobs.job import Job
    from millpond.store.protocol import Admission, BatchAnswer

log = logging.getLogger("millpond.hooks")

P = ParamSpec("P")
T = TypeVar("T")


class Probe:
    """Telemetry. Each method does nothing unless a subclass overrides it.

    The loop calls them; other threads also call those about a submit or a handler.
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
        """Return what a task that is made now carries to the process that runs it."""

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

    def trace_for_process(self, job: Job) -> dict[str, str] | None:
        """Return the trace that goes on in the process of a handler."""

    def inside(self, carrier: dict[str, str]) -> AbstractContextManager[object] | None:
        """Return a block in which that trace goes on, in the process of a handler."""

    def lost(self, pool: str, count: int) -> None:
        """A worker of this process lost the leases of running tasks."""

    def recovered(self, count: int) -> None:
        """Tasks were moved on by this process that others had lost, or that were too late."""

    def closing(self) -> None:
        """The Millpond closes: what is under way now is not reported any more."""


class Probes:
    """All attached probes: each is called, whatever the others raise."""

    def __init__(self, attached: tuple[Probe, ...], count_error: Callable[[], None]) -> None:
        self.attached = attached
        self._count_error = count_error

    def _guarded(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            self._count_error()
            log.exception(
                "telemetry failed; it is counted and otherwise ignored",
                extra=about("telemetry.failed", reason=type(error).__name__),
            )
            return None

    # Submits

    def carrier(self) -> dict[str, str]:
        """Return what a task that is made now is to carry."""
        return _merged(self._guarded(probe.carrier) for probe in self.attached)

    def submitting(self, pool: str, count: int) -> list[Any]:
        """Report the beginning of a submit."""
        return [self._guarded(probe.submitting, pool, count) for probe in self.attached]

    def submitted(
        self,
        pool: str,
        begun: list[Any],
        tasks: Sequence[NewTask],
        answer: BatchAnswer | None,
        error: BaseException | None,
    ) -> None:
        """Report the end of a submit, to the last attached probe first: they nest."""
        for probe, token in zip(reversed(self.attached), reversed(begun), strict=True):
            self._guarded(probe.submitted, token, tasks, answer, error)
        if answer is None:
            return
        if answer.refusal is not None:
            self.rejected(pool, str(answer.refusal.reason), len(tasks))
            return
        self.stored(pool, answer.admissions)

    def stored(self, pool: str, admissions: Sequence[Admission]) -> None:
        """Report which tasks the store took or refused; duplicates are left out."""
        fates = Counter(
            one.reason if one.status is Status.REJECTED else None
            for one in admissions
            if not one.duplicate
        )
        for reason, count in fates.items():
            if reason is None:
                for probe in self.attached:
                    self._guarded(probe.accepted, pool, count)
            else:
                self.rejected(pool, reason, count)

    def rejected(self, pool: str, reason: str, count: int) -> None:
        """Report tasks that were refused or dropped."""
        for probe in self.attached:
            self._guarded(probe.rejected, pool, reason, count)

    # Attempts

    def began(self, job: Job) -> None:
        """Report that a handler is about to be called."""
        job.began_at = job.worker.env.steady()
        jobs = _jobs_of(job)
        waited = [_waited(one) for one in jobs]
        for probe in self.attached:
            self._guarded(probe.began, job, jobs, waited)

    def over(self, job: Job, value: Any, outcome: Outcome) -> None:  # noqa: ANN401
        """Report that a handler has returned or raised."""
        seconds = max(job.worker.env.steady() - job.began_at, 0.0)
        jobs = _jobs_of(job)
        for probe in self.attached:
            self._guarded(probe.over, job, jobs, seconds, value, outcome)

    def settled(
        self, job: Job, decided: Settlement, settled: Settled, after: Status | None
    ) -> None:
        """Report how an attempt ended."""
        ended = _ended(decided, settled, after)
        for probe in self.attached:
            self._guarded(probe.settled, job, ended)

    def trace_for_process(self, job: Job) -> dict[str, str]:
        """Return the trace that goes on in the process of a handler."""
        return _merged(self._guarded(probe.trace_for_process, job) for probe in self.attached)

    @contextlib.contextmanager
    def inside(self, carrier: dict[str, str]) -> Iterator[None]:
        """Let the trace of an attempt go on in the process of its handler."""
        with contextlib.ExitStack() as stack:
            for probe in self.attached:
                block = self._guarded(probe.inside, carrier)
                if block is not None:
                    stack.enter_context(block)
            yield

    # Trouble

    def lost(self, jobs: Iterable[Job]) -> None:
        """Report running jobs whose leases were lost."""
        lost = Counter(pool_of(job.leased) for job in jobs)
        for pool, count in lost.items():
            for probe in self.attached:
                self._guarded(probe.lost, pool, count)

    def recovered(self, count: int) -> None:
        """Report lost or late tasks that this process moved on."""
        if count:
            for probe in self.attached:
                self._guarded(probe.recovered, count)

    def closing(self) -> None:
        """Report that the Millpond closes."""
        for probe in self.attached:
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
            ending = msgspec.msgpack.decode(options, type=Ending | RunEnding)
            options = ending.options if isinstance(ending, Ending) else b""
        return msgspec.msgpack.decode(options, type=Carried).trace if options else {}
    except msgspec.MsgspecError:
        # Unreadable bytes count as nothing.
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
        raised = None if self._answer is not None else error
        self._probes.submitted(self._pool, self._begun, self._tasks, self._answer, raised)


class _Unwatched(Submission):
    """A submit without telemetry."""

    __slots__ = ()

    def __init__(self) -> None:
        """Keep nothing."""

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


def submission(probes: Probes | None, pool: str, count: int) -> Submission:
    """Return the block around a submit; without a probe it does nothing."""
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
