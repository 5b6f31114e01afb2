"""Spans: one for each submit, one for each attempt, the second linked to the first."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import context as trace_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from millpond.core.settle import Interrupted, Raised, Stopped, Succeeded
from millpond.runtime.jobs.batch_call import BatchCall
from millpond.runtime.observe.probe import Probe, carried_by, pool_of
from millpond.telemetry import names
from millpond.telemetry.names import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.trace import Span

    from millpond.core.settle import Outcome
    from millpond.core.task import NewTask
    from millpond.runtime.jobs.job import Job
    from millpond.store.protocol import BatchAnswer

LARGEST = 4096
"""Most bytes of trace context that a task carries; a longer one is cut to NEEDED."""

NEEDED = ("traceparent", "tracestate")


class Attempt:
    """The span of an attempt. It ends when its handler ends, and records how it was settled."""

    __slots__ = ("ended", "ended_at", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.ended_at: int | None = None
        self.ended: str | None = None

    def end(self) -> None:
        """End the span at the recorded time."""
        if self.ended is not None:
            self.span.set_attribute(names.OUTCOME, self.ended)
        self.span.end(end_time=self.ended_at)


class Tracing(Probe):
    """Creates the spans of submits and attempts."""

    def __init__(self, tracer: trace.Tracer, one_trace: bool) -> None:
        self._tracer = tracer
        self._one_trace = one_trace
        self._attempts: dict[Job, Attempt] = {}

    # Submits

    def submitting(self, pool: str, count: int) -> tuple[Span, Any]:
        """Begin the span of a submit; tasks are created inside."""
        attributes: dict[str, Any] = _about(pool, names.SUBMIT, names.SEND)
        if count != 1:
            attributes[names.COUNT] = count
        span = self._tracer.start_span(
            f"{names.SUBMIT} {names.plain_name(pool)}",
            kind=SpanKind.PRODUCER,
            attributes=attributes,
        )
        return span, trace_context.attach(trace.set_span_in_context(span))

    def submitted(
        self,
        begun: tuple[Span, Any] | None,
        tasks: Sequence[NewTask],
        answer: BatchAnswer | None,
        error: BaseException | None,
    ) -> None:
        """End the span of a submit."""
        if begun is None:
            return
        span, token = begun
        trace_context.detach(token)
        if span.is_recording():
            if len(tasks) == 1:
                span.set_attributes(_of_task(tasks[0]))
            if answer is not None:
                _record_answer(span, answer)
            elif error is not None:
                _record_error(span, error)
        span.end()

    def carrier(self) -> dict[str, str]:
        """Return the current trace context as headers."""
        carried: dict[str, str] = {}
        propagate.inject(carried)
        if sum(len(name) + len(value) for name, value in carried.items()) > LARGEST:
            return {name: value for name, value in carried.items() if name in NEEDED}
        return carried

    # Attempts

    def began(self, job: Job, jobs: Sequence[Job], waited: Sequence[float]) -> None:
        """Begin the span of an attempt, and let its handler run inside."""
        pool = pool_of(job.leased)
        origins = [propagate.extract(carried_by(one.leased), context=Context()) for one in jobs]
        alone = origins[0] if len(origins) == 1 else Context()
        span = self._tracer.start_span(
            f"{names.PROCESS} {names.plain_name(pool)}",
            context=alone if self._one_trace else Context(),
            kind=SpanKind.CONSUMER,
            attributes=_about(pool, names.PROCESS, names.PROCESS) | _of_job(job, jobs, waited),
            links=list(_links(origins)),
        )
        job.context.run(trace_context.attach, trace.set_span_in_context(span, alone))
        self._attempts[job] = Attempt(span)

    def over(
        self,
        job: Job,
        jobs: Sequence[Job],  # noqa: ARG002 - used by metrics
        seconds: float,  # noqa: ARG002
        value: Any,  # noqa: ANN401 - what the handler returned or raised
        outcome: Outcome,
    ) -> None:
        """Record when the handler ended, and the exception it raised."""
        attempt = self._attempts.get(job)
        if attempt is None:
            return
        attempt.ended_at = time.time_ns()
        match outcome:
            case Raised() if isinstance(value, BaseException):
                _record_error(attempt.span, value)
            case Raised():
                attempt.span.set_status(Status(StatusCode.ERROR, outcome.reason))
            case Stopped() | Interrupted() if isinstance(value, BaseException):
                # Cancelled on request: not an error.
                attempt.span.add_event("interrupted")
        if isinstance(job.body, BatchCall) and attempt.ended is None:
            attempt.ended = "completed" if isinstance(outcome, Succeeded) else "failed"
        if attempt.ended is not None:
            self._end(job)

    def settled(self, job: Job, ended: str) -> None:
        """Record the outcome of the attempt; end its span unless the handler still runs."""
        attempt = self._attempts.get(job)
        if attempt is None:
            return
        attempt.ended = ended
        if ended == "stale":
            attempt.span.set_attribute(names.ERROR, "stale")
            attempt.span.set_status(Status(StatusCode.ERROR, "settled too late: nothing changed"))
        if attempt.ended_at is not None or not job.committed:
            self._end(job)

    def _end(self, job: Job) -> None:
        self._attempts.pop(job).end()

    def trace_for_process(self, job: Job) -> dict[str, str] | None:
        """Return the trace context for a handler in a child process."""
        attempt = self._attempts.get(job)
        if attempt is None:
            return None
        carried: dict[str, str] = {}
        job.context.run(propagate.inject, carried)
        return carried

    @contextlib.contextmanager
    def inside(self, carrier: dict[str, str]) -> Iterator[None]:
        """Continue a trace."""
        token = trace_context.attach(propagate.extract(carrier, context=Context()))
        try:
            yield
        finally:
            trace_context.detach(token)

    def closing(self) -> None:
        """End the spans of attempts that will not be settled."""
        for job in list(self._attempts):
            self._end(job)


def _about(pool: str, operation: str, kind: str) -> dict[str, Any]:
    return {
        names.SYSTEM: names.MILLPOND,
        names.OPERATION: operation,
        names.OPERATION_TYPE: kind,
        names.POOL: pool,
    }


def _of_task(new: NewTask) -> dict[str, Any]:
    attributes: dict[str, Any] = {names.TASK: str(new.id), names.FUNCTION: new.call.function}
    if new.key is not None:
        attributes[names.KEY] = new.key
    return attributes


def _of_job(job: Job, jobs: Sequence[Job], waited: Sequence[float]) -> dict[str, Any]:
    leased = job.leased
    attributes: dict[str, Any] = {
        names.FUNCTION: leased.call.function,
        names.WORKER: job.worker.name,
        names.WAITED: max(waited),
    }
    if len(jobs) > 1 or isinstance(job.body, BatchCall):
        return attributes | {names.COUNT: len(jobs)}
    attributes |= {names.TASK: str(leased.fence.task), names.ATTEMPT: leased.fence.attempt}
    if leased.key is not None:
        attributes[names.KEY] = leased.key
    if leased.lane is not None:
        attributes[names.LANE] = leased.lane
    return attributes


def _links(origins: Sequence[Context]) -> Iterator[Link]:
    """Yield a link to the submit span of each task; tasks of one submit share one."""
    seen = set()
    for origin in origins:
        found = trace.get_current_span(origin).get_span_context()
        if found.is_valid and (found.trace_id, found.span_id) not in seen:
            seen.add((found.trace_id, found.span_id))
            yield Link(found)


def _record_answer(span: Span, answer: BatchAnswer) -> None:
    refusal = answer.refusal
    if refusal is not None:
        span.set_attributes({names.ERROR: str(refusal.reason), names.REASON: str(refusal.reason)})
        span.set_status(Status(StatusCode.ERROR, f"refused: {refusal.reason}"))
        return
    if len(answer.admissions) == 1:
        admission = answer.admissions[0]
        span.set_attribute(names.TASK, str(admission.task))
        if admission.duplicate:
            span.set_attribute(names.DUPLICATE, value=True)
    reasons = {one.reason for one in answer.admissions if one.status == "rejected" and one.reason}
    if reasons:
        span.set_attribute(names.REASON, ", ".join(sorted(reasons)))


def _record_error(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute(names.ERROR, kind_of(error))
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:LARGEST]))
