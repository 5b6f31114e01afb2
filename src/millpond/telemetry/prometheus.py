"""Prometheus: a collector that reads the store when it is scraped.

    from prometheus_client import REGISTRY, start_http_server

    from millpond.telemetry.prometheus import Collector

    REGISTRY.register(Collector(mp))
    start_http_server(9464)

Series have the labels `pool`, and where it says so `function`, `state`, `status`, `outcome`,
`reason`, `verb`, `quantile` and `kind`. Keys, tasks and workers are never labels: ten thousand keys
are as many series as one. Of pools and functions the first hundred have a label of their own.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any

from millpond.core.lifecycle import Status
from millpond.core.validation import Seconds, integer, seconds
from millpond.errors import DriverMissing
from millpond.pool.internals import internals_of
from millpond.runtime.observe.probe import Probe, pool_of
from millpond.telemetry import names
from millpond.telemetry.store_reader import Reader, Reading, read

try:
    from prometheus_client import generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector as BaseCollector
except ImportError as missing:
    raise DriverMissing(
        "prometheus-client is not installed: pip install 'millpond[prometheus]'",
        extra="prometheus",
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millpond.core.quantiles import Quantiles
    from millpond.core.settle import Outcome
    from millpond.pool.millpond import Millpond
    from millpond.runtime.jobs.job import Job
    from millpond.runtime.observe.hooks import Counts
    from millpond.telemetry.store_reader import PoolReading

ENDS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.REJECTED)

TROUBLES = (
    "hook_errors",
    "observer_errors",
    "unknown_functions",
    "unfit_arguments",
    "corrupt",
    "mended",
    "stuck",
    "stalls",
)
"""Further fields of `mp.counts` that should stay at zero."""


class Collector(BaseCollector):
    """Metrics of one Millpond. Register it; each scrape reads the store.

    What the store knows (`millpond_pool_*`) is read then, and is the same in every process that
    shares it: take the maximum over instances. What this process counted itself is its own: sum it.
    A store that does not answer within `timeout` seconds leaves out its part, and `millpond_up`
    says 0.
    """

    def __init__(
        self,
        mp: Millpond,
        *,
        timeout: Seconds = 5.0,
        max_pools: int = 100,
        max_functions: int = 100,
    ) -> None:
        self._mp = mp
        self._most = integer("max_pools", max_pools, least=1)
        self._patience = seconds("timeout", timeout, above=0.0)
        self._reader = Reader(mp, self._most, self._patience)
        self._counted = Counted(self._most, integer("max_functions", max_functions, least=1))
        self.stop = internals_of(mp).owner.hooks.attach(self._counted)
        """Stops the counting."""

    def describe(self) -> Iterable[Metric]:
        """Return the metric families without reading the store; registries compare them."""
        return self._metrics(None)

    def collect(self) -> Iterable[Metric]:
        """Read the store and yield metrics; on the event loop's thread, use `text` instead."""
        if self._mp.is_open and internals_of(self._mp).runtime.thread == threading.get_ident():
            raise RuntimeError(
                "collect() was called on the event loop's thread, which has to read the store: "
                "`await collector.text()` there, or serve them from a thread"
            )
        return self._metrics(self._reader.read())

    async def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus, for an HTTP response."""
        reading = None
        if self._mp.is_open:
            try:
                async with asyncio.timeout(self._patience):
                    reading = await read(self._mp, self._most)
            except Exception:  # noqa: BLE001 - an unreachable store must not break a scrape
                reading = None
        return generate_latest(_Given(list(self._metrics(reading))))

    def _metrics(self, reading: Reading | None) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "millpond_up", "Whether the store could be read", value=reading is not None
        )
        yield from _of_store(reading or Reading())
        self._counted.know([one.name for one in reading.pools] if reading is not None else [])
        yield from self._counted.metrics()
        yield _troubles(self._mp.counts)


class _Given:
    """A registry of metrics that are already collected."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


# Read from the store


def _of_store(reading: Reading) -> Iterator[Metric]:
    pools = reading.pools
    yield GaugeMetricFamily("millpond_workers", "Workers of the store", value=reading.workers)
    yield GaugeMetricFamily(
        "millpond_pools_left_out",
        "Pools beyond max_pools, which are not read",
        value=reading.left_out,
    )
    detours = CounterMetricFamily(
        "millpond_detours",
        "Verbs of this process that left the fast path of PostgreSQL",
        labels=["verb", "reason"],
    )
    for (verb, reason), count in reading.detours.items():
        detours.add_metric([verb, reason], count)
    yield detours
    yield _gauge(
        pools, "millpond_pool_tasks", "Tasks that wait or run", ["state"], lambda one: one.states()
    )
    for name, about, values_of in _GAUGES:
        yield _gauge(pools, name, about, [], values_of)
    for name, about, pick in _QUANTILES:
        yield _gauge(pools, name, about, ["quantile"], lambda one, pick=pick: _quantiles(pick(one)))  # type: ignore[misc]
    ended = CounterMetricFamily(
        "millpond_pool_ended_tasks", "Tasks that ever ended", labels=["pool", "status"]
    )
    stale = CounterMetricFamily(
        "millpond_pool_stale_settles",
        "Settlements that came too late and changed nothing",
        labels=["pool"],
    )
    for one in pools:
        for status in ENDS:
            ended.add_metric([one.name, str(status)], one.view.totals.get(status, 0))
        stale.add_metric([one.name], one.view.stale_settles)
    yield ended
    yield stale


def _gauge(
    pools: Sequence[PoolReading],
    name: str,
    about: str,
    labels: list[str],
    values_of: Callable[[PoolReading], Iterable[tuple[str, float]]],
) -> Metric:
    gauge = GaugeMetricFamily(name, about, labels=["pool", *labels])
    for one in pools:
        for label, value in values_of(one):
            gauge.add_metric([one.name, label][: 1 + len(labels)], value)
    return gauge


def _bound(one: PoolReading) -> Iterator[tuple[str, float]]:
    policy = one.view.spec.backpressure
    if policy is not None and policy.depth is not None:
        yield "", policy.depth


_GAUGES: tuple[tuple[str, str, Callable[[PoolReading], Iterable[tuple[str, float]]]], ...] = (
    (
        "millpond_pool_oldest_waiting_seconds",
        "Age of the oldest task that waits, scheduled ones included; 0 if none does",
        lambda one: [("", one.oldest)],
    ),
    (
        "millpond_pool_dead_tasks",
        "Failed tasks that are kept: what a redrive would bring back",
        lambda one: [("", one.view.dead)],
    ),
    (
        "millpond_pool_callbacks",
        "Callbacks that wait or run",
        lambda one: [("", one.callbacks)],
    ),
    (
        "millpond_pool_blocked_submitters",
        "Submitters of this process that wait for room",
        lambda one: [("", one.blocked)],
    ),
    (
        "millpond_pool_limit",
        "How many tasks may run at once, over all workers",
        lambda one: [("", one.view.spec.max_concurrent)],
    ),
    (
        "millpond_pool_wanted_slots",
        "How many worker slots the backlog could use now: the figure for an autoscaler",
        lambda one: [("", one.wanted_slots)],
    ),
    (
        "millpond_pool_bounded_tasks",
        "Tasks that count against the bound: from outside, and never claimed",
        lambda one: [("", one.view.fresh)],
    ),
    ("millpond_pool_bound", "How many of those there may be; absent without a bound", _bound),
    (
        "millpond_pool_paused",
        "Whether nothing of the pool starts",
        lambda one: [("", one.view.paused)],
    ),
)

_QUANTILES: tuple[tuple[str, str, Callable[[PoolReading], Quantiles]], ...] = (
    (
        "millpond_pool_wait_seconds",
        "From due to start, of the latest attempts of all workers",
        lambda one: one.view.waits,
    ),
    (
        "millpond_pool_run_seconds",
        "From start to end, of the latest attempts of all workers",
        lambda one: one.view.run_times,
    ),
)


def _quantiles(measured: Quantiles) -> Iterator[tuple[str, float]]:
    if measured.samples:
        yield "0.5", measured.p50
        yield "0.9", measured.p90
        yield "0.99", measured.p99


# Counted by this process


class Counted(Probe):
    """Counters of this process. The loop and threads add to them; any thread may read them."""

    def __init__(self, max_pools: int, max_functions: int) -> None:
        self._lock = threading.Lock()
        self._pool = names.Few(max_pools)
        self._function = names.Few(max_functions)
        self._submitted: Counter[tuple[str]] = Counter()
        self._rejected: Counter[tuple[str, str]] = Counter()
        self._attempts: Counter[tuple[str, str, str]] = Counter()
        self._lost: Counter[tuple[str]] = Counter()
        self._recovered = 0
        self._waits: dict[str, Spread] = {}
        self._runs: dict[str, Spread] = {}

    def accepted(self, pool: str, count: int) -> None:
        """Count tasks that were stored."""
        with self._lock:
            self._submitted[self._pool(pool),] += count

    def rejected(self, pool: str, reason: str, count: int) -> None:
        """Count tasks that were refused or dropped."""
        with self._lock:
            self._rejected[self._pool(pool), reason] += count

    def began(self, job: Job, jobs: Sequence[Job], waited: Sequence[float]) -> None:  # noqa: ARG002
        """Add the waits of tasks."""
        with self._lock:
            spread = self._waits.setdefault(self._pool(pool_of(job.leased)), Spread())
            for seconds in waited:
                spread.add(seconds)

    def over(
        self,
        job: Job,
        jobs: Sequence[Job],
        seconds: float,
        value: Any,  # noqa: ANN401, ARG002 - what the handler returned or raised
        outcome: Outcome,  # noqa: ARG002
    ) -> None:
        """Add the run time of a handler, for each task of a batch."""
        with self._lock:
            spread = self._runs.setdefault(self._pool(pool_of(job.leased)), Spread())
            for _ in jobs:
                spread.add(seconds)

    def settled(self, job: Job, ended: str) -> None:
        """Count an attempt."""
        pool, function = pool_of(job.leased), job.leased.call.function
        with self._lock:
            self._attempts[self._pool(pool), self._function(function), ended] += 1

    def lost(self, pool: str, count: int) -> None:
        """Count lost leases."""
        with self._lock:
            self._lost[self._pool(pool),] += count

    def recovered(self, count: int) -> None:
        """Count recovered tasks."""
        with self._lock:
            self._recovered += count

    def know(self, pools: Iterable[str]) -> None:
        """Create the counters of these pools at zero: a rate misses a counter's first value."""
        with self._lock:
            for pool in pools:
                for counts in (self._submitted, self._lost):
                    counts[self._pool(pool),] += 0

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics counted so far."""
        with self._lock:
            yield _counter(
                "millpond_submitted_tasks",
                "Tasks that this process stored",
                ["pool"],
                self._submitted,
            )
            yield _counter(
                "millpond_rejected_tasks",
                "Tasks of this process that were refused or dropped",
                ["pool", "reason"],
                self._rejected,
            )
            yield _counter(
                "millpond_attempts",
                "Attempts of this process, by how they ended",
                ["pool", "function", "outcome"],
                self._attempts,
            )
            yield _counter(
                "millpond_lost_leases",
                "Leases of running tasks that workers of this process lost",
                ["pool"],
                self._lost,
            )
            yield CounterMetricFamily(
                "millpond_recovered_tasks",
                "Tasks of dead workers, or too late to start, that this process moved on",
                value=self._recovered,
            )
            yield _histogram(
                "millpond_task_wait_seconds",
                "From due to start, of attempts of this process",
                self._waits,
            )
            yield _histogram(
                "millpond_task_run_seconds",
                "How long handlers of this process ran",
                self._runs,
            )


class Spread:
    """How many of some measured times were within each bound."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(names.SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Add one time."""
        self.counts[bisect_left(names.SECONDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Yield the count within each bound; the last bound is infinity."""
        within = 0
        for bound, count in zip((*names.SECONDS, "+Inf"), self.counts, strict=True):
            within += count
            yield str(bound), within


def _counter(name: str, about: str, labels: list[str], counts: Counter[Any]) -> Metric:
    counter = CounterMetricFamily(name, about, labels=labels)
    for values, count in counts.items():
        counter.add_metric(values, count)
    return counter


def _histogram(name: str, about: str, spreads: dict[str, Spread]) -> Metric:
    histogram = HistogramMetricFamily(name, about, labels=["pool"])
    for pool, spread in spreads.items():
        histogram.add_metric([pool], list(spread.buckets()), spread.total)
    return histogram


def _troubles(counts: Counts) -> Metric:
    troubles = CounterMetricFamily(
        "millpond_troubles", "What should not happen, and did in this process", labels=["kind"]
    )
    for kind in TROUBLES:
        troubles.add_metric([kind], getattr(counts, kind))
    return troubles
