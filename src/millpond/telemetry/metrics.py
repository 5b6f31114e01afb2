"""OpenTelemetry metrics: counters of this process, and gauges read from the store on export."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import CallbackOptions, Observation

from millpond.core.settle import Raised
from millpond.runtime.observe.probe import Probe, pool_of
from millpond.telemetry import names
from millpond.telemetry.names import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opentelemetry.metrics import Histogram, Meter

    from millpond.core.settle import Outcome
    from millpond.core.task import NewTask
    from millpond.runtime.jobs.job import Job
    from millpond.store.protocol import BatchAnswer
    from millpond.telemetry.store_reader import PoolReading, Reader

    Values = Callable[[PoolReading], Iterable[tuple[str, float]]]

MOST_POOLS, MOST_FUNCTIONS, MOST_ERRORS = 100, 100, 100
"""How many pools or functions have their own series; the others share one."""


class Metering(Probe):
    """Metrics of this process, and gauges that read the store on each export."""

    def __init__(self, meter: Meter, reader: Reader) -> None:
        self.on = True
        self._reader = reader
        self._pool = names.Few(MOST_POOLS)
        self._function = names.Few(MOST_FUNCTIONS)
        self._error = names.Few(MOST_ERRORS)
        self._submits = _seconds(meter, names.SUBMIT_SECONDS, "How long submits took")
        self._waits = _seconds(
            meter, names.WAIT_SECONDS, "How long tasks waited, from due to start"
        )
        self._runs = _seconds(meter, names.RUN_SECONDS, "How long handlers ran")
        self._sent = meter.create_counter(names.SENT, "{message}", "Tasks that were stored")
        self._consumed = meter.create_counter(
            names.CONSUMED, "{message}", "Attempts, by how they ended"
        )
        self._rejected = meter.create_counter(
            names.REJECTED, "{message}", "Tasks that were refused or dropped, by reason"
        )
        self._lost = meter.create_counter(
            names.LEASES_LOST, "{lease}", "Leases of running tasks that this process lost"
        )
        self._recovered = meter.create_counter(
            names.RECOVERED, "{message}", "Tasks of dead workers, or too late, that were moved on"
        )
        self._observe(meter)

    def _observe(self, meter: Meter) -> None:
        """Register the gauges and counters that read the store on each export."""
        for name, unit, about, values in _GAUGES:
            meter.create_observable_gauge(name, [self._callback(values)], unit, about)
        for name, unit, about, values in _COUNTERS:
            meter.create_observable_counter(name, [self._callback(values)], unit, about)
        meter.create_observable_counter(
            names.DETOURS,
            [self._detours],
            "{call}",
            "Verbs of this process that left the fast path of PostgreSQL, by verb and reason",
        )

    def _callback(self, values: Values) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_options: CallbackOptions) -> Iterable[Observation]:
            reading = self._reader.read() if self.on else None
            for pool in () if reading is None else reading.pools:
                for state, number in values(pool):
                    attributes = {names.SYSTEM: names.MILLPOND, names.POOL: pool.name}
                    yield Observation(number, attributes | ({names.STATE: state} if state else {}))

        return observed

    def _detours(self, _options: CallbackOptions) -> Iterable[Observation]:
        reading = self._reader.read() if self.on else None
        for (verb, reason), count in ({} if reading is None else reading.detours).items():
            labels = {names.SYSTEM: names.MILLPOND, names.VERB: verb, names.REASON: reason}
            yield Observation(count, labels)

    def submitting(self, pool: str, count: int) -> tuple[str, float]:  # noqa: ARG002
        """Return the pool and the start time of a submit."""
        return pool, time.perf_counter()

    def submitted(
        self,
        begun: tuple[str, float] | None,
        tasks: Sequence[NewTask],  # noqa: ARG002 - stored tasks are counted elsewhere
        answer: BatchAnswer | None,
        error: BaseException | None,
    ) -> None:
        """Record how long a submit took."""
        if begun is None:
            return
        pool, at = begun
        attributes = self._about(pool, names.SUBMIT) | {names.OPERATION_TYPE: names.SEND}
        if answer is not None and answer.refusal is not None:
            attributes[names.ERROR] = str(answer.refusal.reason)
        elif error is not None:
            attributes[names.ERROR] = self._error(kind_of(error))
        self._submits.record(time.perf_counter() - at, attributes)

    def accepted(self, pool: str, count: int) -> None:
        """Count tasks that were stored."""
        self._sent.add(count, self._about(pool, names.SUBMIT))

    def rejected(self, pool: str, reason: str, count: int) -> None:
        """Count tasks that were refused or dropped."""
        self._rejected.add(count, self._about(pool, names.SUBMIT) | {names.REASON: reason})

    def began(self, job: Job, jobs: Sequence[Job], waited: Sequence[float]) -> None:  # noqa: ARG002
        """Record how long tasks waited."""
        attributes = self._about(pool_of(job.leased), names.PROCESS)
        for one in waited:
            self._waits.record(one, attributes)

    def over(
        self,
        job: Job,
        jobs: Sequence[Job],  # noqa: ARG002
        seconds: float,
        value: Any,  # noqa: ANN401
        outcome: Outcome,
    ) -> None:
        """Record how long a handler ran."""
        attributes = self._about(pool_of(job.leased), names.PROCESS) | self._of_function(job)
        if isinstance(outcome, Raised):
            attributes[names.ERROR] = self._error(kind_of(value))
        self._runs.record(seconds, attributes)

    def settled(self, job: Job, ended: str) -> None:
        """Count an attempt."""
        attributes = self._about(pool_of(job.leased), names.PROCESS) | self._of_function(job)
        self._consumed.add(1, attributes | {names.OUTCOME: ended})

    def lost(self, pool: str, count: int) -> None:
        """Count lost leases."""
        self._lost.add(count, self._about(pool, names.PROCESS))

    def recovered(self, count: int) -> None:
        """Count recovered tasks."""
        self._recovered.add(count, {names.SYSTEM: names.MILLPOND})

    def _about(self, pool: str, operation: str) -> dict[str, str]:
        return {
            names.SYSTEM: names.MILLPOND,
            names.OPERATION: operation,
            names.POOL: self._pool(pool),
        }

    def _of_function(self, job: Job) -> dict[str, str]:
        return {names.FUNCTION: self._function(job.leased.call.function)}


def _seconds(meter: Meter, name: str, about: str) -> Histogram:
    return meter.create_histogram(
        name, "s", about, explicit_bucket_boundaries_advisory=names.SECONDS
    )


_GAUGES: tuple[tuple[str, str, str, Values], ...] = (
    (names.TASKS, "{message}", "Tasks that wait or run, by state", lambda one: one.states()),
    (names.OLDEST, "s", "Age of the oldest task that waits", lambda one: [("", one.oldest)]),
    (
        names.LIMIT,
        "{message}",
        "How many may run at once",
        lambda one: [("", one.view.spec.max_concurrent)],
    ),
    (
        names.WANTED_SLOTS,
        "{slot}",
        "How many worker slots the backlog could use now: the figure for an autoscaler",
        lambda one: [("", one.wanted_slots)],
    ),
    (
        names.DEAD,
        "{message}",
        "Failed tasks that are kept: what a redrive would bring back",
        lambda one: [("", one.view.dead)],
    ),
)
_COUNTERS: tuple[tuple[str, str, str, Values], ...] = (
    (
        names.ENDED,
        "{message}",
        "Tasks that ever ended, by status",
        lambda one: one.view.totals.items(),
    ),
    (
        names.STALE,
        "{message}",
        "Settlements that came too late",
        lambda one: [("", one.view.stale_settles)],
    ),
)
